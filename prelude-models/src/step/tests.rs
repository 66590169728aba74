//! A layout of every kind of batch against what the batch means.

use prelude_core::{
    DecodeRow, Normalise, OutputRow, PassId, PassSlice, RowOutput, Segment, SegmentIdx,
};

use super::*;
use crate::conformance::batches::{greedy, prompt};

fn decode(token: TokenSource) -> DecodeBatch {
    DecodeBatch {
        rows: vec![DecodeRow {
            seq: SeqId(0),
            token,
            context_len: 5,
            blocks: BlockSpan { start: 0, len: 2 },
            sample: greedy(None),
        }],
        block_ids: vec![BlockId(9), BlockId(7)],
    }
}

/// A root with 5 cached positions and 3 kept tokens, two children, and a decode row.
fn mixed() -> ForwardBatch {
    let segment = |tokens, parent: Option<u32>, context_len, cached, residency| Segment {
        tokens,
        parent: parent.map(SegmentIdx),
        context_len,
        cached,
        residency,
    };
    let span = |start, len| BlockSpan { start, len };
    let row = |segment, positions| OutputRow {
        segment: SegmentIdx(segment),
        positions,
        head: OutputHead::Classify,
    };
    ForwardBatch::Mixed {
        oneshot: OneShotBatch {
            tokens: vec![10, 11, 12, 13, 14],
            segments: vec![
                segment(0..3, None, 5, span(0, 2), Residency::Keep(span(1, 1))),
                segment(3..4, Some(0), 8, span(0, 0), Residency::Transient),
                segment(4..5, Some(0), 8, span(0, 0), Residency::Transient),
            ],
            rows: vec![row(2, 7..9), row(1, 7..8)],
            block_ids: vec![BlockId(3), BlockId(1)],
        },
        prefill: OneShotBatch::EMPTY,
        decode: decode(TokenSource::Known(99)),
    }
}

#[test]
fn lays_out_all_parts() {
    let mut layout = StepLayout::default();
    layout.rebuild(mixed(), 4, |_, _| None).unwrap();
    assert_eq!(layout.tokens, [10, 11, 12, 13, 14, 99]);
    assert_eq!(layout.positions, [5, 6, 7, 8, 8, 5]);
    assert_eq!(layout.slots, [5, 6, 7, NO_SLOT, NO_SLOT, 7 * 4 + 1]);
    assert_eq!(layout.blocks, [3, 1, 9, 7]);
    let span = |start, end, source| KvSpan { start, end, source };
    let blocks = |first| KvSource::Blocks { first };
    let tokens = |first| KvSource::Tokens { first };
    // The second child: two cached blocks, the root's tokens, its own.
    let mut path = Vec::new();
    layout.path(2, &mut path);
    let cached = span(0, 5, blocks(0));
    assert_eq!(path, [cached, span(5, 8, tokens(0)), span(8, 9, tokens(4))]);
    // The first child's token follows the root's: one span.
    layout.path(1, &mut path);
    assert_eq!(path, [cached, span(5, 9, tokens(0))]);
    assert_eq!(layout.first_decode_segment(), 3);
    layout.path(3, &mut path);
    assert_eq!(path, [span(0, 5, blocks(2)), span(5, 6, tokens(5))]);
    // Position 7 is read twice and computed once.
    assert_eq!(layout.outputs, [2, 4, 5]);
    assert_eq!(layout.outputs_of(&layout.rows[0]), [0, 1]);
    assert_eq!(layout.outputs_of(&layout.rows[1]), [0]);
    assert!(layout.has_outputs(4..5) && !layout.has_outputs(0..2));
    let failed = || RowOutput::Failed("a row");
    let output = layout.step_output(StepId(0), [failed(), failed(), failed()]);
    let counts = [output.oneshot, output.prefill, output.decode].map(|rows| rows.len());
    assert_eq!(counts, [2, 0, 1]);
}

#[test]
fn tokens_of_outstanding_steps_are_indices() {
    let batch = || ForwardBatch::Decode(decode(TokenSource::Sampled(StepId(1))));
    let mut layout = StepLayout::default();
    let result = layout.rebuild(batch(), 4, |_, _| None);
    assert!(matches!(result, Err(ExecutorError::Step(_))));
    let sampled = |step, seq| (step == StepId(1) && seq == SeqId(0)).then_some(6);
    layout.rebuild(batch(), 4, sampled).unwrap();
    assert_eq!(layout.tokens, [!6]);
}

#[test]
fn invalid_rows_are_refused_alone() {
    let mut layout = StepLayout::default();
    let mut batch = mixed();
    if let ForwardBatch::Mixed { oneshot, .. } = &mut batch {
        oneshot.rows[1].head = OutputHead::LabelScores {
            labels: [3, 100].into(),
            normalise: Normalise::OverLabels,
        };
    }
    layout.rebuild(batch, 4, |_, _| None).unwrap();
    let sizes = VectorSizes {
        pooled: 16,
        token: 16,
    };
    layout.refuse_invalid_rows(100, sizes);
    let refused = layout.rows.iter().map(|row| row.refused);
    let label = Some("a label is outside the vocabulary");
    assert!(refused.eq([None, label, None]));
}

#[test]
fn an_arena_hands_out_the_same_offsets_again() {
    let mut arena = ArenaCursor::new(0..100);
    for _ in 0..2 {
        arena.reset();
        assert_eq!(arena.alloc(2, 4, 64).unwrap().offset(), 0);
        assert_eq!(arena.alloc(1, 4, 32).unwrap().offset(), 64);
        let full = arena.alloc(1, 8, 32).unwrap_err();
        assert_eq!((full.rows, full.width, full.free_bytes), (1, 8, 4));
    }
}

