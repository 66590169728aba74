//! The shapes that steps are padded to: how much of everything their launches have room for.
//!
//! ```text
//! tokens     one of 29 numbers up to 1,024: what a step costs grows with it
//! outputs    0, 1, 8, 64, 256, ... at most the tokens: they cost rows of the last layer alone
//! tiles      as many as full tiles of all tokens, and 4, 16, 64, 256, ... for the prompts' ends
//! decode     all tokens if nothing else is in the step, else 0, or 8, 12, 16, 24, ...
//! splits     4, 8, 16, ...; 1 where nothing else is in the step and no context is longer
//! items      as many as items of decode rows that share pages, in steps as tokens from 8 on; 0
//!            where none do
//! spans      two for each token and 64, or twice, four times, ... that
//! ```
//!
//! What goes beyond a step's own counts are blocks that find nothing to do and end, and room in the
//! metadata. Segments are not among it: there is room for one of each token.

use prelude_kernels::families::{AttnDecodeParams, Tile};

/// Counts of prompts' ends that tiles have room for. Few: each is one more shape.
const ENDS: [usize; 4] = [4, 16, 64, 256];
/// Counts of output positions.
const OUTPUTS: [usize; 5] = [0, 1, 8, 64, 256];
/// Fewest decode rows beside prompts, if there are any.
const DECODE_MIN: usize = 8;
/// Fewest items of decode rows that share pages.
const ITEMS_MIN: usize = 8;
/// Fewest splits of contexts of more than one.
const SPLITS_MIN: usize = 4;
/// Blocks for each key-value head that a larger shape may launch beside twice those of its own.
const BLOCKS_SPARE: usize = 64;

/// The shape of a step, which is all that its launches depend on, up to its heads: steps of one shape
/// differ in the contents of their metadata alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepShape {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
    pub(crate) tile_rows: u32,
    pub(crate) tiles: usize,
    pub(crate) decode: usize,
    /// Splits of each decode row.
    pub(crate) splits: usize,
    /// Items of the decode rows, if they share pages.
    pub(crate) items: usize,
    /// Room for spans.
    pub(crate) spans: usize,
}

/// Counts of what a step has, before it is padded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCounts {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
    /// [`Tile::ROWS`] or [`Tile::ROWS_WIDE`].
    pub(crate) tile_rows: u32,
    pub(crate) tiles: usize,
    pub(crate) decode: usize,
    /// The longest context of a decode row.
    pub(crate) keys: u32,
    /// Items of decode rows that share pages.
    pub(crate) items: usize,
    pub(crate) spans: usize,
}

impl StepShape {
    /// Returns the shape of steps with so much in them. `group`: query heads that share a key-value
    /// head.
    pub(crate) fn of(counts: &StepCounts, group: usize) -> Self {
        let tokens = padded(counts.tokens);
        let outputs = bucket(counts.outputs, &OUTPUTS).min(tokens);
        let tiles = match counts.tiles {
            0 => 0,
            tiles => {
                let full = tokens / tile_tokens(group, counts.tile_rows);
                // No more than one for each token.
                (full + bucket(tiles.saturating_sub(full), &ENDS)).min(tokens)
            }
        };
        let splits = counts.keys.div_ceil(AttnDecodeParams::SPLIT_KEYS) as usize;
        let (decode, splits) = match (counts.decode, tiles) {
            (0, _) => (0, 0),
            // One split needs no launch to merge it, which counts where a step is short.
            (rows, 0) if splits == 1 => (padded(rows), 1),
            (rows, 0) => (padded(rows), splits.next_power_of_two().max(SPLITS_MIN)),
            (rows, _) => (
                padded(rows.max(DECODE_MIN)).min(tokens),
                splits.next_power_of_two().max(SPLITS_MIN),
            ),
        };
        let items = match counts.items {
            0 => 0,
            items => padded(items.max(ITEMS_MIN)),
        };
        let mut spans = 2 * tokens + 64;
        while spans < counts.spans {
            spans *= 2;
        }
        Self {
            tokens,
            outputs,
            tile_rows: counts.tile_rows,
            tiles,
            decode,
            splits,
            items,
            spans,
        }
    }

    /// Returns whether a step of the shape `own` may run in this one: with the same products and the
    /// same kernels, so with the same bits, and with few more blocks that find nothing to do.
    pub(crate) fn serves(&self, own: &Self) -> bool {
        let same = |shape: &Self| {
            (
                (shape.tokens, shape.outputs, shape.tile_rows),
                (shape.tiles > 0, shape.splits.min(2), shape.items > 0),
            )
        };
        same(self) == same(own)
            && self.tiles >= own.tiles
            && self.decode >= own.decode
            && self.splits >= own.splits
            && self.items >= own.items
            && self.spans >= own.spans
            && self.blocks() <= 2 * own.blocks() + BLOCKS_SPARE
    }

    /// Returns the blocks of attention that each key-value head has in a layer.
    pub(crate) const fn blocks(&self) -> usize {
        self.tiles
            + match self.items {
                0 => self.decode * self.splits,
                items => items,
            }
    }
}

/// Returns the most queries of a tile.
pub(super) fn tile_tokens(group: usize, tile_rows: u32) -> usize {
    let group = u32::try_from(group).unwrap_or(u32::MAX);
    Tile::tokens_max(group, tile_rows).map_or(1, |n| n as usize)
}

/// Returns the first of `buckets` that holds `n`, or the next power of two.
fn bucket(n: usize, buckets: &[usize]) -> usize {
    let first = buckets.iter().find(|&&bucket| bucket >= n);
    first.copied().unwrap_or_else(|| n.next_power_of_two())
}

/// Returns the count of tokens, or of decode rows, that `n` is padded to: every power of two and the middle between two, by eighths from 64 on, where time grows with
/// their number.
pub(crate) fn padded(n: usize) -> usize {
    match n {
        0..=2 => n,
        3..=64 => {
            let power = n.next_power_of_two();
            let middle = power / 4 * 3;
            if n <= middle { middle } else { power }
        }
        _ => n.next_multiple_of(n.next_power_of_two() / 8),
    }
}
