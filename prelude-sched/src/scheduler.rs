//! The state machine: requests in, batches out, step outputs in, events out.
//!
//! One rule makes freeing simple: an executor runs steps in the order of their submission. So a
//! block may be handed out again although a step in flight still reads or writes it for a
//! sequence that is gone; whatever the new owner writes is written later.

mod admit;
mod complete;
#[cfg(test)]
pub(crate) mod invariants;
mod kv_events;
mod life;
mod oneshot;
mod passes;
mod plan;
mod rooms;
mod running;
mod shortage;
mod submit;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use ahash::{AHashMap, RandomState};
use prelude_core::{
    Attention, Capacity, ForwardBatch, PassId, RequestId, SeqId, StepId, Timestamp,
};
use prelude_kv::KvCache;
use thiserror::Error;

use self::{plan::PolicyMode, shortage::FirstBlocked};
use crate::{
    ConfigError, Event, Outcome, SchedulerConfig, SchedulerPolicy, SchedulerStats, leader::Leaders,
    pace::Pace, pass::Pass, prompts::Found, queue::Queue, request::Requests, sequence::Sequence,
    shares::DeviceShares, slice::SliceTimes, step::Step, watch::Watch,
};

/// Decides which work runs in the next step, and keeps every request from arrival to finish.
///
/// Sans-IO: it reads no clock and has no callbacks but its policy. The caller submits requests,
/// runs the batches it is given, and brings back their outputs; time is an argument. The same calls
/// give the same batches and events.
///
/// Every accepted request ends in exactly one [`Event::Finished`].
pub struct Scheduler {
    config: SchedulerConfig,
    capacity: Capacity,
    /// `max_batch_tokens` and `max_num_seqs` as they apply with this capacity.
    max_tokens: u32,
    /// `max_batch_tokens` while no generation waits or runs.
    max_oneshot_tokens: u32,
    max_seqs: u32,
    policy: Box<dyn SchedulerPolicy>,
    cache: KvCache,
    found: Found,
    /// The costs of waiting requests, for a policy that follows them.
    watch: Option<Watch>,
    /// Requests that ended before all of them had started, since the policy was asked last.
    withdrawn: BTreeSet<RequestId>,
    leaders: Leaders,
    requests: Requests,
    /// Requests with one-shot rows to plan, and with generations to admit.
    oneshot: Queue,
    decode: Queue,
    /// Deadlines of the requests that have not started.
    deadlines: BTreeSet<(Timestamp, RequestId)>,
    queued_rows: u64,
    queued_tokens: u64,
    queued_uncached: u64,
    /// Prompt tokens of sequences that no step has taken up.
    unplanned: u64,
    seqs: Sequences,
    /// Sequences that hold blocks (`running`) and sequences that lost them (`preempted`), by
    /// seniority.
    running: BTreeMap<u64, SeqId>,
    preempted: BTreeMap<u64, SeqId>,
    /// `Decode` sequences among the running ones.
    running_decode: u32,
    preempted_decode: u32,
    in_flight: VecDeque<Step>,
    pace: Pace,
    next_serial: u64,
    next_step: u64,
    next_seq: u64,
    shares: DeviceShares,
    /// The shared steps in which prompts of generations leave all room to one-shot work, since they
    /// had taken the room of its first row.
    owed_steps: u32,
    first_blocked: FirstBlocked,
    /// Overdue requests that wait for blocks, by age.
    short_of_blocks: BTreeSet<(Timestamp, u64)>,
    /// The last of the steps in flight that hold blocks for which a sequence waits.
    drain_until: Option<StepId>,
    /// Long prompts that are computed in slices; the last one goes on first.
    passes: Vec<Pass>,
    /// Passes that ended before their last slices and that the executor has not been told of.
    abandoned: Vec<PassId>,
    slice_times: SliceTimes,
    next_pass: u64,
    /// True if the last step ran one long prompt, or a slice, alone.
    was_alone: bool,
    /// True if a whole long prompt goes before a slice in the next step that is not shared.
    whole_next: bool,
    /// The time since which the device has been idle because the policy waits for more, and the
    /// time until which the policy waits, on an idle device or beside a step in flight.
    idle_since: Option<Timestamp>,
    idle_until: Option<Timestamp>,
    counters: SchedulerStats,
}