#[test]
fn kept_tensors_outlive_slices() {
    let mut arena = ArenaCursor::new(1000..1100);
    for _ in 0..2 {
        arena.reset();
        assert_eq!(arena.alloc_kept(2, 4, 32).unwrap().offset(), 1000);
        for _ in 0..2 {
            assert_eq!(arena.alloc(2, 4, 64).unwrap().offset(), 1032);
            assert_eq!(arena.alloc(1, 1, 8).unwrap_err().free_bytes, 4);
            arena.end_slice();
        }
    }
}

#[test]
#[should_panic(expected = "tensors of the whole step come first")]
fn kept_tensors_come_first() {
    let mut arena = ArenaCursor::new(0..100);
    arena.alloc(1, 1, 10).unwrap();
    let _ = arena.alloc_kept(1, 1, 10);
}

fn model() -> crate::ModelConfig {
    let checkpoint = crate::Checkpoint::open(&crate::testing::model_folder("demo-lm"));
    checkpoint.unwrap().config().clone()
}

/// Whatever passes there are within the capacity, they fit the room that is planned for them.
#[test]
fn the_room_for_passes_holds_any_of_them() {
    let model = model();
    let room = |rows: usize, width: usize| (rows * width).next_multiple_of(64);
    for (all, chunk_tokens) in [(1, 64), (100, 64), (600, 64), (5000, 512), (5000, 4096)] {
        let capacity = pass_capacity(&model, all, 1).unwrap();
        let of = |tokens, outputs| activation_room(&model, tokens, outputs, chunk_tokens, room);
        let planned = passes_room(&capacity, chunk_tokens, of);
        let passes = capacity.passes as usize;
        let mut most = 0;
        for count in 1..=passes {
            for small in [1, 7, 64, 150, 511, 1400] {
                let small = small.min(all as usize / count);
                let large = all as usize - small * (count - 1);
                for outputs in [0, 1, 60, 128, 256] {
                    let room_of = |tokens| of(tokens, outputs.min(tokens));
                    let taken = room_of(large) + (count - 1) * room_of(small);
                    assert!(
                        taken <= planned,
                        "{count} of {small} beside {large}: {outputs}"
                    );
                    most = most.max(taken);
                }
            }
        }
        // Where all passes can have a chunk and all output positions at once, no room is planned that
        // they do not take.
        if (all, chunk_tokens) == (5000, 512) {
            assert!(planned - most <= passes * of(1, 0), "{planned}, {most}");
        }
    }
}

/// A chunk's tokens take what the layer computes of each of them, and what the output positions
/// attended to is kept if they are at most half of the tokens.
#[test]
fn room_is_what_a_step_keeps_and_what_a_chunk_takes() {
    let room = |rows: usize, width: usize| rows * width;
    let path = crate::testing::model_folder("rand-qwen3-moe");
    let checkpoint = crate::Checkpoint::open(&path).unwrap();
    let model = checkpoint.config();
    let experts = model.experts.as_ref().unwrap();
    let mut plain = model.clone();
    plain.experts = None;
    let of = |model| slice_room(model, 100, 10, 32, &room);
    let width = experts.count + 3 * experts.intermediate_size + 3 * model.hidden_size;
    assert_eq!(of(model) - of(&plain), 32 * width);

    let attended = |outputs| kept_room(model, 10, outputs, &room) - 10 * model.hidden_size;
    assert_eq!(attended(5), 5 * model.attn_shape().out_width());
    assert_eq!(attended(6), 0);
}

#[test]
fn there_are_as_many_passes_as_there_is_room_for() {
    let model = model();
    let capacity = prelude_core::Capacity {
        block_size: 16,
        num_blocks: 8,
        max_step_tokens: 64,
        full_step_tokens: 2048,
        max_context_len: 512,
        vocab_size: 4096,
        pipeline_depth: 1,
        passes: pass_capacity(&model, 100, 1),
        attention: prelude_core::Attention::Causal,
        host_blocks: 0,
    };
    let mut passes = Passes::default();
    let sizes = VectorSizes {
        pooled: 64,
        token: 64,
    };
    let lay_out = |passes: &mut Passes<()>, pass, tokens: u32, abandoned: &[u64]| {
        let mut slice = PassSlice {
            pass: PassId(pass),
            begin: Some(prompt(&(0..tokens).collect::<Vec<_>>(), vec![])),
            layer_tokens: 1,
            keeps: true,
            abandoned: abandoned.iter().copied().map(PassId).collect(),
        };
        let layout = passes.lay_out(&mut slice, &capacity, sizes)?.unwrap();
        passes.put(slice.pass, Pass { layout, held: () });
        Ok::<_, ExecutorError>(())
    };
    lay_out(&mut passes, 0, 60, &[]).unwrap();
    let full = lay_out(&mut passes, 1, 41, &[]).unwrap_err().to_string();
    assert!(
        full.contains("no room beside 1 passes of 60 tokens"),
        "{full}"
    );
    for pass in 1..4 {
        lay_out(&mut passes, pass, 2, &[]).unwrap();
    }
    let full = lay_out(&mut passes, 4, 2, &[]).unwrap_err().to_string();
    assert!(
        full.contains("no room beside 4 passes of 66 tokens"),
        "{full}"
    );
    lay_out(&mut passes, 4, 60, &[0]).unwrap();
    assert_eq!(passes.held_mut().count(), 4);
}
