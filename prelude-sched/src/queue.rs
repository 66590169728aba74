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
    rows: u64,
}

impl Queue {
    /// Says how many rows of a request wait now; none removes it.
    pub(crate) fn set(&mut self, key: QueueKey, waiting: Waiting) {
        let before = if waiting.rows == 0 {
            self.entries.remove(&key)
        } else {
            self.entries.insert(key, waiting)
        };
        self.rows += u64::from(waiting.rows);
        self.rows -= before.map_or(0, |w| u64::from(w.rows));
    }

    pub(crate) fn remove(&mut self, key: &QueueKey) {
        if let Some(waiting) = self.entries.remove(key) {
            self.rows -= u64::from(waiting.rows);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Rows of all requests.
    pub(crate) const fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use prelude_core::RequestId;

    use super::*;

    #[test]
    fn orders_by_priority_then_arrival_then_submission() {
        let mut queue = Queue::default();
        let entries = [(0, 5, 0), (0, 3, 1), (-1, 9, 2), (0, 3, 3)];
        for (priority, arrival, serial) in entries {
            let arrival = Timestamp::from_nanos(arrival);
            let key = QueueKey {
                priority,
                arrival,
                serial,
            };
            let request = RequestId(serial);
            queue.set(
                key,
                Waiting {
                    request,
                    priority,
                    arrival,
                    deadline: None,
                    rows: 2,
                },
            );
        }
        let order: Vec<u64> = queue.iter().map(|w| w.request.0).collect();
        assert_eq!(order, [2, 1, 3, 0]);
        assert_eq!(queue.rows(), 8);
    }
}
