//! The waiting requests of one class, in order.

use std::collections::BTreeSet;

use prelude_core::{RequestId, Timestamp};

use super::{super::places::Orders, Length, shares::Offer};
use crate::{Turn, Waiting, length::length_of};

/// Place in the order. Unique, since ids are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) turn: Turn,
    priority: i64,
    /// Binary digits of a short request's tokens; long and overdue ones go as they come.
    bucket: u32,
    pub(super) arrival: Timestamp,
    pub(super) request: RequestId,
}

impl Key {
    pub(super) fn new(waiting: &Waiting, length: Length, tokens: u64) -> Self {
        let is_overdue = waiting.turn == Turn::Overdue;
        let bucket = match length {
            Length::Short if !is_overdue => u64::BITS - tokens.leading_zeros(),
            Length::Short | Length::Long => 0,
        };
        let priority = if is_overdue {
            i64::MIN
        } else {
            waiting.priority
        };
        Self {
            turn: waiting.turn,
            priority,
            bucket,
            arrival: waiting.arrival,
            request: waiting.request,
        }
    }
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) key: Key,
    pub(super) length: Length,
    /// The number of tokens to be computed.
    pub(super) tokens: u64,
    /// The time by which the request has to start to meet its deadline, if it has one.
    pub(super) start_by: Option<Timestamp>,
    /// The load that the request was counted for when it came.
    pub(super) offer: Offer,
    /// True if one-shot rows of the request wait; true if generations of it wait.
    pub(super) has_rows: bool,
    pub(super) generates: bool,
}

/// The requests of one class.
#[derive(Debug, Default)]
pub(super) struct Line {
    order: BTreeSet<Key>,
    starts: BTreeSet<(Timestamp, RequestId)>,
    arrivals: BTreeSet<(Timestamp, RequestId)>,
    tokens: u64,
    /// The requests with one-shot rows, and the requests with generations, in the same order: a few
    /// of one kind may be behind very many of the other.
    rows: BTreeSet<Key>,
    generating: BTreeSet<Key>,
}

/// The short requests and the long ones.
pub(super) type Lines = [Line; 2];

impl Orders<Place> for Lines {
    fn insert(&mut self, _: RequestId, place: &Place) {
        self[place.length as usize].insert(place);
    }

    fn remove(&mut self, _: RequestId, place: &Place) {
        self[place.length as usize].remove(place);
    }
}

impl Line {
    fn insert(&mut self, place: &Place) {
        let request = place.key.request;
        self.order.insert(place.key);
        self.arrivals.insert((place.key.arrival, request));
        self.starts.extend(place.start_by.map(|at| (at, request)));
        self.tokens += place.tokens;
        self.rows.extend(place.has_rows.then_some(place.key));
        self.generating.extend(place.generates.then_some(place.key));
    }

    fn remove(&mut self, place: &Place) {
        let request = place.key.request;
        self.order.remove(&place.key);
        self.arrivals.remove(&(place.key.arrival, request));
        if let Some(at) = place.start_by {
            self.starts.remove(&(at, request));
        }
        self.tokens -= place.tokens;
        self.rows.remove(&place.key);
        self.generating.remove(&place.key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Returns the requests with one-shot rows, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = RequestId> {
        self.rows.iter().map(|key| key.request)
    }

    /// Returns the requests with generations, in order.
    pub(super) fn generating(&self) -> impl Iterator<Item = RequestId> {
        self.generating.iter().map(|key| key.request)
    }

    /// Returns the number of requests.
    pub(super) fn depth(&self) -> u32 {
        length_of(self.order.len())
    }

    pub(super) const fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(super) fn first(&self) -> Option<&Key> {
        self.order.first()
    }

    /// Returns the overdue requests: one for each kind of work at most.
    pub(super) fn overdue(&self) -> impl Iterator<Item = RequestId> {
        let overdue = self.order.iter();
        let overdue = overdue.take_while(|key| key.turn == Turn::Overdue);
        overdue.map(|key| key.request)
    }

    /// Returns the time at which the first of the requests came.
    pub(super) fn head(&self) -> Option<Timestamp> {
        self.arrivals.first().map(|&(arrival, _)| arrival)
    }

    /// Returns the time by which the first has to start, or had to.
    pub(super) fn first_start(&self) -> Option<Timestamp> {
        self.starts.first().map(|&(at, _)| at)
    }

    /// Returns the time by which the first request that is not too late has to start.
    pub(super) fn next_start(&self, now: Timestamp) -> Option<Timestamp> {
        let rest = self.starts.range((now, RequestId(0))..);
        rest.map(|&(at, _)| at).next()
    }

    /// Returns the requests that have to start from `now` on and before `until`, first first.
    pub(super) fn starts(
        &self,
        now: Timestamp,
        until: Timestamp,
    ) -> impl Iterator<Item = RequestId> {
        let range = (now, RequestId(0))..(until.max(now), RequestId(0));
        self.starts.range(range).map(|&(_, request)| request)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::shares::Shares, *};

    fn place(request: u64, tokens: u64, start_by: Option<u64>) -> Place {
        let waiting = Waiting {
            request: RequestId(request),
            turn: Turn::Usual,
            priority: 0,
            arrival: Timestamp::from_nanos(request),
            deadline: None,
            rows: 1,
        };
        Place {
            key: Key::new(&waiting, Length::Short, tokens),
            length: Length::Short,
            tokens,
            start_by: start_by.map(Timestamp::from_nanos),
            offer: Shares::new(10, Duration::from_secs(10)).arrive(
                Timestamp::ZERO,
                Length::Short,
                Duration::ZERO,
            ),
            has_rows: request.is_multiple_of(2),
            generates: !request.is_multiple_of(2),
        }
    }

    #[test]
    fn shortest_first_by_powers_of_two() {
        let mut line = Line::default();
        let places = [(1, 100), (2, 64), (3, 127), (4, 5), (5, 63)].map(|(request, tokens)| {
            let place = place(request, tokens, None);
            line.insert(&place);
            place
        });
        let order = |line: &Line| {
            line.order
                .iter()
                .map(|key| key.request.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(&line), [4, 5, 1, 2, 3]);
        assert_eq!((line.tokens(), line.depth()), (359, 5));
        for place in &places[..4] {
            line.remove(place);
        }
        assert_eq!(order(&line), [5]);
        assert!(!line.has_rows() && line.tokens() == 63);
    }

    #[test]
    fn finds_who_has_to_start_soon() {
        let mut line = Line::default();
        for (request, start_by) in [(1, Some(50)), (2, Some(9)), (3, None), (4, Some(30))] {
            line.insert(&place(request, 1, start_by));
        }
        let at = Timestamp::from_nanos;
        let check = |now, until, expected: &[u64]| {
            let found: Vec<u64> = line.starts(at(now), at(until)).map(|id| id.0).collect();
            assert_eq!(found, expected, "{now}..{until}");
        };
        check(0, 100, &[2, 4, 1]);
        check(10, 50, &[4]);
        check(30, 51, &[4, 1]);
        check(60, 10, &[]);
        assert_eq!(line.next_start(at(10)), Some(at(30)));
        assert_eq!(line.next_start(at(51)), None);
        assert_eq!(line.first_start(), Some(at(9)));
        assert_eq!(line.head(), Some(at(1)));
    }
}
