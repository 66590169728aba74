//! Two steps outstanding at once: the same answers as one after the other.

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, Normalise, OneShotBatch,
    OutputHead, OutputRow, Pooling, Residency, RowOutput, SampleHead, Segment, SegmentIdx, SeqId,
    StepId, StepOutput, TokenHead, TokenSource,
};
use prelude_models::conformance::batches::{greedy, prompt};

use crate::{
    CudaConfig, CudaExecutor,
    testing::{checkpoint, emulation, small},
};

/// Blocks of each sequence.
const BLOCKS: u32 = 4;

fn pipelined(config: CudaConfig) -> Option<CudaExecutor> {
    let config = CudaConfig {
        pipeline_depth: 2,
        ..config
    };
    let device = emulation()?;
    Some(CudaExecutor::emulated(&checkpoint("demo-lm"), &config, device).unwrap())
}

fn sample() -> SampleHead {
    greedy(Some(2))
}

fn blocks(seq: u32) -> impl Iterator<Item = BlockId> {
    (0..BLOCKS).map(move |b| BlockId(seq * 8 + b))
}

/// Sequences that differ in length, each in blocks of its own.
struct Texts {
    lens: Vec<u32>,
    next: Vec<u32>,
}

impl Texts {
    /// Runs the prompts.
    fn start(executor: &mut CudaExecutor, lens: &[u32]) -> Self {
        let mut next = Vec::new();
        for (seq, &len) in (0..).zip(lens) {
            let tokens = (0..len).map(|i| (i * 57 + len) % 4096).collect();
            let kept = BlockSpan {
                start: 0,
                len: len.div_ceil(16),
            };
            let batch = OneShotBatch {
                tokens,
                segments: vec![Segment {
                    tokens: 0..len,
                    parent: None,
                    context_len: 0,
                    cached: BlockSpan::EMPTY,
                    residency: Residency::Keep(kept),
                }],
                rows: vec![OutputRow {
                    segment: SegmentIdx(0),
                    positions: len - 1..len,
                    head: OutputHead::Sample(sample()),
                }],
                block_ids: blocks(seq).collect(),
            };
            executor
                .submit(StepId(0), ForwardBatch::OneShot(batch))
                .unwrap();
            let output = executor.collect(StepId(0)).unwrap();
            next.push(drawn(&output.oneshot[0]));
        }
        Self {
            lens: lens.to_vec(),
            next,
        }
    }

    /// Returns the next token of each sequence of `order`, in that order: of those that were
    /// collected, or of those that a step draws which is outstanding.
    fn step(&self, order: &[u32], position: u32, from: Option<StepId>) -> ForwardBatch {
        let mut batch = DecodeBatch::EMPTY;
        for &seq in order {
            let context_len = self.lens[seq as usize] + position;
            batch.rows.push(DecodeRow {
                seq: SeqId(u64::from(seq)),
                token: match from {
                    Some(step) => TokenSource::Sampled(step),
                    None => TokenSource::Known(self.next[seq as usize]),
                },
                context_len,
                blocks: BlockSpan {
                    start: u32::try_from(batch.block_ids.len()).unwrap(),
                    len: context_len / 16 + 1,
                },
                sample: sample(),
            });
            batch.block_ids.extend(blocks(seq));
        }
        ForwardBatch::Decode(batch)
    }
}

fn drawn(row: &RowOutput) -> u32 {
    match row {
        RowOutput::Sampled(tokens) => tokens[0].token,
        other => panic!("{other:?}"),
    }
}

/// Returns the results as text, exactly.
fn bits(output: &StepOutput) -> Vec<String> {
    let rows = output.oneshot.iter().chain(&output.decode);
    rows.map(|row| format!("{row:?}")).collect()
}

/// Rows in another order in every step, so that tokens come from other places than they go to.
const ORDERS: [[u32; 3]; 3] = [[0, 1, 2], [2, 0, 1], [1, 2, 0]];

#[test]
fn tokens_stay_on_the_device() {
    let graphs = CudaConfig {
        graph_tokens: 64,
        ..small()
    };
    let fixed = CudaConfig {
        deterministic: true,
        ..small()
    };
    for config in [small(), graphs, fixed] {
        let Some(mut executor) = pipelined(config.clone()) else {
            return;
        };
        let lens = [20, 37, 15];
        // One after the other, each with the tokens that the one before it drew.
        let mut texts = Texts::start(&mut executor, &lens);
        let expected: Vec<_> = (0..6u32)
            .map(|i| {
                let order = &ORDERS[i as usize % 3];
                let batch = texts.step(order, i, None);
                executor.submit(StepId(1), batch).unwrap();
                let output = executor.collect(StepId(1)).unwrap();
                executor.prepare(true);
                for (&seq, row) in order.iter().zip(&output.decode) {
                    texts.next[seq as usize] = drawn(row);
                }
                bits(&output)
            })
            .collect();
        // Each submitted before the one before it is collected.
        let texts = Texts::start(&mut executor, &lens);
        let step = |i: u32| StepId(100 + u64::from(i));
        let mut got = Vec::new();
        for i in 0..6u32 {
            let from = i.checked_sub(1).map(step);
            let batch = texts.step(&ORDERS[i as usize % 3], i, from);
            executor.submit(step(i), batch).unwrap();
            if let Some(before) = from {
                got.push(bits(&executor.collect(before).unwrap()));
                // Shapes are captured while a step runs, too.
                executor.prepare(true);
            }
        }
        got.push(bits(&executor.collect(step(5)).unwrap()));
        assert_eq!(got, expected);
        let replays = executor.graphs().replays;
        assert_eq!(replays > 0, config.graph_tokens > 0, "{replays}");
    }
}

