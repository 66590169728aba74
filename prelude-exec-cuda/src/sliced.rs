//! Passes in slices: the bits of the same forest in one step, whatever runs between its slices.
//!
//! In deterministic mode, but where chunks of both have so many rows that one kernel multiplies them.

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, Normalise, OneShotBatch,
    OutputHead, OutputRow, PassId, PassSlice, Pooling, Residency, RowOutput, Segment, SegmentIdx,
    SeqId, StepId, StepOutput, TokenHead, TokenSource,
};
use prelude_models::conformance::batches::{greedy, prompt, root};

use crate::{
    CudaConfig, CudaExecutor,
    testing::{checkpoint, emulation, small},
};

/// Returns a small configuration in which a row has equal bits whatever the number of rows that are
/// multiplied with it.
fn fixed() -> CudaConfig {
    CudaConfig {
        deterministic: true,
        ..small()
    }
}

fn executor(config: &CudaConfig) -> Option<CudaExecutor> {
    let device = emulation()?;
    Some(CudaExecutor::emulated(&checkpoint("demo-lm"), config, device).unwrap())
}

/// Returns the results as text, exactly: `Debug` prints the shortest digits that read back as the same
/// f32.
fn bits(rows: &[RowOutput]) -> Vec<String> {
    rows.iter().map(|row| format!("{row:?}")).collect()
}

fn run(executor: &mut CudaExecutor, batch: ForwardBatch) -> StepOutput {
    executor.submit(StepId(0), batch).unwrap();
    let output = executor.collect(StepId(0)).unwrap();
    // As an engine does that has nothing else to do.
    while executor.prepare(true) {}
    output
}

fn run_oneshot(executor: &mut CudaExecutor, batch: OneShotBatch) -> Vec<String> {
    bits(&run(executor, ForwardBatch::OneShot(batch)).oneshot)
}

fn run_slice(executor: &mut CudaExecutor, slice: PassSlice) -> Vec<String> {
    bits(&run(executor, ForwardBatch::Slice(slice)).oneshot)
}

fn refused(executor: &mut CudaExecutor, slice: PassSlice) -> String {
    let refused = executor.submit(StepId(0), ForwardBatch::Slice(slice));
    refused.unwrap_err().to_string()
}

fn slice(pass: u64, begin: Option<OneShotBatch>, layer_tokens: u32) -> PassSlice {
    PassSlice {
        pass: PassId(pass),
        begin,
        layer_tokens,
        keeps: true,
        abandoned: Vec::new(),
    }
}

fn layers(executor: &CudaExecutor) -> u32 {
    executor.capacity().passes.unwrap().layers
}

fn tokens(len: u32, seed: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 57 + seed * 131) % 4096).collect()
}

fn sample() -> OutputHead {
    OutputHead::Sample(greedy(Some(2)))
}

/// Returns a prompt of so many tokens, read at its end.
fn text(len: u32, seed: u32) -> OneShotBatch {
    prompt(&tokens(len, seed), vec![(len - 1..len, sample())])
}

/// Returns a root of 70 tokens behind 16 cached ones, kept in blocks, with two children and a
/// grandchild, and a row of every kind of head.
fn forest() -> OneShotBatch {
    let span = |start, len| BlockSpan { start, len };
    let child = |tokens, parent, context_len| Segment {
        parent: Some(SegmentIdx(parent)),
        context_len,
        ..root(tokens)
    };
    let labels = |normalise| OutputHead::LabelScores {
        labels: [7, 9, 4000].into(),
        normalise,
    };
    let of_tokens = TokenHead::Embed {
        normalise: true,
        dimensions: Some(40),
    };
    let mean = OutputHead::Embed {
        pooling: Pooling::Mean,
        normalise: true,
        dimensions: None,
    };
    let targets = tokens(90, 3)[71..75].to_vec();
    let row = |segment, positions, head| OutputRow {
        segment: SegmentIdx(segment),
        positions,
        head,
    };
    OneShotBatch {
        tokens: tokens(100, 3),
        segments: vec![
            Segment {
                context_len: 16,
                cached: span(0, 1),
                residency: Residency::Keep(span(1, 4)),
                ..root(0..70)
            },
            child(70..85, 0, 86),
            child(85..92, 0, 86),
            child(92..100, 1, 101),
        ],
        rows: vec![
            row(1, 100..101, labels(Normalise::OverLabels)),
            row(3, 108..109, labels(Normalise::OverVocab)),
            row(3, 84..88, OutputHead::Logprobs { targets, top: 2 }),
            row(2, 92..93, sample()),
            row(3, 90..109, mean),
            row(2, 86..90, OutputHead::Tokens(of_tokens)),
        ],
        block_ids: [3, 10, 11, 12, 13].map(BlockId).to_vec(),
    }
}

