//! The messages that were sent, as all connections of a publisher see them.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::watch,
    time::timeout,
};

use crate::{Error, ring::Ring};

/// Upper bound of the bytes of all messages kept for replay.
const RING_BYTES: usize = 64 << 20;
/// Seconds that a peer may take nothing.
const STALL_S: u64 = 60;

/// The latest messages, and a way to wait for the next one.
#[derive(Debug)]
pub(crate) struct Sent {
    ring: Mutex<Ring>,
    /// The number of the next message, for tasks that wait for it.
    next: watch::Sender<u64>,
    topic: Vec<u8>,
}

impl Sent {
    pub(crate) fn new(topic: Vec<u8>, buffer_steps: usize) -> Self {
        Self {
            ring: Mutex::new(Ring::new(buffer_steps, RING_BYTES)),
            next: watch::Sender::new(0),
            topic,
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // The ring is valid between statements.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message and wakes the tasks that wait for it.
    pub(crate) fn push(&self, payload: Bytes) {
        let mut ring = self.ring();
        ring.push(payload);
        let next = ring.next();
        drop(ring);
        self.next.send_replace(next);
    }

    pub(crate) fn topic(&self) -> &[u8] {
        &self.topic
    }

    /// Returns the number of the next message.
    pub(crate) fn next(&self) -> u64 {
        self.ring().next()
    }

    /// Returns a receiver that is told of each message after this call.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// Returns the first message that is kept from a number on.
    pub(crate) fn first_from(&self, seq: u64) -> Option<(u64, Bytes)> {
        self.ring().from(seq).next()
    }
}

/// Writes bytes, unless the peer takes none for too long.
pub(crate) async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<(), Error> {
    let written = timeout(Duration::from_secs(STALL_S), writer.write_all(bytes)).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok(())
}
