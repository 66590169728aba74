//! One-shot rows: merged into the step's forest while they fit; too long ones are computed in
//! one long step of their own or in chunks.

use prelude_core::RequestId;
use prelude_kv::KvCache;

use super::{Scheduler, admit::Admission, shortage::BlockUse};
use crate::{
    Grant, Plan, Turn,
    forest::Spot,
    leader::Held,
    prompts::Prompt,
    request::{Requests, WaitingRow},
    row,
    sequence::{Job, Sequence},
    step::{Draft, ForestRow, RowTag},
};

/// Upper bound of rows that a step looks at and cannot take up before it stops looking: shorter
/// rows may overtake a long one within a step, but a step stays cheap to plan.
const MAX_MISSES: usize = 8;

/// The outcome of an attempt to plan a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// The row is in the step's forest, or its first chunk is.
    Planned,
    /// The row is not in this step.
    Missed,
}

/// A row about to be planned.
pub(super) struct Candidate {
    pub(super) request: RequestId,
    pub(super) waiting: WaitingRow,
    /// First position that must be computed for the row.
    needed: u32,
    /// The number of blocks of the row's cached prefix.
    pub(super) cached: u32,
    /// True if one step must compute the row: its head wants all hidden states at once, attention sees
    /// the whole prompt, or the pool cannot hold it.
    is_unsplittable: bool,
}

impl Candidate {
    pub(super) fn prompt<'a>(&self, requests: &'a Requests) -> Prompt<'a> {
        requests[&self.request].prompt(self.waiting.row, self.cached)
    }
}

impl Scheduler {
    /// Takes up one-shot rows with what is left of the step.
    pub(super) fn plan_oneshot(&mut self, draft: &mut Draft, plan: &Plan) {
        if self.is_draining() {
            return;
        }
        self.first_blocked.chunks = None;
        if draft.left() == 0 && !plan.oneshot.is_empty() {
            draft.passed_over_at = Some(draft.oneshot_tokens());
        }
        // The limit counts from here, so that prompts that go on in chunks do not keep the first
        // row in line out.
        let begun = draft.oneshot_tokens();
        let enough = plan.enough_tokens.unwrap_or(u32::MAX);
        draft.enough_tokens = draft.enough_tokens.min(begun.saturating_add(enough));
        let mut misses = 0;
        for grant in &plan.oneshot {
            if self.is_full(draft) || misses >= MAX_MISSES {
                break;
            }
            if self.requests.contains_key(&grant.request) {
                self.take_rows(draft, plan, grant, &mut misses);
            }
        }
        if misses == 0 {
            self.look_ahead(draft, plan);
        }
    }

    /// Looks at the first rows that a full step or a pass leaves behind: what they share with it is
    /// worth keeping. Without that, the README's posts in mixed order take 1.14 times as long under
    /// `fcfs` and 1.27 times under `groups`.
    pub(super) fn look_ahead(&mut self, draft: &mut Draft, plan: &Plan) {
        if !self.config.enable_prefix_caching || draft.forest.num_rows() == 0 {
            return;
        }
        let front = |request| self.requests.get(request)?.oneshot.front();
        let left_behind = plan.oneshot.iter().filter_map(|grant| {
            let row = front(&grant.request)?.row;
            Some((grant.request, row))
        });
        let left_behind: Vec<_> = left_behind.take(MAX_MISSES).collect();
        for (request, row) in left_behind {
            let live = self
                .requests
                .get_mut(&request)
                .expect("a request that waits is live");
            let needed = live.first_needed(row);
            let cached = live.find_prompt(row, &self.cache, &mut self.found);
            let prompt = live.prompt(row, cached);
            let spot = draft.forest.probe(prompt);
            draft.forest.want(prompt, needed, spot);
            touch(&mut self.cache, draft, prompt);
        }
    }

    fn is_full(&self, draft: &Draft) -> bool {
        draft.left() == 0
            || self.is_draining()
            || draft.forest.num_rows() >= self.config.max_batch_rows as usize
            || draft.oneshot_tokens() >= draft.enough_tokens
    }

    /// Takes up rows of one request, in order.
    fn take_rows(&mut self, draft: &mut Draft, plan: &Plan, grant: &Grant, misses: &mut usize) {
        let id = grant.request;
        let end = draft.oneshot_tokens().saturating_add(grant.tokens);
        let mut missed: Vec<WaitingRow> = Vec::new();
        while *misses < MAX_MISSES && !self.is_full(draft) {
            let Some(mut candidate) = self.next_candidate(id) else {
                break;
            };
            let left = draft.left().min(end.saturating_sub(draft.oneshot_tokens()));
            match self.take_row(draft, plan, &mut candidate, left) {
                Taken::Planned => {}
                Taken::Missed => {
                    missed.push(candidate.waiting);
                    *misses += 1;
                }
            }
        }
        let live = self
            .requests
            .get_mut(&id)
            .expect("a request that waits is live");
        for waiting in missed.into_iter().rev() {
            live.oneshot.push_front(waiting);
        }
        self.requeue(id);
    }