/// Computes 16 tokens into block 3.
fn fill(executor: &mut CudaExecutor) {
    let batch = OneShotBatch {
        segments: vec![Segment {
            residency: Residency::Keep(BlockSpan { start: 0, len: 1 }),
            ..root(0..16)
        }],
        rows: Vec::new(),
        block_ids: vec![BlockId(3)],
        ..text(16, 8)
    };
    run_oneshot(executor, batch);
}

/// Returns a prompt beside a decode row behind the cached tokens.
fn between() -> ForwardBatch {
    ForwardBatch::Mixed {
        oneshot: text(9, 5),
        prefill: OneShotBatch::EMPTY,
        decode: DecodeBatch {
            rows: vec![DecodeRow {
                seq: SeqId(0),
                token: TokenSource::Known(77),
                context_len: 16,
                blocks: BlockSpan { start: 0, len: 2 },
                sample: greedy(None),
            }],
            block_ids: vec![BlockId(3), BlockId(40)],
        },
    }
}

/// Checks two passes by turns in slices of these sizes, with a step after each slice.
fn check_slices(executor: &mut CudaExecutor, sizes: &[u32]) {
    fill(executor);
    // Prompts of one chunk, and of several.
    let batches = [text(50, 6), forest()];
    let expected = batches.each_ref().map(|b| run_oneshot(executor, b.clone()));
    assert!(expected.iter().flatten().all(|row| !row.contains("Failed")));
    let alone = run(executor, between());
    let layers = layers(executor);
    let mut left = batches.each_ref().map(|b| b.tokens.len() as u32 * layers);
    let mut begins = batches.map(Some);
    let mut sizes = sizes.iter().cycle();
    let mut turn = 0;
    while left != [0, 0] {
        turn = if left[1 - turn] > 0 { 1 - turn } else { turn };
        let size = *sizes.next().unwrap();
        let rows = run_slice(executor, slice(turn as u64, begins[turn].take(), size));
        left[turn] = left[turn].saturating_sub(size);
        match left[turn] {
            0 => assert_eq!(rows, expected[turn], "slices of {size}"),
            _ => assert!(rows.is_empty()),
        }
        assert_eq!(run(executor, between()), alone);
    }
}

#[test]
fn slices_give_the_bits_of_one_step() {
    // Steps between slices run as graphs.
    let graphs = CudaConfig {
        graph_tokens: 64,
        ..fixed()
    };
    let cuttings: [(CudaConfig, &[u32]); 4] = [
        (fixed(), &[17, 90, 1, 64]),
        (graphs, &[33, 130]),
        (small(), &[50]),
        (small(), &[u32::MAX]),
    ];
    for (config, sizes) in cuttings {
        let Some(mut executor) = executor(&config) else {
            return;
        };
        check_slices(&mut executor, sizes);
        // Slices are not captured, and leave the graphs of other steps alone.
        let stats = executor.graphs();
        assert_eq!(stats.captures > 0, config.graph_tokens > 0, "{stats:?}");
    }
}

/// Returns a prompt of 40 tokens whose keys and values are kept in the blocks 10 to 12.
fn kept(seed: u32) -> OneShotBatch {
    let mut batch = text(40, seed);
    batch.block_ids = (10..13).map(BlockId).collect();
    batch.segments[0].residency = Residency::Keep(BlockSpan { start: 0, len: 3 });
    batch
}

