//! Events of the KV cache on their way from the engine to a reader.

use std::sync::{Mutex, MutexGuard, PoisonError};

use prelude_core::KvEvent;
use tokio::sync::Notify;

/// Events that were not read yet.
///
/// The queue names at most `max_blocks` blocks, or as many as the cache holds: when there would be
/// more, all events are replaced by the contents of the cache. So a reader that falls behind, or
/// that stops to read, costs bounded memory and misses nothing that still holds.
pub(crate) struct KvEventQueue {
    pending: Mutex<Pending>,
    arrived: Notify,
    max_blocks: usize,
}

#[derive(Default)]
struct Pending {
    events: Vec<KvEvent>,
    blocks: usize,
}

impl KvEventQueue {
    pub(crate) fn new(max_blocks: usize) -> Self {
        Self {
            pending: Mutex::default(),
            arrived: Notify::new(),
            max_blocks,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        // Events and their number agree between statements.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events; `contents` returns those that lead from any set of blocks to the cache's.
    pub(crate) fn push(&self, events: Vec<KvEvent>, contents: impl FnOnce() -> Vec<KvEvent>) {
        let count = |events: &[KvEvent]| events.iter().map(KvEvent::blocks).sum::<usize>();
        let mut pending = self.lock();
        pending.blocks += count(&events);
        pending.events.extend(events);
        if pending.blocks > self.max_blocks {
            pending.events = contents();
            pending.blocks = count(&pending.events);
        }
        drop(pending);
        self.arrived.notify_one();
    }

    /// Wakes the reader, since the engine has stopped.
    pub(crate) fn close(&self) {
        self.arrived.notify_one();
    }

    /// Waits until events have come since the last wait, or the engine has stopped.
    pub(crate) async fn wait(&self) {
        self.arrived.notified().await;
    }

    /// Returns all events that have come.
    pub(crate) fn take(&self) -> Vec<KvEvent> {
        std::mem::take(&mut *self.lock()).events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_falls_behind_gets_the_contents() {
        let queue = KvEventQueue::new(3);
        queue.push(vec![KvEvent::Removed(vec![1, 2])], || unreachable!());
        queue.push(vec![KvEvent::Removed(vec![3])], || unreachable!());
        assert_eq!(queue.lock().blocks, 3);
        let all = || vec![KvEvent::Cleared, KvEvent::Removed(vec![9])];
        queue.push(vec![KvEvent::Removed(vec![4])], all);
        queue.push(vec![KvEvent::Removed(vec![5])], || unreachable!());
        let mut expected = all();
        expected.push(KvEvent::Removed(vec![5]));
        assert_eq!(queue.take(), expected);
        assert_eq!((queue.take(), queue.lock().blocks), (vec![], 0));
    }
}
