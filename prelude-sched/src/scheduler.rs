//! The state machine: requests in, batches out, step outputs in, events out.
//!
//! One rule makes freeing simple: an executor runs steps in the order of their submission. So a
//! block may be handed out again although a step in flight still reads or writes it for a
//! sequence that is gone; whatever the new owner writes is written later.

mod admit;
mod complete;
#[cfg(any(test, feature = "sim"))]
mod invariants;
mod oneshot;
mod running;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use prelude_core::{
    Capacity, ForwardBatch, Head, OutputRow, Request, RequestId, RowSpec, SeqId, StepId, Timestamp,
};
use prelude_kv::KvCache;
use thiserror::Error;

use crate::{
    ConfigError, Event, Outcome, Plan, QueueView, Reject, SchedulerConfig, SchedulerPolicy,
    SchedulerStats, StepBudget,
    forest::KeepRule,
    leader::Leaders,
    length::length_of,
    pace::Pace,
    queue::{Queue, QueueKey},
    request::{Live, Reserved, expires},
    row,
    sequence::{SeqState, Sequence, TokenWait},
    step::{Draft, RowTag, Step},
};

/// Decides which work runs in the next step, and keeps every request from arrival to finish.
///
/// Sans-IO: it reads no clock and calls nobody. The caller submits requests, runs the batches it
/// is given, and brings back their outputs; time is an argument. The same calls give the same
/// batches and events.
///
/// Every accepted request ends in exactly one [`Event::Finished`].
pub struct Scheduler {
    config: SchedulerConfig,
    capacity: Capacity,
    /// `max_batch_tokens` and `max_num_seqs` as they apply with this capacity.
    max_tokens: u32,
    max_seqs: u32,
    policy: Box<dyn SchedulerPolicy>,
    cache: KvCache,
    leaders: Leaders,
    requests: BTreeMap<RequestId, Live>,
    /// Requests with one-shot rows to plan, and with generations to admit.
    oneshot: Queue,
    decode: Queue,
    /// Of requests that have not started.
    deadlines: BTreeSet<(Timestamp, RequestId)>,
    queued_rows: u64,
    queued_tokens: u64,
    queued_uncached: u64,
    /// Prompt tokens of sequences that no step has taken up.
    unplanned: u64,
    seqs: BTreeMap<SeqId, Sequence>,
    /// Sequences holding blocks, and those that lost them, by seniority.
    running: BTreeMap<u64, SeqId>,
    preempted: BTreeMap<u64, SeqId>,
    /// `Decode` sequences among them.
    running_decode: u32,
    preempted_decode: u32,
    in_flight: VecDeque<Step>,
    pace: Pace,
    next_serial: u64,
    next_step: u64,
    next_seq: u64,
    /// What one-shot work is owed of past steps, in hundredths of a token.
    balance: u64,
    /// A prompt to be chunked that waits for blocks: younger generations are not to take them.
    chunk_blocked: Option<QueueKey>,
    /// Whether the last step ran one long prompt alone.
    was_exclusive: bool,
    counters: SchedulerStats,
}

/// A step was completed that is not in flight, or not the oldest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("step {0} is not the oldest step in flight")]
pub struct UnknownStep(pub StepId);

impl Scheduler {
    /// A scheduler for an executor of this capacity.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field out of range.
    pub fn new(config: SchedulerConfig, capacity: Capacity) -> Result<Self, ConfigError> {
        let policy = config.policy.build();
        Self::with_policy(config, capacity, policy)
    }

    /// A scheduler with a policy of the caller's; `config.policy` is ignored.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field out of range.
    pub fn with_policy(
        config: SchedulerConfig,
        capacity: Capacity,
        policy: Box<dyn SchedulerPolicy>,
    ) -> Result<Self, ConfigError> {
        config.validate(&capacity)?;
        let max_tokens = config.max_batch_tokens.min(capacity.max_step_tokens);
        Ok(Self {
            max_tokens,
            max_seqs: config.max_num_seqs.min(max_tokens / 2),
            policy,
            cache: KvCache::new(capacity.num_blocks, capacity.block_size),
            leaders: Leaders::new(),
            requests: BTreeMap::new(),
            oneshot: Queue::default(),
            decode: Queue::default(),
            deadlines: BTreeSet::new(),
            queued_rows: 0,
            queued_tokens: 0,
            queued_uncached: 0,
            unplanned: 0,
            seqs: BTreeMap::new(),
            running: BTreeMap::new(),
            preempted: BTreeMap::new(),
            running_decode: 0,
            preempted_decode: 0,
            in_flight: VecDeque::new(),
            pace: Pace::default(),
            next_serial: 0,
            next_step: 0,
            next_seq: 0,
            balance: 0,
            chunk_blocked: None,
            was_exclusive: false,
            counters: SchedulerStats::default(),
            config,
            capacity,
        })
    }

