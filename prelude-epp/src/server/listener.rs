//! Accepting connections, and letting them end.

use std::{sync::Arc, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::service::answer;
use crate::{log, picker::Picker};

/// Time between pings to a proxy, and for its answer: a dead one's exchanges end then.
const PING_EVERY: Duration = Duration::from_secs(10);
/// Bytes of a stream that may be on their way.
const STREAM_WINDOW: u32 = 1 << 20;
/// Bytes of a connection that may be on their way.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Pause after the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Upper bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections (default 1,024); more wait.
    pub connections: u32,
    /// Exchanges of a connection at once (default 16,384); more wait at the proxy.
    pub streams: u32,
    /// Time for exchanges under way once the server is to stop (default 60 s).
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            streams: 16_384,
            drain_timeout: Duration::from_secs(60),
        }
    }
}

/// Serves until `stop` is ready, then waits for the exchanges under way.
pub async fn serve(
    picker: Arc<Picker>,
    listener: TcpListener,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(limits.connections as usize));
    let mut stop = std::pin::pin!(stop);
    loop {
        let accept = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&room).acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accept => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::line(format_args!("cannot accept a connection: {error}"));
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = connection(&picker, stream, limits);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A connection that breaks ends its exchanges, which are dropped.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    if timeout(limits.drain_timeout, graceful.shutdown())
        .await
        .is_err()
    {
        log::line(format_args!(
            "exchanges under way were cut at the drain timeout"
        ));
    }
}

/// Returns a connection that answers.
fn connection(
    picker: &Arc<Picker>,
    stream: TcpStream,
    limits: Limits,
) -> impl hyper_util::server::graceful::GracefulConnection + use<> {
    // Messages are small, and a delayed one delays a request.
    let _ = stream.set_nodelay(true);
    let picker = Arc::clone(picker);
    let service = service_fn(move |request| answer(Arc::clone(&picker), request));
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        // Proxies end half of all exchanges by a reset. The limits against strangers that reset
        // streams without end would cut all exchanges of a connection when many clients go at once.
        .max_pending_accept_reset_streams(limits.streams as usize)
        .max_local_error_reset_streams(None)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(Some(PING_EVERY))
        .keep_alive_timeout(PING_EVERY)
        .serve_connection(TokioIo::new(stream), service)
}
