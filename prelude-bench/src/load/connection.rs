//! A kept connection to a server.

use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request,
    client::conn::http1::{SendRequest, handshake},
    header::{CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Job, stream::Reader};

/// A connection that is made anew when it breaks.
pub(crate) struct Connection {
    address: String,
    host: HeaderValue,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// Connects to `host:port`.
    pub(crate) async fn open(address: &str) -> Result<Self> {
        Ok(Self {
            host: HeaderValue::from_str(address).context("a server's address is ASCII")?,
            sender: Some(connect(address).await?),
            address: address.to_owned(),
        })
    }

    /// Sends a request and reads its whole answer; returns the status. `reader` holds
    /// the events of a stream or the beginning of a refusal, also if the answer breaks off.
    pub(crate) async fn ask(&mut self, job: Job, reader: &mut Reader) -> Result<u16> {
        let read = self.exchange(job, reader).await;
        if read.is_err() {
            self.sender = None;
        }
        read
    }

    async fn exchange(&mut self, job: Job, reader: &mut Reader) -> Result<u16> {
        let mut response = self.send(job).await?;
        let status = response.status().as_u16();
        let kind = response.headers().get(CONTENT_TYPE);
        let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame?;
            match frame.data_ref() {
                Some(data) if status != 200 => reader.feed_refusal(data),
                Some(data) if streams => reader.feed(data, Instant::now()),
                _ => {}
            }
        }
        if status == 200 && streams {
            if let Some(error) = reader.error.take() {
                bail!("{error}");
            }
            ensure!(reader.is_done, "the stream ended without [DONE]");
        }
        Ok(status)
    }

    async fn send(&mut self, job: Job) -> Result<hyper::Response<hyper::body::Incoming>> {
        let mut sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => connect(&self.address).await?,
        };
        // Ready once the last answer has been read.
        sender.ready().await?;
        let mut request = Request::post(job.path).body(Full::new(job.body))?;
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = sender.send_request(request).await?;
        self.sender = Some(sender);
        Ok(response)
    }
}

async fn connect(address: &str) -> Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("no server answers at {address}"))?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // It ends when the sender is dropped; its errors reach the sender too.
    tokio::spawn(connection);
    Ok(sender)
}
