//! Plans one step.

use std::{collections::BTreeSet, time::Duration};

use prelude_core::{OutputRow, RequestId, SeqId, StepId, Timestamp};

use super::{
    Scheduler,
    rooms::{OWED_STEPS, Rooms},
};
use crate::{
    Event, Fcfs, Plan, QueueView, SchedulerPolicy, StepBudget, Unfinished,
    forest::Forest,
    length::length_of,
    request::Requests,
    sequence::{Sequence, TokenWait},
    step::{Draft, RowTag},
    watch::{self, Change, Cost},
};

/// The influence of the policy on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyMode {
    /// The policy orders and may pause prompts, and waiters may be held back for leaders.
    All,
    /// The policy orders. Since nothing else runs, no request is held back or paused.
    Order,
    /// The policy's plan took up nothing: first come, first served.
    None,
}

/// The running sequences, as far as the step being planned goes on with it.
#[derive(Debug, Default)]
struct Survey {
    /// Generations that decode.
    decoding: usize,
    /// Blocks that the sequences hold.
    blocks: usize,
    /// Prompts that have chunks left, oldest first.
    unfinished: Vec<(SeqId, Unfinished)>,
}

impl Survey {
    fn add(&mut self, id: SeqId, seq: &Sequence, requests: &Requests, depth: u32) {
        if seq.can_decode(depth) {
            self.decoding += 1;
            self.blocks += seq.blocks.len();
        }
        let Some(next) = seq.next_chunk() else {
            return;
        };
        let live = &requests[&seq.request];
        let unfinished = Unfinished {
            request: seq.request,
            generates: seq.is_decode(),
            priority: live.key.priority,
            tokens: seq.len() - next,
            context: next,
            arrival: live.key.arrival,
            deadline: live.deadline,
        };
        self.unfinished.push((id, unfinished));
    }
}

impl Scheduler {
    /// Plans a step. What it takes up is recorded at once; an empty draft took up nothing, but may
    /// have let sequences that sit out hold what the cache has of them.
    pub(super) fn draft(
        &mut self,
        now: Timestamp,
        mode: PolicyMode,
        events: &mut Vec<Event>,
    ) -> Draft {
        let may_defer = mode == PolicyMode::All;
        self.first_blocked.generation = None;
        let Survey {
            decoding,
            blocks,
            unfinished,
        } = self.skip_unready(now, may_defer);
        let room = self.max_tokens - length_of(decoding);
        let tokens = match self.has_generations() {
            true => room,
            false => self.max_oneshot_tokens,
        };
        let id = StepId(self.next_step);
        let forest = Forest::new(self.capacity.block_size, self.capacity.attention);
        let mut draft = Draft::new(id, now, forest, (tokens, room), may_defer);
        draft.decode.rows.reserve(decoding);
        draft.record.decode.reserve(decoding);
        // Some decode rows take one more block.
        draft.decode.block_ids.reserve(blocks + decoding);
        let is_idle = self.in_flight.is_empty() && decoding == 0;
        let mut plan = self.ask_policy(now, tokens, &unfinished, is_idle, mode);
        if !may_defer {
            plan.chunks = None;
        }
        draft.paused = self.paused(now, &plan, &unfinished);
        draft.split_tokens = plan.chunk_tokens.map_or(u32::MAX, |most| most.max(1));
        draft.chunk_tokens = self.config.prefill_chunk_tokens.min(draft.split_tokens);
        draft.wait_until = plan.wait_until;
        let demand = self.demand(&draft, &plan, &unfinished, decoding);
        // If nothing else runs, one-shot work cannot wait for generations.
        let sits_out = may_defer && demand.both() && self.shares.is_ahead();
        let mut is_alone = !sits_out && self.plan_alone(&mut draft, &plan);
        if !is_alone {
            let rooms = self.rooms(&draft, demand, sits_out);
            self.plan_shared(&mut draft, &plan, rooms, events);
            is_alone = draft.is_empty() && !sits_out && self.plan_slice(&mut draft, &plan);
        }
        // Rows of shared steps are due after a long prompt, in however many steps they sat out
        // while it ran.
        if !sits_out {
            self.was_alone = is_alone;
        }
        let room = draft.left();
        self.emit_forest(&mut draft, room);
        draft
    }

    /// Returns whether a generation waits or runs.
    pub(crate) fn has_generations(&self) -> bool {
        self.running_decode + self.preempted_decode > 0 || !self.decode.is_empty()
    }

    /// Plans a step of one long prompt, or a slice of one, if there is such work and a shared step
    /// came before it or has nothing to do. Whole prompts and slices take turns.
    fn plan_alone(&mut self, draft: &mut Draft, plan: &Plan) -> bool {
        if self.was_alone {
            return self.passes.is_empty() && self.plan_exclusive(draft, plan);
        }
        let whole_first = self.whole_next;
        self.whole_next = false;
        if whole_first && self.plan_exclusive(draft, plan) {
            return true;
        }
        if self.plan_slice(draft, plan) {
            self.whole_next = true;
            return true;
        }
        !whole_first && self.plan_exclusive(draft, plan)
    }

