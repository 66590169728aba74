//! What waits, ordered.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use prelude_core::{RequestId, Timestamp};

use crate::{Turn, Waiting};

/// A request without a deadline has the place of one that is due so long after its arrival. So
/// nobody who came more than that after it goes first, and a later deadline gains and loses nothing.
const UNHURRIED: Duration = Duration::from_secs(30);

/// Place in a queue: turn, priority, when it is due, arrival, number of submission. Unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    pub(crate) turn: Turn,
    pub(crate) priority: i64,
    pub(crate) due: Timestamp,
    pub(crate) arrival: Timestamp,
    pub(crate) serial: u64,
}

/// When a request is due, as its place goes.
pub(crate) fn due(arrival: Timestamp, deadline: Option<Timestamp>) -> Timestamp {
    let unhurried = arrival.saturating_add(UNHURRIED);
    deadline.map_or(unhurried, |deadline| deadline.min(unhurried))
}

/// Requests of one kind in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<QueueKey, Waiting>,
    /// The same requests by arrival and submission.
    by_arrival: BTreeSet<(Timestamp, u64, RequestId)>,
    rows: u64,
}

impl Queue {
    /// Says how many rows of a request wait now; none removes it.
    pub(crate) fn set(&mut self, key: QueueKey, waiting: Waiting) {
        self.remove(&key);
        if waiting.rows > 0 {
            self.rows += u64::from(waiting.rows);
            self.by_arrival
                .insert((key.arrival, key.serial, waiting.request));
            self.entries.insert(key, waiting);
        }
    }

    pub(crate) fn remove(&mut self, key: &QueueKey) {
        if let Some(waiting) = self.entries.remove(key) {
            self.rows -= u64::from(waiting.rows);
            self.by_arrival
                .remove(&(key.arrival, key.serial, waiting.request));
        }
    }

    /// Who has waited longest, and since when, unless somebody overdue is still in line.
    pub(crate) fn next_overdue(&self) -> Option<(Timestamp, RequestId)> {
        let (first, _) = self.entries.first_key_value()?;
        let &(arrival, _, request) = self.by_arrival.first()?;
        (first.turn != Turn::Overdue).then_some((arrival, request))
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
    fn orders_by_turn_priority_deadline_arrival_and_submission() {
        let mut queue = Queue::default();
        let (usual, overdue) = (Turn::Usual, Turn::Overdue);
        let entries = [
            (usual, 0, 5, None, 0),
            (usual, 0, 3, None, 1),
            (usual, -1, 9, None, 2),
            (usual, 0, 3, None, 3),
            (overdue, 7, 8, None, 4),
            (usual, 0, 7, Some(90), 5),
            (usual, 0, 8, Some(80), 6),
            // Too far to hurry: as if there were none.
            (usual, 0, 4, Some(u64::MAX), 7),
        ];
        let mut keys = Vec::new();
        for (turn, priority, arrival, deadline, serial) in entries {
            let arrival = Timestamp::from_nanos(arrival);
            let deadline = deadline.map(Timestamp::from_nanos);
            let key = QueueKey {
                turn,
                priority,
                due: due(arrival, deadline),
                arrival,
                serial,
            };
            let request = RequestId(serial);
            keys.push(key);
            queue.set(
                key,
                Waiting {
                    request,
                    turn,
                    priority,
                    arrival,
                    deadline,
                    rows: 2,
                },
            );
        }
        let order: Vec<u64> = queue.iter().map(|w| w.request.0).collect();
        assert_eq!(order, [4, 2, 6, 5, 1, 3, 7, 0]);
        assert_eq!(queue.rows(), 16);
        // One at a time.
        assert_eq!(queue.next_overdue(), None);
        queue.remove(&keys[4]);
        let oldest = Some((Timestamp::from_nanos(3), RequestId(1)));
        assert_eq!(queue.next_overdue(), oldest);
        keys.iter().for_each(|key| queue.remove(key));
        assert_eq!((queue.next_overdue(), queue.rows()), (None, 0));
    }
}
