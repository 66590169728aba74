//! The reader's side: a SUB socket, and replays.

use std::{convert::Infallible, time::Duration};

use tokio::{
    net::TcpStream,
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    Address, Error, Follower, Step, Update,
    replay::{self, MESSAGE_BYTES},
    zmtp::{self, Received, Socket},
};

/// Upper bound of the messages that were received and not applied yet.
const MAX_QUEUED_MESSAGES: usize = 64;
/// Time for a connection to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between a connection's end and the next try.
const RETRY: Duration = Duration::from_secs(1);

/// An engine's sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberConfig {
    /// The address of the PUB socket.
    pub endpoint: Address,
    /// The address of the ROUTER socket, if the engine has one. Without it each lost message, and
    /// each lost connection, makes the reader forget the engine's blocks.
    pub replay_endpoint: Option<Address>,
    /// The beginning of the topics to read; empty for all.
    pub topic: String,
    /// Time without a message after which the reader asks whether it has missed the last ones.
    pub check_every: Duration,
}

/// Follows the events of one engine.
#[derive(Debug)]
pub struct Subscriber {
    config: SubscriberConfig,
    follower: Follower,
}

impl Subscriber {
    /// Returns a subscriber, which connects in [`Self::run`].
    #[must_use]
    pub fn new(config: SubscriberConfig) -> Self {
        Self {
            config,
            follower: Follower::default(),
        }
    }

    /// Gives updates to `apply` for as long as it is polled, over as many connections as it takes.
    pub async fn run(mut self, mut apply: impl FnMut(Update)) -> Infallible {
        loop {
            let Err(error) = self.follow(&mut apply).await;
            apply(Update::Disconnected(error));
            sleep(RETRY).await;
        }
    }

    /// Follows one connection until it fails.
    async fn follow(&mut self, apply: &mut impl FnMut(Update)) -> Result<Infallible, Error> {
        let connecting = TcpStream::connect(self.config.endpoint.to_bind());
        let connected = timeout(CONNECT_TIMEOUT, connecting).await;
        let mut stream = connected.map_err(|_| Error::Timeout(CONNECT_TIMEOUT.as_secs()))??;
        zmtp::handshake(&mut stream, Socket::Sub).await?;
        let subscription = [&[1], self.config.topic.as_bytes()].concat();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &zmtp::message(&[&subscription])).await?;
        let (sender, mut messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let mut reading = tokio::task::JoinSet::new();
        reading.spawn(read(stream, sender));
        let step = self.follower.check();
        self.take(step, None, apply).await;
        loop {
            match timeout(self.config.check_every, messages.recv()).await {
                Ok(Some(message)) => {
                    let (seq, payload) = message?;
                    let step = self.follower.message(seq, &payload);
                    self.take(step, Some((seq, &payload)), apply).await;
                }
                Ok(None) => return Err(Error::Protocol("the connection was closed")),
                Err(_) if self.config.replay_endpoint.is_some() => {
                    let step = self.follower.check();
                    self.take(step, None, apply).await;
                }
                Err(_) => {}
            }
        }
    }

    /// Does a step and those that follow from it.
    async fn take(
        &mut self,
        mut step: Step,
        message: Option<(u64, &[u8])>,
        apply: &mut impl FnMut(Update),
    ) {
        loop {
            let from = match step {
                Step::Apply(updates) => return updates.into_iter().for_each(apply),
                Step::Ask(from) => from,
            };
            let answer = match &self.config.replay_endpoint {
                Some(address) => replay::ask(address, from).await.ok(),
                None => None,
            };
            step = match answer {
                Some(messages) => self.follower.replayed(&messages),
                None => Step::Apply(self.follower.unanswered(message)),
            };
        }
    }
}

/// Reads messages until the connection ends.
async fn read(mut stream: TcpStream, sender: mpsc::Sender<Result<(u64, Vec<u8>), Error>>) {
    loop {
        let message = match zmtp::receive(&mut stream, MESSAGE_BYTES).await {
            Ok(Received::Message(frames)) => split(frames),
            Ok(Received::Command { name, data }) => {
                if name == b"PING" {
                    let pong = zmtp::pong(&data);
                    // A connection that takes no bytes ends with the next read.
                    let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &pong).await;
                }
                continue;
            }
            Err(error) => Err(error),
        };
        let is_over = message.is_err();
        if sender.send(message).await.is_err() || is_over {
            return;
        }
    }
}

/// Returns the number and the contents of a message.
fn split(frames: Vec<Vec<u8>>) -> Result<(u64, Vec<u8>), Error> {
    let Ok([_, seq, payload]) = <[_; 3]>::try_from(frames) else {
        return Err(Error::Protocol("a message has not three frames"));
    };
    let seq = <[u8; 8]>::try_from(seq);
    let seq = seq.map_err(|_| Error::Protocol("a message's second frame is no number"))?;
    Ok((u64::from_be_bytes(seq), payload))
}
