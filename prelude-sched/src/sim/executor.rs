//! An executor that computes nothing and checks everything.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use ahash::{AHashMap, RandomState};
use prelude_core::{
    BlockId, Capacity, DecodeRow, Executor, ExecutorError, ForwardBatch, KvCopies, OneShotBatch,
    OutputHead, PassId, PassSlice, Residency, RowOutput, Segment, SegmentIdx, SeqId, StepId,
    StepOutput, TokenId, TokenSource,
};

use super::twin::{START, after, after_all, read_head};

/// The time of a step: a floor, and a price per token, per token pair of attention, and per
/// decode row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CostModel {
    /// Microseconds that every step takes.
    pub(crate) step_us: f64,
    /// Microseconds per computed token.
    pub(crate) token_us: f64,
    /// Microseconds per computed token and token of its context.
    pub(crate) attention_us: f64,
}

impl Default for CostModel {
    /// Returns a small model on a small device.
    fn default() -> Self {
        Self {
            step_us: 500.0,
            token_us: 20.0,
            attention_us: 0.02,
        }
    }
}

impl CostModel {
    /// Returns the time that a batch takes.
    #[must_use]
    pub(crate) fn duration(&self, batch: &ForwardBatch) -> Duration {
        if let ForwardBatch::AfterCopies { copies, then } = batch {
            let blocks = copies.stores.len() + copies.loads.len();
            return self.duration(then) + Duration::from_micros(10 * blocks as u64);
        }
        if let ForwardBatch::Slice(slice) = batch {
            // Slow, so that the short prompts of simulations have many slices.
            let us = self.step_us + 5.0 * self.token_us * f64::from(slice.layer_tokens);
            return Duration::from_nanos((us * 1000.0) as u64);
        }
        let (oneshot, prefill, decode) = batch.parts();
        let pairs = |s: &Segment| f64::from(s.len()) * f64::from(s.end());
        let attention: f64 = oneshot
            .segments
            .iter()
            .chain(&prefill.segments)
            .map(pairs)
            .sum();
        let decode: f64 = decode.rows.iter().map(|r| f64::from(r.context_len)).sum();
        let us = self.step_us
            + self.token_us * batch.num_tokens() as f64
            + self.attention_us * (attention + decode);
        Duration::from_nanos((us * 1000.0) as u64)
    }
}

/// The contents of a slot of KV memory: the prefix up to its token, and up to the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    before: u64,
    state: u64,
    /// A step that left rubbish here. Only work planned before that was known may read it.
    broken_by: Option<StepId>,
}

/// Runs batches on a model of KV memory. Steps take effect when they are submitted, in order,
/// and their outputs wait to be collected.
#[derive(Debug)]
pub(crate) struct SimExecutor {
    capacity: Capacity,
    slots: Vec<Slot>,
    /// Host memory, slot by slot.
    host: Vec<Slot>,
    /// The last step that wrote a slot, to catch two writers in one step.
    written: Vec<Option<StepId>>,
    outputs: VecDeque<(StepId, Result<StepOutput, ExecutorError>)>,
    /// Passes that have begun, and the layer tokens that they have left.
    passes: BTreeMap<PassId, (OneShotBatch, u64)>,
    /// Tokens of decode rows in steps not yet collected. For lookups only.
    sampled: AHashMap<(StepId, SeqId), TokenId>,
    fault: Option<Fault>,
    /// The one-shot rows that a step has room to answer.
    pub(crate) answers: usize,
    /// True if the step being run has read rubbish.
    tainted: bool,
}

/// The failure of a row whose output has no room.
pub(super) const NO_ROOM: &str = "no room";

/// The fault of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The step is refused when submitted.
    Refused,
    /// The step runs, leaves rubbish in the blocks that it writes, and fails.
    Broken,
}

/// Phase one of a step: what will be written where.
#[derive(Default)]
struct Writes(Vec<(usize, Slot)>);

