//! A connection to a server on this machine: HTTP/1.1, kept open, JSON in and out.
//!
//! Written out because a program that is carried to machines without a toolchain should hold no
//! more than it needs; it understands what `prelude` sends and refuses the rest.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Longest silence of a server: less than a part may be silent that waits for it.
const SILENCE: Duration = Duration::from_secs(60);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Header lines of an answer, and bytes of each.
const HEADERS_MAX: usize = 100;
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A kept connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Client {
    /// A connection for a caller that has `left` to go.
    ///
    /// # Errors
    /// If nobody listens there.
    pub(crate) fn connect(address: &str, left: Duration) -> Result<Self> {
        // Not none, which would be no limit.
        let silence = SILENCE.min(left).max(Duration::from_secs(1));
        let stream =
            TcpStream::connect(address).with_context(|| format!("nobody answers at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(silence))?;
        stream.set_write_timeout(Some(silence))?;
        Ok(Self {
            stream: BufReader::new(stream),
            host: address.to_owned(),
        })
    }

    /// Posts a body and returns the answer.
    ///
    /// # Errors
    /// If the connection breaks, or the answer is not 200 and JSON; with the server's words.
    pub(crate) fn post(&mut self, path: &str, body: &str) -> Result<Value> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = self.line()?;
        let mut length = None;
        for _ in 0..HEADERS_MAX {
            let line = self.line()?;
            if line.is_empty() {
                return self.body(&status, length);
            }
            let Some((name, value)) = line.split_once(':') else {
                bail!("`{line}` is no header");
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse::<usize>().context("content-length")?);
            }
        }
        bail!("more than {HEADERS_MAX} headers");
    }

    fn body(&mut self, status: &str, length: Option<usize>) -> Result<Value> {
        let length = length.with_context(|| format!("`{status}` without content-length"))?;
        ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes");
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        if !status.starts_with("HTTP/1.1 200 ") {
            let some: String = text.chars().take(300).collect();
            bail!("{status}: {some}");
        }
        serde_json::from_str(&text).context("the answer is not JSON")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let mut limited = (&mut self.stream).take(LINE_BYTES_MAX);
        limited.read_line(&mut line)?;
        ensure!(line.ends_with("\r\n"), "the connection ended early");
        line.truncate(line.len() - 2);
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// What the client makes of a server that says `answer` to the first request.
    fn check(answer: &'static str) -> Result<Value> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut byte = [0];
            while !seen.ends_with(b"\r\n\r\n{}") {
                stream.read_exact(&mut byte).unwrap();
                seen.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let result = Client::connect(&address, SILENCE).and_then(|mut c| c.post("/x", "{}"));
        server.join().unwrap();
        result
    }

    #[test]
    fn answers_are_json_or_errors() {
        let ok = check("HTTP/1.1 200 OK\r\nContent-Length: 8\r\nx: y\r\n\r\n{\"a\": 1}");
        assert_eq!(ok.unwrap()["a"], 1);
        let refused = check("HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy");
        assert!(refused.unwrap_err().to_string().contains("busy"));
        assert!(check("HTTP/1.1 200 OK\r\n\r\n").is_err(), "no length");
        assert!(check("HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{").is_err());
        assert!(check("HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n").is_err());
        assert!(check("").is_err());
    }
}