/// Live sequences. For lookups alone: no decision depends on their order.
pub(crate) type Sequences = AHashMap<SeqId, Sequence>;

/// Upper bound of newcomers, and of other requests whose cached prefix has changed, whose costs one
/// plan reports to the policy. Each takes a policy a microsecond or two.
pub(crate) const MAX_TOLD: usize = 256;

/// A step was completed that is not in flight, or not the oldest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("step {0} is not the oldest step in flight")]
pub struct UnknownStep(pub StepId);

impl Scheduler {
    /// Returns a scheduler for an executor of this capacity.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field out of range.
    pub fn new(config: SchedulerConfig, capacity: Capacity) -> Result<Self, ConfigError> {
        // Checked before a policy is made of it.
        config.validate(&capacity)?;
        let policy = config.policy.build(&config);
        Self::with_policy(config, capacity, policy)
    }

    /// Returns a scheduler with a policy of the caller's; `config.policy` is ignored.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field out of range.
    pub fn with_policy(
        config: SchedulerConfig,
        capacity: Capacity,
        policy: Box<dyn SchedulerPolicy>,
    ) -> Result<Self, ConfigError> {
        config.validate(&capacity)?;
        let mut config = config;
        // Keys and values of a token depend on the whole prompt, so no prompt can use those of
        // another.
        config.enable_prefix_caching &= capacity.attention == Attention::Causal;
        let max_tokens = config.shared_step_tokens(&capacity);
        let mut cache = KvCache::new(capacity.num_blocks, capacity.block_size);
        cache.use_host_memory(capacity.host_blocks);
        let watch = policy.follows_costs().then(|| {
            cache.note_changes();
            // A policy knows at least as many as a step can take up.
            Watch::new(MAX_TOLD.max(config.max_batch_rows as usize))
        });
        Ok(Self {
            max_tokens,
            max_oneshot_tokens: config.oneshot_step_tokens(&capacity),
            max_seqs: config.max_num_seqs.min(max_tokens / 2),
            policy,
            cache,
            found: Found::default(),
            watch,
            withdrawn: BTreeSet::new(),
            leaders: Leaders::new(),
            requests: Requests::with_hasher(RandomState::with_seeds(29, 30, 31, 32)),
            oneshot: Queue::default(),
            decode: Queue::default(),
            deadlines: BTreeSet::new(),
            queued_rows: 0,
            queued_tokens: 0,
            queued_uncached: 0,
            unplanned: 0,
            seqs: Sequences::with_hasher(RandomState::with_seeds(33, 34, 35, 36)),
            running: BTreeMap::new(),
            preempted: BTreeMap::new(),
            running_decode: 0,
            preempted_decode: 0,
            in_flight: VecDeque::new(),
            pace: Pace::default(),
            next_serial: 0,
            next_step: 0,
            next_seq: 0,
            shares: DeviceShares::new(config.oneshot_share_percent),
            owed_steps: 0,
            first_blocked: FirstBlocked::default(),
            short_of_blocks: BTreeSet::new(),
            drain_until: None,
            passes: Vec::new(),
            abandoned: Vec::new(),
            slice_times: SliceTimes::default(),
            next_pass: 0,
            was_alone: false,
            whole_next: false,
            idle_since: None,
            idle_until: None,
            counters: SchedulerStats::default(),
            config,
            capacity,
        })
    }

    /// Gives a request up, wherever it is. Returns whether it was live; if so, its `Finished`
    /// event is pushed to `events`. Nothing happens for an unknown or finished id.
    pub fn abort(&mut self, now: Timestamp, id: RequestId, events: &mut Vec<Event>) -> bool {
        self.finish(now, id, Outcome::Aborted, events)
    }

