//! Plans and launches of whole steps, written down and compared with `tests/plans/*.txt`.
//!
//! `PRELUDE_BLESS=1 cargo test -p prelude-exec-cuda golden` rewrites the files: read the
//! difference before committing it.

use std::{fmt::Write as _, fs, path::PathBuf, sync::Arc};

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor as _, ForwardBatch, Normalise,
    OneShotBatch, OutputHead, OutputRow, PassId, PassSlice, Pooling, Residency, Segment,
    SegmentIdx, SeqId, StepId, TokenHead, TokenSource,
};
use prelude_models::conformance::batches::greedy;

use crate::{
    CudaConfig, CudaExecutor, PromptAttention,
    plan::StepPlan,
    testing::{FP8_BLOCKS, FP8_MIXTURE, checkpoint, small},
};

/// Returns the plan as a reader wants it: one line a thing.
fn describe(plan: &StepPlan) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        text.write_fmt(line).expect("a string takes all text");
        text.push('\n');
    };
    // As kernels take them.
    let ints = |values: &[u32]| values.iter().map(|&n| n.cast_signed()).collect::<Vec<_>>();
    let layout = &plan.layout;
    line(format_args!("tokens    {:?}", ints(&layout.tokens)));
    line(format_args!("positions {:?}", ints(&layout.positions)));
    line(format_args!("slots     {:?}", ints(&layout.slots)));
    line(format_args!("tables    {:?}", ints(&layout.blocks)));
    for (i, segment) in plan.segments.iter().enumerate() {
        let spans = &plan.spans[segment.span_first as usize..][..segment.span_count as usize];
        line(format_args!("segment {i}"));
        for span in spans {
            let place = match span.kind {
                0 => format!("blocks from tables[{}]", span.at),
                _ => format!("step rows from {}", span.at),
            };
            let end = span.kv_start + span.len;
            line(format_args!(
                "  positions {}..{end} in {place}",
                span.kv_start
            ));
        }
    }
    for chunk in &plan.chunks {
        line(format_args!("chunk of tokens {:?}", chunk.tokens));
        for t in &plan.tiles[chunk.tiles.clone()] {
            line(format_args!(
                "  tile of {} rows from {}: segment {}, positions from {}",
                t.rows, t.q_row, t.segment, t.q_pos
            ));
        }
        for d in &plan.decode[chunk.decode.clone()] {
            line(format_args!(
                "  decode row {}: {} positions in blocks from tables[{}]",
                d.q_row, d.context_len, d.block_first
            ));
        }
        for launch in &plan.launches[chunk.launches.clone()] {
            for item in &plan.items[launch.items.clone()] {
                let first = launch.rows.start + item.first as usize;
                let rows = first..first + item.count as usize;
                let rows = plan.decode[rows].iter().map(|row| row.q_row);
                line(format_args!(
                    "  split {} of decode rows {:?}",
                    item.split,
                    rows.collect::<Vec<_>>()
                ));
            }
        }
    }
    line(format_args!("outputs   {:?}", layout.outputs));
    for row in &layout.rows {
        let kind = match &row.head {
            OutputHead::Sample(_) => "sample",
            OutputHead::LabelScores { .. } => "label scores",
            OutputHead::Logprobs { .. } => "log-probabilities",
            OutputHead::Embed { .. } => "embedding",
            OutputHead::Classify => "classes",
            OutputHead::Tokens(TokenHead::Embed { .. }) => "embeddings of tokens",
            OutputHead::Tokens(TokenHead::Classify) => "classes of tokens",
            OutputHead::States(_) => "states",
        };
        let refused = row
            .refused
            .map_or(String::new(), |why| format!(", refused: {why}"));
        line(format_args!(
            "row       {kind} of outputs {:?}{refused}",
            layout.outputs_of(row)
        ));
    }
    text
}

fn check(name: &str, model: &str, config: &CudaConfig, batch: ForwardBatch) {
    let (mut executor, recording) = CudaExecutor::recording(&checkpoint(model), config).unwrap();
    executor.submit(StepId(0), batch).unwrap();
    let mut text = describe(executor.plan());
    text.push('\n');
    for line in recording.take() {
        text.push_str(&line);
        text.push('\n');
    }
    executor.collect(StepId(0)).unwrap();
    compare(name, &text);
}

