//! A plan against what its batch means, position by position.

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow as BatchRow, OneShotBatch, OutputHead, OutputRow,
    Residency, Segment as BatchSegment, SegmentIdx, SeqId, StepId, TokenSource,
};
use prelude_models::{conformance::batches::greedy, step::NO_SLOT};
use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 16;

fn config(chunk_tokens: usize, group: usize) -> PlanConfig {
    PlanConfig {
        block_size: BLOCK,
        chunk_tokens,
        group,
        decode_as_segments: false,
        wide_tokens: 128,
        pad_tokens: 1024,
        splits_max: 1024,
        rows_shared: 8,
        whole: false,
    }
}

fn decode_row(token: TokenSource, context_len: u32, start: u32) -> BatchRow {
    BatchRow {
        seq: SeqId(0),
        token,
        context_len,
        blocks: BlockSpan {
            start,
            len: context_len / BLOCK + 1,
        },
        sample: greedy(None),
    }
}

/// The place of one position's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Slot(u32),
    Token(u32),
}

/// Returns what every token of a forest sees, itself last: straight from the batch's definition.
fn meaning(batch: &OneShotBatch, first_token: u32) -> Vec<Vec<Source>> {
    let mut seen: Vec<Vec<Source>> = Vec::new();
    for segment in &batch.segments {
        let mut context = match segment.parent {
            None => {
                let blocks = segment.cached.of(&batch.block_ids);
                let at = |p: u32| blocks[(p / BLOCK) as usize].0 * BLOCK + p % BLOCK;
                (0..segment.context_len)
                    .map(|p| Source::Slot(at(p)))
                    .collect()
            }
            Some(parent) => {
                let last = batch.segments[parent.index()].tokens.end - 1;
                seen[last as usize].clone()
            }
        };
        for token in segment.tokens.clone() {
            context.push(Source::Token(first_token + token));
            seen.push(context.clone());
        }
    }
    seen
}

/// Returns what the plan shows a query at `position` of a segment.
fn shown(plan: &StepPlan, segment: u32, position: u32) -> Vec<Source> {
    let Segment {
        span_first,
        span_count,
    } = plan.segments[segment as usize];
    let spans = &plan.spans[span_first as usize..][..span_count as usize];
    let mut sources = Vec::new();
    for span in spans {
        assert_eq!(span.kv_start as usize, sources.len(), "a gap or an overlap");
        for i in 0..span.len {
            let p = span.kv_start + i;
            sources.push(match span.kind {
                Span::STEP => Source::Token(span.at + i),
                _ => {
                    let block = plan.layout.blocks[(span.at + p / BLOCK) as usize];
                    Source::Slot(block * BLOCK + p % BLOCK)
                }
            });
        }
    }
    assert!(sources.len() > position as usize);
    sources.truncate(position as usize + 1);
    sources
}

/// A plan and its padded twins mean the same.
fn check(batch: &ForwardBatch, config: PlanConfig) {
    for fill in [Fill::None, Fill::Own, Fill::Larger] {
        check_plan(batch, config, fill);
    }
}

/// The shape that a plan is filled up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    None,
    /// The plan's own shape.
    Own,
    /// A shape that serves the plan and has more room than the plan needs, wherever it may.
    Larger,
}

impl Fill {
    /// Fills a plan, if it is small enough.
    fn pad(self, plan: &mut StepPlan, config: PlanConfig, tokens_max: usize) -> Option<StepShape> {
        let own = plan.own_shape(config, tokens_max)?;
        let shape = match self {
            Self::Larger => StepShape {
                tiles: 2 * own.tiles,
                decode: 2 * own.decode,
                items: 2 * own.items,
                spans: 2 * own.spans,
                ..own
            },
            _ => own,
        };
        assert!(shape.serves(&own), "{shape:?} for {own:?}");
        plan.pad(shape);
        Some(shape)
    }
}

