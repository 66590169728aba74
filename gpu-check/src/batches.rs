//! Batches for executors, by hand: what the scheduler would make, without a scheduler.

use std::ops::Range;

use anyhow::{Context as _, Result, bail, ensure};
use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, Normalise, OneShotBatch,
    OutputHead, OutputRow, Pooling, Residency, RowOutput, Segment, SegmentIdx, SeqId, StepId,
    StepOutput, TokenSource,
};
pub(crate) use prelude_models::conformance::batches::greedy;

/// Returns a count as batches have it.
pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).expect("batches are far below 2^32")
}

/// Returns an embedding of length 1.
pub(crate) const fn embed(pooling: Pooling) -> OutputHead {
    OutputHead::Embed {
        pooling,
        normalise: true,
        dimensions: None,
    }
}

/// Returns a head that scores labels over the whole vocabulary.
pub(crate) fn scores(labels: &[u32]) -> OutputHead {
    OutputHead::LabelScores {
        labels: labels.into(),
        normalise: Normalise::OverVocab,
    }
}

/// A result to compute: positions and a head.
pub(crate) type Wanted = (Range<u32>, OutputHead);

/// Builds one-shot batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forest(pub(crate) OneShotBatch);

impl Forest {
    /// Returns a batch of one whole prompt.
    pub(crate) fn prompt(tokens: &[u32], rows: Vec<Wanted>) -> Self {
        let mut this = Self::default();
        let root = this.root(tokens);
        this.read(root, rows);
        this
    }

    fn add(
        &mut self,
        parent: Option<SegmentIdx>,
        tokens: &[u32],
        context_len: u32,
        cached: &[BlockId],
        kept: Option<&[BlockId]>,
    ) -> SegmentIdx {
        let start = count(self.0.tokens.len());
        self.0.tokens.extend_from_slice(tokens);
        let mut span = |blocks: &[BlockId]| {
            let start = count(self.0.block_ids.len());
            self.0.block_ids.extend_from_slice(blocks);
            BlockSpan {
                start,
                len: count(blocks.len()),
            }
        };
        let cached = span(cached);
        let residency = match kept {
            Some(blocks) => Residency::Keep(span(blocks)),
            None => Residency::Transient,
        };
        self.0.segments.push(Segment {
            tokens: start..start + count(tokens.len()),
            parent,
            context_len,
            cached,
            residency,
        });
        SegmentIdx(count(self.0.segments.len() - 1))
    }

    pub(crate) fn root(&mut self, tokens: &[u32]) -> SegmentIdx {
        self.add(None, tokens, 0, &[], None)
    }

    /// Returns a root whose keys and values stay in blocks.
    pub(crate) fn kept_root(&mut self, tokens: &[u32], blocks: &[BlockId]) -> SegmentIdx {
        self.add(None, tokens, 0, &[], Some(blocks))
    }

    /// Goes on behind `context_len` tokens in blocks. `kept`: the blocks from the one in which it
    /// begins, if its own tokens stay too.
    pub(crate) fn behind(
        &mut self,
        context_len: usize,
        blocks: &[BlockId],
        tokens: &[u32],
        kept: Option<&[BlockId]>,
    ) -> SegmentIdx {
        self.add(None, tokens, count(context_len), blocks, kept)
    }

    pub(crate) fn child(&mut self, parent: SegmentIdx, tokens: &[u32]) -> SegmentIdx {
        let context_len = self.0.segments[parent.index()].end();
        self.add(Some(parent), tokens, context_len, &[], None)
    }

    pub(crate) fn read(&mut self, segment: SegmentIdx, rows: Vec<Wanted>) {
        let rows = rows.into_iter().map(|(positions, head)| OutputRow {
            segment,
            positions,
            head,
        });
        self.0.rows.extend(rows);
    }

    pub(crate) fn tokens(&self) -> usize {
        self.0.tokens.len()
    }

    pub(crate) fn oneshot(self) -> ForwardBatch {
        ForwardBatch::OneShot(self.0)
    }

    pub(crate) fn prefill(self) -> ForwardBatch {
        ForwardBatch::Mixed {
            oneshot: OneShotBatch::EMPTY,
            prefill: self.0,
            decode: DecodeBatch::EMPTY,
        }
    }
}

/// A sequence in generation.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) blocks: Vec<BlockId>,
    /// Tokens whose keys and values are in the blocks.
    pub(crate) len: usize,
    /// The newest, whose are not.
    pub(crate) next: u32,
}

/// Returns a step of one token for each sequence; with `behind`, their tokens are those that this
/// outstanding step samples.
pub(crate) fn decode(
    sequences: &[Sequence],
    block_size: usize,
    top_logprobs: Option<u32>,
    behind: Option<StepId>,
) -> ForwardBatch {
    let mut batch = DecodeBatch::EMPTY;
    for (i, sequence) in sequences.iter().enumerate() {
        let blocks = BlockSpan {
            start: count(batch.block_ids.len()),
            len: count(sequence.len / block_size + 1),
        };
        batch.block_ids.extend_from_slice(&sequence.blocks);
        batch.rows.push(DecodeRow {
            seq: SeqId(i as u64),
            token: behind.map_or(TokenSource::Known(sequence.next), TokenSource::Sampled),
            context_len: count(sequence.len),
            blocks,
            sample: greedy(top_logprobs),
        });
    }
    ForwardBatch::Decode(batch)
}

