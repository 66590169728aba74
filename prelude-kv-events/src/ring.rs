//! The latest messages, by sequence number.

use std::collections::VecDeque;

use bytes::Bytes;

/// The latest messages, at most so many and so many bytes, and always the last one.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: VecDeque<Bytes>,
    /// The number of the next message.
    next: u64,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl Ring {
    pub(crate) const fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            next: 0,
            bytes: 0,
            max_entries,
            max_bytes,
        }
    }

    /// Adds a message, which gets the next number, and forgets the oldest ones beyond the bounds.
    pub(crate) fn push(&mut self, payload: Bytes) {
        self.bytes += payload.len();
        self.entries.push_back(payload);
        self.next += 1;
        while self.entries.len() > self.max_entries.max(1)
            || self.entries.len() > 1 && self.bytes > self.max_bytes
        {
            let oldest = self.entries.pop_front();
            self.bytes -= oldest.map_or(0, |payload| payload.len());
        }
    }

    /// Returns the number of the next message.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Returns the messages that are kept from a number on.
    pub(crate) fn from(&self, seq: u64) -> impl Iterator<Item = (u64, Bytes)> + '_ {
        let oldest = self.next - self.entries.len() as u64;
        let first = seq.max(oldest);
        let skipped = usize::try_from(first - oldest).unwrap_or(usize::MAX);
        (first..).zip(self.entries.iter().skip(skipped).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ring: &Ring, from: u64) -> Vec<(u64, usize)> {
        let found = ring.from(from);
        found.map(|(seq, payload)| (seq, payload.len())).collect()
    }

    #[test]
    fn the_oldest_messages_go_first() {
        let mut ring = Ring::new(3, 10);
        assert_eq!((ring.next(), numbers(&ring, 0)), (0, vec![]));
        for len in 1..=4 {
            ring.push(vec![0; len].into());
        }
        assert_eq!(numbers(&ring, 0), [(1, 2), (2, 3), (3, 4)]);
        assert_eq!(numbers(&ring, 3), [(3, 4)]);
        assert_eq!(numbers(&ring, 4), []);
        assert_eq!(numbers(&ring, u64::MAX), []);
        ring.push(vec![0; 6].into());
        assert_eq!(numbers(&ring, 0), [(3, 4), (4, 6)], "ten bytes");
        ring.push(vec![0; 99].into());
        assert_eq!(numbers(&ring, 0), [(5, 99)], "the last one stays");
        assert_eq!(ring.next(), 6);
    }
}