    pub(super) fn next_candidate(&mut self, request: RequestId) -> Option<Candidate> {
        let live = self.requests.get_mut(&request)?;
        let waiting = live.oneshot.pop_front()?;
        let cached = match self.config.enable_prefix_caching {
            true => live.find_prompt(waiting.row, &self.cache, &mut self.found),
            false => 0,
        };
        let len = live.prompt_len(waiting.row);
        let needed = live.first_needed(waiting.row);
        let is_whole = row::is_whole(live.head(waiting.row), self.capacity.attention);
        Some(Candidate {
            request,
            waiting,
            needed,
            cached,
            is_unsplittable: is_whole || self.exceeds_pool(len),
        })
    }

    /// Returns whether a prompt has more positions than all blocks together.
    pub(super) const fn exceeds_pool(&self, len: u32) -> bool {
        len.div_ceil(self.capacity.block_size) > self.capacity.num_blocks
    }

    fn take_row(
        &mut self,
        draft: &mut Draft,
        plan: &Plan,
        row: &mut Candidate,
        left: u32,
    ) -> Taken {
        let Some(spot) = self.find_spot(draft, row) else {
            return Taken::Missed;
        };
        let whole = row.is_unsplittable;
        let longest = if whole {
            draft.room
        } else {
            draft.room.min(draft.split_tokens)
        };
        if spot.new_tokens <= left.min(longest) {
            if row.waiting.is_lone {
                if draft.has_oneshot_rows() {
                    return Taken::Missed;
                }
                draft.enough_tokens = 0;
            }
            self.join_forest(draft, row, spot);
            return Taken::Planned;
        }
        let prompt = row.prompt(&self.requests);
        if self.config.enable_prefix_caching {
            draft.forest.want(prompt, row.needed, spot);
        }
        touch(&mut self.cache, draft, prompt);
        let is_long = spot.new_tokens > longest;
        let live = &self.requests[&row.request];
        let len = live.prompt_len(row.waiting.row);
        let has_pass =
            spot.new_tokens > draft.room && self.fits_pass(plan, live.head(row.waiting.row), len);
        if is_long && (whole || has_pass) {
            // The row waits for a step or a pass of its own, not for room.
            return Taken::Missed;
        }
        if is_long && left > 0 && draft.passed_over_at.is_none() {
            return self.start_chunks(draft, row, left);
        }
        let used = draft.oneshot_tokens();
        draft.passed_over_at.get_or_insert(used);
        Taken::Missed
    }

    /// Finds a row's place in the forest; `None` if it is to wait for another that computes its
    /// prefix.
    pub(super) fn find_spot(&mut self, draft: &mut Draft, row: &mut Candidate) -> Option<Spot> {
        if self.config.enable_prefix_caching {
            self.load_prefix(draft, row);
        }
        let live = &self.requests[&row.request];
        let may_wait = self.oneshot.placed(live.key).turn != Turn::Overdue;
        if self.config.enable_prefix_caching && may_wait {
            let prompt = live.prompt(row.waiting.row, row.cached);
            let next = prompt.next_hash(row.needed);
            if self.is_led(draft, next, &mut row.waiting.held) {
                touch(&mut self.cache, draft, row.prompt(&self.requests));
                return None;
            }
        }
        Some(draft.forest.probe(row.prompt(&self.requests)))
    }

    /// Loads what host memory holds of a row's prompt behind its cached prefix. While other work lacks
    /// blocks, none are taken for that: the step computes the tokens.
    fn load_prefix(&mut self, draft: &Draft, row: &mut Candidate) {
        let next = row.prompt(&self.requests).next_hash(row.needed);
        let is_stored = next.is_some_and(|next| self.cache.is_stored(next));
        if !is_stored || draft.starved || !self.short_of_blocks.is_empty() {
            return;
        }
        let live = self
            .requests
            .get_mut(&row.request)
            .expect("a request that waits is live");
        let tokens = live.whole_prompt(row.waiting.row);
        let (salt, most) = (live.prompts.salt.as_ref(), row.needed as usize);
        let mut found = self.cache.match_prefix(salt, &tokens, most);
        self.cache.load_behind(&mut found, salt, &tokens, most);
        self.cache.release_all(found.into_blocks());
        row.cached = live.find_prompt(row.waiting.row, &self.cache, &mut self.found);
    }