fn compare(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/plans/{name}.txt"));
    if std::env::var_os("PRELUDE_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let first = text.lines().zip(expected.lines()).position(|(a, b)| a != b);
    assert!(
        text == expected,
        "{} differs, first in line {:?}; PRELUDE_BLESS=1 rewrites it. Now:\n{text}",
        path.display(),
        first.map(|i| i + 1)
    );
}

/// A shape's first and last step: launched and captured behind that, run as captured. The plan is the
/// last one's.
#[test]
fn a_padded_step() {
    let config = CudaConfig {
        graph_tokens: 64,
        ..small()
    };
    let (mut executor, recording) =
        CudaExecutor::recording(&checkpoint("demo-lm"), &config).unwrap();
    let mut text = String::new();
    for step in 0..4u32 {
        let len = 9 + step;
        let scores = OutputHead::LabelScores {
            labels: [1, 2].into(),
            normalise: Normalise::OverLabels,
        };
        let batch = OneShotBatch {
            tokens: (0..len).collect(),
            segments: vec![segment(
                0..len,
                None,
                0,
                BlockSpan::EMPTY,
                Residency::Transient,
            )],
            rows: vec![row(0, len - 1..len, scores)],
            block_ids: vec![],
        };
        let batch = ForwardBatch::OneShot(batch);
        executor.submit(StepId(step.into()), batch).unwrap();
        executor.collect(StepId(step.into())).unwrap();
        let mut lines = recording.take();
        if executor.prepare(true) {
            lines.push("between steps".to_owned());
            lines.extend(recording.take());
        }
        if step == 0 || step == 3 {
            let _ = writeln!(text, "step {step}");
            lines.iter().for_each(|line| {
                let _ = writeln!(text, "{line}");
            });
        }
    }
    compare(
        "a_padded_step",
        &format!("{}\n{text}", describe(executor.plan())),
    );
}

fn span(start: u32, len: u32) -> BlockSpan {
    BlockSpan { start, len }
}

fn segment(
    tokens: std::ops::Range<u32>,
    parent: Option<u32>,
    context_len: u32,
    cached: BlockSpan,
    residency: Residency,
) -> Segment {
    Segment {
        tokens,
        parent: parent.map(SegmentIdx),
        context_len,
        cached,
        residency,
    }
}

fn row(segment: u32, positions: std::ops::Range<u32>, head: OutputHead) -> OutputRow {
    OutputRow {
        segment: SegmentIdx(segment),
        positions,
        head,
    }
}

fn decode_row(token: u32, context_len: u32, start: u32) -> DecodeRow {
    DecodeRow {
        seq: SeqId(u64::from(token)),
        token: TokenSource::Known(token),
        context_len,
        blocks: span(start, context_len / 16 + 1),
        sample: greedy(None),
    }
}

/// A prompt of a checkpoint in fp8 with scales of blocks: what is launched on it as it is stored.
#[test]
fn scales_of_blocks() {
    check_blocks("fp8-blocks", PromptAttention::Varlen);
}

/// The launches of such a prompt on a GPU of compute capability 9.0, where all tiles are wide.
#[test]
fn scales_of_blocks_on_hopper() {
    check_blocks("hopper", PromptAttention::Hopper);
}

fn check_blocks(name: &str, prompt_attention: PromptAttention) {
    let scores = OutputHead::LabelScores {
        labels: [1, 2].into(),
        normalise: Normalise::OverLabels,
    };
    let batch = OneShotBatch {
        tokens: (0..20).collect(),
        segments: vec![segment(
            0..20,
            None,
            0,
            BlockSpan::EMPTY,
            Residency::Transient,
        )],
        rows: vec![row(0, 19..20, scores)],
        block_ids: vec![],
    };
    let config = CudaConfig {
        fp8: true,
        prompt_attention,
        ..small()
    };
    let batch = ForwardBatch::OneShot(batch);
    check(name, FP8_BLOCKS, &config, batch);
}

#[test]
fn one_prompt() {
    let batch = OneShotBatch {
        tokens: vec![40, 521, 1200, 77, 30],
        segments: vec![segment(
            0..5,
            None,
            0,
            BlockSpan::EMPTY,
            Residency::Transient,
        )],
        rows: vec![row(0, 4..5, OutputHead::Classify)],
        block_ids: vec![],
    };
    check(
        "one-prompt",
        "demo-classifier",
        &small(),
        ForwardBatch::OneShot(batch),
    );
}

/// Layers with experts and one without; the last layer for one token alone.
#[test]
fn a_mixture_of_experts() {
    check_experts("experts", "rand-qwen3-moe", &small());
}

/// The same where experts have scales of blocks.
#[test]
fn a_mixture_of_experts_in_fp8() {
    let config = CudaConfig {
        fp8: true,
        ..small()
    };
    check_experts("experts-fp8", FP8_MIXTURE, &config);
}

fn check_experts(name: &str, model: &str, config: &CudaConfig) {
    let batch = OneShotBatch {
        tokens: (40..60).collect(),
        segments: vec![segment(
            0..20,
            None,
            0,
            BlockSpan::EMPTY,
            Residency::Transient,
        )],
        rows: vec![row(0, 19..20, OutputHead::Sample(greedy(None)))],
        block_ids: vec![],
    };
    check(name, model, config, ForwardBatch::OneShot(batch));
}

/// Prompts that fill a chunk and a part of the next, by a model whose attention sees whole prompts.
#[test]
fn prompts_of_an_encoder() {
    let config = CudaConfig {
        max_context_len: None,
        ..small()
    };
    let prompt = |tokens| segment(tokens, None, 0, BlockSpan::EMPTY, Residency::Transient);
    let embed = OutputHead::Embed {
        pooling: Pooling::First,
        normalise: true,
        dimensions: None,
    };
    let batch = OneShotBatch {
        tokens: (100..300).collect(),
        segments: vec![prompt(0..3), prompt(3..83), prompt(83..200)],
        rows: vec![
            row(2, 0..1, OutputHead::Classify),
            row(0, 0..1, OutputHead::Classify),
            row(1, 0..1, embed),
        ],
        block_ids: vec![],
    };
    check(
        "encoder",
        "rand-bert-rank",
        &config,
        ForwardBatch::OneShot(batch),
    );
}

/// Returns a cached root that keeps a block, two children of which one is read twice, and a grandchild.
fn forest() -> OneShotBatch {
    let labels: Arc<[u32]> = Arc::from([7, 9, 4000]);
    let keep = Residency::Keep(span(2, 1));
    OneShotBatch {
        tokens: (100..140).collect(),
        segments: vec![
            segment(0..20, None, 32, span(0, 2), keep),
            segment(20..30, Some(0), 52, BlockSpan::EMPTY, Residency::Transient),
            segment(30..36, Some(0), 52, BlockSpan::EMPTY, Residency::Transient),
            segment(36..40, Some(1), 62, BlockSpan::EMPTY, Residency::Transient),
        ],
        rows: vec![
            row(
                2,
                57..58,
                OutputHead::LabelScores {
                    labels: Arc::clone(&labels),
                    normalise: Normalise::OverLabels,
                },
            ),
            row(
                3,
                65..66,
                OutputHead::LabelScores {
                    labels,
                    normalise: Normalise::OverVocab,
                },
            ),
            row(
                1,
                50..54,
                OutputHead::Logprobs {
                    targets: vec![118, 119, 120, 121],
                    top: 2,
                },
            ),
            row(
                3,
                32..66,
                OutputHead::Embed {
                    pooling: Pooling::Mean,
                    normalise: true,
                    dimensions: Some(64),
                },
            ),
            row(
                3,
                65..66,
                OutputHead::LabelScores {
                    labels: Arc::from([5000]),
                    normalise: Normalise::OverVocab,
                },
            ),
        ],
        block_ids: [3, 1, 9].map(BlockId).to_vec(),
    }
}

#[test]
fn a_forest() {
    check(
        "forest",
        "demo-lm",
        &small(),
        ForwardBatch::OneShot(forest()),
    );
}

/// Returns decode rows with one split and with three.
fn decode() -> DecodeBatch {
    DecodeBatch {
        rows: vec![
            decode_row(5, 15, 0),
            decode_row(6, 700, 1),
            decode_row(7, 16, 45),
        ],
        block_ids: (0..47).map(|i| BlockId(i * 5 % 64)).collect(),
    }
}

#[test]
fn decode_rows() {
    check(
        "decode",
        "demo-lm",
        &small(),
        ForwardBatch::Decode(decode()),
    );
}

/// Rows of which three see the same 16 blocks, and the second sees none of them.
#[test]
fn decode_rows_that_share_pages() {
    let mut batch = DecodeBatch::EMPTY;
    for (token, context_len) in [(5, 256), (6, 40), (7, 300), (8, 270)] {
        let start = u32::try_from(batch.block_ids.len()).unwrap();
        let row = decode_row(token, context_len, start);
        let own = 16 + 8 * (token - 5);
        let block = |i| {
            BlockId(if i < 16 && token != 6 {
                i
            } else {
                own + i % 16
            })
        };
        batch.block_ids.extend((0..row.blocks.len).map(block));
        batch.rows.push(row);
    }
    check(
        "decode-shared",
        "demo-lm",
        &small(),
        ForwardBatch::Decode(batch),
    );
}

fn mixed() -> ForwardBatch {
    ForwardBatch::Mixed {
        oneshot: forest(),
        prefill: OneShotBatch {
            tokens: (200..300).collect(),
            segments: vec![segment(
                0..100,
                None,
                0,
                BlockSpan::EMPTY,
                Residency::Keep(span(0, 7)),
            )],
            rows: vec![row(0, 99..100, OutputHead::Sample(greedy(None)))],
            block_ids: (20..27).map(BlockId).collect(),
        },
        decode: decode(),
    }
}

/// A step of several chunks, of which a long segment spans two.
#[test]
fn a_mixed_step_in_chunks() {
    check("mixed-chunked", "demo-lm", &small(), mixed());
}

/// The second slice of a pass: the rest of one layer, and a part of the next.
#[test]
fn a_slice_of_a_pass() {
    let (mut executor, recording) =
        CudaExecutor::recording(&checkpoint("demo-lm"), &small()).unwrap();
    let mut run = |step: u64, begin| {
        drop(recording.take());
        let slice = ForwardBatch::Slice(PassSlice {
            pass: PassId(0),
            begin,
            layer_tokens: 28,
            keeps: true,
            abandoned: Vec::new(),
        });
        executor.submit(StepId(step), slice).unwrap();
        let text = describe(executor.plan());
        executor.collect(StepId(step)).unwrap();
        text + "\n" + &recording.take().join("\n") + "\n"
    };
    run(0, Some(forest()));
    compare("slice", &run(1, None));
}

#[test]
fn a_deterministic_mixed_step() {
    let config = CudaConfig {
        deterministic: true,
        chunk_tokens: 4096,
        ..small()
    };
    check("mixed-deterministic", "demo-lm", &config, mixed());
}
