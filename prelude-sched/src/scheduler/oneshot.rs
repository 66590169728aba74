//! One-shot rows: merged into the step's forest while they fit; too long ones are computed in
//! one long step of their own or in chunks.

use std::sync::Arc;

use prelude_core::{RequestId, TokenId};
use prelude_kv::BlockHash;

use super::{Scheduler, admit::Admission};
use crate::{
    Plan, Turn,
    forest::Spot,
    leader::Held,
    request::WaitingRow,
    row,
    sequence::{Job, Sequence},
    step::{Draft, ForestRow, RowTag},
};

/// Rows that a step looks at and cannot take up before it stops looking: shorter rows may
/// overtake a long one within a step, but a step stays cheap to plan.
const MAX_MISSES: usize = 8;

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// It is in the step's forest, or its first chunk is.
    Planned,
    /// Not in this step.
    Missed,
}

/// A row about to be planned.
struct Candidate {
    request: RequestId,
    waiting: WaitingRow,
    prompt: Arc<[TokenId]>,
    /// Hashes of its prefixes; none without a prefix cache.
    hashes: Arc<[BlockHash]>,
    /// First position that must be computed for it.
    needed: u32,
}

impl Scheduler {
    /// Takes up one-shot rows with what is left of the step.
    pub(super) fn plan_oneshot(&mut self, draft: &mut Draft, plan: &Plan) {
        if self.is_draining() {
            return;
        }
        self.chunk_blocked = None;
        if draft.left() == 0 && !plan.oneshot.is_empty() {
            draft.passed_over_at = Some(draft.oneshot_tokens());
        }
        // Beside prompts that go on in chunks: those must not keep the first in line out.
        let begun = draft.oneshot_tokens();
        draft.enough_tokens = plan.enough_tokens.map(|most| begun.saturating_add(most));
        let mut misses = 0;
        for grant in &plan.oneshot {
            if self.is_full(draft) || misses >= MAX_MISSES {
                break;
            }
            if self.requests.contains_key(&grant.request) {
                self.take_rows(draft, grant.request, grant.tokens, &mut misses);
            }
        }
        if misses == 0 {
            self.look_ahead(draft, plan);
        }
    }

    /// Looks at the first rows that a full step leaves behind: what they share with it is worth
    /// keeping.
    fn look_ahead(&mut self, draft: &mut Draft, plan: &Plan) {
        if !self.config.enable_prefix_caching || draft.forest.num_rows() == 0 {
            return;
        }
        let front = |request| self.requests.get(request)?.oneshot.front();
        let left_behind = plan.oneshot.iter().filter_map(|grant| {
            let row = front(&grant.request)?.row;
            Some((grant.request, row))
        });
        let left_behind: Vec<_> = left_behind.take(MAX_MISSES).collect();
        let block_size = self.cache.block_size();
        for (request, row) in left_behind {
            let live = self.requests.get_mut(&request).expect("it waits");
            let prompt = live.prompt(row);
            let hashes = live.hashes(row, block_size);
            let needed = row::first_needed(live.head(row), live.prompt_len(row));
            let salt = live.salt.as_ref();
            let found = (self.cache).match_hashed(salt, &prompt, &hashes, needed as usize);
            let spot = draft.forest.probe(salt, &prompt, found.blocks());
            draft
                .forest
                .want(salt, &prompt, needed, found.blocks(), spot);
            self.cache.release_all(found.into_blocks());
        }
    }

    fn is_full(&self, draft: &Draft) -> bool {
        let enough = |most: u32| draft.oneshot_tokens() >= most;
        draft.left() == 0
            || self.is_draining()
            || draft.forest.num_rows() >= self.config.max_batch_rows as usize
            || draft.enough_tokens.is_some_and(enough)
    }