impl SimExecutor {
    /// Returns an executor with empty memory.
    #[must_use]
    pub(crate) fn new(capacity: Capacity) -> Self {
        let slots = capacity.num_blocks as usize * capacity.block_size as usize;
        Self {
            capacity,
            slots: vec![Slot::default(); slots],
            host: vec![Slot::default(); (capacity.host_blocks * capacity.block_size) as usize],
            written: vec![None; slots],
            outputs: VecDeque::new(),
            passes: BTreeMap::new(),
            sampled: AHashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4)),
            fault: None,
            answers: usize::MAX,
            tainted: false,
        }
    }

    pub(super) const fn inject(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    fn run(&mut self, step: StepId, batch: &ForwardBatch) -> StepOutput {
        if let ForwardBatch::Slice(slice) = batch {
            return self.run_slice(step, slice);
        }
        let (oneshot, prefill, decode) = batch.parts();
        self.tainted = false;
        // All reads come before all writes: a block that one row reads and another writes in the
        // same step holds what neither may rely on.
        let mut writes = Writes::default();
        let oneshot_states = self.run_forest(oneshot, &mut writes);
        let prefill_states = self.run_forest(prefill, &mut writes);
        let mut output = StepOutput {
            step,
            ..StepOutput::default()
        };
        for row in &decode.rows {
            output
                .decode
                .push(self.run_decode_row(step, row, &decode.block_ids, &mut writes));
        }
        output.oneshot = self.read_rows(oneshot, &oneshot_states);
        for refused in output.oneshot.iter_mut().skip(self.answers) {
            *refused = RowOutput::NoRoom(NO_ROOM);
        }
        output.prefill = self.read_rows(prefill, &prefill_states);
        self.write(step, writes);
        output
    }

    /// Makes the copies: all stores come before all loads, and both before what the step writes.
    fn copy(&mut self, copies: &KvCopies) {
        let block_size = self.capacity.block_size as usize;
        let slots = |block: usize| block * block_size..(block + 1) * block_size;
        for store in &copies.stores {
            let from = &self.slots[slots(store.from.index())];
            self.host[slots(store.to.index())].copy_from_slice(from);
        }
        for load in &copies.loads {
            let from = &self.host[slots(load.from.index())];
            self.slots[slots(load.to.index())].copy_from_slice(from);
        }
    }

    /// Runs a slice, which reads the cached blocks of its pass and, while the pass keeps, writes
    /// all blocks that the pass keeps: each layer has keys and values of its own there.
    fn run_slice(&mut self, step: StepId, slice: &PassSlice) -> StepOutput {
        let (batch, left) = self.passes.remove(&slice.pass).expect("it has begun");
        let mut writes = Writes::default();
        let states = self.run_forest(&batch, &mut writes);
        if slice.keeps {
            self.write(step, writes);
        }
        let left = left.saturating_sub(slice.layer_tokens.into());
        let oneshot = match left {
            0 => self.read_rows(&batch, &states),
            _ => Vec::new(),
        };
        if left > 0 {
            self.passes.insert(slice.pass, (batch, left));
        }
        StepOutput {
            step,
            oneshot,
            ..StepOutput::default()
        }
    }

    /// Frees passes that are given up and begins the slice's pass. Returns false for a slice of a
    /// pass that has failed.
    fn prepare_slice(&mut self, slice: &PassSlice) -> bool {
        let room = self.capacity.passes.expect("checked by validate");
        for pass in &slice.abandoned {
            self.passes.remove(pass);
        }
        if let Some(batch) = &slice.begin {
            let work = batch.tokens.len() as u64 * u64::from(room.layers);
            self.passes.insert(slice.pass, (batch.clone(), work));
        }
        let tokens: usize = self
            .passes
            .values()
            .map(|(batch, _)| batch.tokens.len())
            .sum();
        assert!(tokens <= room.tokens as usize, "passes of {tokens} tokens");
        assert!(self.passes.len() <= room.passes as usize, "too many passes");
        self.passes.contains_key(&slice.pass)
    }

    fn write(&mut self, step: StepId, writes: Writes) {
        for (slot, content) in writes.0 {
            assert_ne!(
                self.written[slot],
                Some(step),
                "two rows of step {step} write one slot"
            );
            self.written[slot] = Some(step);
            self.slots[slot] = content;
        }
    }

    /// Returns the state after each token of a forest.
    fn run_forest(&mut self, batch: &OneShotBatch, writes: &mut Writes) -> Vec<u64> {
        let mut states = vec![0; batch.tokens.len()];
        for segment in &batch.segments {
            let mut state = match segment.parent {
                Some(parent) => states[batch.segments[parent.index()].tokens.end as usize - 1],
                None => self.read_context(segment.cached.of(&batch.block_ids), segment.context_len),
            };
            let kept: &[BlockId] = match segment.residency {
                Residency::Keep(span) => span.of(&batch.block_ids),
                Residency::Transient => &[],
            };
            let first_block = segment.context_len / self.capacity.block_size;
            for i in segment.tokens.clone() {
                let before = state;
                state = after(state, batch.tokens[i as usize]);
                states[i as usize] = state;
                let position = segment.context_len + (i - segment.tokens.start);
                let block = position / self.capacity.block_size - first_block;
                if let Some(&block) = kept.get(block as usize) {
                    writes.0.push((
                        self.slot(block, position),
                        Slot {
                            before,
                            state,
                            broken_by: None,
                        },
                    ));
                }
            }
        }
        states
    }

    /// Returns the state after `len` positions read from blocks, each checked to follow the one
    /// before.
    fn read_context(&mut self, blocks: &[BlockId], len: u32) -> u64 {
        let mut state = START;
        for position in 0..len {
            let block = blocks[(position / self.capacity.block_size) as usize];
            let slot = self.slots[self.slot(block, position)];
            if let Some(step) = slot.broken_by {
                let unknown = self.outputs.iter().any(|(of, _)| *of == step);
                assert!(
                    unknown,
                    "position {position} in block {block} is left from failed step {step}"
                );
                self.tainted = true;
                state = slot.state;
                continue;
            }
            assert_eq!(
                slot.before, state,
                "position {position} in block {block} is of another prompt"
            );
            state = slot.state;
        }
        state
    }

    fn slot(&self, block: BlockId, position: u32) -> usize {
        let block_size = self.capacity.block_size;
        block.index() * block_size as usize + (position % block_size) as usize
    }

    fn run_decode_row(
        &mut self,
        step: StepId,
        row: &DecodeRow,
        block_ids: &[BlockId],
        writes: &mut Writes,
    ) -> RowOutput {
        let blocks = row.blocks.of(block_ids);
        // A row run ahead reads the slot that the step before it wrote.
        let before = self.read_context(blocks, row.context_len);
        let token = match row.token {
            TokenSource::Known(token) => token,
            TokenSource::Sampled(of) => *self
                .sampled
                .get(&(of, row.seq))
                .expect("an uncollected step sampled the token"),
        };
        let state = after(before, token);
        let last = blocks[(row.context_len / self.capacity.block_size) as usize];
        writes.0.push((
            self.slot(last, row.context_len),
            Slot {
                before,
                state,
                broken_by: None,
            },
        ));
        let position = row.context_len..row.context_len + 1;
        let head = OutputHead::Sample(row.sample.clone());
        self.check_history(&head, state);
        let output = read_head(&head, &[state], &position, self.capacity.vocab_size);
        if let RowOutput::Sampled(tokens) = &output {
            self.sampled.insert((step, row.seq), tokens[0].token);
        } else {
            // A row that ran ahead of this one's failure must run something.
            self.sampled.insert((step, row.seq), 0);
        }
        output
    }

    fn read_rows(&self, batch: &OneShotBatch, states: &[u64]) -> Vec<RowOutput> {
        let state_at = |segment: SegmentIdx, position: u32| {
            let mut at = &batch.segments[segment.index()];
            while position < at.context_len {
                at = &batch.segments[at.parent.expect("checked by validate").index()];
            }
            states[(at.tokens.start + position - at.context_len) as usize]
        };
        let read = |row: &prelude_core::OutputRow| {
            let at: Vec<u64> = row
                .positions
                .clone()
                .map(|p| state_at(row.segment, p))
                .collect();
            self.check_history(&row.head, *at.last().expect("checked by validate"));
            read_head(&row.head, &at, &row.positions, self.capacity.vocab_size)
        };
        batch.rows.iter().map(read).collect()
    }

    /// Checks that a history spells the very prefix whose state is sampled from.
    fn check_history(&self, head: &OutputHead, state: u64) {
        if let OutputHead::Sample(sample) = head
            && let Some(history) = &sample.history
            && !self.tainted
        {
            let start = after_all(&history.prompt);
            let spelled = history.output.iter().fold(start, |s, &t| after(s, t));
            assert_eq!(spelled, state, "the history is not the row's prefix");
        }
    }

    /// Leaves rubbish wherever a step writes.
    fn scramble(&mut self, step: StepId) {
        let rubbish = Slot {
            broken_by: Some(step),
            ..Slot::default()
        };
        for (slot, written) in self.slots.iter_mut().zip(&self.written) {
            if *written == Some(step) {
                *slot = rubbish;
            }
        }
    }
}