    /// Admits a request, or says why not.
    ///
    /// A generation is refused if its prompt and whole output budget need more blocks than there
    /// are: what is accepted can get all that it asked for, if need be with the pool to itself.
    ///
    /// # Errors
    /// [`Reject`]; nothing of the request remains.
    pub fn submit(&mut self, now: Timestamp, request: Request) -> Result<(), Reject> {
        request.validate(self.capacity.vocab_size, self.capacity.max_context_len)?;
        if self.requests.contains_key(&request.id) {
            return Err(Reject::DuplicateId(request.id));
        }
        for row in 0..request.rows.len() {
            self.check_fits(&request, row)?;
        }
        let expires = expires(&request);
        if let Some(deadline) = expires.filter(|&d| d <= now) {
            return Err(Reject::DeadlineUnmeetable { deadline, now });
        }
        let reserved = self.check_queue(&request)?;
        self.queued_rows += reserved.rows;
        self.queued_tokens += reserved.tokens;
        self.queued_uncached += reserved.uncached;
        if let Some(deadline) = expires {
            self.deadlines.insert((deadline, request.id));
        }
        let id = request.id;
        let mut live = Live::new(self.next_serial, request);
        live.reserved = Some(reserved);
        self.next_serial += 1;
        self.requests.insert(id, live);
        self.requeue(id);
        Ok(())
    }

    fn check_fits(&self, request: &Request, row: usize) -> Result<(), Reject> {
        let spec = &request.rows[row];
        let prompt = request.tree.prompt_len(spec.node);
        let limit = self.capacity.max_step_tokens;
        let available = u64::from(self.capacity.num_blocks);
        let positions = match &spec.head {
            // The last token is never run.
            Head::Generate(g) if g.max_tokens > 1 => {
                u64::from(prompt) + u64::from(g.max_tokens) - 1
            }
            head if row::pools_all(head) && prompt > limit => {
                return Err(Reject::TooLongToPool { row, prompt, limit });
            }
            _ if prompt > limit => u64::from(prompt),
            _ => 0,
        };
        let needed = positions.div_ceil(u64::from(self.capacity.block_size));
        if needed > available {
            return Err(Reject::NeverFits {
                row,
                needed,
                available,
            });
        }
        Ok(())
    }

    /// What the request takes of the queue's bounds, if it may.
    fn check_queue(&self, request: &Request) -> Result<Reserved, Reject> {
        let rows = Live::queue_rows(request);
        let tokens = request.tree.distinct_tokens() as u64;
        let row_limit = u64::from(self.config.max_queued_rows);
        let token_limit = self.config.max_queued_tokens;
        for (what, amount, limit) in [
            ("rows", rows, row_limit),
            ("prompt tokens", tokens, token_limit),
        ] {
            if amount > limit {
                return Err(Reject::LargerThanQueue {
                    what,
                    amount,
                    limit,
                });
            }
        }
        if self.queued_rows + rows > row_limit {
            let (queued, limit) = (self.queued_rows, row_limit);
            return Err(Reject::QueueFullRows {
                rows,
                queued,
                limit,
            });
        }
        if self.queued_tokens + tokens > token_limit {
            let (queued, limit) = (self.queued_tokens, token_limit);
            return Err(Reject::QueueFullTokens {
                tokens,
                queued,
                limit,
            });
        }
        Ok(Reserved {
            rows,
            tokens,
            uncached: tokens - self.cached_tokens(request),
        })
    }

    /// Tokens of a request that the cache has now: the beginnings of its prompts. What several
    /// prompts share further in is not looked up, so this is rather too few than too many.
    fn cached_tokens(&self, request: &Request) -> u64 {
        if !self.config.enable_prefix_caching {
            return 0;
        }
        let needed = |row: &RowSpec| {
            row::first_needed(&row.head, request.tree.prompt_len(row.node)) as usize
        };
        // What a row reads hidden states of is computed, cached or not.
        let most = request.rows.iter().map(needed).min().unwrap_or(0);
        let salt = request.cache_salt.as_ref();
        let roots = request.tree.nodes().iter().filter(|n| n.parent.is_none());
        roots
            .map(|root| self.cache.cached_prefix(salt, &root.tokens, most) as u64)
            .sum()
    }