/// Returns the last token of a prompt whose other tokens are in the blocks 10 to 12.
fn read_back(executor: &mut CudaExecutor, seed: u32) -> Vec<String> {
    let batch = OneShotBatch {
        tokens: tokens(40, seed)[39..].to_vec(),
        segments: vec![Segment {
            context_len: 39,
            cached: BlockSpan { start: 0, len: 3 },
            ..root(0..1)
        }],
        rows: text(40, seed).rows,
        block_ids: (10..13).map(BlockId).collect(),
    };
    run_oneshot(executor, batch)
}

#[test]
fn a_pass_keeps_blocks_until_they_are_taken_away() {
    let Some(mut executor) = executor(&fixed()) else {
        return;
    };
    let expected = run_oneshot(&mut executor, kept(1));
    assert_eq!(read_back(&mut executor, 1), expected);

    // Other tokens are there before the pass, which writes over them.
    let others = run_oneshot(&mut executor, kept(2));
    assert_ne!(others, expected);
    assert_eq!(
        run_slice(&mut executor, slice(1, Some(kept(1)), 30)),
        [""; 0]
    );
    let rest = slice(1, None, u32::MAX);
    assert_eq!(run_slice(&mut executor, rest), expected);
    assert_eq!(read_back(&mut executor, 1), expected);

    // They come between two slices of a pass that has lost the blocks.
    assert_eq!(
        run_slice(&mut executor, slice(2, Some(kept(1)), 50)),
        [""; 0]
    );
    run_oneshot(&mut executor, kept(2));
    let rest = PassSlice {
        keeps: false,
        ..slice(2, None, u32::MAX)
    };
    assert_eq!(run_slice(&mut executor, rest), expected);
    assert_eq!(read_back(&mut executor, 2), others);
}

/// Passes that end in another order than they began, so that the others' regions move.
#[test]
fn paused_passes_have_the_room_that_is_planned_for_them() {
    let config = CudaConfig {
        max_pass_tokens: Some(130),
        ..fixed()
    };
    let Some(mut executor) = executor(&config) else {
        return;
    };
    let texts = [text(20, 0), text(40, 1), text(70, 2)];
    let expected = texts
        .each_ref()
        .map(|batch| run_oneshot(&mut executor, batch.clone()));
    assert_eq!(
        refused(&mut executor, slice(9, None, 1)),
        "step failed: pass 9 has not begun or is over"
    );
    for (pass, begin) in (0..).zip(texts) {
        let first = slice(pass, Some(begin), 25);
        assert_eq!(run_slice(&mut executor, first), [""; 0]);
    }
    assert_eq!(
        refused(&mut executor, slice(3, Some(text(20, 0)), 1)),
        "step failed: pass 3 of 20 tokens has no room beside 3 passes of 130 tokens"
    );
    // The first one leaves a hole, into which the other two move; another begins behind them.
    let given_up = PassSlice {
        abandoned: vec![PassId(0)],
        ..slice(4, Some(text(20, 0)), 15)
    };
    assert_eq!(run_slice(&mut executor, given_up), [""; 0]);
    assert_eq!(
        refused(&mut executor, slice(0, None, 1)),
        "step failed: pass 0 has not begun or is over"
    );
    for (pass, of) in [(1, 1), (4, 0), (2, 2)] {
        let rest = slice(pass, None, u32::MAX);
        assert_eq!(run_slice(&mut executor, rest), expected[of]);
    }
    // Passes that are over have left their room.
    let whole = slice(5, Some(text(130, 4)), u32::MAX);
    assert_eq!(run_slice(&mut executor, whole).len(), 1);
}