/// Every query of every chunk is in one tile or is one decode row, sees what it should, and the
/// tiles of a chunk come longest first.
fn check_plan(batch: &ForwardBatch, config: PlanConfig, fill: Fill) {
    let mut plan = StepPlan::default();
    plan.rebuild(batch.clone(), config, |_, _| None).unwrap();
    let tokens = plan.layout.tokens.len();
    let (tiles, decode_rows) = (plan.tiles.len(), plan.decode.len());
    let counts = (plan.segments.len(), plan.spans.len());
    if fill != Fill::None {
        let Some(shape) = fill.pad(&mut plan, config, 1000) else {
            assert!(
                tokens > 60 || plan.chunks.is_empty(),
                "a small step is padded"
            );
            return;
        };
        assert!(plan.chunks.len() == 1 && shape.tokens <= config.chunk_tokens.min(1000));
        assert_eq!(plan.layout.tokens.len(), shape.tokens);
        assert_eq!(plan.layout.outputs.len(), shape.outputs);
        assert!(
            4 * shape.tokens <= 5 * tokens + 4 || tokens < 64,
            "{tokens}"
        );
        assert!(counts.0 <= shape.tokens && counts.1 <= shape.spans);
        assert_eq!(
            (plan.tiles.len(), plan.decode.len()),
            (shape.tiles, shape.decode)
        );
        let splits = shape.splits as u32;
        assert!(
            plan.decode
                .iter()
                .all(|row| row.context_len <= 256 * splits)
        );
        // Padding is kept nowhere.
        assert!(
            plan.layout.slots[tokens..]
                .iter()
                .all(|&slot| slot == NO_SLOT)
        );
    }
    let (oneshot, prefill, decode) = batch.parts();
    let mut expected = meaning(oneshot, 0);
    expected.extend(meaning(prefill, count(oneshot.tokens.len())));
    let mut got: Vec<Option<Vec<Source>>> = vec![None; plan.layout.tokens.len()];
    for chunk in &plan.chunks {
        assert!(chunk.tokens.len() <= config.chunk_tokens);
        show_tiles(&plan, chunk, config, &mut got);
        let used = |row: &&DecodeRow| row.context_len > 0;
        for row in plan.decode[chunk.decode.clone()].iter().filter(used) {
            let token = chunk.tokens.start + row.q_row as usize;
            assert_eq!(row.context_len, plan.layout.positions[token] + 1);
            let seen = (0..row.context_len).map(|p| {
                let block = plan.layout.blocks[(row.block_first + p / BLOCK) as usize];
                Source::Slot(block * BLOCK + p % BLOCK)
            });
            assert!(got[token].replace(seen.collect()).is_none());
        }
    }
    for (i, row) in decode.rows.iter().enumerate() {
        let blocks = row.blocks.of(&decode.block_ids);
        let at = |p: u32| Source::Slot(blocks[(p / BLOCK) as usize].0 * BLOCK + p % BLOCK);
        let mut seen: Vec<_> = (0..=row.context_len).map(at).collect();
        let token = expected.len();
        // The new token's K/V are written to the page first, so either place will do.
        assert_eq!(
            Source::Slot(plan.layout.slots[token]),
            seen[seen.len() - 1],
            "row {i}"
        );
        if config.decode_as_segments {
            let last = seen.len() - 1;
            seen[last] = Source::Token(count(token));
        }
        expected.push(seen);
    }
    assert_eq!(expected.len(), tokens);
    for (token, got) in got.iter().enumerate() {
        // Nothing is computed of padding.
        assert_eq!(got.as_ref(), expected.get(token), "token {token}");
    }
    let used = plan.tiles.iter().filter(|t| t.segment != Tile::NO_SEGMENT);
    assert_eq!(used.count(), tiles);
    let used = plan.decode.iter().filter(|row| row.context_len > 0);
    assert_eq!(used.count(), decode_rows);
    for row in &plan.layout.rows {
        for (&output, i) in plan.layout.outputs_of(row).iter().zip(0..) {
            let token = plan.layout.outputs[output as usize] as usize;
            assert_eq!(plan.layout.positions[token], row.first_position + i);
        }
    }
}