    /// Takes up rows of one request, in order.
    fn take_rows(&mut self, draft: &mut Draft, id: RequestId, grant: u32, misses: &mut usize) {
        let end = draft.oneshot_tokens().saturating_add(grant);
        let mut missed: Vec<WaitingRow> = Vec::new();
        while *misses < MAX_MISSES && !self.is_full(draft) {
            let Some(mut candidate) = self.next_candidate(id) else {
                break;
            };
            let left = draft.left().min(end.saturating_sub(draft.oneshot_tokens()));
            match self.take_row(draft, &mut candidate, left) {
                Taken::Planned => {}
                Taken::Missed => {
                    missed.push(candidate.waiting);
                    *misses += 1;
                }
            }
        }
        let live = self.requests.get_mut(&id).expect("it waits");
        for waiting in missed.into_iter().rev() {
            live.oneshot.push_front(waiting);
        }
        self.requeue(id);
    }

    fn next_candidate(&mut self, request: RequestId) -> Option<Candidate> {
        let block_size = self.cache.block_size();
        let live = self.requests.get_mut(&request)?;
        let waiting = live.oneshot.pop_front()?;
        let prompt = live.prompt(waiting.row);
        let hashes = match self.config.enable_prefix_caching {
            true => live.hashes(waiting.row, block_size),
            false => Arc::default(),
        };
        let needed = row::first_needed(live.head(waiting.row), live.prompt_len(waiting.row));
        Some(Candidate {
            request,
            waiting,
            prompt,
            hashes,
            needed,
        })
    }

    fn take_row(&mut self, draft: &mut Draft, row: &mut Candidate, left: u32) -> Taken {
        let Some((found, spot)) = self.find_spot(draft, row) else {
            return Taken::Missed;
        };
        let whole = self.is_unsplittable(row);
        let longest = if whole {
            draft.room
        } else {
            draft.room.min(draft.split_tokens)
        };
        if spot.new_tokens <= left.min(longest) {
            self.join_forest(draft, row, found, spot);
            return Taken::Planned;
        }
        if self.config.enable_prefix_caching {
            let salt = self.requests[&row.request].salt.as_ref();
            let known = found.blocks();
            draft
                .forest
                .want(salt, &row.prompt, row.needed, known, spot);
        }
        self.cache.release_all(found.into_blocks());
        let is_long = spot.new_tokens > longest;
        if is_long && whole {
            // It waits for a step of its own, not for room.
            return Taken::Missed;
        }
        if is_long && left > 0 && draft.passed_over_at.is_none() {
            return self.start_chunks(draft, row, left);
        }
        let used = draft.oneshot_tokens();
        draft.passed_over_at.get_or_insert(used);
        Taken::Missed
    }

    /// Matches a row with the cache and finds its place in the forest; `None` if it is to wait
    /// for another that computes its prefix.
    fn find_spot(
        &mut self,
        draft: &Draft,
        row: &mut Candidate,
    ) -> Option<(prelude_kv::PrefixMatch, Spot)> {
        let salt = self.requests[&row.request].salt.clone();
        let caching = self.config.enable_prefix_caching;
        let most = row.needed as usize;
        let found = (self.cache).match_hashed(salt.as_ref(), &row.prompt, &row.hashes, most);
        let (known, hash) = (found.blocks().len(), found.hash());
        let mut held = row.waiting.held;
        let is_overdue = self.oneshot.placed(self.requests[&row.request].key).turn == Turn::Overdue;
        let led = caching
            && !is_overdue
            && self.is_led(draft, &row.prompt, row.needed, known, hash, &mut held);
        row.waiting.held = held;
        if led {
            self.cache.release_all(found.into_blocks());
            return None;
        }
        let spot = draft
            .forest
            .probe(salt.as_ref(), &row.prompt, found.blocks());
        Some((found, spot))
    }

