//! Recounts everything, for tests and simulations.

use std::collections::BTreeMap;

use prelude_core::{BlockId, Timestamp};

use prelude_kv::BlockHash;

use super::Scheduler;
use crate::{
    Turn,
    sequence::{SeqState, Sequence},
    watch::{self, Cost},
};

/// An overdue request, which goes before all others of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnOf {
    pub(crate) age: (Timestamp, u64),
    /// Rows, or choices, that have not started.
    pub(crate) rows: u32,
    /// True if the request was found to lack blocks.
    pub(crate) is_short_of_blocks: bool,
}

impl Scheduler {
    /// Checks the scheduler's books against a recount. O(everything).
    ///
    /// # Panics
    /// If they disagree.
    pub(crate) fn check_invariants(&self) {
        self.cache.check();
        let mut holders = vec![0; self.capacity.num_blocks as usize];
        let held_by_steps = self
            .in_flight
            .iter()
            .flat_map(|s| s.pins.iter().chain(&s.kept.blocks));
        let held_by_passes = self
            .passes
            .iter()
            .flat_map(|p| p.pins.iter().chain(&p.kept.blocks));
        let held_by_seqs = self.seqs.values().flat_map(|seq| &seq.blocks);
        for &block in held_by_steps.chain(held_by_passes).chain(held_by_seqs) {
            holders[block.index()] += 1;
        }
        for block in (0..self.capacity.num_blocks).map(BlockId) {
            let expected = holders[block.index()];
            assert_eq!(self.cache.refs(block), expected, "holders of block {block}");
        }
        self.check_sequences();
        self.check_queues();
        if let Some(watch) = &self.watch {
            watch.check(&self.cache, |id| self.cost_from_nothing(id));
        }
    }

    /// Returns the cost of a waiting request, its prompt compared with the cache token by token.
    fn cost_from_nothing(&self, id: prelude_core::RequestId) -> Option<Cost> {
        let live = self.requests.get(&id)?;
        let row = live.next_row()?;
        let prompt = live.prompts.tree.prompt(live.node(row));
        let block_size = self.cache.block_size();
        let most = live.first_needed(row) as usize;
        let salt = live.prompts.salt.as_ref();
        let cached = self.cache.cached_prefix(salt, &prompt, most);
        let root = BlockHash::root(salt.map(|s| &**s));
        let hashes: Vec<BlockHash> = root.blocks(&prompt[..most], block_size).collect();
        Some(watch::cost_of(live, row, &hashes, cached / block_size, block_size).0)
    }

    /// Has plans told of at most `most` newcomers and watchers, so that small worlds see what a
    /// policy does that has not heard of all.
    pub(crate) const fn limit_told(&mut self, most: usize) {
        if let Some(watch) = &mut self.watch {
            watch.limit(most);
        }
    }

    /// Lets steps without generations have up to `tokens` tokens, so that small worlds have what the
    /// default settings do on a device whose full steps are larger than 2,048.
    pub(crate) const fn widen_oneshot_steps(&mut self, tokens: u32) {
        self.max_oneshot_tokens = tokens;
    }

    /// Returns whether any of a live request was ever scheduled; `None` if it is not live.
    #[must_use]
    pub(crate) fn has_started(&self, id: prelude_core::RequestId) -> Option<bool> {
        self.requests.get(&id).map(|live| live.started.is_some())
    }

    /// Returns the request that goes first in each queue, one-shot and generations, since it is
    /// overdue.
    pub(crate) fn turns(&self) -> [Option<TurnOf>; 2] {
        [&self.oneshot, &self.decode].map(|queue| {
            let (key, waiting) = queue.first()?;
            (key.turn == Turn::Overdue).then(|| TurnOf {
                age: key.age(),
                rows: waiting.rows,
                is_short_of_blocks: self.short_of_blocks.contains(&key.age()),
            })
        })
    }

    /// Returns the number of sequences admitted so far.
    pub(crate) const fn admitted(&self) -> u64 {
        self.next_seq
    }

    /// Returns whether a sequence lives that was admitted among the first `admitted`, or whose
    /// request came no later than that which has the turn; if `with_prompt`, such with some of its
    /// prompt to compute.
    pub(crate) fn has_older_work(&self, turn: &TurnOf, admitted: u64, with_prompt: bool) -> bool {
        let is_older = |seq: &Sequence| {
            let came_before = self.requests[&seq.request].key.age() <= turn.age;
            let has_prompt = seq.state != SeqState::Decoding;
            (came_before || seq.seniority < admitted) && (has_prompt || !with_prompt)
        };
        // A pass goes on before another begins, and may hold blocks.
        self.seqs.values().any(is_older) || !self.passes.is_empty()
    }

    /// Returns whether one-shot work sits out for the share of generations.
    pub(crate) const fn oneshot_is_ahead(&self) -> bool {
        self.shares.is_ahead()
    }

    /// Returns whether the device is idle because the policy waits for more.
    #[must_use]
    pub(crate) const fn idles(&self) -> bool {
        self.idle_until.is_some()
    }