/// Adds what the tiles of a chunk show its queries.
fn show_tiles(plan: &StepPlan, chunk: &Chunk, config: PlanConfig, got: &mut [Option<Vec<Source>>]) {
    let all = &plan.tiles[chunk.tiles.clone()];
    let used = |tile: &&Tile| tile.segment != Tile::NO_SEGMENT;
    let tiles: Vec<_> = all.iter().filter(used).collect();
    assert!(tiles.is_sorted_by_key(|t| std::cmp::Reverse(t.q_pos + t.rows)));
    for tile in tiles {
        let most = Tile::tokens_max(count(config.group), chunk.tile_rows).unwrap();
        assert!((1..=most).contains(&tile.rows));
        for i in 0..tile.rows {
            let row = (tile.q_row + i) as usize;
            assert!(row < chunk.tokens.len());
            let token = chunk.tokens.start + row;
            let position = tile.q_pos + i;
            assert_eq!(plan.layout.positions[token], position);
            let seen = shown(plan, tile.segment, position);
            assert!(got[token].replace(seen).is_none(), "token {token} twice");
        }
    }
}

/// The slices of a pass have the chunks that a model asks for, each with all of its queries.
fn check_slice_plans(batch: OneShotBatch, config: PlanConfig, (layers, size): (usize, usize)) {
    let expected = meaning(&batch, 0);
    let tokens = expected.len();
    let mut plan = StepPlan::default();
    plan.rebuild(ForwardBatch::OneShot(batch), config, |_, _| None)
        .unwrap();
    for start in (0..tokens * layers).step_by(size) {
        let done = SliceWork::new((tokens, layers), config.chunk_tokens, start, size);
        let layout = std::mem::take(&mut plan.layout);
        plan.rebuild_slice(layout, config, &done);
        let slice = plan.slice.clone().unwrap();
        assert_eq!(slice.is_first, start == 0);
        assert_eq!(slice.is_last, start + size >= tokens * layers);
        for (_, rows) in done.chunks() {
            let chunk = plan.chunks.iter().find(|chunk| chunk.tokens == rows);
            assert!(chunk.is_some() && slice.window.start <= rows.start);
            assert!(rows.end <= slice.window.end);
        }
        for chunk in &plan.chunks {
            let mut got = vec![None; tokens];
            show_tiles(&plan, chunk, config, &mut got);
            for (token, got) in got.iter().enumerate() {
                let expected = chunk.tokens.contains(&token).then(|| &expected[token]);
                assert_eq!(got.as_ref(), expected, "token {token}");
            }
        }
    }
}

/// A forest from `(parent, tokens, cached positions, whether it is kept)`. Parents are chosen
/// among the earlier ones.
fn forest(shape: &[(u32, u32, u32, bool)]) -> OneShotBatch {
    let mut batch = OneShotBatch::default();
    let mut block = 0;
    for (i, &(parent, len, cached, keep)) in shape.iter().enumerate() {
        let parent = (parent as usize % (i + 1))
            .checked_sub(1)
            .map(|p| SegmentIdx(count(p)));
        let mut take = |n: u32| {
            let start = count(batch.block_ids.len());
            batch
                .block_ids
                .extend((block..block + n).map(|b| BlockId(b * 7 % 997)));
            block += n;
            BlockSpan { start, len: n }
        };
        let (context_len, cached) = match parent {
            Some(p) => (batch.segments[p.index()].end(), BlockSpan::EMPTY),
            None => (cached, take(cached.div_ceil(BLOCK))),
        };
        let whole = (context_len + len) / BLOCK - context_len / BLOCK;
        let residency = if keep && context_len.is_multiple_of(BLOCK) && whole > 0 {
            Residency::Keep(take(whole))
        } else {
            Residency::Transient
        };
        let first = count(batch.tokens.len());
        batch
            .tokens
            .extend((first..first + len).map(|t| t * 31 % 1009));
        batch.segments.push(BatchSegment {
            tokens: first..first + len,
            parent,
            context_len,
            cached,
            residency,
        });
        let segment = SegmentIdx(count(i));
        let last = context_len + len;
        let start = batch.first_computed(segment);
        for positions in [last - 1..last, start..last] {
            let head = OutputHead::Classify;
            batch.rows.push(OutputRow {
                segment,
                positions,
                head,
            });
        }
    }
    batch
}

fn shapes(max: usize) -> impl Strategy<Value = Vec<(u32, u32, u32, bool)>> {
    let segment = (0u32..40, 1u32..90, 0u32..200, any::<bool>());
    prop::collection::vec(segment, 0..max)
}