    pub(super) fn join_forest(&mut self, draft: &mut Draft, row: &Candidate, spot: Spot) {
        let live = &self.requests[&row.request];
        let len = live.prompt_len(row.waiting.row);
        let computed = row.needed..len;
        let prompt = live.prompt(row.waiting.row, row.cached);
        let attention = self.capacity.attention;
        let head = live.head(row.waiting.row);
        let (positions, head) = row::output_of(head, &prompt, &computed, attention)
            .expect("a whole prompt answers its row");
        draft.forest.add(prompt, spot, row.needed, &mut self.cache);
        let tag = RowTag::Row {
            request: row.request,
            serial: live.serial,
            row: row.waiting.row,
            cached: 0,
            computed: 0,
        };
        draft.forest_rows.push(ForestRow {
            tag,
            positions,
            head,
        });
        self.counters.prefix_query_tokens += u64::from(len);
        if live.started.is_none() {
            self.mark_started(draft.now, row.request);
        }
    }

    /// Starts to compute a row's prompt in chunks that hold blocks, if the blocks are there. Not
    /// past a row that waits for room: what is started here would take that room again.
    fn start_chunks(&mut self, draft: &mut Draft, row: &mut Candidate, left: u32) -> Taken {
        let key = self.oneshot.placed(self.requests[&row.request].key);
        if self.refuse_blocks(draft, key, BlockUse::Chunks).is_some() {
            return Taken::Missed;
        }
        let job = Job::Chunked { needed: row.needed };
        let live = self
            .requests
            .get_mut(&row.request)
            .expect("a request that waits is live");
        let salt = live.prompts.salt.clone();
        let prompt = live.whole_prompt(row.waiting.row);
        let (id, index) = (row.request, row.waiting.row);
        let mut seq = Sequence::new(id, index, 0, job, salt, prompt, self.next_seq);
        // The row has waited for its leaders already.
        let outcome = self.hold_prefix(draft, &mut seq, &mut Held::default());
        match outcome {
            Admission::Admitted => {
                self.enlist(draft, seq, left);
                Taken::Planned
            }
            Admission::Deferred => Taken::Missed,
            Admission::Blocked => {
                self.wait_for_blocks(key, BlockUse::Chunks, None);
                Taken::Missed
            }
        }
    }

    /// Plans a step of one long prompt alone, if the first row in line is longer than a shared step
    /// and either cannot be split or delays no other work. Such steps alternate with shared ones
    /// while anything else runs.
    pub(super) fn plan_exclusive(&mut self, draft: &mut Draft, plan: &Plan) -> bool {
        let Some(first) = plan.oneshot.first() else {
            return false;
        };
        let waits = |live: &crate::request::RequestState| {
            live.oneshot
                .front()
                .is_some_and(|w| live.prompt_len(w.row) > draft.room)
        };
        let first_is_long = self
            .requests
            .get(&first.request)
            .is_some_and(|live| waits(live));
        if self.drain_until.is_some() || !first_is_long {
            return false;
        }
        // A generation that waits to be admitted counts: only shared steps admit it.
        let delays_no_other = self.passes.is_empty()
            && self.running.is_empty()
            && self.preempted.is_empty()
            && self.decode.is_empty();
        let alone = delays_no_other && self.oneshot.rows() == 1 && plan.chunk_tokens.is_none();
        let Some(mut row) = self.next_candidate(first.request) else {
            return false;
        };
        let may_run = alone || ((delays_no_other || !self.was_alone) && row.is_unsplittable);
        let planned = may_run && self.take_long(draft, &mut row);
        if !planned {
            let live = self
                .requests
                .get_mut(&first.request)
                .expect("a request that waits is live");
            live.oneshot.push_front(row.waiting);
        }
        self.requeue(first.request);
        planned
    }

    fn take_long(&mut self, draft: &mut Draft, row: &mut Candidate) -> bool {
        let Some(spot) = self.find_spot(draft, row) else {
            return false;
        };
        let long = draft.room + 1..=self.capacity.max_step_tokens;
        if !long.contains(&spot.new_tokens) {
            touch(&mut self.cache, draft, row.prompt(&self.requests));
            return false;
        }
        self.join_forest(draft, row, spot);
        true
    }
}

/// Notes that a prompt was looked at that the step does not take up, so that its cached prefix is
/// not the next to be evicted.
pub(super) fn touch(cache: &mut KvCache, draft: &Draft, prompt: Prompt<'_>) {
    if !draft.forest.holds(prompt) {
        let blocks = prompt.blocks();
        cache.hold_all(&blocks);
        cache.release_all(blocks);
    }
}