    /// Describes the waiting and the running work, for the message of a failed check.
    #[must_use]
    pub(crate) fn describe(&self) -> String {
        let seq = |id: &prelude_core::SeqId| {
            let seq = &self.seqs[id];
            let (len, blocks) = (seq.len(), seq.blocks.len());
            format!(
                "{id}: {:?}, {len} tokens, {blocks} blocks, {} in flight",
                seq.state, seq.in_flight
            )
        };
        let running: Vec<String> = self.running.values().map(seq).collect();
        let preempted: Vec<String> = self.preempted.values().map(seq).collect();
        let stats = self.stats();
        format!(
            "{:?}\nrunning {running:#?}\npreempted {preempted:#?}\n{stats:?}\nshares {:?}, room {}, oneshot {:?}\nshort {:?}, drain {:?}",
            self.capacity,
            self.shares,
            self.max_tokens,
            self.oneshot.iter().next(),
            self.short_of_blocks,
            self.drain_until,
        )
    }

    fn check_sequences(&self) {
        let of_requests: usize = self.requests.values().map(|live| live.seqs.len()).sum();
        assert_eq!(of_requests, self.seqs.len(), "sequences of live requests");
        assert_eq!(
            self.running.len() + self.preempted.len(),
            self.seqs.len(),
            "sequences in lists"
        );
        let count = |list: &BTreeMap<u64, prelude_core::SeqId>| {
            list.values().filter(|id| self.seqs[id].is_decode()).count()
        };
        assert_eq!(
            count(&self.running),
            self.running_decode as usize,
            "running generations"
        );
        assert_eq!(
            count(&self.preempted),
            self.preempted_decode as usize,
            "preempted generations"
        );
        assert!(
            self.running_decode <= self.max_seqs,
            "too many generations run"
        );
        let unplanned: u64 = self.seqs.values().map(|s| u64::from(s.unplanned())).sum();
        assert_eq!(unplanned, self.unplanned, "tokens of sequences to compute");
        for id in self.preempted.values() {
            let seq = &self.seqs[id];
            assert!(
                seq.blocks.is_empty() && seq.state == SeqState::Waiting,
                "sequence {id}"
            );
        }
        for id in self.running.values() {
            let seq = &self.seqs[id];
            let covered = seq.blocks.len() * self.cache.block_size();
            assert!(seq.published() <= seq.blocks.len(), "sequence {id}");
            match seq.state {
                SeqState::Waiting => panic!("sequence {id} runs and waits"),
                SeqState::Prefilling { next } => {
                    assert!(seq.computed <= next && next <= seq.len(), "sequence {id}");
                    let ended = !seq.is_decode() && next == seq.len();
                    assert!(ended || next as usize <= covered, "sequence {id}");
                }
                SeqState::Decoding => {
                    assert_eq!(seq.computed, seq.len() - 1, "sequence {id}");
                    assert!(seq.computed as usize <= covered, "sequence {id}");
                }
            }
        }
        self.check_passes();
        if self.seqs.is_empty() && self.in_flight.is_empty() && self.passes.is_empty() {
            assert!(
                self.leaders.is_empty(),
                "no step computes, but a prefix has a leader"
            );
        }
    }

    fn check_passes(&self) {
        let Some(room) = self.capacity.passes else {
            assert!(self.passes.is_empty(), "passes without room");
            return;
        };
        let tokens: u32 = self.passes.iter().map(|pass| pass.work.tokens).sum();
        assert!(tokens <= room.tokens, "passes of {tokens} tokens");
        assert!(self.passes.len() <= room.passes as usize, "too many passes");
        for pass in &self.passes {
            let is_live = self.requests.contains_key(&pass.request);
            assert!(is_live, "a pass of a request that is gone");
            assert!(pass.work.left() > 0, "a pass is over and was not ended");
            assert!(
                pass.keeps || pass.kept.blocks.is_empty(),
                "blocks that were taken away"
            );
        }
    }

    fn check_queues(&self) {
        let oneshot: usize = self.requests.values().map(|live| live.oneshot.len()).sum();
        let decode: u64 = self
            .requests
            .values()
            .map(|live| {
                live.decode
                    .iter()
                    .map(|w| u64::from(w.n - w.next))
                    .sum::<u64>()
            })
            .sum();
        assert_eq!(self.oneshot.rows(), oneshot as u64, "one-shot rows queued");
        assert_eq!(self.decode.rows(), decode, "generations queued");
        let reserved = self.requests.values().filter_map(|live| live.reserved);
        let (rows, tokens, uncached) = reserved.fold((0, 0, 0), |sum, r| {
            (sum.0 + r.rows, sum.1 + r.tokens, sum.2 + r.uncached)
        });
        assert_eq!(uncached, self.queued_uncached, "tokens not cached");
        assert_eq!(
            (self.queued_rows, self.queued_tokens),
            (rows, tokens),
            "reservations"
        );
        let unstarted =
            |live: &&crate::request::RequestState| live.started.is_none() && live.expires.is_some();
        let deadlines = self
            .requests
            .values()
            .map(|live| &**live)
            .filter(unstarted)
            .count();
        assert_eq!(self.deadlines.len(), deadlines, "deadlines");
    }
}
