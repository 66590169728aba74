//! What waits, ordered.

use std::collections::BTreeMap;

use prelude_core::Timestamp;

use crate::Waiting;

/// Place in a queue: priority, arrival, number of submission. Unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    pub(crate) priority: i64,
    pub(crate) arrival: Timestamp,
    pub(crate) serial: u64,
}

/// Requests of one kind in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<QueueKey, Waiting>,
}

impl Queue {
    /// Adds the entry or changes how many rows wait; removes it at zero.
    pub(crate) fn set(&mut self, key: QueueKey, waiting: Waiting) {
        if waiting.rows == 0 {
            self.entries.remove(&key);
        } else {
            self.entries.insert(key, waiting);
        }
    }

    pub(crate) fn remove(&mut self, key: &QueueKey) {
        self.entries.remove(key);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Key of the first entry.
    pub(crate) fn head(&self) -> Option<QueueKey> {
        self.entries.first_key_value().map(|(key, _)| *key)
    }
}
