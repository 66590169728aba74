//! A pass in slices has the bits of the same forest in one step, whatever runs between its slices.

use std::cell::RefCell;

use prelude_core::{
    BlockId, BlockSpan, Executor, ForwardBatch, OneShotBatch, OutputHead, OutputRow, PassId,
    PassSlice, Residency, RowOutput, Segment, SegmentIdx, StepId, StepOutput,
};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::{
    CpuConfig, CpuExecutor,
    invariance::{Node, Row, forest, head, nodes, rows},
    testing::{executor, prompt, root_segment, run, run_oneshot, sample_head, small, variants},
};

fn slice(pass: u64, begin: Option<OneShotBatch>, layer_tokens: u32) -> PassSlice {
    PassSlice {
        pass: PassId(pass),
        begin,
        layer_tokens,
        keeps: true,
        abandoned: Vec::new(),
    }
}

fn run_slice(executor: &mut CpuExecutor, slice: PassSlice) -> Vec<RowOutput> {
    run(executor, ForwardBatch::Slice(slice)).oneshot
}

/// The forest of `nodes` with its rows; kept segments lie in blocks from `next_block` on.
fn batch((nodes, rows): &(Vec<Node>, Vec<Row>), next_block: u32) -> OneShotBatch {
    let (mut batch, paths) = forest(nodes, &[], &[], next_block);
    let (mut outputs, most) = (0, 256);
    for row in rows {
        let node = row.node.index(nodes.len());
        let (positions, head) = head(row, &paths[node], 0);
        outputs += positions.len();
        if outputs > most {
            break;
        }
        batch.rows.push(OutputRow {
            segment: SegmentIdx(u32::try_from(node).unwrap()),
            positions,
            head,
        });
    }
    batch
}

/// Runs two passes in slices of these sizes, by turns, with a step of its own after each slice, and
/// compares them with the same forests in one step each.
fn check_slices(
    executor: &mut CpuExecutor,
    forests: &[(Vec<Node>, Vec<Row>); 2],
    sizes: &[u32],
) -> Result<(), TestCaseError> {
    let batches = [batch(&forests[0], 20), batch(&forests[1], 120)];
    let expected = batches.each_ref().map(|b| run_oneshot(executor, b.clone()));
    let between = || {
        prompt(
            &[3, 1, 4, 1, 5],
            vec![(4..5, OutputHead::Sample(sample_head()))],
        )
    };
    let alone = run_oneshot(executor, between());
    let layers = executor.capacity().passes.unwrap().layers;
    let mut left = batches.each_ref().map(|b| b.tokens.len() as u32 * layers);
    let mut begins = batches.map(Some);
    let mut sizes = sizes.iter().cycle();
    let mut turn = 0;
    while left != [0, 0] {
        turn = if left[1 - turn] > 0 { 1 - turn } else { turn };
        let size = *sizes.next().unwrap();
        let outputs = run_slice(executor, slice(turn as u64, begins[turn].take(), size));
        left[turn] = left[turn].saturating_sub(size);
        if left[turn] == 0 {
            prop_assert_eq!(&outputs, &expected[turn]);
        } else {
            prop_assert_eq!(&outputs, &Vec::new());
        }
        prop_assert_eq!(&run_oneshot(executor, between()), &alone);
    }
    Ok(())
}

