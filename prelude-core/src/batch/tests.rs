//! Batches that break each rule.

use super::*;

const CAPACITY: Capacity = Capacity {
    block_size: 4,
    num_blocks: 8,
    max_step_tokens: 64,
    full_step_tokens: 2048,
    max_context_len: 32,
    vocab_size: 100,
    pipeline_depth: 1,
    passes: None,
    host_blocks: 0,
    attention: Attention::Causal,
};

fn segment(tokens: Range<u32>, parent: Option<u32>, context_len: u32) -> Segment {
    Segment {
        tokens,
        parent: parent.map(SegmentIdx),
        context_len,
        cached: BlockSpan::EMPTY,
        residency: Residency::Transient,
    }
}

fn forest() -> OneShotBatch {
    OneShotBatch {
        tokens: vec![1, 2, 3, 4, 5],
        segments: vec![segment(0..3, None, 0), segment(3..5, Some(0), 3)],
        rows: vec![OutputRow {
            segment: SegmentIdx(1),
            positions: 4..5,
            head: OutputHead::Classify,
        }],
        block_ids: vec![BlockId(1), BlockId(2)],
    }
}

fn check(change: impl FnOnce(&mut OneShotBatch), expected: Result<(), &str>) {
    let mut batch = forest();
    change(&mut batch);
    let got = ForwardBatch::OneShot(batch)
        .validate(&CAPACITY)
        .map_err(|e| e.to_string());
    assert_eq!(got, expected.map_err(str::to_owned));
}

#[test]
fn forests_are_checked() {
    check(|_| (), Ok(()));
    check(
        |b| b.tokens[0] = 100,
        Err("segment 0: token id outside the vocabulary"),
    );
    check(
        |b| b.segments[1].context_len = 2,
        Err("segment 1: does not start where its parent ends"),
    );
    check(
        |b| b.segments[1].parent = Some(SegmentIdx(1)),
        Err("segment 1: parent does not precede it"),
    );
    check(
        |b| b.segments[0].context_len = 1,
        Err("segment 0: cached blocks do not cover the context"),
    );
    check(
        |b| b.segments[1].residency = Residency::Keep(BlockSpan { start: 0, len: 1 }),
        Err("segment 1: keeps from the middle of a block it does not own"),
    );
    check(
        |b| b.segments[0].residency = Residency::Keep(BlockSpan { start: 0, len: 2 }),
        Err("segment 0: keeps a block beyond its tokens"),
    );
    check(
        |b| b.segments[0].residency = Residency::Keep(BlockSpan { start: 0, len: 1 }),
        Ok(()),
    );
    check(
        |b| b.rows[0].positions = 4..6,
        Err("output row 0: positions beyond its segment"),
    );
    check(|b| b.rows[0].positions = 0..1, Ok(()));
    check(
        |b| b.rows[0].positions = 3..5,
        Err("output row 0: a last-token head wants one position"),
    );
    check(
        |b| b.tokens.push(1),
        Err("segment 2: tokens that belong to no segment"),
    );
}

#[test]
fn a_chunk_may_continue_its_own_block() {
    check(
        |b| {
            // Positions 0..6 cached in blocks 1 and 2; the chunk goes on in block 2.
            b.tokens.truncate(3);
            b.segments.truncate(1);
            b.segments[0].context_len = 6;
            b.segments[0].cached = BlockSpan { start: 0, len: 2 };
            b.segments[0].residency = Residency::Keep(BlockSpan { start: 1, len: 2 });
            b.block_ids.push(BlockId(3));
            b.rows[0].segment = SegmentIdx(0);
            b.rows[0].positions = 8..9;
        },
        Ok(()),
    );
}

#[test]
fn decode_rows_are_checked() {
    let row = |context_len, len| DecodeRow {
        seq: SeqId(0),
        token: TokenSource::Known(7),
        context_len,
        blocks: BlockSpan { start: 0, len },
        sample: SampleHead {
            sampling: Arc::new(SamplingParams::default()),
            choice: 0,
            draws: 1,
            output_position: 1,
            top_logprobs: None,
            history: None,
            mask: None,
        },
    };
    let check = |row: DecodeRow, expected: Result<(), &str>| {
        let batch = DecodeBatch {
            rows: vec![row],
            block_ids: vec![BlockId(0), BlockId(7)],
        };
        let got = ForwardBatch::Decode(batch)
            .validate(&CAPACITY)
            .map_err(|e| e.to_string());
        assert_eq!(got, expected.map_err(str::to_owned));
    };
    check(row(3, 1), Ok(()));
    check(row(4, 2), Ok(()));
    check(
        row(4, 1),
        Err("decode row 0: blocks do not cover the context and the new token"),
    );
    check(
        row(32, 9),
        Err("decode row 0: longer than the model's context"),
    );
}
