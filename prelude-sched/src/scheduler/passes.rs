//! Plans slices of long one-shot prompts: when a pass begins, goes on and ends.
//!
//! ```text
//! steps   shared · slice of A · shared · slice of A · shared · slice of B · shared · slice of B
//!                                                     B began: it is more urgent or much shorter
//! ```
//!
//! A slice runs alone, and a shared step comes before the next slice if there is anything for it.
//! The pass that began last goes first, so that one that is more urgent or much shorter than those
//! under way need not wait for them. No pass begins before one that has run for `max_wait_ms`.

use std::time::Duration;

use prelude_core::{Head, PassCapacity, PassId, PassSlice, RequestId};

use super::{
    Scheduler,
    oneshot::{Candidate, touch},
    shortage::BlockUse,
};
use crate::{
    Plan,
    forest::Kept,
    pass::Pass,
    row,
    slice::Work,
    step::{Draft, SliceRecord},
};

impl Scheduler {
    /// Plans a slice: of a pass that begins, or of the one that began last. Returns false if there
    /// is neither.
    pub(super) fn plan_slice(&mut self, draft: &mut Draft, plan: &Plan) -> bool {
        let Some(room) = self.capacity.passes else {
            return false;
        };
        let time = self.slice_time();
        let begins = self.begin_pass(draft, plan, room);
        let Some(pass) = self.passes.last_mut() else {
            return false;
        };
        let (layer_tokens, size) = pass.plan(&self.slice_times, time);
        draft.slice = Some(PassSlice {
            pass: pass.id,
            begin: begins.then(|| std::mem::take(&mut draft.oneshot)),
            layer_tokens: u32::try_from(layer_tokens)
                .expect("a slice takes milliseconds, so it has fewer than 2^32 layer tokens"),
            keeps: pass.keeps,
            abandoned: std::mem::take(&mut self.abandoned),
        });
        self.counters.slices += 1;
        draft.record.slice = Some(SliceRecord {
            pass: pass.id,
            size,
        });
        if pass.work.left() == 0
            && let Some(pass) = self.passes.pop()
        {
            draft.record.whole_rows = pass.rows.len() as u64;
            draft.record.oneshot = pass.rows;
            draft.record.kept = pass.kept;
            draft.record.owners = pass.owners;
            draft.record.pins = pass.pins;
        }
        true
    }

    /// Begins a pass for the first waiting request whose next row is too long for a shared step, if
    /// it may begin now. It has as many rows of the request as there is room for.
    fn begin_pass(&mut self, draft: &mut Draft, plan: &Plan, room: PassCapacity) -> bool {
        if self.is_draining() || self.passes.len() >= room.passes as usize {
            return false;
        }
        let first = plan.oneshot.iter().map(|grant| grant.request);
        let first = first
            .into_iter()
            .find(|&id| self.wants_pass(draft, plan, id));
        let Some(id) = first.filter(|&id| self.may_begin(draft, id)) else {
            return false;
        };
        let held: u32 = self.passes.iter().map(|pass| pass.work.tokens).sum();
        let mut tokens = room.tokens - held;
        let mut outputs = room.outputs;
        while draft.forest.num_rows() < self.config.max_batch_rows as usize {
            let Some(mut row) = self.next_candidate(id) else {
                break;
            };
            match self.join_pass(draft, plan, &mut row, (&mut tokens, &mut outputs)) {
                true => {}
                false => {
                    let live = self
                        .requests
                        .get_mut(&id)
                        .expect("a request that waits is live");
                    live.oneshot.push_front(row.waiting);
                    break;
                }
            }
        }
        self.requeue(id);
        if draft.forest.num_rows() == 0 {
            return false;
        }
        self.look_ahead(draft, plan);
        self.emit_forest(draft, tokens);
        let live = &self.requests[&id];
        let work = Work {
            tokens: crate::length::length_of(draft.oneshot.tokens.len()),
            layers: room.layers,
            planned: 0,
        };
        self.passes.push(Pass {
            id: PassId(self.next_pass),
            request: id,
            priority: live.key.priority,
            begun: draft.now,
            rows: std::mem::take(&mut draft.record.oneshot),
            kept: std::mem::take(&mut draft.record.kept),
            owners: std::mem::take(&mut draft.record.owners),
            pins: std::mem::take(&mut draft.record.pins),
            keeps: true,
            work,
        });
        draft.record.whole_rows = 0;
        self.next_pass += 1;
        self.counters.passes += 1;
        true
    }