proptest! {
    #[test]
    fn every_query_sees_what_its_batch_says(
        oneshot in shapes(9),
        prefill in shapes(4),
        decode in prop::collection::vec(0u32..300, 0..5),
        chunk in 1usize..5,
        group in prop_oneof![Just(1usize), Just(2), Just(3), Just(4), Just(8)],
        decode_as_segments: bool,
    ) {
        let mut rows = DecodeBatch::default();
        for (i, context_len) in decode.into_iter().enumerate() {
            let start = count(rows.block_ids.len());
            let row = decode_row(TokenSource::Known(5), context_len, start);
            rows.block_ids.extend((0..row.blocks.len).map(|b| BlockId(b * 13 + count(i))));
            rows.rows.push(row);
        }
        let batch = ForwardBatch::Mixed {
            oneshot: forest(&oneshot),
            prefill: forest(&prefill),
            decode: rows,
        };
        let config = PlanConfig { decode_as_segments, ..config(chunk * 64, group) };
        check(&batch, config);
    }
}

/// Chunks are runs of whole prompts; each query is in one tile, which shows it its prompt's tokens in
/// the rows of its chunk; means are those of the prompts that are read.
fn check_whole_plan(lens: &[u32], config: PlanConfig, fill: Fill) {
    let shape: Vec<_> = lens.iter().map(|&len| (0, len, 0, false)).collect();
    let batch = forest(&shape);
    let mut plan = StepPlan::default();
    let step = ForwardBatch::OneShot(batch.clone());
    plan.rebuild(step, config, |_, _| None).unwrap();
    let tokens = plan.layout.tokens.len();
    let means = plan.means(config);
    assert_eq!(means.len(), plan.layout.outputs.len());
    for (mean, &token) in means.iter().zip(&plan.layout.outputs) {
        let segment = batch.segments.iter().find(|s| s.tokens.contains(&token));
        let segment = segment.unwrap().tokens.clone();
        assert_eq!(
            (mean.first, mean.first + mean.count),
            (segment.start, segment.end)
        );
    }
    if fill != Fill::None && fill.pad(&mut plan, config, 1000).is_none() {
        return;
    }
    let mut seen = vec![0; plan.layout.tokens.len()];
    let mut end = 0;
    for chunk in &plan.chunks {
        assert_eq!(chunk.tokens.start, end, "chunks follow each other");
        end = chunk.tokens.end;
        assert!(chunk.tokens.len() <= config.chunk_tokens);
        let tiles = plan.tiles[chunk.tiles.clone()].iter();
        for tile in tiles.filter(|tile| tile.segment != Tile::NO_SEGMENT) {
            let segment = &batch.segments[tile.segment as usize].tokens;
            let Segment {
                span_first,
                span_count,
            } = plan.segments[tile.segment as usize];
            assert_eq!(span_count, 1);
            let span = plan.spans[span_first as usize];
            let first = segment.start - count(chunk.tokens.start);
            assert_eq!(
                (span.kv_start, span.len, span.at, span.kind),
                (0, segment.end - segment.start, first, Span::STEP)
            );
            for i in 0..tile.rows {
                assert_eq!(first + tile.q_pos + i, tile.q_row + i);
                seen[chunk.tokens.start + (tile.q_row + i) as usize] += 1;
            }
        }
    }
    assert_eq!(end, plan.layout.tokens.len());
    assert!(seen[..tokens].iter().all(|&tiles| tiles == 1));
    assert!(seen[tokens..].iter().all(|&tiles| tiles == 0));
}

proptest! {
    #[test]
    fn every_query_sees_its_whole_prompt(
        lens in prop::collection::vec(1u32..200, 0..9),
        room in 200usize..500,
        group in prop_oneof![Just(1usize), Just(3)],
        fill in prop_oneof![Just(Fill::None), Just(Fill::Own), Just(Fill::Larger)],
    ) {
        let config = PlanConfig { whole: true, ..config(room, group) };
        check_whole_plan(&lens, config, fill);
    }
}