    /// Gives a request up, wherever it is. Returns whether it was live; if so, its `Finished`
    /// event is pushed to `events`. Nothing happens for an unknown or finished id.
    pub fn abort(&mut self, now: Timestamp, id: RequestId, events: &mut Vec<Event>) -> bool {
        self.finish(now, id, Outcome::Aborted, events)
    }

    /// The next step to run, if there is anything to run and fewer steps are in flight than the
    /// executor takes. Pushes what happens to requests on the way (deadlines, preemptions).
    ///
    /// Every batch passes [`ForwardBatch::validate`]. The caller hands it to the executor before
    /// it asks for the next, in this order.
    pub fn next_batch(
        &mut self,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) -> Option<(StepId, ForwardBatch)> {
        self.expire(now, events);
        if self.in_flight.len() >= self.capacity.pipeline_depth as usize {
            return None;
        }
        let mut draft = self.draft(now, true, events);
        if draft.is_empty() && self.in_flight.is_empty() {
            // Whoever is held back would wait for nobody, and of those that sit out one has to be
            // waited for.
            draft = self.draft(now, false, events);
        }
        if draft.is_empty() {
            return None;
        }
        let id = draft.id;
        self.next_step += 1;
        self.counters.steps += 1;
        let (batch, step) = draft.into_batch();
        self.in_flight.push_back(step);
        Some((id, batch))
    }

