//! The waiting requests in order.

use std::{collections::BTreeMap, time::Duration};

use prelude_core::{RequestId, Timestamp};

use crate::{Turn, Waiting};

/// A request without a deadline is placed as if it were due so long after its arrival. So no
/// request that comes more than that later goes first, and a later deadline gains and loses
/// nothing.
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

/// Returns the time by which the queue orders a request: its deadline, or the time at which a
/// request without one counts as due.
pub(crate) fn due(arrival: Timestamp, deadline: Option<Timestamp>) -> Timestamp {
    let unhurried = arrival.saturating_add(UNHURRIED);
    deadline.map_or(unhurried, |deadline| deadline.min(unhurried))
}

impl QueueKey {
    /// Returns the order in which requests become overdue, and then go first.
    pub(crate) const fn age(&self) -> (Timestamp, u64) {
        (self.arrival, self.serial)
    }

    /// Returns the place of the same request while it is overdue: before all others, by age.
    const fn overdue(self) -> Self {
        Self {
            turn: Turn::Overdue,
            priority: i64::MIN,
            due: self.arrival,
            ..self
        }
    }
}

/// Requests of one kind in order. At most one of them is overdue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<QueueKey, Waiting>,
    /// The places of the requests by arrival and submission.
    by_arrival: BTreeMap<(Timestamp, u64), QueueKey>,
    /// Number of submission of the overdue request.
    overdue: Option<u64>,
    rows: u64,
}

impl Queue {
    /// Sets the number of rows of a request that wait now; zero removes the request.
    pub(crate) fn set(&mut self, key: QueueKey, waiting: Waiting) {
        let overdue = self.overdue.filter(|_| waiting.rows > 0);
        self.remove(&key);
        if waiting.rows > 0 {
            self.overdue = overdue;
            let key = self.placed(key);
            let turn = key.turn;
            self.rows += u64::from(waiting.rows);
            self.by_arrival.insert(key.age(), key);
            self.entries.insert(key, Waiting { turn, ..waiting });
        }
    }

    pub(crate) fn remove(&mut self, key: &QueueKey) {
        if let Some(waiting) = self.entries.remove(&self.placed(*key)) {
            self.rows -= u64::from(waiting.rows);
            self.by_arrival.remove(&key.age());
            self.overdue.take_if(|serial| *serial == key.serial);
        }
    }

    /// Returns the place that a request with this key has now.
    pub(crate) fn placed(&self, key: QueueKey) -> QueueKey {
        if self.overdue == Some(key.serial) {
            key.overdue()
        } else {
            key
        }
    }

    /// Returns a request as it waits, with its turn.
    pub(crate) fn get(&self, key: QueueKey) -> Option<Waiting> {
        self.entries.get(&self.placed(key)).copied()
    }

    /// Gives the turn to the request that has waited longest, if that is `max_wait` and no other
    /// has the turn. Returns it.
    pub(crate) fn promote(&mut self, now: Timestamp, max_wait: Duration) -> Option<RequestId> {
        let (&(arrival, serial), &key) = self.by_arrival.first_key_value()?;
        if self.overdue.is_some() || now.saturating_since(arrival) < max_wait {
            return None;
        }
        let waiting = self.entries[&key];
        self.remove(&key);
        self.overdue = Some(serial);
        self.set(key, waiting);
        Some(waiting.request)
    }

    #[cfg(test)]
    pub(crate) fn first(&self) -> Option<(&QueueKey, &Waiting)> {
        self.entries.first_key_value()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of rows of all requests.
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
        let usual = Turn::Usual;
        let entries = [
            (usual, 0, 5, None, 0),
            (usual, 0, 3, None, 1),
            (usual, -1, 9, None, 2),
            (usual, 0, 3, None, 3),
            (usual, 7, 2, None, 4),
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
        let order = |queue: &Queue| queue.iter().map(|w| w.request.0).collect::<Vec<u64>>();
        assert_eq!(order(&queue), [2, 6, 5, 1, 3, 7, 0, 4]);
        let promote = |queue: &mut Queue, now| {
            let wait = Duration::from_nanos(10);
            queue.promote(Timestamp::from_nanos(now), wait)
        };
        assert_eq!(promote(&mut queue, 11), None);
        assert_eq!(promote(&mut queue, 12), Some(RequestId(4)));
        assert_eq!(order(&queue), [4, 2, 6, 5, 1, 3, 7, 0]);
        assert_eq!(queue.rows(), 16);
        // One at a time, until all of it has started.
        assert_eq!(promote(&mut queue, 90), None);
        let waiting = queue.get(keys[4]).expect("it waits");
        assert_eq!(waiting.turn, Turn::Overdue);
        queue.set(keys[4], Waiting { rows: 1, ..waiting });
        assert_eq!(promote(&mut queue, 90), None);
        queue.set(keys[4], Waiting { rows: 0, ..waiting });
        assert_eq!(promote(&mut queue, 90), Some(RequestId(1)));
        keys.iter().for_each(|key| queue.remove(key));
        assert_eq!((promote(&mut queue, 90), queue.rows()), (None, 0));
    }
}
