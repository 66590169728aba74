//! The rules by which a reader stays right whatever is lost, repeated or restarted.
//!
//! A reader keeps the number and a fingerprint of the last message that it applied.
//!
//! - The message with the next number is applied.
//! - For any other, and after each connection, the reader asks for a replay from its last message
//!   on. If the replay begins with that very message (the fingerprint, which covers the time of
//!   sending, says so), the rest of it is applied: nothing was missed.
//! - If not, the engine restarted, or messages are gone for good: the reader forgets the engine's
//!   blocks, asks for all messages that there are, and applies them. It then knows fewer blocks than
//!   there are, perhaps, and none that is not there: a block is known only from a message that
//!   stored it, and every later message is applied.
//!
//! Pure code: the caller has the sockets.

use std::hash::{DefaultHasher, Hasher as _};

use bytes::Bytes;

use crate::{Batch, Update};

/// The next thing to do for a reader.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Apply these, in order.
    Apply(Vec<Update>),
    /// Ask for a replay from this number on, and give the answer to [`Follower::replayed`].
    Ask(u64),
}

/// The place of a reader in an engine's messages.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    last: Option<Mark>,
    /// The number that the replay under way was asked from.
    asked: u64,
    /// True if a question was not answered since the last replay: the reader may know few blocks.
    is_partial: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    seq: u64,
    fingerprint: u64,
}

impl Mark {
    fn new(seq: u64, payload: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(payload);
        Self {
            seq,
            fingerprint: hasher.finish(),
        }
    }
}

impl Follower {
    /// Returns what to do on a new connection, and whenever messages may have been lost without a
    /// later one that shows it.
    #[must_use]
    pub fn check(&mut self) -> Step {
        let last = self.last.filter(|_| !self.is_partial);
        self.asked = last.map_or(0, |last| last.seq);
        Step::Ask(self.asked)
    }

    /// Returns what to do with a message.
    #[must_use]
    pub fn message(&mut self, seq: u64, payload: &[u8]) -> Step {
        let mark = Mark::new(seq, payload);
        match self.last {
            Some(last) if last == mark => Step::Apply(Vec::new()),
            Some(last) if last.seq.checked_add(1) == Some(seq) => {
                let mut updates = Vec::new();
                self.apply(mark, payload, &mut updates);
                Step::Apply(updates)
            }
            _ => self.check(),
        }
    }

    /// Returns what to do with a replay: the messages from the number that was asked for on. The
    /// message that led to the question is among them, since it was sent before.
    #[must_use]
    pub fn replayed(&mut self, messages: &[(u64, Bytes)]) -> Step {
        let first = messages
            .first()
            .map(|(seq, payload)| Mark::new(*seq, payload));
        let is_same = self.last.is_some() && self.last == first;
        let mut updates = Vec::new();
        self.is_partial = false;
        if !is_same {
            if self.last.take().is_some() && self.asked > 0 {
                self.asked = 0;
                return Step::Ask(0);
            }
            updates.push(Update::Reset);
        }
        for (seq, payload) in &messages[usize::from(is_same)..] {
            if self
                .last
                .is_some_and(|last| last.seq.checked_add(1) != Some(*seq))
            {
                // Messages left the ring while the ring was read.
                updates.push(Update::Reset);
            }
            self.apply(Mark::new(*seq, payload), payload, &mut updates);
        }
        Step::Apply(updates)
    }

    /// Returns what to do if there is no replay: the reader forgets all, and goes on with the
    /// message that led to the question, if one did.
    #[must_use]
    pub fn unanswered(&mut self, message: Option<(u64, &[u8])>) -> Vec<Update> {
        self.last = None;
        self.is_partial = true;
        let mut updates = vec![Update::Reset];
        if let Some((seq, payload)) = message {
            self.apply(Mark::new(seq, payload), payload, &mut updates);
        }
        updates
    }

    fn apply(&mut self, mark: Mark, payload: &[u8], updates: &mut Vec<Update>) {
        self.last = Some(mark);
        // A message that cannot be read may have removed any blocks.
        updates.push(
            Batch::decode(payload).map_or(Update::Reset, |batch| Update::Events(batch.events)),
        );
    }
}

#[cfg(test)]
mod tests;
