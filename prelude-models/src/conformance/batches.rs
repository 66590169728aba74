//! Batches made by hand, for tests of executors.

use std::{ops::Range, sync::Arc};

use prelude_core::{
    BlockSpan, OneShotBatch, OutputHead, OutputRow, Residency, SampleHead, SamplingParams, Segment,
    SegmentIdx,
};

/// Returns the greedy head, which lists the likeliest tokens if asked for.
#[must_use]
pub fn greedy(top_logprobs: Option<u32>) -> SampleHead {
    SampleHead {
        sampling: Arc::new(SamplingParams::default()),
        choice: 0,
        draws: 1,
        output_position: 0,
        top_logprobs,
        history: None,
        mask: None,
    }
}

/// Returns a transient segment at the start of a prompt.
#[must_use]
pub const fn root(tokens: Range<u32>) -> Segment {
    Segment {
        tokens,
        parent: None,
        context_len: 0,
        cached: BlockSpan::EMPTY,
        residency: Residency::Transient,
    }
}

/// Returns one prompt and its outputs with the positions that each reads.
///
/// # Panics
/// If the prompt has 2³² tokens.
#[must_use]
pub fn prompt(tokens: &[u32], outputs: Vec<(Range<u32>, OutputHead)>) -> OneShotBatch {
    let rows = outputs.into_iter().map(|(positions, head)| OutputRow {
        segment: SegmentIdx(0),
        positions,
        head,
    });
    OneShotBatch {
        tokens: tokens.to_vec(),
        segments: vec![root(0..count(tokens.len()))],
        rows: rows.collect(),
        block_ids: vec![],
    }
}

/// Appends another forest to a batch.
///
/// # Panics
/// If both together have 2³² tokens, segments or blocks.
pub fn append(batch: &mut OneShotBatch, other: OneShotBatch) {
    let tokens = count(batch.tokens.len());
    let segments = count(batch.segments.len());
    let blocks = count(batch.block_ids.len());
    batch.tokens.extend(other.tokens);
    batch.block_ids.extend(other.block_ids);
    let moved = other.segments.into_iter().map(|mut segment| {
        segment.tokens = segment.tokens.start + tokens..segment.tokens.end + tokens;
        segment.parent = segment.parent.map(|p| SegmentIdx(p.0 + segments));
        segment.cached.start += blocks;
        if let Residency::Keep(span) = &mut segment.residency {
            span.start += blocks;
        }
        segment
    });
    batch.segments.extend(moved);
    batch.rows.extend(other.rows.into_iter().map(|mut row| {
        row.segment.0 += segments;
        row
    }));
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("batches are far below 2^32")
}