/// Steps of all kinds of heads, each with results of its own.
#[test]
fn results_stay_until_they_are_collected() {
    let config = CudaConfig {
        graph_tokens: 64,
        ..small()
    };
    let Some(mut executor) = pipelined(config) else {
        return;
    };
    let batch = |i: u32| {
        let len = 9 + i;
        let tokens: Vec<u32> = (0..len).map(|t| (t * 91 + i * 17) % 4096).collect();
        let last = len - 1..len;
        let labels = |normalise| OutputHead::LabelScores {
            labels: [i, 4000, 9].into(),
            normalise,
        };
        let of_tokens = TokenHead::Embed {
            normalise: true,
            dimensions: Some(8),
        };
        let mut rows = vec![
            (last.clone(), labels(Normalise::OverVocab)),
            (last.clone(), OutputHead::Sample(sample())),
            (
                0..len,
                OutputHead::Embed {
                    pooling: Pooling::Mean,
                    normalise: true,
                    dimensions: None,
                },
            ),
            (last.clone(), labels(Normalise::OverLabels)),
            (0..len, OutputHead::Tokens(of_tokens)),
            (
                0..len - 1,
                OutputHead::Logprobs {
                    targets: tokens[1..].to_vec(),
                    top: 2,
                },
            ),
        ];
        // Other rows in every step, and in another order.
        rows.rotate_left(i as usize % 6);
        rows.truncate(3 + i as usize % 3);
        ForwardBatch::OneShot(prompt(&tokens, rows))
    };
    let step = |i: u32| StepId(u64::from(i));
    let expected: Vec<_> = (0..8)
        .map(|i| {
            executor.submit(step(i), batch(i)).unwrap();
            bits(&executor.collect(step(i)).unwrap())
        })
        .collect();
    assert!(expected.iter().flatten().all(|row| !row.contains("Failed")));
    let mut got = Vec::new();
    executor.submit(step(0), batch(0)).unwrap();
    for i in 1..8 {
        executor.submit(step(i), batch(i)).unwrap();
        got.push(bits(&executor.collect(step(i - 1)).unwrap()));
        executor.prepare(true);
    }
    got.push(bits(&executor.collect(step(7)).unwrap()));
    assert_eq!(got, expected);
}

/// Invalid calls are refused, and the outstanding step loses nothing.
#[test]
fn refusals_leave_the_outstanding_step_alone() {
    let Some(mut executor) = pipelined(small()) else {
        return;
    };
    let texts = Texts::start(&mut executor, &[20, 37]);
    let alone = {
        executor
            .submit(StepId(1), texts.step(&[0, 1], 0, None))
            .unwrap();
        bits(&executor.collect(StepId(1)).unwrap())
    };
    executor
        .submit(StepId(2), texts.step(&[0, 1], 0, None))
        .unwrap();
    // An unknown step; a sequence that the outstanding step does not continue.
    for (order, from) in [(vec![0], StepId(77)), (vec![1, 0], StepId(3))] {
        let refused = executor.submit(StepId(4), texts.step(&order, 1, Some(from)));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("not outstanding"), "{refused}");
    }
    executor
        .submit(StepId(3), texts.step(&[1], 1, Some(StepId(2))))
        .unwrap();
    let third = executor.submit(StepId(5), texts.step(&[0], 1, None));
    let third = third.unwrap_err().to_string();
    assert!(third.contains("before step 2 was collected"), "{third}");
    // In order.
    assert!(executor.collect(StepId(3)).is_err());
    assert_eq!(bits(&executor.collect(StepId(2)).unwrap()), alone);
    let of_both = texts.step(&[1, 0], 2, Some(StepId(3)));
    let refused = executor.submit(StepId(6), of_both).unwrap_err().to_string();
    assert!(refused.contains("SeqId(0)"), "{refused}");
    assert_eq!(executor.collect(StepId(3)).unwrap().decode.len(), 1);
    assert!(executor.collect(StepId(3)).is_err());
}