proptest! {
    #[test]
    fn every_query_of_a_slice_sees_what_its_pass_says(
        shape in shapes(9).prop_filter("a pass has tokens", |shape| !shape.is_empty()),
        size in prop_oneof![1usize..40, 40usize..900],
        layers in 1usize..4,
        group in prop_oneof![Just(1usize), Just(3), Just(8)],
    ) {
        // A few dozen slices of each forest.
        let tokens: u32 = shape.iter().map(|segment| segment.1).sum();
        let size = size.max(tokens as usize * layers / 40);
        check_slice_plans(forest(&shape), config(64, group), (layers, size));
    }
}

#[test]
fn a_chain_that_lies_together_is_one_span() {
    let shape: Vec<_> = (0..40).map(|i| (i, 3, 20, false)).collect();
    let mut plan = StepPlan::default();
    let chain = forest(&shape);
    plan.rebuild(
        ForwardBatch::OneShot(chain.clone()),
        config(64, 2),
        |_, _| None,
    )
    .unwrap();
    let last = plan.segments[39];
    assert_eq!(
        last.span_count, 2,
        "cached blocks, and all tokens of the step"
    );
    check(&ForwardBatch::OneShot(chain), config(64, 2));
}

/// A path of many runs with other runs between them.
#[test]
fn a_deep_path_has_a_span_for_each_run() {
    // Each level has two children, of which the first goes on: the other lies between.
    let mut batch = forest(&[(0, 1, 0, false)]);
    for level in 0..40u32 {
        for _ in 0..2 {
            let at = count(batch.tokens.len());
            batch.tokens.push(1);
            batch.segments.push(BatchSegment {
                tokens: at..at + 1,
                parent: Some(SegmentIdx((level * 2).saturating_sub(1))),
                context_len: level + 1,
                cached: BlockSpan::EMPTY,
                residency: Residency::Transient,
            });
        }
    }
    check(&ForwardBatch::OneShot(batch), config(64, 2));
}

#[test]
fn counts_are_padded_little_and_to_few() {
    let mut sizes: Vec<usize> = (0..=1024).map(padded).collect();
    for (n, &size) in sizes.iter().enumerate() {
        assert!(
            size >= n && (4 * size <= 5 * n + 4 || n <= 64),
            "{n} to {size}"
        );
        assert!(size <= 2 * n, "{n} to {size}");
        assert_eq!(padded(size), size);
    }
    sizes.dedup();
    assert_eq!(sizes.len(), 13 + 16);
    assert_eq!(sizes[..8], [0, 1, 2, 3, 4, 6, 8, 12]);
    // None stays of a step that several chunks, or too few splits, hold.
    let batch = || ForwardBatch::OneShot(forest(&[(0, 70, 0, false)]));
    let mut plan = StepPlan::default();
    let config = config(64, 2);
    plan.rebuild(batch(), config, |_, _| None).unwrap();
    assert_eq!(plan.own_shape(config, 1000), None);
    let wide = PlanConfig {
        chunk_tokens: 128,
        ..config
    };
    plan.rebuild(batch(), wide, |_, _| None).unwrap();
    assert_eq!(plan.own_shape(wide, 79), None, "80 do not fit");
    let tokens = |shape: StepShape| shape.tokens;
    assert_eq!(plan.own_shape(wide, 80).map(tokens), Some(80));
    let row = ForwardBatch::Decode(DecodeBatch {
        rows: vec![decode_row(TokenSource::Known(1), 600, 0)],
        block_ids: (0..38).map(BlockId).collect(),
    });
    plan.rebuild(row.clone(), wide, |_, _| None).unwrap();
    let narrow = PlanConfig {
        splits_max: 3,
        ..wide
    };
    assert_eq!(
        plan.own_shape(narrow, 1000),
        None,
        "601 keys take 3 splits, padded 4"
    );
    assert_eq!(plan.own_shape(wide, 1000).map(|s| s.splits), Some(4));
}

