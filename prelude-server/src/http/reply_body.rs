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
/// not read.
const MAX_PIECE_BYTES: usize = 64 << 10;

/// An answer to send.
pub(super) enum Content {
    /// An answer that is known whole.
    Whole(Bytes),
    /// An answer that is sent as it comes.
    Stream(EventStream),
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
        pieces: mpsc::Receiver<Piece>,
        length: Option<u64>,
    },
}

/// Bytes of an answer; `None` is the end of a whole one.
type Piece = Option<Bytes>;

/// The error of a body whose client does not read.
#[derive(Debug, thiserror::Error)]
#[error("the client does not read the answer")]
pub(super) struct ClientStalled;

impl ReplyBody {
    pub(super) fn new(app: &Arc<App>, content: Content, log: RequestLog) -> Self {
        let length = match &content {
            Content::Whole(bytes) => Some(bytes.len() as u64),
            Content::Stream(_) => None,
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
            content => {
                let (sender, pieces) = mpsc::channel(1);
                let abort = abort_handle();
                tokio::spawn(send(Arc::clone(app), content, sender, log, abort));
                Self::Sent { pieces, length }
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
            Self::Sent { pieces, .. } => match ready!(pieces.poll_recv(cx)) {
                Some(piece) => piece,
                None => return Poll::Ready(Some(Err(ClientStalled))),
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        // A task says by itself when an answer ends.
        matches!(self, Self::Whole { rest, .. } if rest.is_empty())
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
    mut log: RequestLog,
    abort: Option<Arc<Notify>>,
) {
    let write_stall = ms(app.config.limits.write_stall_ms);
    let sent = match content {
        Content::Whole(bytes) => send_whole(bytes, &pieces, write_stall).await,
        Content::Stream(events) => send_stream(&app, events, &pieces, write_stall).await,
    };
    if sent.is_some()
        && let Ok(Ok(end)) = timeout(write_stall, pieces.reserve()).await
    {
        // Counted before the client knows that the answer is over.
        log.whole();
        drop(log);
        end.send(None);
    } else if let Some(abort) = abort
        && !pieces.is_closed()
    {
        abort.notify_one();
    }
}

/// Sends a whole answer; returns `None` if the client left or does not read.
async fn send_whole(
    mut bytes: Bytes,
    pieces: &mpsc::Sender<Piece>,
    write_stall: Duration,
) -> Option<()> {
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(MAX_PIECE_BYTES));
        let sent = timeout(write_stall, pieces.send(Some(piece))).await;
        sent.ok()?.ok()?;
    }
    Some(())
}

/// Sends events as they come, comments in silence, and an error if running work is ended. Returns
/// `None` if the client left or does not read.
async fn send_stream(
    app: &App,
    mut events: EventStream,
    pieces: &mpsc::Sender<Piece>,
    write_stall: Duration,
) -> Option<()> {
    let limits = &app.config.limits;
    let silence = ms(limits.keep_alive_comment_ms);
    let mut keep_alive = pin!(sleep(silence));
    let mut ending = pin!(app.lifecycle.reached(Phase::Ending));
    // Bytes that have no room in the channel, and the time since which the client reads nothing.
    let mut unread = BytesMut::new();
    let mut unread_since = Instant::now();
    let mut is_over = false;
    while !(is_over && unread.is_empty()) {
        if unread.is_empty() {
            unread_since = Instant::now();
        }
        let reads_ahead = unread.is_empty() || !events.is_paced();
        tokio::select! {
            biased;
            room = pieces.reserve(), if !unread.is_empty() => {
                room.ok()?.send(Some(unread.split().freeze()));
            }
            next = events.next(), if !is_over && reads_ahead => {
                keep_alive.as_mut().reset(Instant::now() + silence);
                match next {
                    Some(bytes) => unread.extend_from_slice(&bytes),
                    None => is_over = true,
                }
            }
            () = &mut ending, if !is_over => {
                unread.extend_from_slice(&last_events());
                is_over = true;
            }
            () = &mut keep_alive, if !is_over => {
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
    Some(())
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{ApiKeys, ServerConfig};

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn a_whole_answer_that_is_not_read_is_given_up() {
        let (sender, mut pieces) = mpsc::channel(1);
        let bytes = Bytes::from_static(&[7; MAX_PIECE_BYTES + 1]);
        let sent = send_whole(bytes.clone(), &sender, Duration::ZERO).await;
        assert_eq!(sent, None);
        let first = pieces.recv().await.unwrap().unwrap();
        assert_eq!(first.len(), MAX_PIECE_BYTES);
        // One piece for the reader, one for the channel.
        let (sent, _) = tokio::join!(send_whole(bytes, &sender, LONG), pieces.recv());
        assert_eq!(sent, Some(()));
    }

    #[tokio::test]
    async fn a_stream_that_is_not_read_is_given_up() {
        let mut config = ServerConfig::default();
        config.limits.unread_bytes = 10;
        let app = App::new(config, ApiKeys::default());
        let events = |n: usize| {
            EventStream::new(move |mut sender| async move {
                for _ in 0..n {
                    sender.send(Bytes::from_static(b"12345")).await;
                }
            })
        };
        let (sender, mut pieces) = mpsc::channel(1);
        // One piece is in the channel, and two are as much as may wait for it.
        let sent = send_stream(&app, events(3), &sender, Duration::from_millis(1)).await;
        assert_eq!(sent, None, "in time");
        assert_eq!(
            pieces.recv().await,
            Some(Some(Bytes::from_static(b"12345")))
        );
        let sent = send_stream(&app, events(4), &sender, LONG).await;
        assert_eq!(sent, None, "more bytes than may wait");
        pieces.recv().await;
        let (sent, second) = tokio::join!(send_stream(&app, events(2), &sender, LONG), async {
            pieces.recv().await;
            pieces.recv().await
        });
        assert_eq!(sent, Some(()));
        assert_eq!(second, Some(Some(Bytes::from_static(b"12345"))));
        drop(pieces);
        assert_eq!(send_stream(&app, events(1), &sender, LONG).await, None);
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
                let piece = pieces.recv().await.unwrap().unwrap();
                assert_eq!(piece, n.to_string());
            }
        };
        let (sent, ()) = tokio::join!(sending, read);
        assert_eq!(sent, Some(()));
    }
}