#[test]
fn failures_end_with_their_row_or_with_their_pass() {
    let Some(mut executor) = executor(&fixed()) else {
        return;
    };
    // A label beyond the vocabulary fails its own row.
    let wrong = OutputHead::LabelScores {
        labels: [7, 5000].into(),
        normalise: Normalise::OverLabels,
    };
    let with_wrong = prompt(
        &tokens(20, 1),
        vec![
            (19..20, wrong),
            (19..20, sample()),
            (3..4, OutputHead::Classify),
        ],
    );
    let expected = run_oneshot(&mut executor, text(20, 1));
    assert_eq!(
        run_slice(&mut executor, slice(1, Some(with_wrong), 30)),
        [""; 0]
    );
    let rows = run_slice(&mut executor, slice(1, None, u32::MAX));
    assert_eq!(rows[1], expected[0]);
    assert!(rows[0].contains("outside the vocabulary"), "{rows:?}");
    assert!(rows[2].contains("no head"), "{rows:?}");

    // Malformed slices are refused, and a pass that has begun goes on.
    assert_eq!(
        run_slice(&mut executor, slice(2, Some(text(20, 1)), 30)),
        [""; 0]
    );
    for (malformed, what) in [
        (slice(2, None, 0), "a slice without work"),
        (
            slice(3, Some(text(1025, 1)), 1),
            "more than the executor has room for",
        ),
        (
            slice(3, Some(OneShotBatch::EMPTY), 1),
            "a pass without tokens",
        ),
    ] {
        let refused = refused(&mut executor, malformed);
        assert!(refused.contains(what), "{refused}");
    }
    let rest = slice(2, None, u32::MAX);
    assert_eq!(run_slice(&mut executor, rest), expected);
}

/// More segments than the metadata has room for: the step fails, and leaves the pass's room.
#[test]
fn a_pass_that_fails_is_over() {
    let config = CudaConfig {
        metadata_bytes: 4 << 10,
        max_pass_tokens: Some(300),
        ..fixed()
    };
    let Some(mut executor) = executor(&config) else {
        return;
    };
    let mut many = text(300, 1);
    many.segments = (0..300).map(|i| root(i..i + 1)).collect();
    many.rows.clear();
    let failed = refused(&mut executor, slice(1, Some(many), 1));
    assert!(failed.contains("`metadata_bytes`"), "{failed}");
    let over = refused(&mut executor, slice(1, None, 1));
    assert!(over.contains("has not begun or is over"), "{over}");
    let expected = run_oneshot(&mut executor, text(20, 1));
    let whole = slice(2, Some(text(20, 1)), u32::MAX);
    assert_eq!(run_slice(&mut executor, whole), expected);
}

/// Slices are submitted while steps run, and steps while slices do.
#[test]
fn slices_and_steps_are_outstanding_together() {
    let config = CudaConfig {
        pipeline_depth: 2,
        ..fixed()
    };
    let Some(mut executor) = executor(&config) else {
        return;
    };
    fill(&mut executor);
    let expected = run_oneshot(&mut executor, text(90, 2));
    let alone = run(&mut executor, between());
    let layers = layers(&executor);
    let (mut left, mut begin) = (90 * layers, Some(text(90, 2)));
    let mut answered = 0;
    let mut check = |output: StepOutput, is_slice: bool| {
        if !is_slice {
            assert_eq!(
                StepOutput {
                    step: alone.step,
                    ..output
                },
                alone
            );
        } else if !output.oneshot.is_empty() {
            assert_eq!(bits(&output.oneshot), expected);
            answered += 1;
        }
    };
    // Slice, slice, step, and so on.
    let mut before = None;
    for step in 0.. {
        let is_slice = left > 0 && step % 3 < 2;
        let batch = match is_slice {
            true => ForwardBatch::Slice(slice(1, begin.take(), 70)),
            false => between(),
        };
        left -= if is_slice { left.min(70) } else { 0 };
        executor.submit(StepId(step), batch).unwrap();
        if let Some((step, is_slice)) = before.replace((step, is_slice)) {
            check(executor.collect(StepId(step)).unwrap(), is_slice);
        }
        if left == 0 && !is_slice {
            break;
        }
    }
    let (step, is_slice) = before.unwrap();
    check(executor.collect(StepId(step)).unwrap(), is_slice);
    assert_eq!(answered, 1);
}