    /// Returns whether a request's next row is one for a pass, as far as its length tells.
    fn wants_pass(&self, draft: &Draft, plan: &Plan, id: RequestId) -> bool {
        let Some(live) = self.requests.get(&id) else {
            return false;
        };
        live.oneshot.front().is_some_and(|waiting| {
            let len = live.prompt_len(waiting.row);
            len > draft.room && self.fits_pass(plan, live.head(waiting.row), len)
        })
    }

    /// Returns whether a pass may compute a row: it reads few output positions, and the policy does
    /// not want it in chunks, which only the pool can hold.
    pub(super) fn fits_pass(&self, plan: &Plan, head: &Head, len: u32) -> bool {
        let in_chunks = plan.chunk_tokens.is_some() && !self.exceeds_pool(len);
        self.capacity.passes.is_some_and(|room| {
            !in_chunks && len <= room.tokens && row::num_outputs(head, len) <= room.outputs
        })
    }

    /// Returns whether a pass of the request may begin before those under way.
    fn may_begin(&self, draft: &Draft, id: RequestId) -> bool {
        let live = &self.requests[&id];
        let (Some(oldest), Some(last)) = (self.passes.first(), self.passes.last()) else {
            return true;
        };
        let max_wait = Duration::from_millis(u64::from(self.config.max_wait_ms));
        let has_run_long =
            !max_wait.is_zero() && draft.now.saturating_since(oldest.begun) >= max_wait;
        let tokens: u64 = live
            .oneshot
            .front()
            .map_or(0, |w| live.prompt_len(w.row).into());
        let is_urgent = live.key.priority < last.priority;
        let is_short = self.policy.follows_costs()
            && live.key.priority == last.priority
            && 2 * tokens < last.work.tokens_left();
        !has_run_long && (is_urgent || is_short)
    }

    /// Adds a row to the pass that begins, if it fits.
    fn join_pass(
        &mut self,
        draft: &mut Draft,
        plan: &Plan,
        row: &mut Candidate,
        (tokens, outputs): (&mut u32, &mut u32),
    ) -> bool {
        let live = &self.requests[&row.request];
        let head = live.head(row.waiting.row);
        let len = live.prompt_len(row.waiting.row);
        let reads = row::num_outputs(head, len);
        if reads > *outputs || !self.fits_pass(plan, head, len) {
            return false;
        }
        // A cached prefix holds its blocks until the pass ends, so the pass must not take blocks
        // that an overdue request needs.
        let key = self.oneshot.placed(live.key);
        if row.cached > 0 && self.refuse_blocks(draft, key, BlockUse::Pass).is_some() {
            return false;
        }
        let is_first = draft.forest.num_rows() == 0;
        let Some(spot) = self.find_spot(draft, row) else {
            return false;
        };
        // A first row of which a shared step can compute the rest goes there.
        if spot.new_tokens > *tokens || (is_first && spot.new_tokens <= draft.room) {
            touch(&mut self.cache, draft, row.prompt(&self.requests));
            return false;
        }
        *tokens -= spot.new_tokens;
        *outputs -= reads;
        self.join_forest(draft, row, spot);
        true
    }

    /// Takes the blocks away that passes fill for later requests: other work needs them now.
    pub(super) fn take_kept_from_passes(&mut self) {
        for pass in &mut self.passes {
            self.counters.passes_without_blocks += u64::from(pass.keeps);
            pass.keeps = false;
            pass.owners.clear();
            let Kept { blocks, hashes, .. } = std::mem::take(&mut pass.kept);
            hashes.iter().for_each(|&hash| self.leaders.remove(hash));
            self.cache.release_all(blocks);
        }
    }

    /// Ends the passes of a request before their last slices, and frees what they hold.
    pub(super) fn abandon_passes(&mut self, id: RequestId) {
        let mut ended: Vec<Pass> = Vec::new();
        let mut at = 0;
        while at < self.passes.len() {
            match self.passes[at].request == id {
                true => ended.push(self.passes.remove(at)),
                false => at += 1,
            }
        }
        for pass in ended {
            let Kept { blocks, hashes, .. } = pass.kept;
            hashes.iter().for_each(|&hash| self.leaders.remove(hash));
            self.cache.release_all(blocks);
            self.cache.release_all(pass.pins);
            self.abandoned.push(pass.id);
        }
    }
}
