//! Runs prompts through an executor: forests of one-shot work, and greedy text over paged blocks.

use std::{ops::Range, sync::Arc};

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, OneShotBatch, OutputHead,
    OutputRow, PromptTree, Residency, RowOutput, SampleHead, SamplingParams, Segment, SegmentIdx,
    SeqId, StepId, StepOutput, TokenSource,
};

/// An executor and the number of its next step.
pub(crate) struct Driver<'a> {
    executor: &'a mut dyn Executor,
    next: u64,
}

/// A result to compute for a prompt: positions and a head.
pub(crate) type Want = (Range<u32>, OutputHead);

/// Prompt tokens per prefill chunk: no multiple of the block size, so that chunks end and begin
/// inside blocks.
const CHUNK: usize = 44;

impl<'a> Driver<'a> {
    pub(crate) fn new(executor: &'a mut dyn Executor) -> Self {
        Self { executor, next: 0 }
    }

    fn step(&mut self, batch: ForwardBatch) -> StepOutput {
        let step = StepId(self.next);
        self.next += 1;
        self.executor.submit(step, batch).unwrap();
        self.executor.collect(step).unwrap()
    }

    /// Runs all prompts as one-shot forests, common prefixes once per step, and returns the
    /// results of each prompt in the order of its wants.
    pub(crate) fn oneshot(
        &mut self,
        prompts: &[Vec<u32>],
        wants: impl Fn(usize) -> Vec<Want>,
    ) -> Vec<Vec<RowOutput>> {
        let room = self.executor.capacity().max_step_tokens as usize;
        let mut results = Vec::new();
        while results.len() < prompts.len() {
            let first = results.len();
            let mut tokens = 0;
            let count = prompts[first..]
                .iter()
                .take_while(|p| {
                    tokens += p.len();
                    tokens <= room
                })
                .count();
            assert!(count > 0, "prompt {first} is longer than a step");
            let wants: Vec<Vec<Want>> = (first..first + count).map(&wants).collect();
            let counts: Vec<usize> = wants.iter().map(Vec::len).collect();
            let prompts = &prompts[first..first + count];
            let batch = forest(prompts, wants, self.executor.capacity().attention);
            let mut rows = self.step(ForwardBatch::OneShot(batch)).oneshot.into_iter();
            for n in counts {
                results.push(rows.by_ref().take(n).collect());
            }
        }
        results
    }

    /// Continues all prompts greedily and together for `len` tokens, or until one of `stops`:
    /// chunked prefill beside decode rows, then decode alone. Tokens with log-probabilities.
    pub(crate) fn greedy(
        &mut self,
        prompts: &[&[u32]],
        len: usize,
        stops: &[u32],
    ) -> Vec<Vec<(u32, f32)>> {
        let capacity = self.executor.capacity();
        let size = capacity.block_size;
        let mut free = (0..capacity.num_blocks)
            // A fixed shuffle, so that no table is in order.
            .map(|i| BlockId((i * 181 + 7) % capacity.num_blocks));
        let mut sequences: Vec<Sequence> = prompts
            .iter()
            .enumerate()
            .map(|(i, prompt)| Sequence {
                seq: SeqId(i as u64),
                tokens: prompt.to_vec(),
                prompt_len: prompt.len(),
                blocks: free
                    .by_ref()
                    .take((prompt.len() + len).div_ceil(size as usize))
                    .collect(),
                computed: 0,
                out: Vec::new(),
                done: false,
            })
            .collect();
        assert!(free.next().is_some(), "the pool is too small");
        while sequences.iter().any(|s| !s.done) {
            let mut prefill = OneShotBatch::default();
            let mut decode = DecodeBatch::default();
            let (mut finishing, mut decoding) = (Vec::new(), Vec::new());
            for (i, s) in sequences.iter_mut().enumerate().filter(|(_, s)| !s.done) {
                if s.computed < s.prompt_len {
                    s.push_chunk(size, &mut prefill);
                    if s.computed == s.prompt_len {
                        finishing.push(i);
                    }
                } else {
                    s.push_row(size, &mut decode);
                    decoding.push(i);
                }
            }
            let output = self.step(if prefill.is_empty() {
                ForwardBatch::Decode(decode)
            } else {
                ForwardBatch::Mixed {
                    oneshot: OneShotBatch::EMPTY,
                    prefill,
                    decode,
                }
            });
            let rows = output.prefill.iter().chain(&output.decode);
            let which = finishing.iter().chain(&decoding);
            assert_eq!(output.prefill.len(), finishing.len());
            for (row, &i) in rows.zip(which) {
                let RowOutput::Sampled(tokens) = row else {
                    panic!("a sampled token, not {row:?}");
                };
                let s = &mut sequences[i];
                s.out.push((tokens[0].token, tokens[0].logprob.unwrap()));
                s.tokens.push(tokens[0].token);
                s.done = s.out.len() == len || stops.contains(&tokens[0].token);
            }
        }
        sequences.into_iter().map(|s| s.out).collect()
    }
}

