//! A small cache of what is dear to make: the least recently used goes first.

use std::sync::{Arc, Mutex, PoisonError};

/// Values by content hash, at most so many.
#[derive(Debug)]
pub(super) struct Cache<T> {
    /// Most recently used last.
    entries: Mutex<Vec<([u8; 32], Arc<T>)>>,
    max: usize,
}

impl<T> Cache<T> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            entries: Mutex::new(Vec::new()),
            max,
        }
    }

    pub(super) fn get(&self, key: &[u8; 32]) -> Option<Arc<T>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().position(|(k, _)| k == key)?;
        // A few dozen entries: moving them costs less than a list that is kept in order.
        let entry = entries.remove(at);
        let value = Arc::clone(&entry.1);
        entries.push(entry);
        Some(value)
    }

    pub(super) fn put(&self, key: [u8; 32], value: Arc<T>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|(k, _)| *k != key);
        if entries.len() >= self.max {
            entries.remove(0);
        }
        entries.push((key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let cache = Cache::new(2);
        let key = |n: u8| [n; 32];
        cache.put(key(1), Arc::new(1));
        cache.put(key(2), Arc::new(2));
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&1));
        cache.put(key(3), Arc::new(3));
        assert_eq!(cache.get(&key(2)), None);
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&1));
        cache.put(key(1), Arc::new(4));
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&4));
        assert_eq!(cache.get(&key(3)).as_deref(), Some(&3));
    }
}