    /// Leaves sequences out of the step whose next tokens are known only after the model could have
    /// run, since a step takes as long as the slowest of its rows. Of the sequences that have
    /// waited for `mask_patience_ms`, the oldest joins all the same; no more than one, so that no
    /// step waits for several. If there is nothing else to do (`may_defer` is false), the oldest
    /// sequence joins: it can get blocks in any case, and the executor waits for its tokens. The
    /// sequences whose tokens are known by then join with it.
    ///
    /// Returns what runs otherwise. It looks at all sequences once, since that is most of what a
    /// step looks at.
    fn skip_unready(&mut self, now: Timestamp, may_defer: bool) -> Survey {
        let depth = self.capacity.pipeline_depth;
        let mut survey = Survey::default();
        let patience = Duration::from_millis(u64::from(self.config.mask_patience_ms));
        let hidden = self.pace.hides();
        let mut waiting = Vec::new();
        // Preempted sequences may resume and be sampled in one step; but no row is to wait for a
        // preempted sequence, which may not get blocks, while others run.
        for id in self.running.values().chain(self.preempted.values()) {
            let seq = self
                .seqs
                .get_mut(id)
                .expect("running and preempted sequences are live");
            let wait = seq.mask_wait(now, hidden);
            seq.is_skipped = wait.is_some();
            waiting.extend(wait.map(|wait| (*id, wait)));
            survey.add(*id, seq, &self.requests, depth);
        }
        let awaited = waiting
            .iter()
            .find(|(_, wait)| !may_defer || wait.since >= patience);
        let Some(&(oldest, TokenWait { due, .. })) = awaited else {
            return survey;
        };
        for (id, wait) in waiting {
            if id == oldest || (!may_defer && wait.due <= due) {
                let seq = self
                    .seqs
                    .get_mut(&id)
                    .expect("running and preempted sequences are live");
                seq.is_skipped = false;
            }
        }
        let mut survey = Survey::default();
        for &id in self.running.values() {
            survey.add(id, &self.seqs[&id], &self.requests, depth);
        }
        survey
    }

    /// Returns the unfinished prompts that the policy pauses, unless they have stood still for too
    /// long.
    fn paused(
        &self,
        now: Timestamp,
        plan: &Plan,
        unfinished: &[(SeqId, Unfinished)],
    ) -> BTreeSet<SeqId> {
        let Some(going) = &plan.chunks else {
            return BTreeSet::new();
        };
        let max_wait = Duration::from_millis(u64::from(self.config.max_wait_ms));
        let stood_long = |id: &SeqId| {
            let stood = now.saturating_since(self.seqs[id].advanced);
            !max_wait.is_zero() && stood >= max_wait
        };
        unfinished
            .iter()
            .filter(|(id, prompt)| !going.contains(&prompt.request) && !stood_long(id))
            .map(|&(id, _)| id)
            .collect()
    }

    fn ask_policy(
        &mut self,
        now: Timestamp,
        tokens: u32,
        unfinished: &[(SeqId, Unfinished)],
        is_idle: bool,
        mode: PolicyMode,
    ) -> Plan {
        let is_empty = self.oneshot.is_empty() && self.decode.is_empty() && unfinished.is_empty();
        // A policy that follows costs is asked even then: it is told of whatever has ended.
        if is_empty && self.watch.is_none() {
            return Plan::default();
        }
        let unfinished: Vec<Unfinished> = unfinished.iter().map(|&(_, prompt)| prompt).collect();
        let changed = self.changed_costs();
        let seqs = self
            .max_seqs
            .saturating_sub(self.running_decode + self.preempted_decode);
        let budget = StepBudget {
            tokens,
            rows: self.config.max_batch_rows,
            seqs,
        };
        let view = QueueView {
            oneshot: &self.oneshot,
            decode: &self.decode,
            now,
            requests: &self.requests,
            cache: &self.cache,
            watch: self.watch.as_ref(),
            changed: &changed,
            withdrawn: &self.withdrawn,
            unfinished: &unfinished,
            step: StepId(self.next_step),
            is_idle,
        };
        let plan = self.policy.plan(&view, budget);
        let plan = match mode {
            PolicyMode::All | PolicyMode::Order => plan,
            PolicyMode::None => Fcfs.plan(&view, budget),
        };
        self.withdrawn.clear();
        plan
    }

