//! The socket of a connection, with a time limit on all that a client may leave unfinished.
//!
//! ```text
//! idle ──first byte──▶ head ──request begins──▶ busy ──last response ends──▶ idle
//!  │ keep_alive: close    │ header_read: 408, close   │ (the body has its own limits)
//! ```
//!
//! In all states a write fails that makes no progress for `write_stall`.
//!
//! hyper's `header_read_timeout` cannot stand in for the first two limits: it counts the idle time
//! before a head as a part of it, so that both limits would be one; it closes the connection
//! without a response, where clients get 408; and it does not run while `hyper_util` waits for the
//! first bytes of a connection.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};

use super::{respond::raw_error, timer::Timer};
use crate::{app::App, config::ms, error::ApiError};

/// The first bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Upper bound of the bytes that are read and discarded after a response that left a body unread:
/// closing at once would reset the connection before the client has read the response.
const MAX_DISCARDED_BYTES: usize = 1 << 20;
const MAX_DISCARD_TIME: Duration = Duration::from_secs(1);

/// The state of a connection, shared by its socket and its requests.
#[derive(Debug)]
pub(super) struct Connection {
    /// The connection's number, by which the app tells its requests from those of others.
    pub(super) number: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Requests begun and not yet answered to the end.
    active: usize,
    idle_since: Instant,
    /// The time at which the first byte of an incomplete head arrived.
    head_since: Option<Instant>,
    is_http2: bool,
    /// True if a response left a body unread.
    is_body_unread: bool,
    /// The task that waits for the next byte.
    reader: Option<Waker>,
}

impl Connection {
    pub(super) fn new(number: u64) -> Arc<Self> {
        let state = Mutex::new(State {
            active: 0,
            idle_since: Instant::now(),
            head_since: None,
            is_http2: false,
            is_body_unread: false,
            reader: None,
        });
        Arc::new(Self { number, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a head is complete and its request begins.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.active += 1;
        state.head_since = None;
    }

    /// Notes the end of a response.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.active -= 1;
        if state.active == 0 {
            state.idle_since = Instant::now();
            state.head_since = None;
            // The limit of an idle connection runs from now: the reader has to set its timer.
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
    }

    /// Notes that a response goes out while the client may still be sending the body.
    pub(super) fn leave_body_unread(&self) {
        self.state().is_body_unread = true;
    }
}

/// The socket of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    connection: Arc<Connection>,
    app: Arc<App>,
    read_timer: Timer,
    write_timer: Timer,
    /// The time at which a write first had to wait.
    stalled_since: Option<Instant>,
    has_read: bool,
    /// The number of bytes that may still be discarded, and the end of the time for them, once the
    /// socket is shut down for writing.
    discard: Option<(usize, Instant)>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, connection: Arc<Connection>, app: &Arc<App>) -> Self {
        Self {
            stream,
            connection,
            app: Arc::clone(app),
            read_timer: Timer::default(),
            write_timer: Timer::default(),
            stalled_since: None,
            has_read: false,
            discard: None,
        }
    }

    fn note_read(&mut self, bytes: &[u8]) {
        let mut state = self.connection.state();
        if !std::mem::replace(&mut self.has_read, true) {
            let n = bytes.len().min(HTTP2_PREFACE.len());
            state.is_http2 = bytes[..n] == HTTP2_PREFACE[..n] && n > 1;
        }
        if state.active == 0 {
            state.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// Returns an error if the client's time for the next bytes has passed.
    fn poll_read_limit(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let limits = &self.app.config.limits;
        let (deadline, is_in_head) = {
            let mut state = self.connection.state();
            state.reader = Some(cx.waker().clone());
            if state.active > 0 {
                return None;
            }
            match state.head_since {
                // Frames of an idle HTTP/2 connection begin no head.
                Some(since) if !state.is_http2 => (since + ms(limits.header_read_ms), true),
                _ => (state.idle_since + ms(limits.keep_alive_ms), false),
            }
        };
        if !self.read_timer.poll(cx, deadline) {
            return None;
        }
        if is_in_head {
            let error = ApiError::request_timeout("the request's headers did not arrive in time");
            // The socket's buffer is empty, so the response fits, or the client is gone.
            let _ = self.stream.try_write(&raw_error(&self.app, &error));
        }
        Some(io::ErrorKind::TimedOut.into())
    }

    /// Fails a write that has waited for too long.
    fn limit_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled_since = None;
            return result;
        }
        let since = *self.stalled_since.get_or_insert_with(Instant::now);
        let write_stall = ms(self.app.config.limits.write_stall_ms);
        if self.write_timer.poll(cx, since + write_stall) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Ready(result) => {
                let read = &buf.filled()[before..];
                if !read.is_empty() {
                    this.note_read(read);
                }
                Poll::Ready(result)
            }
            Poll::Pending => match this.poll_read_limit(cx) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limit_write(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limit_write(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let (left, deadline) = match &mut this.discard {
            Some((left, deadline)) => (left, *deadline),
            discard @ None => {
                ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
                if !this.connection.state().is_body_unread {
                    return Poll::Ready(Ok(()));
                }
                let deadline = Instant::now() + MAX_DISCARD_TIME;
                let (left, _) = discard.insert((MAX_DISCARDED_BYTES, deadline));
                (left, deadline)
            }
        };
        let mut scratch = [0; 4096];
        while *left > 0 {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    *left = left.saturating_sub(buf.filled().len());
                }
                // The client has read everything and closed, or is gone.
                Poll::Ready(_) => break,
                Poll::Pending if this.read_timer.poll(cx, deadline) => break,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}
