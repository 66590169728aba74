//! Accepting connections, and going out of service without dropping work.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    output::{Output, Requests},
    respond::raw_error,
    service,
    wire::{Wire, WireState},
};
use crate::{app::App, config::Limits, error::ApiError, lifecycle::Phase, log};

/// How often a server that has nothing to do looks whether its engines live.
const ENGINE_CHECK: Duration = Duration::from_millis(500);
/// How long open connections have to take their last bytes once work has been ended.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// A bound port.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
}

/// Why a server is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop, and has.
    Drained,
    /// An engine is lost: only a new process can serve.
    EngineLost,
}

impl Server {
    /// Binds the address of the app's configuration.
    ///
    /// # Errors
    /// Whatever the system says of the address.
    pub async fn bind(app: &Arc<App>) -> io::Result<Self> {
        let address = SocketAddr::from((app.config.host, app.config.port));
        Ok(Self {
            listener: TcpListener::bind(address).await?,
            app: Arc::clone(app),
        })
    }

    /// The address bound: the port is known even if 0 was asked for.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until [`App::drain`] has ended, or an engine is lost. Dropped before, it accepts no
    /// more connections; those that are open go on.
    pub async fn run(self) -> Ended {
        let Self { app, listener } = self;
        let connections = Arc::new(AtomicUsize::new(0));
        let mut ending = pin!(app.lifecycle.reached(Phase::Ending));
        let mut check = tokio::time::interval(ENGINE_CHECK);
        // A task of its own: polled with the listener it would poll that one too, each time.
        // Ends with this future, also if that is dropped.
        let mut vigil = JoinSet::new();
        vigil.spawn({
            let app = Arc::clone(&app);
            async move { app.in_flight.vigil.keep(|| app.in_flight.count()).await }
        });
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => accept(&app, &connections, stream),
                    Err(error) => recover(&error).await,
                },
                _ = check.tick() => {
                    if app.engine_lost() {
                        app.lifecycle.advance(Phase::Ending);
                    }
                }
                () = &mut ending => break,
            }
        }
        close(&app, &connections, listener);
        vigil.abort_all();
        let gone = async {
            while connections.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // Whoever does not take its last bytes loses them.
        let _ = tokio::time::timeout(LAST_BYTES, gone).await;
        if app.engine_lost() {
            Ended::EngineLost
        } else {
            Ended::Drained
        }
    }
}

/// Closes a listener, and takes up every connection that the system has accepted for it: closing it
/// alone would reset them. They are refused by name; clients that come later are not let in.
fn close(app: &Arc<App>, connections: &Arc<AtomicUsize>, listener: TcpListener) {
    // Asked directly: the runtime may not have heard yet of the last ones.
    let Ok(listener) = listener.into_std() else {
        return;
    };
    // It does not block: without another connection it fails.
    while let Ok((stream, _)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            accept(app, connections, stream);
        }
    }
}

/// A connection could not be accepted: often for want of file descriptors, which come back.
async fn recover(error: &io::Error) {
    log::line(format_args!("accept failed: {}", error.kind()));
    tokio::time::sleep(Duration::from_millis(20)).await;
}

fn builder(limits: &Limits, requests: Requests) -> auto::Builder<Requests> {
    let mut http = auto::Builder::new(requests);
    http.http1()
        .timer(TokioTimer::new())
        // The wire has clocks of its own for heads and for idle connections.
        .header_read_timeout(None)
        .half_close(false)
        .max_headers(limits.headers)
        // A head that does not fit is refused by the transport; one that does, by name.
        .max_buf_size((limits.header_bytes + limits.uri_bytes + (8 << 10)).max(8 << 10));
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX));
    http
}

fn accept(app: &Arc<App>, connections: &Arc<AtomicUsize>, stream: TcpStream) {
    let Some(place) = Place::take(connections, app.config.limits.connections) else {
        app.metrics.reject("too_many_connections");
        // It fits the socket's empty buffer, or is not worth waiting for.
        let _ = stream.try_write(&raw_error(app, &ApiError::too_many_connections()));
        return;
    };
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let _place = place;
        // Answers are small and complete: waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        let state = WireState::new();
        let wire = Wire::new(stream, Arc::clone(&state), &app);
        let requests = Requests::default();
        let http = builder(&app.config.limits, requests.clone());
        let service = service_fn(|request| {
            let output = Output::new(&app.config.limits);
            requests.begin(output.clone());
            service::serve(Arc::clone(&app), Arc::clone(&state), output, request)
        });
        let mut connection = pin!(http.serve_connection(TokioIo::new(wire), service));
        let mut drains = pin!(app.lifecycle.reached(Phase::Draining));
        // A newcomer is told so: its request is refused by name, and the connection closes.
        let mut is_told = app.lifecycle.phase() >= Phase::Draining;
        poll_fn(|cx| {
            if !is_told && drains.as_mut().poll(cx).is_ready() {
                is_told = true;
                connection.as_mut().graceful_shutdown();
            }
            // What goes wrong on a connection concerns its client alone.
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            requests.poll_give_up(cx)
        })
        .await;
    });
}

/// One of the connections allowed.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(connections: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let taken = connections.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
            (n < max).then_some(n + 1)
        });
        taken.is_ok().then(|| Self(Arc::clone(connections)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiKeys, ServerConfig};

    #[tokio::test]
    async fn nothing_stays_awake_for_a_dropped_server() {
        let config = ServerConfig {
            port: 0,
            ..ServerConfig::default()
        };
        let app = App::new(config, ApiKeys::default());
        let server = Server::bind(&app).await.unwrap();
        {
            let mut run = pin!(server.run());
            let started = poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx))).await;
            assert!(started.is_pending());
            tokio::task::yield_now().await;
            assert!(Arc::strong_count(&app) > 1);
        }
        // An aborted task is dropped when it is its turn.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&app), 1);
    }
}