    /// Returns the changes to report to a policy that follows the costs of waiting requests.
    fn changed_costs(&mut self) -> Vec<(RequestId, Option<Change>)> {
        let Some(watch) = &mut self.watch else {
            return Vec::new();
        };
        let (requests, queued) = (&mut self.requests, &mut self.queued_uncached);
        let costs = watch.update(&mut self.cache, |cache, id, near| {
            let live = requests.get_mut(&id)?;
            let (cost, edge) = watch::cost_now(live, cache, near)?;
            // Who asks how long the queue is reckons with the cost that the policy does.
            if live.started.is_none()
                && let Some(reserved) = &mut live.reserved
            {
                *queued = *queued - reserved.uncached + cost.tokens;
                reserved.uncached = cost.tokens;
            }
            Some((cost, edge))
        });
        let tell = |(id, cost): (RequestId, Option<Cost>)| {
            let cost = cost.map(|cost| {
                let live = &self.requests[&id];
                Change {
                    oneshot: self.oneshot.get(live.key),
                    decode: self.decode.get(live.key),
                    cost,
                }
            });
            (id, cost)
        };
        costs.into_iter().map(tell).collect()
    }

    /// Plans a step that all work shares: running work goes on, generations are admitted, one-shot
    /// rows are taken up, and generations may use the rest.
    fn plan_shared(
        &mut self,
        draft: &mut Draft,
        plan: &Plan,
        rooms: Rooms,
        events: &mut Vec<Event>,
    ) {
        self.end_drain();
        // One-shot work that cannot be split may take more than its room: it has all that is left.
        let oneshot_end = draft.oneshot_tokens().saturating_add(rooms.oneshot);
        draft.enough_tokens = match rooms.oneshot < draft.tokens {
            true => oneshot_end,
            false => u32::MAX,
        };
        let most = plan.prefill_tokens.unwrap_or(u32::MAX).max(1);
        let prefill = rooms.prefill.min(most);
        self.plan_running(draft, rooms.oneshot, prefill, true, events);
        let left = prefill.saturating_sub(draft.prefill_tokens());
        self.plan_admissions(draft, plan, left);
        // A prompt that lacks blocks keeps its claim on them while one-shot work sits out.
        if rooms.oneshot > 0 || plan.oneshot.is_empty() {
            self.plan_oneshot(draft, plan);
        }
        let used = draft.oneshot_tokens();
        if draft.left() > 0 && used < oneshot_end {
            // One-shot work has no more for this step.
            if plan.fills {
                draft.paused.clear();
            }
            if draft.left_over {
                let may_preempt = draft.is_empty();
                let prefill = draft.tokens.min(most);
                self.plan_running(draft, rooms.oneshot, prefill, may_preempt, events);
            }
            let left = most.saturating_sub(draft.prefill_tokens());
            self.plan_admissions(draft, plan, left.min(draft.left()));
        }
        // Shorter rows that went past a row without room are not held against it.
        if draft
            .passed_over_at
            .is_some_and(|used| used < rooms.oneshot)
        {
            self.owed_steps = OWED_STEPS;
        } else if draft.passed_over_at.is_none() && used > 0 {
            self.owed_steps = 0;
        }
    }

    /// Turns the forest into segments and rows, and charges the requests for them. Up to `room`
    /// tokens are computed twice where that lets more of the prompts be kept.
    pub(super) fn emit_forest(&mut self, draft: &mut Draft, room: u32) {
        if draft.forest_rows.is_empty() {
            return;
        }
        let empty = Forest::new(self.capacity.block_size, self.capacity.attention);
        let forest = std::mem::replace(&mut draft.forest, empty);
        let before = draft.oneshot.tokens.len();
        let may_keep = self.config.enable_prefix_caching;
        let emitted = forest.emit(&mut draft.oneshot, &mut self.cache, may_keep, room);
        self.counters.oneshot_tokens += (draft.oneshot.tokens.len() - before) as u64;
        let kept = emitted.kept;
        self.leaders.add_all(&kept.hashes);
        let owners = kept.segments.iter().map(|s| draft.forest_rows[s.row].tag);
        draft.record.owners = owners.collect();
        draft.record.kept = kept;
        for (row, (segment, joined)) in draft.forest_rows.drain(..).zip(emitted.rows) {
            let (positions, head) = (row.positions, row.head);
            draft.oneshot.rows.push(OutputRow {
                segment,
                positions,
                head,
            });
            let mut tag = row.tag;
            self.counters.shared_tokens += u64::from(joined.shared);
            self.counters.prefix_hit_tokens += u64::from(joined.cached);
            if let RowTag::Row {
                request,
                cached,
                computed,
                ..
            } = &mut tag
            {
                (*cached, *computed) = (joined.cached, joined.computed);
                draft.record.whole_rows += 1;
                let live = self
                    .requests
                    .get_mut(request)
                    .expect("it was planned just now");
                live.usage.cached_tokens += u64::from(joined.cached);
                live.usage.computed_tokens += u64::from(joined.computed);
                self.queued_uncached -= live.take_up(u64::from(joined.computed));
            }
            draft.record.oneshot.push(tag);
        }
        draft.record.pins = emitted.pins;
    }
}
