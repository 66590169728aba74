//! A small cache of what is dear to make: the least recently used goes first.

use std::collections::VecDeque;

/// Values by content hash, at most so many, of at most so many bytes together.
#[derive(Debug)]
pub(super) struct Cache<T> {
    /// Most recently used last.
    entries: VecDeque<Entry<T>>,
    max: usize,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Entry<T> {
    key: [u8; 32],
    value: T,
    bytes: usize,
}

impl<T: Clone> Cache<T> {
    pub(super) fn new(max: usize, max_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            max,
            bytes: 0,
            max_bytes,
        }
    }

    /// Returns the bytes of all values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&mut self, key: &[u8; 32]) -> Option<T> {
        // A few dozen entries: moving them costs less than a list that is kept in order.
        let entry = self.take(key)?;
        let value = entry.value.clone();
        self.push(entry);
        Some(value)
    }

    /// Keeps a value of `bytes` bytes, unless it alone is more than all may be.
    pub(super) fn put(&mut self, key: [u8; 32], value: T, bytes: usize) {
        self.remove(&key);
        if bytes > self.max_bytes || self.max == 0 {
            return;
        }
        while self.entries.len() >= self.max || self.bytes > self.max_bytes - bytes {
            let oldest = self
                .entries
                .pop_front()
                .expect("a cache above its bounds has entries");
            self.bytes -= oldest.bytes;
        }
        self.push(Entry { key, value, bytes });
    }

    pub(super) fn remove(&mut self, key: &[u8; 32]) {
        self.take(key);
    }

    fn take(&mut self, key: &[u8; 32]) -> Option<Entry<T>> {
        let at = self.entries.iter().position(|e| e.key == *key)?;
        let entry = self.entries.remove(at)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn push(&mut self, entry: Entry<T>) {
        self.bytes += entry.bytes;
        self.entries.push_back(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> [u8; 32] {
        [n; 32]
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut cache = Cache::new(2, 100);
        cache.put(key(1), 1, 1);
        cache.put(key(2), 2, 1);
        assert_eq!(cache.get(&key(1)), Some(1));
        cache.put(key(3), 3, 1);
        assert_eq!(cache.get(&key(2)), None);
        assert_eq!(cache.get(&key(1)), Some(1));
        cache.put(key(1), 4, 1);
        assert_eq!(cache.get(&key(1)), Some(4));
        assert_eq!(cache.get(&key(3)), Some(3));
    }

    #[test]
    fn bytes_are_bounded() {
        let mut cache = Cache::new(10, 100);
        for (n, bytes) in [(1, 40), (2, 40), (3, 20)] {
            cache.put(key(n), n, bytes);
        }
        assert_eq!(cache.bytes, 100);
        // One that needs the room of two, the first of which was used last.
        assert_eq!(cache.get(&key(1)), Some(1));
        cache.put(key(4), 4, 55);
        assert_eq!((cache.get(&key(2)), cache.get(&key(3))), (None, None));
        assert_eq!((cache.get(&key(1)), cache.get(&key(4))), (Some(1), Some(4)));
        // One that would push out all others is not kept, and pushes out nothing.
        cache.put(key(5), 5, 101);
        assert_eq!((cache.get(&key(5)), cache.get(&key(1))), (None, Some(1)));
        cache.put(key(4), 4, 1);
        cache.remove(&key(1));
        assert_eq!(cache.bytes, 1);
    }
}
