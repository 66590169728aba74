//! The reader's end of an engine's KV events.

use std::sync::{Arc, atomic::Ordering};

use prelude_core::KvEvent;

use crate::shared::Shared;

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
            queue.wait().await;
        }
    }
}