    /// Returns the next step to run, if there is anything to run, fewer steps are in flight than
    /// the executor takes, and the policy does not wait for more. Pushes what happens to requests
    /// on the way (deadlines, preemptions).
    ///
    /// Every batch passes [`ForwardBatch::validate`]. The caller hands it to the executor before
    /// it asks for the next, in this order.
    pub fn next_batch(
        &mut self,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) -> Option<(StepId, ForwardBatch)> {
        self.idle_until = None;
        self.expire(now, events);
        if self.in_flight.len() >= self.capacity.pipeline_depth as usize {
            return None;
        }
        self.promote(now);
        let mut draft = self.draft(now, PolicyMode::All, events);
        if draft.is_empty() && self.in_flight.is_empty() {
            if self.may_idle(now, draft.wait_until) {
                return None;
            }
            // Nothing runs that a held-back request could wait for, and one of the sequences that
            // are left out has to be waited for.
            draft = self.draft(now, PolicyMode::Order, events);
            if draft.is_empty() && !self.requests.is_empty() {
                draft = self.draft(now, PolicyMode::None, events);
            }
        }
        if draft.is_empty() {
            // The device is busy, so this wait needs no bound.
            self.idle_until = draft.wait_until.filter(|&at| at > now);
            return None;
        }
        self.idle_since = None;
        let id = draft.id;
        self.next_step += 1;
        self.counters.steps += 1;
        let (batch, step) = draft.into_batch();
        self.in_flight.push_back(step);
        // Copies of an earlier plan that took nothing up are made now, too: no step has written to
        // their blocks since.
        Some((id, batch.after(self.cache.take_copies())))
    }

    /// Returns whether the device is to stay idle, though work waits, because the policy would
    /// rather wait for more until then. Bounded over all its wishes together, since a step that has
    /// been put off could be put off for ever.
    fn may_idle(&mut self, now: Timestamp, until: Option<Timestamp>) -> bool {
        // A policy that has not heard of all that wait does not know what it waits for.
        let is_behind = self.watch.as_ref().is_some_and(Watch::is_behind);
        if until.is_none() || is_behind || self.requests.is_empty() {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        let max_idle = Duration::from_millis(u64::from(self.config.max_idle_ms));
        let end = since.saturating_add(max_idle);
        self.idle_until = until.map(|until| until.min(end)).filter(|&at| at > now);
        self.idle_until.is_some()
    }

    /// Returns the time at which [`Self::next_batch`] should be called even if nothing else
    /// happens: the next deadline of a request that has not started, or the end of the policy's
    /// wait.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        // The policy waits for no request once all requests have gone.
        let idle_until = self.idle_until.filter(|_| !self.requests.is_empty());
        [deadline, idle_until].into_iter().flatten().min()
    }

    /// Gauges and counters. Cheap enough for every step: O(steps in flight).
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            requests: self.requests.len() as u64,
            queued_rows: self.queued_rows,
            queued_tokens: self.queued_tokens,
            tokens_ahead: self.queued_uncached
                + self.unplanned
                + self
                    .in_flight
                    .iter()
                    .map(|s| s.work.prompt_tokens())
                    .sum::<u64>()
                + self
                    .passes
                    .iter()
                    .map(|p| p.work.tokens_left())
                    .sum::<u64>(),
            waiting_oneshot_rows: self.oneshot.rows(),
            waiting_decode_seqs: self.decode.rows() + u64::from(self.preempted_decode),
            running_decode_seqs: u64::from(self.running_decode),
            running_chunked_rows: self.running.len() as u64 - u64::from(self.running_decode),
            running_oneshot_rows: { self.in_flight.iter() }
                .map(|s| s.whole_rows)
                .chain(self.passes.iter().map(|p| p.rows.len() as u64))
                .sum(),
            steps_in_flight: self.in_flight.len() as u64,
            used_blocks: u64::from(self.cache.used_blocks()),
            cached_blocks: u64::from(self.cache.cached_blocks()),
            free_blocks: u64::from(self.cache.free_blocks()),
            evicted_blocks: self.cache.evicted_blocks(),
            host_blocks: self.cache.host_blocks(),
            stored_blocks: self.cache.stored_blocks(),
            loaded_blocks: self.cache.loaded_blocks(),
            srjf_recalibrations: self.policy.recalibrations(),
            ..self.counters
        }
    }
}