/// Sequences that are generated in the same steps.
pub(crate) struct Generation {
    sequences: Vec<Sequence>,
    block_size: usize,
    top_logprobs: Option<u32>,
}

impl Generation {
    /// Runs prompts, in as few steps as there is room for, and returns the answers behind them;
    /// each sequence has blocks for so many `tokens` more.
    pub(crate) fn start(
        executor: &mut dyn Executor,
        prompts: &[Vec<u32>],
        tokens: usize,
        top_logprobs: Option<u32>,
    ) -> Result<(Self, Vec<RowOutput>)> {
        let capacity = executor.capacity();
        let block_size = capacity.block_size as usize;
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let each = count((longest + tokens).div_ceil(block_size));
        let needed = each * count(prompts.len());
        ensure!(needed <= capacity.num_blocks, "{needed} blocks are needed");
        let (mut forest, mut outputs) = (Forest::default(), Vec::new());
        let mut sequences = Vec::new();
        for (i, prompt) in (0..).zip(prompts) {
            let is_full = forest.tokens() + prompt.len() > capacity.max_step_tokens as usize;
            if is_full && forest.tokens() > 0 {
                outputs.extend(step(executor, std::mem::take(&mut forest).prefill())?.prefill);
            }
            let blocks: Vec<BlockId> = (i * each..(i + 1) * each).map(BlockId).collect();
            let root = forest.kept_root(prompt, &blocks[..prompt.len().div_ceil(block_size)]);
            let last = count(prompt.len()) - 1;
            let head = OutputHead::Sample(greedy(top_logprobs));
            forest.read(root, vec![(last..last + 1, head)]);
            sequences.push(Sequence {
                blocks,
                len: prompt.len(),
                next: 0,
            });
        }
        outputs.extend(step(executor, forest.prefill())?.prefill);
        ensure!(outputs.len() == prompts.len(), "not a row for each prompt");
        let this = Self {
            sequences,
            block_size,
            top_logprobs,
        };
        Ok((this, outputs))
    }

    /// Returns the step of one more token of each sequence, behind these.
    pub(crate) fn behind(&mut self, tokens: impl IntoIterator<Item = u32>) -> ForwardBatch {
        for (sequence, token) in self.sequences.iter_mut().zip(tokens) {
            sequence.next = token;
        }
        self.batch(None)
    }

    /// Runs steps, the first of them behind `tokens`, of which each is submitted while the one
    /// before it runs, and hands out the rows of each as they come.
    pub(crate) fn ahead(
        &mut self,
        executor: &mut dyn Executor,
        tokens: &[u32],
        steps: usize,
        mut done: impl FnMut(&[RowOutput]) -> Result<()>,
    ) -> Result<()> {
        let id = |i: usize| StepId(1 + i as u64);
        executor.submit(id(0), self.behind(tokens.iter().copied()))?;
        for i in 1..steps {
            executor.submit(id(i), self.batch(Some(id(i - 1))))?;
            done(&executor.collect(id(i - 1))?.decode)?;
            // Nothing is left to capture behind the first ones.
            executor.prepare(true);
        }
        done(&executor.collect(id(steps - 1))?.decode)
    }

    fn batch(&mut self, behind: Option<StepId>) -> ForwardBatch {
        let batch = decode(&self.sequences, self.block_size, self.top_logprobs, behind);
        for sequence in &mut self.sequences {
            sequence.len += 1;
        }
        batch
    }
}

/// Runs a batch to its end.
pub(crate) fn step(executor: &mut dyn Executor, batch: ForwardBatch) -> Result<StepOutput> {
    executor.submit(StepId(0), batch)?;
    Ok(executor.collect(StepId(0))?)
}

/// Returns the rows of a one-shot batch; one that failed is an error.
pub(crate) fn rows(executor: &mut dyn Executor, forest: Forest) -> Result<Vec<RowOutput>> {
    let rows = step(executor, forest.oneshot())?.oneshot;
    for (i, row) in rows.iter().enumerate() {
        if let RowOutput::Failed(why) = row {
            bail!("row {i} failed: {why}");
        }
    }
    Ok(rows)
}

/// Returns the token of a sampled row, and how far it led over the next if two were asked for.
pub(crate) fn sampled(row: &RowOutput) -> Result<(u32, Option<f32>)> {
    let RowOutput::Sampled(tokens) = row else {
        bail!("not a sampled row: {row:?}");
    };
    let first = tokens.first().context("a sampled row without a token")?;
    let lead = match first.top[..] {
        [a, b, ..] => Some(a.logprob - b.logprob),
        _ => None,
    };
    Ok((first.token, lead))
}

/// Returns the tokens of `expected` sampled rows.
pub(crate) fn all_sampled(rows: &[RowOutput], expected: usize) -> Result<Vec<u32>> {
    ensure!(rows.len() == expected, "not a row for each sequence");
    rows.iter().map(|row| Ok(sampled(row)?.0)).collect()
}

/// Returns tokens that depend on a seed and on nothing else.
pub(crate) fn tokens(seed: u64, len: usize, vocab: u32) -> Vec<u32> {
    let at = |i: usize| mix(seed.wrapping_mul(0x1_0000_0000).wrapping_add(i as u64));
    (0..len)
        .map(|i| u32::try_from(at(i) % u64::from(vocab)).expect("below the vocabulary"))
        .collect()
}

/// Returns a SplitMix64 at a counter: every input has its own output, far from its neighbours'.
pub(crate) const fn mix(counter: u64) -> u64 {
    prelude_measure::random::mix(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
