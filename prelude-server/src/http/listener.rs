//! Accepting connections, and going out of service without dropping accepted work.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::{
    respond::raw_error,
    service,
    socket::{Connection, Socket},
    task::{StreamExecutor, abortable},
};
use crate::{app::App, config::Limits, error::ApiError, lifecycle::Phase, log};

/// Interval at which a server checks that its engines are alive.
const ENGINE_CHECK: Duration = Duration::from_millis(500);
/// Upper bound of the time in which open connections take their last bytes once work was ended.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// A bound port.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
}

/// The reason why a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The listener was told to stop, and has.
    Drained,
    /// An engine is lost: only a new process can serve.
    EngineLost,
}

impl Server {
    /// Binds the address of the app's configuration.
    ///
    /// # Errors
    /// The system's, if the address cannot be bound.
    pub async fn bind(app: &Arc<App>) -> io::Result<Self> {
        let address = SocketAddr::from((app.config.host, app.config.port));
        Ok(Self {
            listener: TcpListener::bind(address).await?,
            app: Arc::clone(app),
        })
    }

    /// Returns the bound address, with the port that the system chose if 0 was asked for.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until [`App::drain`] has ended, or an engine is lost. If the future is dropped
    /// earlier, no more connections are accepted; open ones go on.
    pub async fn run(self) -> Ended {
        let Self { app, listener } = self;
        let max = u32::try_from(app.config.limits.connections).unwrap_or(u32::MAX);
        let free = Arc::new(Semaphore::new(max as usize));
        let mut ending = pin!(app.lifecycle.reached(Phase::Ending));
        let mut check = tokio::time::interval(ENGINE_CHECK);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => accept(&app, &free, stream),
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
        close(&app, &free, listener);
        // Waits until all connections are closed. A client that does not take its last bytes loses
        // them.
        let _ = tokio::time::timeout(LAST_BYTES, free.acquire_many(max)).await;
        if app.engine_lost() {
            Ended::EngineLost
        } else {
            Ended::Drained
        }
    }
}

/// Closes a listener, and accepts every connection that the system has accepted for it: closing it
/// alone would reset them. Their requests are refused; clients that come later find no listener.
fn close(app: &Arc<App>, free: &Arc<Semaphore>, listener: TcpListener) {
    // The listener is asked directly: the runtime may not know the last connections yet.
    let Ok(listener) = listener.into_std() else {
        return;
    };
    // `accept` does not block: without another connection it fails.
    while let Ok((stream, _)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            accept(app, free, stream);
        }
    }
}

/// Waits after a connection could not be accepted: often for want of file descriptors, which other
/// connections give back.
async fn recover(error: &io::Error) {
    log::line(format_args!("accept failed: {}", error.kind()));
    tokio::time::sleep(Duration::from_millis(20)).await;
}

fn builder(limits: &Limits) -> auto::Builder<StreamExecutor> {
    let mut http = auto::Builder::new(StreamExecutor);
    http.http1()
        .timer(TokioTimer::new())
        // The socket has limits of its own for heads and for idle connections.
        .header_read_timeout(None)
        .half_close(false)
        .max_headers(limits.headers)
        // hyper refuses a head that does not fit, with an empty body; `service` refuses others.
        .max_buf_size((limits.header_bytes + limits.uri_bytes + (8 << 10)).max(8 << 10));
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX));
    http
}

fn accept(app: &Arc<App>, free: &Arc<Semaphore>, stream: TcpStream) {
    let Ok(permit) = Arc::clone(free).try_acquire_owned() else {
        app.metrics.reject("too_many_connections");
        // The socket's buffer is empty, so the response fits, or the client is gone.
        let _ = stream.try_write(&raw_error(app, &ApiError::too_many_connections()));
        return;
    };
    let app = Arc::clone(app);
    tokio::spawn(async move {
        abortable(serve(&app, stream)).await;
        drop(permit);
    });
}

/// Serves a connection until it closes.
async fn serve(app: &Arc<App>, stream: TcpStream) {
    // Answers are small and whole: waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let connection = Connection::new(app.in_flight.connect());
    let socket = Socket::new(stream, Arc::clone(&connection), app);
    let http = builder(&app.config.limits);
    let service =
        service_fn(|request| service::serve(Arc::clone(app), Arc::clone(&connection), request));
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    // A connection that comes later is not closed: its request gets a refusal that says why.
    if app.lifecycle.phase() < Phase::Draining {
        tokio::select! {
            biased;
            // An error of a connection concerns its client alone.
            _ = serving.as_mut() => return,
            () = app.lifecycle.reached(Phase::Draining) => serving.as_mut().graceful_shutdown(),
        }
    }
    let _ = serving.await;
}
