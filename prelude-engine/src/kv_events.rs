//! Events of the KV cache on their way from the engine to a reader.

use std::sync::{Arc, Mutex, atomic::Ordering};

use prelude_core::KvEvent;
use tokio::sync::Notify;

use crate::shared::{Shared, lock};

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

    /// Adds events; `contents` returns those that lead from any set of blocks to the cache's.
    pub(crate) fn push(&self, events: Vec<KvEvent>, contents: impl FnOnce() -> Vec<KvEvent>) {
        let count = |events: &[KvEvent]| events.iter().map(KvEvent::blocks).sum::<usize>();
        let mut pending = lock(&self.pending);
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

    fn take(&self) -> Vec<KvEvent> {
        std::mem::take(&mut *lock(&self.pending)).events
    }
}

/// The events of an engine's KV cache, in order.
///
/// It starts with [`KvEvent::Cleared`]: a reader of an engine that ran here before forgets what
/// that one held.
pub struct KvEventStream {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for KvEventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvEventStream").finish_non_exhaustive()
    }
}

impl KvEventStream {
    /// Returns the stream if events are recorded
    /// ([`EngineConfig::kv_events`](crate::EngineConfig::kv_events)).
    pub(crate) fn new(shared: &Arc<Shared>) -> Option<Self> {
        let shared = Arc::clone(shared);
        { shared.kv_events.is_some() }.then_some(Self { shared })
    }

    /// Waits for events and returns all that have come; `None` once the engine has stopped.
    pub async fn next(&mut self) -> Option<Vec<KvEvent>> {
        let queue = self.shared.kv_events.as_ref()?;
        loop {
            let is_alive = self.shared.alive.load(Ordering::Acquire);
            let events = queue.take();
            if !events.is_empty() {
                return Some(events);
            }
            if !is_alive {
                return None;
            }
            // An event that comes before this waits leaves a permit.
            queue.arrived.notified().await;
        }
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
        assert_eq!(lock(&queue.pending).blocks, 3);
        let all = || vec![KvEvent::Cleared, KvEvent::Removed(vec![9])];
        queue.push(vec![KvEvent::Removed(vec![4])], all);
        queue.push(vec![KvEvent::Removed(vec![5])], || unreachable!());
        let mut expected = all();
        expected.push(KvEvent::Removed(vec![5]));
        assert_eq!(queue.take(), expected);
        assert_eq!((queue.take(), lock(&queue.pending).blocks), (vec![], 0));
    }
}
