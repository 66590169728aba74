//! The cost of a question and an answer between threads that do nothing else: the part of a
//! server's latency that no server can avoid unless its threads busy-poll.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread::JoinHandle,
};

use anyhow::{Context as _, Result};

/// A loopback connection whose other end answers so many bytes with so many.
pub(crate) struct Echo {
    stream: TcpStream,
    question: Vec<u8>,
    answer: Vec<u8>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn start(question: usize, answer: usize) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("a loopback port")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        let (other, _) = listener.accept()?;
        other.set_nodelay(true)?;
        let thread = std::thread::spawn(move || {
            // Ends with its connection, by any error.
            let _ = reply(other, vec![0; question], &vec![b'a'; answer]);
        });
        Ok(Self {
            stream,
            question: vec![b'q'; question],
            answer: vec![0; answer],
            thread: Some(thread),
        })
    }

    /// Sends a request, and waits for the answer.
    pub(crate) fn ask(&mut self) -> Result<()> {
        self.stream.write_all(&self.question)?;
        Ok(self.stream.read_exact(&mut self.answer)?)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // An error says that the connection is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // It has no panic of its own.
            let _ = thread.join();
        }
    }
}

fn reply(mut stream: TcpStream, mut question: Vec<u8>, answer: &[u8]) -> std::io::Result<()> {
    loop {
        stream.read_exact(&mut question)?;
        stream.write_all(answer)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_answered_and_threads_end() {
        let mut echo = Echo::start(300, 2_000).unwrap();
        for _ in 0..3 {
            echo.answer.fill(0);
            echo.ask().unwrap();
            assert!(echo.answer.iter().all(|&b| b == b'a'));
        }
    }
}