/// One prompt being continued.
struct Sequence {
    seq: SeqId,
    tokens: Vec<u32>,
    prompt_len: usize,
    blocks: Vec<BlockId>,
    /// Tokens whose K/V are in blocks.
    computed: usize,
    out: Vec<(u32, f32)>,
    done: bool,
}

impl Sequence {
    fn sample(&self) -> SampleHead {
        SampleHead {
            sampling: Arc::new(SamplingParams::default()),
            choice: 0,
            draws: 1,
            output_position: self.out.len() as u32,
            top_logprobs: Some(0),
            history: None,
            mask: None,
        }
    }

    fn push_chunk(&mut self, block_size: u32, batch: &mut OneShotBatch) {
        let size = block_size as usize;
        let start = self.computed;
        let end = self.prompt_len.min(start + CHUNK);
        let first = batch.tokens.len() as u32;
        batch.tokens.extend_from_slice(&self.tokens[start..end]);
        let table = batch.block_ids.len() as u32;
        let blocks = end.div_ceil(size);
        batch.block_ids.extend_from_slice(&self.blocks[..blocks]);
        let kept = (start / size) as u32;
        batch.segments.push(Segment {
            tokens: first..first + (end - start) as u32,
            parent: None,
            context_len: start as u32,
            cached: BlockSpan {
                start: table,
                len: start.div_ceil(size) as u32,
            },
            residency: Residency::Keep(BlockSpan {
                start: table + kept,
                len: blocks as u32 - kept,
            }),
        });
        if end == self.prompt_len {
            batch.rows.push(OutputRow {
                segment: SegmentIdx(batch.segments.len() as u32 - 1),
                positions: end as u32 - 1..end as u32,
                head: OutputHead::Sample(self.sample()),
            });
        }
        self.computed = end;
    }

    fn push_row(&mut self, block_size: u32, batch: &mut DecodeBatch) {
        let at = self.computed as u32;
        let len = at / block_size + 1;
        let start = batch.block_ids.len() as u32;
        batch
            .block_ids
            .extend_from_slice(&self.blocks[..len as usize]);
        batch.rows.push(DecodeRow {
            seq: self.seq,
            token: TokenSource::Known(self.tokens[self.computed]),
            context_len: at,
            blocks: BlockSpan { start, len },
            sample: self.sample(),
        });
        self.computed += 1;
    }
}

/// One batch of prompts that share what prefixes they have in common, or nothing where attention sees
/// whole prompts.
fn forest(
    prompts: &[Vec<u32>],
    wants: Vec<Vec<Want>>,
    attention: prelude_core::Attention,
) -> OneShotBatch {
    let (tree, ends) = match attention {
        prelude_core::Attention::Causal => PromptTree::from_prompts(prompts).unwrap(),
        prelude_core::Attention::Full => {
            let mut tree = PromptTree::new();
            let ends = prompts.iter().map(|p| tree.push(None, p.clone()).unwrap());
            let ends = ends.collect();
            (tree, ends)
        }
    };
    let mut batch = OneShotBatch::default();
    for (i, node) in tree.nodes().iter().enumerate() {
        let first = batch.tokens.len() as u32;
        batch.tokens.extend_from_slice(&node.tokens);
        batch.segments.push(Segment {
            tokens: first..batch.tokens.len() as u32,
            parent: node.parent.map(|p| SegmentIdx(p.0)),
            context_len: tree.start(prelude_core::NodeIdx(i as u32)),
            cached: BlockSpan::EMPTY,
            residency: Residency::Transient,
        });
    }
    for (end, wants) in ends.iter().zip(wants) {
        batch
            .rows
            .extend(wants.into_iter().map(|(positions, head)| OutputRow {
                segment: SegmentIdx(end.0),
                positions,
                head,
            }));
    }
    batch
}