    fn join_forest(
        &mut self,
        draft: &mut Draft,
        row: &Candidate,
        found: prelude_kv::PrefixMatch,
        spot: Spot,
    ) {
        let live = &self.requests[&row.request];
        let (serial, salt) = (live.serial, live.salt.clone());
        let len = live.prompt_len(row.waiting.row);
        let computed = row.needed..len;
        let (positions, head) = row::output_of(live.head(row.waiting.row), &row.prompt, &computed)
            .expect("a whole prompt answers its row");
        draft.forest.add(
            salt.as_ref(),
            &row.prompt,
            found,
            spot,
            row.needed,
            &mut self.cache,
        );
        let tag = RowTag::Row {
            request: row.request,
            serial,
            row: row.waiting.row,
        };
        draft.forest_rows.push(ForestRow {
            tag,
            positions,
            head,
        });
        self.counters.prefix_query_tokens += u64::from(len);
        self.mark_started(draft.now, row.request);
    }

    /// Starts to compute a row's prompt in chunks that hold blocks, if the blocks are there. Not
    /// past a row that waits for room: what is started here would take that room again.
    fn start_chunks(&mut self, draft: &mut Draft, row: &mut Candidate, left: u32) -> Taken {
        let live = &self.requests[&row.request];
        let key = self.oneshot.placed(live.key);
        let younger = draft.decode_blocked.is_some_and(|blocked| blocked < key);
        let younger = younger || self.is_behind_overdue(&key);
        if draft.starved || younger || !self.preempted.is_empty() {
            self.waits_for_blocks(key);
            return Taken::Missed;
        }
        let job = Job::Chunked { needed: row.needed };
        let (salt, prompt) = (live.salt.clone(), row.prompt.clone());
        let (id, index) = (row.request, row.waiting.row);
        let mut seq = Sequence::new(id, index, 0, job, salt, prompt, self.next_seq);
        // It has waited for its leaders already.
        let outcome = self.hold_prefix(draft, &mut seq, &mut Held::default());
        match outcome {
            Admission::Admitted => {
                self.enlist(draft, seq, left);
                Taken::Planned
            }
            Admission::Deferred => Taken::Missed,
            Admission::Blocked => {
                self.waits_for_blocks(key);
                self.chunk_blocked = Some(self.chunk_blocked.map_or(key, |b| b.min(key)));
                Taken::Missed
            }
        }
    }

    /// Whether a row must be computed by one step: its head wants all hidden states at once, or
    /// the pool cannot hold its prompt.
    fn is_unsplittable(&self, row: &Candidate) -> bool {
        let live = &self.requests[&row.request];
        let blocks = row.prompt.len().div_ceil(self.cache.block_size());
        row::pools_all(live.head(row.waiting.row)) || blocks > self.capacity.num_blocks as usize
    }

    /// Plans a step of one long prompt alone, if the first row in line is longer than a shared
    /// step and either cannot be split or delays nobody. Such steps alternate with shared ones
    /// while anything else runs.
    pub(super) fn plan_exclusive(&mut self, draft: &mut Draft, plan: &Plan) -> bool {
        let Some(first) = plan.oneshot.first() else {
            return false;
        };
        let waits = |live: &crate::request::Live| {
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
        let delays_nobody =
            self.running.is_empty() && self.preempted.is_empty() && self.decode.is_empty();
        let alone = delays_nobody && self.oneshot.rows() == 1 && plan.chunk_tokens.is_none();
        let Some(mut row) = self.next_candidate(first.request) else {
            return false;
        };
        let may_run =
            alone || ((delays_nobody || !self.was_exclusive) && self.is_unsplittable(&row));
        let planned = may_run && self.take_long(draft, &mut row);
        if !planned {
            let live = self.requests.get_mut(&first.request).expect("it waits");
            live.oneshot.push_front(row.waiting);
        }
        self.requeue(first.request);
        planned
    }

    fn take_long(&mut self, draft: &mut Draft, row: &mut Candidate) -> bool {
        let Some((found, spot)) = self.find_spot(draft, row) else {
            return false;
        };
        let long = draft.room + 1..=self.capacity.max_step_tokens;
        if !long.contains(&spot.new_tokens) {
            self.cache.release_all(found.into_blocks());
            return false;
        }
        self.join_forest(draft, row, found, spot);
        true
    }
}
