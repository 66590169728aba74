//! One kept connection to a server.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request,
    client::conn::http1::{SendRequest, handshake},
    header::{CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Job;

/// A connection that is made anew when it breaks.
pub(super) struct Connection {
    address: String,
    host: HeaderValue,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// Connects to `host:port`.
    pub(super) async fn open(address: &str) -> Result<Self> {
        Ok(Self {
            host: HeaderValue::from_str(address).context("a server's address is ASCII")?,
            sender: Some(connect(address).await?),
            address: address.to_owned(),
        })
    }

    /// Sends a request and reads its whole answer; returns the status.
    pub(super) async fn ask(&mut self, job: Job) -> Result<u16> {
        let mut response = self.send(job).await?;
        let status = response.status().as_u16();
        loop {
            match response.body_mut().frame().await {
                None => return Ok(status),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    self.sender = None;
                    return Err(error.into());
                }
            }
        }
    }

    /// Sends a request as [`Self::ask`] does, and returns the body as well.
    pub(super) async fn answer(&mut self, job: Job) -> Result<(u16, Bytes)> {
        let response = self.send(job).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
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