#[test]
fn slices_give_the_bits_of_one_step() {
    for (name, config) in variants() {
        // Two forests of six nodes of 89 tokens.
        let config = CpuConfig {
            max_pass_tokens: Some(2 * 6 * 89),
            ..config
        };
        let executor = RefCell::new(executor("demo-lm", config, 2));
        let input = (nodes(), rows(), nodes(), rows());
        let sizes = prop::collection::vec(prop_oneof![1u32..20, 20u32..400], 1..6);
        let config = ProptestConfig {
            cases: 12,
            ..ProptestConfig::default()
        };
        TestRunner::new(config)
            .run(&(input, sizes), |((n1, r1, n2, r2), sizes)| {
                check_slices(&mut executor.borrow_mut(), &[(n1, r1), (n2, r2)], &sizes)
            })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// A prompt of 40 tokens whose K/V are kept in the blocks 10 to 19.
fn kept() -> (Vec<u32>, OneShotBatch) {
    let tokens: Vec<u32> = (0..40).map(|i| 7 * i + 1).collect();
    let mut batch = prompt(&tokens, vec![(39..40, OutputHead::Sample(sample_head()))]);
    batch.block_ids = (10..20).map(BlockId).collect();
    batch.segments[0].residency = Residency::Keep(BlockSpan { start: 0, len: 10 });
    (tokens, batch)
}

/// The last token of a prompt whose other tokens are in the blocks 10 to 19.
fn read_back(executor: &mut CpuExecutor, tokens: &[u32]) -> Vec<RowOutput> {
    let last = tokens.len() as u32 - 1;
    let batch = OneShotBatch {
        tokens: tokens[last as usize..].to_vec(),
        segments: vec![Segment {
            context_len: last,
            cached: BlockSpan { start: 0, len: 10 },
            ..root_segment(0..1)
        }],
        rows: vec![OutputRow {
            segment: SegmentIdx(0),
            positions: last..last + 1,
            head: OutputHead::Sample(sample_head()),
        }],
        block_ids: (10..20).map(BlockId).collect(),
    };
    run_oneshot(executor, batch)
}

#[test]
fn a_pass_keeps_blocks_until_they_are_taken_away() {
    let mut executor = executor("demo-lm", small(), 1);
    let (tokens, batch) = kept();
    let expected = run_oneshot(&mut executor, batch.clone());
    assert_eq!(read_back(&mut executor, &tokens), expected);

    // Other tokens are there before the pass, which writes over them.
    let other: Vec<u32> = (0..40).map(|i| 5 * i + 2).collect();
    let mut overwritten = batch.clone();
    overwritten.tokens.clone_from(&other);
    run_oneshot(&mut executor, overwritten.clone());
    let layers = executor.capacity().passes.unwrap().layers;
    assert_eq!(
        run_slice(&mut executor, slice(1, Some(batch.clone()), 30)),
        []
    );
    let rest = slice(1, None, 40 * layers);
    assert_eq!(run_slice(&mut executor, rest), expected);
    assert_eq!(read_back(&mut executor, &tokens), expected);

    // They come between two slices of a pass that has lost the blocks.
    assert_eq!(run_slice(&mut executor, slice(2, Some(batch), 50)), []);
    let others = run_oneshot(&mut executor, overwritten);
    let rest = PassSlice {
        keeps: false,
        ..slice(2, None, 40 * layers)
    };
    assert_eq!(run_slice(&mut executor, rest), expected);
    assert_eq!(read_back(&mut executor, &other), others);
}

#[test]
fn passes_have_the_room_that_is_planned_for_them() {
    let config = CpuConfig {
        max_pass_tokens: Some(100),
        ..small()
    };
    let mut executor = executor("demo-lm", config, 1);
    let (_, batch) = kept();
    let refused = |executor: &mut CpuExecutor, slice: PassSlice| {
        let refused = executor.submit(StepId(0), ForwardBatch::Slice(slice));
        refused.unwrap_err().to_string()
    };
    assert_eq!(
        refused(&mut executor, slice(9, None, 1)),
        "step failed: pass 9 has not begun or is over"
    );
    for pass in [1, 2] {
        assert_eq!(
            run_slice(&mut executor, slice(pass, Some(batch.clone()), 1)),
            []
        );
    }
    assert_eq!(
        refused(&mut executor, slice(3, Some(batch.clone()), 1)),
        "step failed: pass 3 of 40 tokens has no room beside 2 passes of 80 tokens"
    );
    let given_up = PassSlice {
        abandoned: vec![PassId(1)],
        ..slice(3, Some(batch.clone()), u32::MAX)
    };
    assert_eq!(run_slice(&mut executor, given_up).len(), 1);
    assert_eq!(
        refused(&mut executor, slice(1, None, 1)),
        "step failed: pass 1 has not begun or is over"
    );
    // A pass that is over has left its room.
    let output: StepOutput = run(
        &mut executor,
        ForwardBatch::Slice(slice(4, Some(batch), u32::MAX)),
    );
    assert_eq!(output.oneshot.len(), 1);
}

/// A pass that keeps nothing has the same answers beside a pool of one block, which stays as it is:
/// its keys and values lie in its own buffer.
#[test]
fn a_pass_takes_no_block() {
    let tokens: Vec<u32> = (0..200).map(|i| 11 * i % 90 + 1).collect();
    let head = || vec![(199..200, OutputHead::Sample(sample_head()))];
    let in_slices = |executor: &mut CpuExecutor| {
        let layers = executor.capacity().passes.unwrap().layers;
        let begin = Some(prompt(&tokens, head()));
        assert_eq!(run_slice(executor, slice(1, begin, 150)), []);
        run_slice(executor, slice(1, None, 200 * layers))
    };
    let expected = in_slices(&mut executor("demo-lm", small(), 1));
    assert_eq!(expected.len(), 1);

    let config = CpuConfig {
        num_blocks: Some(1),
        ..small()
    };
    let mut executor = executor("demo-lm", config, 1);
    assert_eq!(executor.capacity().num_blocks, 1);
    let mut kept = prompt(&[3, 1, 4, 1], vec![]);
    kept.block_ids = vec![BlockId(0)];
    kept.segments[0].residency = Residency::Keep(BlockSpan { start: 0, len: 1 });
    run_oneshot(&mut executor, kept);
    let read = |executor: &mut CpuExecutor| {
        let mut batch = prompt(&[5], vec![(4..5, OutputHead::Sample(sample_head()))]);
        batch.block_ids = vec![BlockId(0)];
        batch.segments[0].context_len = 4;
        batch.segments[0].cached = BlockSpan { start: 0, len: 1 };
        run_oneshot(executor, batch)
    };
    let before = read(&mut executor);
    assert_eq!(in_slices(&mut executor), expected);
    assert_eq!(read(&mut executor), before);
}
