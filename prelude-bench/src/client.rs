//! A minimal HTTP/1.1 client: one kept connection, JSON in and out.

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, client::conn::http1::SendRequest, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Largest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Client {
    /// Connects to a server named as `http://host:port`.
    ///
    /// # Errors
    /// If the URL has another form, or no server listens there.
    pub async fn connect(url: &str) -> Result<Self> {
        let host = url
            .strip_prefix("http://")
            .unwrap_or(url)
            .trim_end_matches('/');
        ensure!(
            !host.contains('/'),
            "{url} is not of the form http://host:port"
        );
        let address = if host.contains(':') {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        let stream = TcpStream::connect(&address)
            .await
            .with_context(|| format!("no server answers at {address}; start `prelude` first"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // It ends when the sender is dropped; its errors reach the sender too.
        tokio::spawn(connection);
        Ok(Self {
            sender,
            host: host.to_owned(),
        })
    }

    /// Posts `body` to `path` and returns the answer.
    ///
    /// # Errors
    /// If the connection fails, or the answer is not 200 and JSON; with the server's message.
    pub async fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let request = Request::post(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let bytes = body.collect().await.map_err(anyhow::Error::from_boxed)?;
        let bytes = bytes.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes)
            .with_context(|| format!("{path} answered {status} without JSON"))?;
        if status != StatusCode::OK {
            bail!("{path} answered {status}: {}", answer["error"]["message"]);
        }
        Ok(answer)
    }
}
