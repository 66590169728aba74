//! The bodies of responses, and the tasks that send them to clients that may not read.
//!
//! hyper asks a body for more when the client has room, and asks nothing while the client has none:
//! one stream of an HTTP/2 connection may stand still while others flow. So a task of its own sends
//! a streamed answer, and any answer over HTTP/2, through a bounded channel. It reads ahead up to a
//! limit, and when that limit or the client's time has passed it ends the task that runs the
//! request: over HTTP/2 this resets the stream alone, over HTTP/1.1 it closes the connection. A
//! whole answer over HTTP/1.1 needs no such task, because its socket has the same time limit.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hyper::{
    Version,
    body::{Body, Frame, SizeHint},
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{request_log::RequestLog, task::abort_handle};
use crate::{
    app::App,
    config::ms,
    error::ApiError,
    lifecycle::Phase,
    sse::{EventStream, Events, KEEP_ALIVE},
};

/// Upper bound of the bytes of a whole answer that hyper gets at once, and holds if the client does
/// not read; of a stream, of what is taken at once without waiting.
pub(super) const MAX_PIECE_BYTES: usize = 64 << 10;

/// An answer to send.
pub(super) enum Content {
    /// An answer that is known whole.
    Whole(Bytes),
    /// An answer that is sent as it comes, after its beginning, which goes out with the head.
    Stream { first: Bytes, rest: EventStream },
}

/// The body of a response.
pub(super) enum ReplyBody {
    /// The rest of a whole answer.
    Whole {
        rest: Bytes,
        is_begun: bool,
        log: RequestLog,
    },
    /// The pieces that a task sends.
    Sent {
        /// The beginning of the answer, which hyper has not taken yet.
        first: Option<Bytes>,
        pieces: mpsc::Receiver<Piece>,
        /// True if hyper has the last piece.
        is_over: bool,
        length: Option<u64>,
    },
}

/// A part of an answer.
#[derive(Debug)]
pub(super) struct Piece {
    /// May be empty if the piece is the last one.
    bytes: Bytes,
    /// With the last piece the request's log, to which hyper's taking the piece is the end.
    end: Option<RequestLog>,
}

/// The error of a body whose client does not read.
#[derive(Debug, thiserror::Error)]
#[error("the client does not read the answer")]
pub(super) struct ClientStalled;