    /// When [`Self::next_batch`] should be called even if nothing else happens: the next deadline
    /// of a request that has not started.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
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
                + self.in_flight.iter().map(|s| s.prompt_tokens).sum::<u64>(),
            waiting_oneshot_rows: self.oneshot.rows(),
            waiting_decode_seqs: self.decode.rows() + u64::from(self.preempted_decode),
            running_decode_seqs: u64::from(self.running_decode),
            running_chunked_rows: self.running.len() as u64 - u64::from(self.running_decode),
            running_oneshot_rows: self.in_flight.iter().map(|s| s.whole_rows).sum(),
            steps_in_flight: self.in_flight.len() as u64,
            used_blocks: u64::from(self.cache.used_blocks()),
            cached_blocks: u64::from(self.cache.cached_blocks()),
            free_blocks: u64::from(self.cache.free_blocks()),
            evicted_blocks: self.cache.evicted_blocks(),
            ..self.counters
        }
    }

    /// Plans a step. What it takes up is recorded at once; an empty draft took up nothing, but may
    /// have let sequences that sit out hold what the cache has of them.
    fn draft(&mut self, now: Timestamp, may_defer: bool, events: &mut Vec<Event>) -> Draft {
        self.seat(now, may_defer);
        let depth = self.capacity.pipeline_depth;
        let decoding = self
            .running
            .values()
            .filter(|id| self.seqs[id].can_decode(depth))
            .count();
        let room = self.max_tokens - length_of(decoding);
        let id = StepId(self.next_step);
        let mut draft = Draft::new(id, now, self.capacity.block_size, room, may_defer);
        let plan = self.ask_policy(now, room);
        self.was_exclusive = self.plan_exclusive(&mut draft, &plan);
        if !self.was_exclusive {
            self.plan_shared(&mut draft, &plan, events);
        }
        self.emit_forest(&mut draft);
        draft
    }

    /// Decides which sequences sit this step out, that is, are not sampled: those whose next tokens are known only after
    /// the model could have run, since a step takes as long as the slowest of its rows. The oldest
    /// of those that have lost their patience joins all the same; no more than one, so that no
    /// step waits for several. If there is nothing else to do (`may_defer` is false), the oldest
    /// of all joins: it can get blocks in any case, and the executor waits for its tokens. With it
    /// come all whose tokens are known by then.
    fn seat(&mut self, now: Timestamp, may_defer: bool) {
        let patience = Duration::from_millis(u64::from(self.config.mask_patience_ms));
        let hidden = self.pace.hides();
        let mut waiting = Vec::new();
        // Those that lost their blocks may resume and be sampled in one step; but nobody is to
        // wait for one of them, who may not get blocks, while others run.
        for id in self.running.values().chain(self.preempted.values()) {
            let seq = self.seqs.get_mut(id).expect("it lives");
            let wait = seq.waits_for_tokens(now, hidden);
            seq.sits_out = wait.is_some();
            waiting.extend(wait.map(|wait| (*id, wait)));
        }
        let awaited = waiting
            .iter()
            .find(|(_, wait)| !may_defer || wait.since >= patience);
        let Some(&(oldest, TokenWait { due, .. })) = awaited else {
            return;
        };
        for (id, wait) in waiting {
            if id == oldest || (!may_defer && wait.due <= due) {
                let seq = self.seqs.get_mut(&id).expect("it lives");
                seq.sits_out = false;
            }
        }
    }

    fn ask_policy(&mut self, now: Timestamp, room: u32) -> Plan {
        if self.oneshot.is_empty() && self.decode.is_empty() {
            return Plan::default();
        }
        let seqs = self
            .max_seqs
            .saturating_sub(self.running_decode + self.preempted_decode);
        let budget = StepBudget {
            tokens: room,
            rows: self.config.max_batch_rows,
            seqs,
        };
        let view = QueueView {
            oneshot: &self.oneshot,
            decode: &self.decode,
            now,
            requests: &self.requests,
            cache: &self.cache,
        };
        self.policy.plan(&view, budget)
    }

    /// A step for everybody: what runs goes on, then generations are admitted, then one-shot rows
    /// are taken up, then what they left goes to generations again.
    fn plan_shared(&mut self, draft: &mut Draft, plan: &Plan, events: &mut Vec<Event>) {
        let prefilling = |seq: &Sequence| {
            seq.is_decode()
                && matches!(seq.state, SeqState::Prefilling { next } if next < seq.chunk_limit())
        };
        let slots = self.running_decode < self.max_seqs;
        let decode_waits = self.running.values().any(|id| prefilling(&self.seqs[id]))
            || (slots && (!self.decode.is_empty() || self.preempted_decode > 0));
        let chunked_waits = self.running.len() > self.running_decode as usize
            || self.preempted.len() > self.preempted_decode as usize;
        let oneshot_waits = chunked_waits || !self.oneshot.is_empty();
        let (share, room) = (
            u64::from(self.config.oneshot_share_percent),
            u64::from(draft.room),
        );
        let oneshot_room = match (oneshot_waits, decode_waits) {
            (true, true) => {
                // At least one token, or a small share of a small step would round to nothing
                // for ever.
                let owed = ((share * room + self.balance) / 100).max(1);
                u32::try_from(owed.min(room)).expect("at most the room")
            }
            (true, false) => draft.room,
            (false, _) => 0,
        };
        let prefill_room = draft.room - oneshot_room;
        self.plan_running(draft, oneshot_room, prefill_room, true, events);
        self.plan_admissions(
            draft,
            plan,
            prefill_room.saturating_sub(draft.prefill_tokens()),
        );
        self.plan_oneshot(draft, plan);
        if draft.left() > 0 {
            let may_preempt = draft.is_empty();
            self.plan_running(draft, draft.room, draft.room, may_preempt, events);
            self.plan_admissions(draft, plan, draft.left());
        }

        // What one-shot work was promised and could not use, because its next row was too large
        // for the rest of the step, is added to its next share. Shorter rows that went past that
        // row are not held against it, or they could keep it waiting for ever.
        self.balance = match draft.passed_over_at {
            Some(used) if decode_waits => {
                let owed = (self.balance + share * room).saturating_sub(u64::from(used) * 100);
                owed.min(u64::from(self.max_tokens) * 100)
            }
            _ => 0,
        };
    }

    /// Turns the forest into segments and rows, and charges the requests for them.
    fn emit_forest(&mut self, draft: &mut Draft) {
        if draft.forest_rows.is_empty() {
            return;
        }
        let rule = KeepRule {
            enabled: self.config.enable_prefix_caching,
            suffixes: self.config.keep_suffixes,
            shared_min_rows: self.config.keep_shared_min_rows,
        };
        let empty = crate::forest::Forest::new(self.capacity.block_size);
        let forest = std::mem::replace(&mut draft.forest, empty);
        let before = draft.oneshot.tokens.len();
        let emitted = forest.emit(&mut draft.oneshot, &mut self.cache, rule);
        self.counters.oneshot_tokens += (draft.oneshot.tokens.len() - before) as u64;
        for kept in emitted.kept {
            kept.hashes.iter().for_each(|&hash| self.leaders.add(hash));
            let owner = draft.forest_rows[kept.row].tag;
            draft.record.kept.push((owner, kept));
        }
        for (row, (segment, joined)) in draft.forest_rows.drain(..).zip(emitted.rows) {
            let (positions, head) = (row.positions, row.head);
            draft.oneshot.rows.push(OutputRow {
                segment,
                positions,
                head,
            });
            draft.record.oneshot.push(row.tag);
            self.counters.shared_tokens += u64::from(joined.shared);
            self.counters.prefix_hit_tokens += u64::from(joined.cached);
            if let RowTag::Row { request, .. } = row.tag {
                draft.record.whole_rows += 1;
                let live = self
                    .requests
                    .get_mut(&request)
                    .expect("it was planned just now");
                live.usage.cached_tokens += u64::from(joined.cached);
                live.usage.computed_tokens += u64::from(joined.computed);
                self.queued_uncached -= live.take_up(u64::from(joined.computed));
            }
        }
        draft.record.pins = emitted.pins;
    }

    /// Drops requests whose deadline passed before they started.
    fn expire(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.counters.deadline_expirations += 1;
            self.finish(now, id, Outcome::DeadlineExpired, events);
        }
    }

    /// Notes that some of a request was planned.
    fn mark_started(&mut self, now: Timestamp, id: RequestId) {
        let live = self
            .requests
            .get_mut(&id)
            .expect("only live requests are planned");
        if live.started.is_none() {
            live.started = Some(now);
            if let Some(deadline) = live.expires {
                self.deadlines.remove(&(deadline, id));
            }
        }
    }

    /// Brings the queues up to date with what of a request still waits.
    fn requeue(&mut self, id: RequestId) {
        let live = self.requests.get_mut(&id).expect("only live requests wait");
        let rows = length_of(live.oneshot.len());
        let choices = live.waiting_choices;
        self.oneshot.set(live.key, live.waiting(id, rows));
        self.decode.set(live.key, live.waiting(id, choices));
        if rows == 0 && choices == 0 {
            let reserved = live.reserved.take();
            self.unreserve(reserved);
        }
    }

    fn unreserve(&mut self, reserved: Option<Reserved>) {
        let reserved = reserved.unwrap_or_default();
        self.queued_rows -= reserved.rows;
        self.queued_tokens -= reserved.tokens;
        self.queued_uncached -= reserved.uncached;
    }

    /// Ends a request: takes it out of everything and frees what it holds, once.
    fn finish(
        &mut self,
        now: Timestamp,
        id: RequestId,
        outcome: Outcome,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(live) = self.requests.remove(&id) else {
            return false;
        };
        self.oneshot.remove(&live.key);
        self.decode.remove(&live.key);
        if let Some(deadline) = live.expires {
            self.deadlines.remove(&(deadline, id));
        }
        self.unreserve(live.reserved);
        // After a failure, what is in the blocks is not to be trusted.
        let publish = !matches!(outcome, Outcome::Failed(_));
        let mut usage = live.usage;
        for seq in live.seqs {
            usage.cache_write_tokens += self.remove_sequence(seq, publish);
        }
        let arrival = live.key.arrival;
        usage.queue_time = live.started.unwrap_or(now).saturating_since(arrival);
        usage.exec_time = live
            .started
            .map_or_else(Default::default, |s| now.saturating_since(s));
        events.push(Event::Finished {
            request: id,
            outcome,
            usage,
        });
        true
    }

    /// Takes a sequence out of everything. Returns the tokens that this put into the cache.
    fn remove_sequence(&mut self, id: SeqId, publish: bool) -> u64 {
        let mut seq = self
            .seqs
            .remove(&id)
            .expect("a live request's sequences are live");
        self.unplanned -= u64::from(seq.unplanned());
        let decode = u32::from(seq.is_decode());
        if self.running.remove(&seq.seniority).is_some() {
            self.running_decode -= decode;
        } else if self.preempted.remove(&seq.seniority).is_some() {
            self.preempted_decode -= decode;
        }
        let mut written = 0;
        if publish && self.config.enable_prefix_caching {
            written = seq.publish(&mut self.cache, &mut self.leaders);
        }
        seq.vacate(&mut self.cache, &mut self.leaders);
        written
    }

    /// Notes what a live request has put into the cache.
    fn note_written(&mut self, request: RequestId, tokens: u64) {
        if let Some(live) = self.requests.get_mut(&request) {
            live.usage.cache_write_tokens += tokens;
        }
    }
}
