//! A minimal blocking HTTP/1.1 client, for measurements of single requests.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

/// The bytes of a request and its response.
pub(crate) struct Exchange {
    /// Bytes of the request.
    pub(crate) question: usize,
    /// Bytes of the answer, its head included.
    pub(crate) answer: usize,
    /// The time of the engine's step, if the server reports it.
    pub(crate) step: Option<Duration>,
}

/// A client of one connection that does no more than it must, so that timings are the server's.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Connects to a server.
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("the server just started")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Posts a JSON body, and fails unless the status is 200.
    pub(crate) fn post(&mut self, path: &str, body: &str) -> Result<Exchange> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.reader.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        let mut head = self.reader.read_line(&mut line)?;
        ensure!(line.starts_with("HTTP/1.1 200"), "{path} answered {line}");
        let (mut length, mut step_ms) = (0, None::<f64>);
        loop {
            line.clear();
            let bytes = self.reader.read_line(&mut line)?;
            ensure!(bytes > 0, "the connection closed");
            head += bytes;
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                let value = value.trim();
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.parse().context("a content length")?;
                } else if name.eq_ignore_ascii_case("x-prelude-exec-ms") {
                    step_ms = Some(value.parse().context("the step's time")?);
                }
            }
        }
        let mut answer = vec![0; length];
        self.reader.read_exact(&mut answer)?;
        Ok(Exchange {
            question: request.len(),
            answer: head + length,
            step: step_ms
                .map(|ms| Duration::try_from_secs_f64(ms / 1e3).context("the step's time"))
                .transpose()?,
        })
    }
}
