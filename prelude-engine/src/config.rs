//! The engine's knobs.

use prelude_sched::SchedulerConfig;
use serde::{Deserialize, Serialize};

/// Configuration of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// The scheduler's part.
    pub scheduler: SchedulerConfig,
    /// Requests that may wait for the engine thread to look at them, default 1,024. They wait
    /// only while a step runs; the scheduler's own queue has its own bounds. Larger absorbs
    /// larger bursts during a long step, smaller refuses them earlier.
    pub command_queue: usize,
    /// Steps remembered for [`recent_steps`](crate::EngineHandle::recent_steps), default 256.
    pub recent_steps: usize,
    /// True if the blocks that the KV cache stores and drops are recorded for
    /// [`kv_events`](crate::EngineHandle::kv_events) (default false). It copies the tokens of each
    /// stored block once, and events that are not read take as much memory as the tokens of twice
    /// the pool.
    pub kv_events: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            scheduler: SchedulerConfig::default(),
            command_queue: 1024,
            recent_steps: 256,
            kv_events: false,
        }
    }
}
