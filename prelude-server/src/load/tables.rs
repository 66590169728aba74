//! The tables of the settings that concern one model, as options of loading it.

use prelude_engine::{EngineConfig, SchedulerConfig};
use serde::{Deserialize, Serialize};

use super::LoadOptions;
use crate::{config::Limits, executor::ExecutorConfig};

/// Settings of the pool of KV blocks, on every device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvSettings {
    /// Tokens per block, a power of two (default 16; 16, 32 or 64 on a GPU). Smaller blocks share
    /// more of prompts and cost more bookkeeping.
    pub block_size: Option<u32>,
    /// Blocks in memory (default as many as `kv_bytes` holds). More keeps more prefixes and lets
    /// more texts grow at once.
    pub num_blocks: Option<u32>,
    /// Bytes of all blocks, if `num_blocks` is absent. By default 1 GiB on the CPU, and at most 64
    /// times the longest sequence; on a GPU all that is free, less `cuda.reserve_bytes`.
    pub kv_bytes: Option<u64>,
    /// Bytes of host memory for blocks that the prefix cache evicts from a GPU, locked at start
    /// (default 0: none). A later prompt gets them back by a copy instead of computing them. On the
    /// CPU, where all blocks are in host memory, only 0 is valid.
    pub host_bytes: u64,
}

impl LoadOptions {
    /// Returns the options that the tables of the settings stand for.
    #[must_use]
    pub fn of_tables(
        executor: &ExecutorConfig,
        kv: &KvSettings,
        scheduler: &SchedulerConfig,
        limits: &Limits,
    ) -> Self {
        let mut executor = executor.clone();
        executor.num_blocks = kv.num_blocks;
        executor.kv_bytes = kv.kv_bytes;
        executor.host_bytes = kv.host_bytes;
        executor.block_size = kv.block_size.unwrap_or(executor.block_size);
        // The engine's queue holds what the server admits.
        let mut scheduler = scheduler.clone();
        let rows = u32::try_from(limits.queued_rows).unwrap_or(u32::MAX);
        scheduler.max_queued_rows = rows.max(1);
        scheduler.max_queued_tokens = limits.queued_tokens.max(1);
        Self {
            executor,
            engine: EngineConfig {
                scheduler,
                ..EngineConfig::default()
            },
            ..Self::default()
        }
    }
}
