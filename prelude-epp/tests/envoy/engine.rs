//! A tiny engine: an HTTP server in this process that says what reached it.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use prelude_epp::exchange::DESTINATION;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

/// A server that ends, with its connections, when it is dropped.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    _server: JoinSet<()>,
}

/// The events that a stream sends, one for each message, until the sender goes.
pub(crate) type Events = Arc<tokio::sync::Mutex<mpsc::Receiver<&'static str>>>;

/// The body of a response: whole, or events.
enum Answer {
    Whole(Option<Bytes>),
    Events(Events),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |bytes: Bytes| Ok(Frame::data(bytes));
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(frame)),
            Self::Events(events) => {
                let mut events = events.try_lock().expect("one stream at a time");
                let event = events.poll_recv(cx);
                event.map(|event| event.map(|event| frame(Bytes::from_static(event.as_bytes()))))
            }
        }
    }
}

impl Engine {
    /// Starts a server on an address of its own, or on one that it had before.
    pub(crate) async fn start(at: Option<SocketAddr>, events: Events) -> Self {
        let at = at.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let events = Arc::clone(&events);
                let service =
                    service_fn(move |request| answer(address, Arc::clone(&events), request));
                let stream = TokioIo::new(stream);
                connections.spawn(http1::Builder::new().serve_connection(stream, service));
            }
        });
        Self {
            address,
            _server: server,
        }
    }
}

/// Says who answers, what came and where the picker sent it.
async fn answer(
    address: SocketAddr,
    events: Events,
    request: Request<Incoming>,
) -> Result<Response<Answer>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let picked = text(request.headers(), DESTINATION);
    let body = request.into_body().collect().await?.to_bytes();
    if path == "/stream" {
        return Ok(Response::new(Answer::Events(events)));
    }
    let said = serde_json::json!({
        "engine": address.to_string(),
        "picked": picked,
        "bytes": body.len(),
        "sum": sum(&body),
    });
    Ok(Response::new(Answer::Whole(Some(said.to_string().into()))))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// Returns a number by which two bodies are compared.
pub(crate) fn sum(body: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
    body.iter().fold(7, step)
}
