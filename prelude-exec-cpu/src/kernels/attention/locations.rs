//! Locations of the keys and values on a segment's path.

use std::ops::Range;

use prelude_models::step::{KvSource, KvSpan, StepLayout};

/// The location of one position's K/V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KvLocation {
    /// A slot of the block pool.
    Slot(usize),
    /// A token in the step buffer.
    Token(usize),
}

/// Calls `f(position, location, count)` for runs of positions of `range` on a path, in order: `count`
/// positions from `position` on lie one after the other from `location` on. `cursor` is the index of
/// the span at which to start looking; it only moves forward, so that ranges must be visited in order.
pub(super) fn for_runs(
    layout: &StepLayout,
    path: &[KvSpan],
    cursor: &mut usize,
    range: Range<u32>,
    mut f: impl FnMut(u32, KvLocation, usize),
) {
    let block_size = layout.block_size();
    let mut position = range.start;
    while position < range.end {
        while position >= path[*cursor].end {
            *cursor += 1;
        }
        let span = path[*cursor];
        let (first, end) = match span.source {
            KvSource::Tokens { first } => (
                KvLocation::Token(first + (position - span.start) as usize),
                span.end,
            ),
            KvSource::Blocks { first } => {
                let index = position / block_size;
                let block = layout.blocks[first + index as usize];
                let offset = position - index * block_size;
                let slot = KvLocation::Slot((block * block_size + offset) as usize);
                (slot, span.end.min((index + 1) * block_size))
            }
        };
        let end = end.min(range.end);
        f(position, first, (end - position) as usize);
        position = end;
    }
}

/// Returns the number of first positions whose keys lie in the same places on both paths.
pub(super) fn shared(layout: &StepLayout, a: &[KvSpan], b: &[KvSpan]) -> u32 {
    let mut shared = 0;
    for (a, b) in a.iter().zip(b) {
        let end = a.end.min(b.end);
        let same = match (a.source, b.source) {
            _ if a.start != b.start => a.start,
            _ if a.source == b.source => end,
            (KvSource::Blocks { first: a }, KvSource::Blocks { first: b }) => {
                let blocks = end.div_ceil(layout.block_size()) as usize;
                let (a, b) = (&layout.blocks[a..][..blocks], &layout.blocks[b..][..blocks]);
                let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                end.min(same as u32 * layout.block_size())
            }
            _ => a.start,
        };
        shared = same;
        if same < a.end.max(b.end) {
            break;
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use prelude_core::{
        BlockId, BlockSpan, ForwardBatch, OneShotBatch, Residency, Segment, SegmentIdx,
    };

    use super::*;

    /// A root with 5 cached positions and 3 tokens, and two children of one token each.
    #[test]
    fn every_position_has_its_location() {
        let segment = |tokens, parent: Option<u32>, context_len, cached| Segment {
            tokens,
            parent: parent.map(SegmentIdx),
            context_len,
            cached,
            residency: Residency::Transient,
        };
        let batch = OneShotBatch {
            tokens: vec![10, 11, 12, 13, 14],
            segments: vec![
                segment(0..3, None, 5, BlockSpan { start: 0, len: 2 }),
                segment(3..4, Some(0), 8, BlockSpan::EMPTY),
                segment(4..5, Some(0), 8, BlockSpan::EMPTY),
            ],
            rows: vec![],
            block_ids: vec![BlockId(3), BlockId(1)],
        };
        let mut layout = StepLayout::default();
        layout
            .rebuild(ForwardBatch::OneShot(batch), 4, |_, _| None)
            .unwrap();
        let mut path = Vec::new();
        layout.path(2, &mut path);
        // Block 3, block 1, the root's tokens, its own.
        let slots = [12, 13, 14, 15, 4].map(KvLocation::Slot);
        let tokens = [0, 1, 2, 4].map(KvLocation::Token);
        let expected = [&slots[..], &tokens].concat();
        for cuts in [vec![0, 9], vec![0, 2, 5, 6, 9]] {
            let (mut cursor, mut locations) = (0, Vec::new());
            for cut in cuts.windows(2) {
                let range = cut[0]..cut[1];
                for_runs(
                    &layout,
                    &path,
                    &mut cursor,
                    range,
                    |position, first, count| {
                        assert_eq!(position as usize, locations.len());
                        locations.extend((0..count).map(|i| match first {
                            KvLocation::Slot(slot) => KvLocation::Slot(slot + i),
                            KvLocation::Token(token) => KvLocation::Token(token + i),
                        }));
                    },
                );
            }
            assert_eq!(locations, expected);
        }
    }
}
