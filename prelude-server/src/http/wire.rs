//! One connection's socket, with a clock on everything a client may leave unfinished.
//!
//! ```text
//! idle ──first byte──▶ head ──request begins──▶ busy ──last response ends──▶ idle
//!  │ keep_alive: close    │ header_read: 408, close   │ (the body has its own clock)
//! ```
//!
//! Writes have one clock in all states: a client that does not read for `write_stall` is gone.

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

/// How the first bytes of an HTTP/2 connection read.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
/// What is read and thrown away after a response that left a body unread, so that closing does
/// not reset the connection before the client has read the response.
const LINGER_BYTES_MAX: usize = 1 << 20;
const LINGER_MAX: Duration = Duration::from_secs(1);

/// What the service tells the socket.
#[derive(Debug)]
pub(super) struct WireState(Mutex<Clock>);

#[derive(Debug)]
struct Clock {
    /// Requests begun and not yet answered to the end.
    active: usize,
    idle_since: Instant,
    /// When the first byte of a head arrived that is not complete.
    head_since: Option<Instant>,
    is_http2: bool,
    /// Whether a response left a body unread.
    lingers: bool,
    /// Waits for the next byte or timeout.
    reader: Option<Waker>,
}

impl WireState {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Clock {
            active: 0,
            idle_since: Instant::now(),
            head_since: None,
            is_http2: false,
            lingers: false,
            reader: None,
        })))
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A head is complete.
    pub(super) fn begin(self: &Arc<Self>) -> Active {
        let mut clock = self.clock();
        clock.active += 1;
        clock.head_since = None;
        Active(Arc::clone(self))
    }

    /// The response goes out while the client may still be sending.
    pub(super) fn linger(&self) {
        self.clock().lingers = true;
    }
}

/// A request in progress on a connection.
#[derive(Debug)]
pub(super) struct Active(Arc<WireState>);

impl Drop for Active {
    fn drop(&mut self) {
        let mut clock = self.0.clock();
        clock.active -= 1;
        if clock.active == 0 {
            clock.idle_since = Instant::now();
            clock.head_since = None;
            // The idle clock runs from now; whoever waits to read has to set it.
            if let Some(reader) = clock.reader.take() {
                reader.wake();
            }
        }
    }
}

/// The socket.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    state: Arc<WireState>,
    app: Arc<App>,
    keep_alive: Duration,
    header_read: Duration,
    write_stall: Duration,
    read_timer: Timer,
    write_timer: Timer,
    /// When a write first had to wait.
    stalled_since: Option<Instant>,
    has_read: bool,
    /// A refusal of ours in place of the transport's own, being written.
    refusal: Option<(Vec<u8>, usize)>,
    linger: Linger,
}

#[derive(Debug)]
enum Linger {
    No,
    Reading { left: usize },
}

impl Wire {
    pub(super) fn new(stream: TcpStream, state: Arc<WireState>, app: &Arc<App>) -> Self {
        let limits = &app.config.limits;
        Self {
            stream,
            state,
            app: Arc::clone(app),
            keep_alive: ms(limits.keep_alive_ms),
            header_read: ms(limits.header_read_ms),
            write_stall: ms(limits.write_stall_ms),
            read_timer: Timer::default(),
            write_timer: Timer::default(),
            stalled_since: None,
            has_read: false,
            refusal: None,
            linger: Linger::No,
        }
    }

    fn note_read(&mut self, bytes: &[u8]) {
        let mut clock = self.state.clock();
        if !std::mem::replace(&mut self.has_read, true) {
            let n = bytes.len().min(HTTP2_PREFACE.len());
            clock.is_http2 = bytes[..n] == HTTP2_PREFACE[..n] && n > 1;
        }
        if clock.active == 0 {
            clock.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// Nothing to read: whether the client has had its time.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let (deadline, in_head) = {
            let mut clock = self.state.clock();
            clock.reader = Some(cx.waker().clone());
            if clock.active > 0 {
                return None;
            }
            match clock.head_since {
                // Frames of an idle HTTP/2 connection begin no head.
                Some(since) if !clock.is_http2 => (since + self.header_read, true),
                _ => (clock.idle_since + self.keep_alive, false),
            }
        };
        if !self.read_timer.poll(cx, deadline) {
            return None;
        }
        if in_head {
            let error = ApiError::request_timeout("the request's headers did not arrive in time");
            // Nothing of ours is in the socket's buffer, so this either fits or is not worth it.
            let _ = self.stream.try_write(&raw_error(&self.app, &error));
        }
        Some(io::ErrorKind::TimedOut.into())
    }

    fn after_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled_since = None;
            return result;
        }
        let since = *self.stalled_since.get_or_insert_with(Instant::now);
        if self.write_timer.poll(cx, since + self.write_stall) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }

    /// The transport answers malformed heads by itself, with an empty body; ours take their
    /// place. Our own responses of this class always have one.
    fn refusal_for(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        let is_empty = bytes
            .windows(19)
            .any(|w| w.eq_ignore_ascii_case(b"content-length: 0\r\n"));
        if !is_empty {
            return None;
        }
        let error = match status {
            b"400" => ApiError::new(400, "malformed_http", "the request is not valid HTTP"),
            b"414" => ApiError::new(414, "uri_too_long", "the request target is too long"),
            b"431" => ApiError::new(431, "headers_too_large", "the headers are too large"),
            _ => return None,
        };
        Some(raw_error(&self.app, &error.closing()))
    }

    /// Writes what is left of a refusal, then reports the `len` bytes it replaces as written.
    fn poll_refusal(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<io::Result<usize>> {
        while let Some((bytes, at)) = &mut self.refusal {
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[*at..]))?;
            *at += n;
            if *at == bytes.len() || n == 0 {
                self.refusal = None;
            }
        }
        Poll::Ready(Ok(len))
    }
}

impl AsyncRead for Wire {
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
            Poll::Pending => match this.poll_idle(cx) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.refusal.is_none()
            && let Some(refusal) = this.refusal_for(buf)
        {
            this.refusal = Some((refusal, 0));
        }
        let result = if this.refusal.is_some() {
            this.poll_refusal(cx, buf.len())
        } else {
            Pin::new(&mut this.stream).poll_write(cx, buf)
        };
        this.after_write(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bufs {
            return self.poll_write(cx, only);
        }
        let this = &mut *self;
        let result = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.after_write(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if matches!(this.linger, Linger::No) {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.state.clock().lingers {
                return Poll::Ready(Ok(()));
            }
            let left = LINGER_BYTES_MAX;
            this.linger = Linger::Reading { left };
            this.read_timer = Timer::at(Instant::now() + LINGER_MAX);
        }
        let Linger::Reading { left } = &mut this.linger else {
            return Poll::Ready(Ok(()));
        };
        let mut scratch = [0; 4096];
        while *left > 0 {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    *left = left.saturating_sub(buf.filled().len());
                }
                // The client has read everything and closed, or is gone.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(this.read_timer.poll_set(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
