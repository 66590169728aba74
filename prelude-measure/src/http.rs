//! A blocking HTTP/1.1 client of one kept connection that does no more than it must, so that
//! timings are the server's.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Longest wait for a part of an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Largest answer that is read.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// A server's answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The status, for example 200.
    pub status: u16,
    /// Names, in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
    /// Bytes of the request.
    pub sent: usize,
    /// Bytes of the answer, its head included.
    pub received: usize,
}

impl Answer {
    /// Returns a header's value, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the body as text; what is no UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    ///
    /// # Errors
    /// If the body is none.
    pub fn json(&self) -> Result<Value> {
        let parsed = serde_json::from_slice(&self.body);
        parsed.with_context(|| format!("an answer of status {} without JSON", self.status))
    }

    /// Returns the answer if its status is 200.
    ///
    /// # Errors
    /// If the status is another; with the server's message.
    pub fn ok(self) -> Result<Self> {
        ensure!(
            self.status == 200,
            "the server answered {}: {}",
            self.status,
            self.message()
        );
        Ok(self)
    }

    fn message(&self) -> String {
        let json = self.json().unwrap_or_default();
        match json["error"]["message"].as_str() {
            Some(message) => message.to_owned(),
            None => self.text().chars().take(300).collect(),
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    host: String,
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Connects to `host:port` or `http://host:port`.
    ///
    /// # Errors
    /// If the address has another form, or no server listens there.
    pub fn connect(address: &str) -> Result<Self> {
        Self::connect_within(address, PATIENCE)
    }

    /// Connects as [`Self::connect`] does, and waits for a part of an answer so long at most.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_within(address: &str, patience: Duration) -> Result<Self> {
        let host = address.strip_prefix("http://").unwrap_or(address);
        let host = host.trim_end_matches('/');
        ensure!(
            !host.contains('/'),
            "{address} is not of the form http://host:port"
        );
        let port = if host.contains(':') { "" } else { ":80" };
        let stream = TcpStream::connect(format!("{host}{port}"))
            .with_context(|| format!("no server answers at {host}; start one first"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Self {
            host: host.to_owned(),
            reader: BufReader::new(stream),
        })
    }

    /// Asks for a path.
    ///
    /// # Errors
    /// If the connection fails or what comes is no HTTP/1.1. Any status is an answer.
    pub fn get(&mut self, path: &str) -> Result<Answer> {
        self.send("GET", path, &[], b"")
    }

    /// Posts a JSON body.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn post(&mut self, path: &str, body: &str) -> Result<Answer> {
        let json = [("content-type", "application/json")];
        self.send("POST", path, &json, body.as_bytes())
    }

    /// Sends any request with more headers than `host` and `content-length`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.host);
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            request += &format!("content-length: {}\r\n", body.len());
        }
        request += "\r\n";
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        // One write: a head of its own would cost a packet.
        self.reader.get_mut().write_all(&request)?;
        let mut answer = self.head().with_context(|| format!("{method} {path}"))?;
        answer.sent = request.len();
        let has_body = method != "HEAD" && !matches!(answer.status, 204 | 304);
        if has_body {
            self.body(&mut answer)
                .with_context(|| format!("the answer to {method} {path}"))?;
        }
        Ok(answer)
    }

    fn head(&mut self) -> Result<Answer> {
        let mut answer = Answer::default();
        let line = self.line(&mut answer)?;
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|l| l.get(..3));
        let status = status.and_then(|s| s.parse().ok());
        answer.status = status.with_context(|| format!("no HTTP/1.1 status: {line}"))?;
        loop {
            let line = self.line(&mut answer)?;
            if line.is_empty() {
                return Ok(answer);
            }
            if let Some((name, value)) = line.split_once(':') {
                let header = (name.to_ascii_lowercase(), value.trim().to_owned());
                answer.headers.push(header);
            }
        }
    }

    fn body(&mut self, answer: &mut Answer) -> Result<()> {
        let is_chunked = answer.header("transfer-encoding") == Some("chunked");
        if is_chunked {
            loop {
                let line = self.line(answer)?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(size, 16).context("the size of a chunk")?;
                self.bytes(answer, size)?;
                // The end of the chunk, or of the body without trailers.
                self.line(answer)?;
                if size == 0 {
                    return Ok(());
                }
            }
        }
        if let Some(length) = answer.header("content-length") {
            let length = length.parse().context("a content length")?;
            return self.bytes(answer, length);
        }
        let mut rest = { &mut self.reader }.take(MAX_ANSWER_BYTES);
        answer.received += rest.read_to_end(&mut answer.body)?;
        Ok(())
    }

    fn bytes(&mut self, answer: &mut Answer, count: u64) -> Result<()> {
        let held = answer.body.len() as u64;
        if count > MAX_ANSWER_BYTES - held.min(MAX_ANSWER_BYTES) {
            bail!("it is larger than {MAX_ANSWER_BYTES} bytes");
        }
        let read = { &mut self.reader }
            .take(count)
            .read_to_end(&mut answer.body)?;
        ensure!(read as u64 == count, "the connection closed");
        answer.received += read;
        Ok(())
    }

    fn line(&mut self, answer: &mut Answer) -> Result<String> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line)?;
        ensure!(read > 0, "the connection closed");
        answer.received += read;
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Answers each request of one connection with the next of `answers`.
    fn serving(answers: Vec<&'static str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            for answer in answers {
                let (mut line, mut length) = (String::new(), 0);
                while stream.read_line(&mut line).unwrap() > 2 {
                    let value = line.strip_prefix("content-length: ");
                    length = value.map_or(length, |v| v.trim().parse().unwrap());
                    line.clear();
                }
                stream.read_exact(&mut vec![0; length]).unwrap();
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn bodies_of_every_framing_are_read() {
        let whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello";
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                       3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n";
        let to_the_end = "HTTP/1.1 200 OK\r\n\r\nhello";
        let address = serving(vec![whole, chunked, whole, to_the_end]);
        let mut client = Client::connect(&format!("http://{address}/")).unwrap();
        let first = client.post("/", "{}").unwrap();
        assert_eq!((first.text().as_str(), first.status), ("hello", 200));
        assert_eq!(first.received, whole.len());
        assert_eq!(first.header("x-a"), Some("b"));
        assert!(first.sent > 2);
        for _ in 0..3 {
            assert_eq!(client.get("/").unwrap().text(), "hello");
        }
    }

    #[test]
    fn refusals_say_what_the_server_said() {
        let refused = "HTTP/1.1 400 Bad Request\r\ncontent-length: 35\r\n\r\n\
                       {\"error\": {\"message\": \"no such x\"}}  ";
        let address = serving(vec![refused]);
        let mut client = Client::connect(&address).unwrap();
        let answer = client.get("/").unwrap();
        let error = answer.ok().unwrap_err().to_string();
        assert_eq!(error, "the server answered 400: no such x");
    }

    #[test]
    fn a_connection_that_closes_is_an_error() {
        let cut = "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello";
        let mut client = Client::connect(&serving(vec![cut])).unwrap();
        let error = format!("{:#}", client.get("/x").unwrap_err());
        assert!(
            error.contains("GET /x") && error.contains("closed"),
            "{error}"
        );
        assert!(Client::connect("http://a/b").is_err());
    }
}