/// The numbers that make a shape of what a step has.
#[test]
fn few_shapes_hold_all_mixes() {
    let of = |tokens, outputs, tiles, decode, keys| {
        let counts = StepCounts {
            tokens,
            outputs,
            tile_rows: Tile::ROWS,
            tiles,
            decode,
            keys,
            items: 0,
            spans: 2 * tiles,
        };
        let shape = StepShape::of(&counts, 2);
        assert_eq!((shape.tile_rows, shape.spans), (64, 2 * shape.tokens + 64));
        [
            shape.tokens,
            shape.outputs,
            shape.tiles,
            shape.decode,
            shape.splits,
        ]
    };
    // Prompts: full tiles of 32 queries, and 4, 16, ... more.
    assert_eq!(of(90, 1, 3, 0, 0), [96, 1, 3 + 4, 0, 0]);
    assert_eq!(of(90, 3, 5, 0, 0), [96, 8, 3 + 4, 0, 0]);
    assert_eq!(of(90, 9, 9, 0, 0), [96, 64, 3 + 16, 0, 0]);
    assert_eq!(of(3, 3, 3, 0, 0), [3, 3, 3, 0, 0], "a tile a token at most");
    // Decode rows alone: one split, or four and more.
    assert_eq!(of(5, 5, 0, 5, 256), [6, 6, 0, 6, 1]);
    assert_eq!(of(5, 5, 0, 5, 257), [6, 6, 0, 6, 4]);
    assert_eq!(of(70, 70, 0, 70, 1025), [80, 80, 0, 80, 8]);
    // Beside prompts.
    assert_eq!(of(45, 6, 2, 5, 20), [48, 8, 1 + 4, 8, 4]);
    assert_eq!(of(45, 20, 2, 19, 20), [48, 48, 1 + 4, 24, 4]);
    let of_items = |items| {
        let counts = StepCounts {
            tokens: 64,
            decode: 64,
            keys: 3000,
            items,
            ..StepCounts::default()
        };
        StepShape::of(&counts, 2).items
    };
    assert_eq!([0, 1, 9, 97].map(of_items), [0, 8, 12, 112]);
    let of_spans = |spans| {
        let counts = StepCounts {
            tokens: 10,
            spans,
            ..StepCounts::default()
        };
        StepShape::of(&counts, 2).spans
    };
    assert_eq!([88, 89, 177].map(of_spans), [88, 176, 352]);
}

#[test]
fn a_larger_shape_serves_a_smaller_one() {
    let own = StepShape {
        tokens: 96,
        outputs: 8,
        tile_rows: Tile::ROWS,
        tiles: 7,
        decode: 8,
        splits: 4,
        items: 0,
        spans: 256,
    };
    let check = |change: fn(&mut StepShape), serves: bool| {
        let mut shape = own;
        change(&mut shape);
        assert_eq!(shape.serves(&own), serves, "{shape:?}");
    };
    check(|_| (), true);
    check(|shape| shape.decode = 16, true);
    check(|shape| (shape.tiles, shape.splits) = (19, 8), true);
    // Other products, other kernels, too little room, too many blocks.
    check(|shape| shape.tokens = 112, false);
    check(|shape| shape.outputs = 64, false);
    check(|shape| shape.tiles = 0, false);
    check(|shape| (shape.decode, shape.splits) = (0, 0), false);
    check(|shape| shape.spans = 255, false);
    check(|shape| (shape.decode, shape.splits) = (64, 4), false);
    check(|shape| shape.items = 24, false);
    // Of steps whose rows share pages, items count, and not the splits of rows.
    let own = StepShape { items: 24, ..own };
    let check = |change: fn(&mut StepShape), serves: bool| {
        let mut shape = own;
        change(&mut shape);
        assert_eq!(shape.serves(&own), serves, "{shape:?}");
    };
    check(
        |shape| (shape.decode, shape.splits, shape.items) = (64, 8, 64),
        true,
    );
    check(|shape| shape.items = 16, false);
    check(|shape| shape.items = 0, false);
    check(|shape| shape.items = 256, false);
}

#[test]
fn tokens_of_uncollected_steps_are_refused() {
    let batch = ForwardBatch::Decode(DecodeBatch {
        rows: vec![decode_row(TokenSource::Sampled(StepId(1)), 5, 0)],
        block_ids: vec![BlockId(0)],
    });
    let result = StepPlan::default().rebuild(batch, config(64, 2), |_, _| None);
    assert!(matches!(result, Err(ExecutorError::Step(_))));
}