impl Executor for SimExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// # Panics
    /// If the batch is malformed, or reads a slot that does not hold its prefix.
    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        batch
            .validate(&self.capacity)
            .expect("every batch of the scheduler is well formed");
        assert!(
            self.outputs.len() < self.capacity.pipeline_depth as usize,
            "more steps in flight than the executor takes"
        );
        let (copies, batch) = batch.split_copies();
        self.copy(&copies);
        let error = |what: &str| ExecutorError::Step(what.to_owned());
        let slice = match &batch {
            ForwardBatch::Slice(slice) => Some(slice.pass),
            _ => None,
        };
        if let ForwardBatch::Slice(slice) = &batch
            && !self.prepare_slice(slice)
        {
            return Err(error("the pass is over"));
        }
        match self.fault.take() {
            Some(Fault::Refused) => {
                slice.map(|pass| self.passes.remove(&pass));
                return Err(error("refused"));
            }
            Some(Fault::Broken) => {
                self.run(step, &batch);
                self.scramble(step);
                // A pass that fails is over.
                slice.map(|pass| self.passes.remove(&pass));
                self.outputs.push_back((step, Err(error("broken"))));
            }
            None => {
                let output = self.run(step, &batch);
                self.outputs.push_back((step, Ok(output)));
            }
        }
        Ok(())
    }

    fn collect(&mut self, step: StepId) -> Result<StepOutput, ExecutorError> {
        let (id, output) = self.outputs.pop_front().expect("a step is in flight");
        assert_eq!(id, step, "steps are collected in order");
        self.sampled.retain(|(of, _), _| *of != step);
        output
    }
}