impl ReplyBody {
    pub(super) fn new(app: &Arc<App>, content: Content, log: RequestLog) -> Self {
        let length = match &content {
            Content::Whole(bytes) => Some(bytes.len() as u64),
            Content::Stream { .. } => None,
        };
        match content {
            Content::Whole(rest) if log.version() <= Version::HTTP_11 || rest.is_empty() => {
                let is_begun = false;
                Self::Whole {
                    rest,
                    is_begun,
                    log,
                }
            }
            mut content => {
                let first = match &mut content {
                    Content::Whole(_) => None,
                    Content::Stream { first, .. } => Some(std::mem::take(first)),
                };
                let (sender, pieces) = mpsc::channel(1);
                let abort = abort_handle();
                tokio::spawn(send(Arc::clone(app), content, sender, log, abort));
                Self::Sent {
                    first: first.filter(|first| !first.is_empty()),
                    pieces,
                    is_over: false,
                    length,
                }
            }
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = ClientStalled;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientStalled>>> {
        let bytes = match &mut *self {
            Self::Whole { rest, is_begun, .. } => {
                *is_begun = true;
                let piece = rest.split_to(rest.len().min(MAX_PIECE_BYTES));
                (!piece.is_empty()).then_some(piece)
            }
            Self::Sent { is_over: true, .. } => None,
            Self::Sent {
                first,
                pieces,
                is_over,
                ..
            } => match first.take() {
                Some(first) => Some(first),
                None => match ready!(pieces.poll_recv(cx)) {
                    Some(Piece { bytes, end }) => {
                        if let Some(mut log) = end {
                            // Counted before the client knows that the answer is over.
                            log.whole();
                            *is_over = true;
                        }
                        (!bytes.is_empty()).then_some(bytes)
                    }
                    None => return Poll::Ready(Some(Err(ClientStalled))),
                },
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole { rest, .. } => rest.is_empty(),
            Self::Sent { is_over, .. } => *is_over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length = match self {
            Self::Whole { rest, .. } => Some(rest.len() as u64),
            Self::Sent { length, .. } => *length,
        };
        length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        // Nothing of it was asked for if the request was HEAD.
        if let Self::Whole {
            rest,
            is_begun,
            log,
        } = self
            && (rest.is_empty() || !*is_begun)
        {
            log.whole();
        }
    }
}

/// Sends an answer and its end. If the client does not read, ends the task that runs the request.
async fn send(
    app: Arc<App>,
    content: Content,
    pieces: mpsc::Sender<Piece>,
    log: RequestLog,
    abort: Option<Arc<Notify>>,
) {
    let write_stall = ms(app.config.limits.write_stall_ms);
    let last = match content {
        Content::Whole(bytes) => send_whole(bytes, &pieces, write_stall).await,
        Content::Stream { rest, .. } => send_stream(&app, rest, &pieces, write_stall).await,
    };
    let is_taken = match last {
        None => false,
        Some(bytes) => {
            let end = Some(log);
            let sent = timeout(write_stall, pieces.send(Piece { bytes, end })).await;
            // The channel has room again when hyper has taken the piece, and is closed if the client
            // left: in either case no request is left to end.
            sent.is_ok() && timeout(write_stall, pieces.reserve()).await.is_ok()
        }
    };
    if !is_taken
        && let Some(abort) = abort
        && !pieces.is_closed()
    {
        abort.notify_one();
    }
}

/// Sends a whole answer but for its last piece, which it returns; `None` if the client left or does
/// not read.
async fn send_whole(
    mut bytes: Bytes,
    pieces: &mpsc::Sender<Piece>,
    write_stall: Duration,
) -> Option<Bytes> {
    while bytes.len() > MAX_PIECE_BYTES {
        let piece = Piece {
            bytes: bytes.split_to(MAX_PIECE_BYTES),
            end: None,
        };
        let sent = timeout(write_stall, pieces.send(piece)).await;
        sent.ok()?.ok()?;
    }
    Some(bytes)
}

/// Sends events as they come, comments in silence, and an error if running work is ended. Returns the
/// last bytes, which may be none; `None` if the client left or does not read.
async fn send_stream(
    app: &App,
    mut events: EventStream,
    pieces: &mpsc::Sender<Piece>,
    write_stall: Duration,
) -> Option<Bytes> {
    let limits = &app.config.limits;
    let silence = ms(limits.keep_alive_comment_ms);
    let mut keep_alive = pin!(sleep(silence));
    let mut ending = pin!(app.lifecycle.reached(Phase::Ending));
    // Bytes that have no room in the channel, and the time since which the client reads nothing.
    let mut unread = BytesMut::new();
    let mut unread_since = Instant::now();
    let mut is_over = false;
    while !is_over {
        if unread.is_empty() {
            unread_since = Instant::now();
        }
        let reads_ahead = unread.is_empty() || !events.is_paced();
        tokio::select! {
            biased;
            room = pieces.reserve(), if !unread.is_empty() => {
                let bytes = unread.split().freeze();
                room.ok()?.send(Piece { bytes, end: None });
            }
            next = events.next(), if reads_ahead => {
                keep_alive.as_mut().reset(Instant::now() + silence);
                if let Some(bytes) = next {
                    unread.extend_from_slice(&bytes);
                    // The end goes out with the last bytes, if it is known with them.
                    let (more, ended) = events.take_ready(MAX_PIECE_BYTES);
                    unread.extend_from_slice(&more);
                    is_over = ended;
                } else {
                    is_over = true;
                }
            }
            () = &mut ending => {
                unread.extend_from_slice(&last_events());
                is_over = true;
            }
            () = &mut keep_alive => {
                keep_alive.as_mut().reset(Instant::now() + silence);
                unread.extend_from_slice(KEEP_ALIVE);
            }
            () = pieces.closed() => return None,
            () = sleep_until(unread_since + write_stall), if !unread.is_empty() => return None,
        }
        if unread.len() > limits.unread_bytes {
            return None;
        }
    }
    Some(unread.freeze())
}

/// Returns the events that end a stream whose work is ended.
fn last_events() -> Bytes {
    let mut last = Events::default();
    last.push_error(&ApiError::draining());
    last.push_done();
    last.take()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Waker,
    };

    use super::{super::socket::Connection, *};
    use crate::{ApiKeys, ServerConfig};

    const LONG: Duration = Duration::from_secs(600);

    async fn taken(pieces: &mut mpsc::Receiver<Piece>) -> Bytes {
        pieces.recv().await.unwrap().bytes
    }

    #[tokio::test]
    async fn a_whole_answer_that_is_not_read_is_given_up() {
        let (sender, mut pieces) = mpsc::channel(1);
        let bytes = Bytes::from_static(&[7; 2 * MAX_PIECE_BYTES + 1]);
        let sent = send_whole(bytes.clone(), &sender, Duration::ZERO).await;
        assert_eq!(sent, None);
        assert_eq!(taken(&mut pieces).await, [7; MAX_PIECE_BYTES][..]);
        // One piece for the reader, one for the channel, and the last one, which is returned.
        let (sent, _) = tokio::join!(send_whole(bytes, &sender, LONG), pieces.recv());
        assert_eq!(sent, Some(Bytes::from_static(&[7])));
    }

    /// Returns a stream of `n` events, each by itself; if not `ends`, the stream goes on in silence.
    fn events(n: usize, ends: bool) -> EventStream {
        EventStream::new(move |mut sender| async move {
            for _ in 0..n {
                sender.send(Bytes::from_static(b"12345")).await;
                sleep(Duration::from_millis(1)).await;
            }
            if !ends {
                std::future::pending().await
            }
        })
    }

    #[tokio::test]
    async fn a_stream_that_is_not_read_is_given_up() {
        let mut config = ServerConfig::default();
        config.limits.unread_bytes = 10;
        let app = App::new(config, ApiKeys::default());
        let (sender, mut pieces) = mpsc::channel(1);
        // One piece is in the channel, and two are as much as may wait for it.
        let stall = Duration::from_millis(100);
        let sent = send_stream(&app, events(3, false), &sender, stall).await;
        assert_eq!(sent, None, "in time");
        assert_eq!(taken(&mut pieces).await, "12345");
        let sent = send_stream(&app, events(4, true), &sender, LONG).await;
        assert_eq!(sent, None, "more bytes than may wait");
        pieces.recv().await;
        let sent = send_stream(&app, events(3, true), &sender, LONG).await;
        let rest = Bytes::from_static(b"1234512345");
        assert_eq!(sent, Some(rest), "what waits when the stream ends");
        drop(pieces);
        let sent = send_stream(&app, events(2, false), &sender, LONG).await;
        assert_eq!(sent, None, "the client left");
    }

    /// An answer's beginning and its end go out with what is beside them: hyper finds the first bytes
    /// with the head, and learns with the last bytes that they are the last.
    #[tokio::test]
    async fn neither_beginning_nor_end_is_a_write_of_its_own() {
        let app = App::new(ServerConfig::default(), ApiKeys::default());
        let (sender, pieces) = mpsc::channel(1);
        let mut body = ReplyBody::Sent {
            first: Some(Bytes::from_static(b"first")),
            pieces,
            is_over: false,
            length: None,
        };
        let mut next = || {
            let frame = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
            let bytes = frame.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap()));
            (bytes, body.is_end_stream())
        };
        let is = |bytes: &'static [u8]| Poll::Ready(Some(Bytes::from_static(bytes)));
        assert_eq!(next(), (is(b"first"), false));
        assert_eq!(next(), (Poll::Pending, false));
        // The last event is followed by the end at once, as a generation's is.
        let rest = EventStream::new(|mut sender| async move {
            sender.send(Bytes::from_static(b"text")).await;
            sleep(Duration::from_millis(1)).await;
            sender.send(Bytes::from_static(b"last")).await;
        });
        let last = send_stream(&app, rest, &sender, LONG).await.unwrap();
        assert_eq!(last, Bytes::from_static(b"last"));
        assert_eq!(next(), (is(b"text"), false));
        let connection = Connection::new(1);
        let request = hyper::Request::new(());
        let log = RequestLog::new(&app, &connection, &request, "id".to_owned());
        assert_eq!(app.in_flight.count(), 1);
        let (bytes, end) = (last, Some(log));
        sender.try_send(Piece { bytes, end }).unwrap();
        assert_eq!(next(), (is(b"last"), true));
        assert_eq!(app.in_flight.count(), 0, "over before it is written");
        assert_eq!(next(), (Poll::Ready(None), true));
    }

    /// A client that does not read holds one piece in the channel and one behind it, however much
    /// there would be to tell.
    #[tokio::test]
    async fn a_paced_stream_stands_still_while_it_is_not_read() {
        let app = App::new(ServerConfig::default(), ApiKeys::default());
        let made = Arc::new(AtomicUsize::new(0));
        let events = EventStream::paced({
            let made = Arc::clone(&made);
            move |mut sender| async move {
                for n in 0..100 {
                    made.store(n + 1, Ordering::Relaxed);
                    sender.send(Bytes::from(n.to_string())).await;
                    tokio::task::yield_now().await;
                }
            }
        });
        let (sender, mut pieces) = mpsc::channel(1);
        let mut sending = pin!(send_stream(&app, events, &sender, LONG));
        for _ in 0..50 {
            tokio::select! {
                biased;
                _ = &mut sending => panic!("it has not ended"),
                () = tokio::task::yield_now() => {}
            }
        }
        assert!(made.load(Ordering::Relaxed) <= 3, "{made:?}");
        let read = async {
            for n in 0..100 {
                assert_eq!(taken(&mut pieces).await, n.to_string());
            }
        };
        let (sent, ()) = tokio::join!(sending, read);
        assert_eq!(sent, Some(Bytes::new()));
    }
}
