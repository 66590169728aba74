//! Decode rows over the same pages, which are read for several rows at once: the bits of each row alone.

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor as _, ForwardBatch, OneShotBatch,
    Residency, Segment, SeqId, StepId, TokenSource,
};
use prelude_models::conformance::batches::{greedy, root};

use crate::{
    CudaConfig, CudaExecutor,
    testing::{checkpoint, emulation, small},
};

/// Tokens of the prompt: a split and a block.
const PROMPT: u32 = 272;
const BLOCKS: u32 = PROMPT / 16;

fn executor(config: &CudaConfig) -> Option<CudaExecutor> {
    let device = emulation()?;
    let mut executor = CudaExecutor::emulated(&checkpoint("demo-lm"), config, device).unwrap();
    let kept = BlockSpan {
        start: 0,
        len: BLOCKS,
    };
    let prompt = OneShotBatch {
        tokens: (0..PROMPT).map(|t| t * 91 % 4096).collect(),
        segments: vec![Segment {
            residency: Residency::Keep(kept),
            ..root(0..PROMPT)
        }],
        rows: vec![],
        block_ids: (0..BLOCKS).map(BlockId).collect(),
    };
    run(&mut executor, ForwardBatch::OneShot(prompt));
    Some(executor)
}

/// Runs a step, and returns its decode rows as bits.
fn run(executor: &mut CudaExecutor, batch: ForwardBatch) -> Vec<String> {
    executor.submit(StepId(0), batch).unwrap();
    let rows = executor.collect(StepId(0)).unwrap().decode;
    // As an engine does that has nothing else to do.
    while executor.prepare(true) {}
    rows.iter().map(|row| format!("{row:?}")).collect()
}

/// Returns a token for each of these sequences behind the prompt.
fn rows(sequences: &[u32]) -> ForwardBatch {
    let mut batch = DecodeBatch::EMPTY;
    for &sequence in sequences {
        let start = u32::try_from(batch.block_ids.len()).unwrap();
        batch.block_ids.extend((0..BLOCKS).map(BlockId));
        batch.block_ids.push(BlockId(BLOCKS + sequence));
        batch.rows.push(DecodeRow {
            seq: SeqId(u64::from(sequence)),
            token: TokenSource::Known(sequence * 37 + 3),
            context_len: PROMPT,
            blocks: BlockSpan {
                start,
                len: BLOCKS + 1,
            },
            sample: greedy(Some(3)),
        });
    }
    ForwardBatch::Decode(batch)
}

#[test]
fn rows_over_one_prompt_have_the_bits_of_each_alone() {
    let Some(mut eager) = executor(&small()) else {
        return;
    };
    let alone: Vec<String> = (0..5)
        .flat_map(|sequence| {
            let row = run(&mut eager, rows(&[sequence]));
            assert!(eager.plan().items.is_empty());
            row
        })
        .collect();
    assert!(!alone.concat().contains("Failed"), "{alone:?}");
    assert_eq!(run(&mut eager, rows(&[0, 1, 2, 3, 4])), alone);
    // One item of five rows, and the last split of each.
    assert_eq!(eager.plan().items.len(), 6);
    assert_eq!(
        run(&mut eager, rows(&[3, 1])),
        [3, 1].map(|i| alone[i].clone())
    );
    assert_eq!(eager.plan().items.len(), 3);

    let padding = CudaConfig {
        graph_tokens: 64,
        ..small()
    };
    let Some(mut graphs) = executor(&padding) else {
        return;
    };
    let before = graphs.graphs();
    // Kernel by kernel, and as the graph of its shape, which has room for more of everything.
    for _ in 0..2 {
        assert_eq!(run(&mut graphs, rows(&[0, 1, 2, 3, 4])), alone);
        let plan = graphs.plan();
        assert_eq!(plan.shape.map(|shape| shape.items), Some(8));
        assert_eq!(plan.items.len(), 8);
    }
    let after = graphs.graphs();
    assert_eq!(
        (
            after.captures - before.captures,
            after.replays - before.replays
        ),
        (1, 1)
    );
}
