//! Gauges and counters of the scheduler.

/// Gauges and counters. Counters start at zero and only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Gauge: live requests.
    pub requests: u64,
    /// Gauge: queued rows (choices counted) against `max_queued_rows`.
    pub queued_rows: u64,
    /// Gauge: queued prompt tokens against `max_queued_tokens`.
    pub queued_tokens: u64,
    /// Gauge: what is ahead of a newcomer, in prompt tokens: those that waiting requests still have
    /// to compute, as far as the prefix cache knew when they came, those of begun prompts that no
    /// step has taken up, and those of steps in flight. Decode rows are not among them: they run
    /// beside prompts.
    pub tokens_ahead: u64,
    /// Gauge: one-shot rows not yet planned.
    pub waiting_oneshot_rows: u64,
    /// Gauge: `Decode` sequences not yet admitted, preempted ones included.
    pub waiting_decode_seqs: u64,
    /// Gauge: `Decode` sequences holding blocks.
    pub running_decode_seqs: u64,
    /// Gauge: one-shot prompts being computed in chunks.
    pub running_chunked_rows: u64,
    /// Gauge: one-shot rows that a step in flight answers, chunked prompts apart.
    pub running_oneshot_rows: u64,
    /// Gauge: steps in flight.
    pub steps_in_flight: u64,
    /// Gauge: blocks referenced by sequences or steps.
    pub used_blocks: u64,
    /// Gauge: blocks that only the prefix cache holds.
    pub cached_blocks: u64,
    /// Gauge: blocks with nothing in them.
    pub free_blocks: u64,
    /// Gauge: blocks of host memory that hold a copy of a cached block.
    pub host_blocks: u64,

    /// Counter: steps planned.
    pub steps: u64,
    /// Counter: passes begun: long one-shot prompts that are computed in slices.
    pub passes: u64,
    /// Counter: slices planned.
    pub slices: u64,
    /// Counter: passes that lost the blocks that they filled for later requests to other work.
    pub passes_without_blocks: u64,
    /// Counter: prompt tokens looked up in the prefix cache.
    pub prefix_query_tokens: u64,
    /// Counter: prompt tokens found there.
    pub prefix_hit_tokens: u64,
    /// Counter: prompt tokens that another row of the same step computed.
    pub shared_tokens: u64,
    /// Counter: tokens computed for one-shot rows.
    pub oneshot_tokens: u64,
    /// Counter: one-shot rows whose output had no room in a step and that were computed again.
    pub rows_without_room: u64,
    /// Counter: tokens computed for prompts of generations.
    pub prefill_tokens: u64,
    /// Counter: decode rows run.
    pub decode_tokens: u64,
    /// Counter: sequences that lost their blocks.
    pub preemptions: u64,
    /// Counter: cached blocks evicted.
    pub evicted_blocks: u64,
    /// Counter: evicted blocks copied to host memory.
    pub stored_blocks: u64,
    /// Counter: blocks copied back from host memory.
    pub loaded_blocks: u64,
    /// Counter: times a waiter was held back for a leader.
    pub deferrals: u64,
    /// Counter: times the policy changed a waiter's place because it costs more or less than
    /// before.
    pub srjf_recalibrations: u64,
    /// Counter: requests dropped at their deadline.
    pub deadline_expirations: u64,
}
