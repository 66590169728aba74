//! The engine's side: a PUB socket, and a ROUTER socket that replays.
//!
//! All connections read from one ring of the latest messages. A subscriber that takes messages more
//! slowly than they come loses those that leave the ring, sees the gap in their numbers, and asks
//! for a replay.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prelude_core::KvEvent;
use tokio::{
    io::AsyncWrite,
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    sync::{Semaphore, mpsc},
    task::AbortHandle,
    time::sleep,
};

use crate::{
    Address, Batch, Error, Format, replay,
    sent::{Sent, write},
    zmtp::{self, Received, Socket},
};

/// Upper bound of the connections to a socket.
const MAX_PEERS: usize = 256;
/// Upper bound of the subscriptions of a connection.
const MAX_SUBSCRIPTIONS: usize = 64;
/// Upper bound of the bytes of a message that a peer sends.
const REQUEST_BYTES: usize = 4 << 10;

/// The sockets to bind and the form of messages.
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// The address of the PUB socket.
    pub endpoint: Address,
    /// The address of the ROUTER socket, if messages are replayed.
    pub replay_endpoint: Option<Address>,
    /// The first frame of each message.
    pub topic: String,
    /// The form of events.
    pub format: Format,
    /// Messages kept for replay and for slow subscribers, at least 1.
    pub buffer_steps: usize,
}

/// Publishes events. Dropping it closes its sockets.
#[derive(Debug)]
pub struct Publisher {
    sent: Arc<Sent>,
    format: Format,
    address: SocketAddr,
    replay_address: Option<SocketAddr>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Publisher {
    /// Binds the sockets and serves them on the current runtime.
    ///
    /// # Errors
    /// [`Error::Io`] if an address cannot be bound.
    pub async fn bind(config: &PublisherConfig) -> Result<Self, Error> {
        let topic = config.topic.clone().into_bytes();
        let sent = Arc::new(Sent::new(topic, config.buffer_steps));
        let listener = TcpListener::bind(config.endpoint.to_bind()).await?;
        let address = listener.local_addr()?;
        let mut tasks = Vec::new();
        let mut replay_address = None;
        if let Some(endpoint) = &config.replay_endpoint {
            let listener = TcpListener::bind(endpoint.to_bind()).await?;
            replay_address = Some(listener.local_addr()?);
            let accepting = accept(listener, Arc::clone(&sent), replay::serve);
            tasks.push(tokio::spawn(accepting).abort_handle());
        }
        let accepting = accept(listener, Arc::clone(&sent), serve_subscriber);
        tasks.push(tokio::spawn(accepting).abort_handle());
        Ok(Self {
            sent,
            format: config.format,
            address,
            replay_address,
            tasks,
        })
    }

    /// Returns the address of the PUB socket.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the ROUTER socket.
    #[must_use]
    pub const fn replay_address(&self) -> Option<SocketAddr> {
        self.replay_address
    }

    /// Sends events to all subscribers, as one message with the time of the system's clock. Does
    /// not wait for subscribers.
    pub fn publish(&self, events: Vec<KvEvent>) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = since.unwrap_or_default().as_secs_f64();
        let payload = Batch { time, events }.encode(self.format);
        self.sent.push(payload.into());
    }
}

/// Accepts connections, and serves each in a task that ends with this one.
async fn accept<F>(
    listener: TcpListener,
    sent: Arc<Sent>,
    serve: impl Fn(TcpStream, Arc<Sent>) -> F,
) where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let peers = Arc::new(Semaphore::new(MAX_PEERS));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&peers).acquire_owned().await else {
            return;
        };
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                let serving = serve(stream, Arc::clone(&sent));
                tasks.spawn(async move {
                    // A peer that fails reconnects, and finds by the numbers what it has missed.
                    let _ = serving.await;
                    drop(permit);
                });
            }
            // Too many open files, or a peer that is gone already.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve_subscriber(mut stream: TcpStream, sent: Arc<Sent>) -> Result<(), Error> {
    zmtp::handshake(&mut stream, Socket::Pub).await?;
    let (reader, writer) = stream.into_split();
    let subscriptions = Mutex::new(Vec::new());
    let (pong, pongs) = mpsc::channel(4);
    tokio::select! {
        ended = read_subscriptions(reader, &subscriptions, pong) => ended,
        ended = write_messages(writer, &subscriptions, pongs, &sent) => ended,
    }
}

/// The beginnings of topics that a peer has asked for.
type Subscriptions = Mutex<Vec<Vec<u8>>>;

fn lock(subscriptions: &Subscriptions) -> MutexGuard<'_, Vec<Vec<u8>>> {
    subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read_subscriptions(
    mut reader: OwnedReadHalf,
    subscriptions: &Subscriptions,
    pong: mpsc::Sender<Vec<u8>>,
) -> Result<(), Error> {
    loop {
        let (is_new, topic) = match zmtp::receive(&mut reader, REQUEST_BYTES).await? {
            Received::Message(frames) => match frames.first().and_then(|frame| frame.split_first())
            {
                Some((1, topic)) => (true, topic.to_vec()),
                Some((0, topic)) => (false, topic.to_vec()),
                _ => return Err(Error::Protocol("a subscriber sent no subscription")),
            },
            Received::Command { name, data } => match &name[..] {
                b"SUBSCRIBE" => (true, data),
                b"CANCEL" => (false, data),
                b"PING" => {
                    // A peer that pings faster than it reads gets no answer to some.
                    let _ = pong.try_send(zmtp::pong(&data));
                    continue;
                }
                _ => continue,
            },
        };
        let mut subscriptions = lock(subscriptions);
        if is_new {
            if subscriptions.len() == MAX_SUBSCRIPTIONS {
                return Err(Error::Protocol("a subscriber has too many subscriptions"));
            }
            subscriptions.push(topic);
        } else if let Some(at) = subscriptions.iter().position(|known| *known == topic) {
            subscriptions.swap_remove(at);
        }
    }
}

async fn write_messages(
    mut writer: impl AsyncWrite + Unpin,
    subscriptions: &Subscriptions,
    mut pongs: mpsc::Receiver<Vec<u8>>,
    sent: &Sent,
) -> Result<(), Error> {
    let mut next = sent.subscribe();
    let mut seq = sent.next();
    loop {
        while let Some((at, payload)) = sent.first_from(seq) {
            seq = at + 1;
            let is_wanted = |known: &Vec<u8>| sent.topic().starts_with(known);
            if lock(subscriptions).iter().any(is_wanted) {
                let frames: [&[u8]; 3] = [sent.topic(), &at.to_be_bytes(), &payload];
                write(&mut writer, &zmtp::message(&frames)).await?;
            }
        }
        tokio::select! {
            changed = next.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            Some(pong) = pongs.recv() => write(&mut writer, &pong).await?,
        }
    }
}
