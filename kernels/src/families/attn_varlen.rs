use crate::{DevicePtr, Launch, params::params};

params! {
    /// The keys and values that queries of a segment see: spans that cover positions from 0 on, in
    /// order.
    #[derive(PartialEq, Eq)]
    pub struct Segment: 8 {
        /// Index of the segment's first span.
        pub span_first: u32,
        /// The number of spans.
        pub span_count: u32,
    }
}

params! {
    /// The place of the keys and values of some positions.
    #[derive(PartialEq, Eq)]
    pub struct Span: 16 {
        /// First position.
        pub kv_start: u32,
        /// The number of positions.
        pub len: u32,
        /// [`Span::PAGES`]: position `p` is in block `tables[at + p / block_size]`.
        /// [`Span::STEP`]: it is row `at + (p - kv_start)` of the step's K and V.
        pub at: u32,
        /// [`Span::PAGES`] or [`Span::STEP`].
        pub kind: u32,
    }
}

impl Span {
    /// The kind of a span in blocks of the pool.
    pub const PAGES: u32 = 0;
    /// The kind of a span among the step's own K and V.
    pub const STEP: u32 = 1;
}

params! {
    /// Queries of one segment at consecutive positions, which a block computes at once.
    #[derive(PartialEq, Eq)]
    pub struct Tile: 16 {
        /// The segment of the queries, or [`Tile::NO_SEGMENT`] for a tile that is not used.
        pub segment: u32,
        /// Row of `q` and `out` of the first.
        pub q_row: u32,
        /// Position of the first.
        pub q_pos: u32,
        /// The number of rows: at most [`Tile::tokens_max`].
        pub rows: u32,
    }
}

impl Tile {
    /// The segment of a tile that is not used.
    pub const NO_SEGMENT: u32 = u32::MAX;

    /// Rows of a block that works on a tile: of launches with few tiles.
    pub const ROWS: u32 = 64;
    /// Query rows of a tile in launches with so many tiles that each multiprocessor has several.
    pub const ROWS_WIDE: u32 = 128;

    /// Returns the most queries of a tile: with the `group` heads that share a key-value head they fill
    /// `tile_rows` rows. None if there are more heads than rows.
    #[must_use]
    pub const fn tokens_max(group: u32, tile_rows: u32) -> Option<u32> {
        match tile_rows.checked_div(group) {
            Some(0) | None => None,
            tokens => tokens,
        }
    }
}

params! {
    /// Parameters of `prelude_attn_varlen_{32,64,128}`, `prelude_attn_varlen_wide_{32,64,128}` and
    /// `prelude_attn_varlen_near_{32,64,128,256}`, and of `prelude_attn_whole_{32,64,128,256}`,
    /// `prelude_attn_whole_wide_{32,64}` and `prelude_attn_biased_{32,64,128}`: attention of prompts.
    /// bf16 unless stated. `D` is `head_dim`.
    pub struct AttnVarlenParams: 152 {
        /// `[rows, heads · D]`.
        pub q: DevicePtr,
        /// `[rows, heads · D]`; may be `q`.
        pub out: DevicePtr,
        /// `[rows of the step, kv_heads · D]`.
        pub k_step: DevicePtr,
        /// Values, laid out as keys are.
        pub v_step: DevicePtr,
        /// The layer's keys: `[block][kv_head][block_size][D]`.
        pub k_pages: DevicePtr,
        /// Values, laid out as keys are.
        pub v_pages: DevicePtr,
        /// i32: block tables.
        pub tables: DevicePtr,
        /// [`Segment`]s.
        pub segments: DevicePtr,
        /// [`Span`]s.
        pub spans: DevicePtr,
        /// `[tiles_max]` [`Tile`]s.
        pub tiles: DevicePtr,
        /// Number of tiles that count (u32), or null for all.
        pub live: DevicePtr,
        /// `[heads · (2 · bias_reach + 1)]`: what distances add to scores, or null. Of
        /// [`AttnVarlenParams::launch_whole`] alone.
        pub bias: DevicePtr,
        /// Tiles of the launch.
        pub tiles_max: u32,
        /// Query heads: `kv_heads` times at most 64.
        pub heads: u32,
        /// Key-value heads.
        pub kv_heads: u32,
        /// A multiple of 8, at most 256.
        pub head_dim: u32,
        /// Elements from one row of `q` to the next: a multiple of 8, as the others.
        pub q_stride: u32,
        /// Elements from one row of `out` to the next.
        pub out_stride: u32,
        /// Elements from one row of `k_step` and of `v_step` to the next.
        pub step_stride: u32,
        /// Positions of a block: a power of two.
        pub block_size: u32,
        /// Factor on q · k, above 0.
        pub scale: f32,
        /// [`Tile::ROWS`] or [`Tile::ROWS_WIDE`]: what tiles were made for.
        pub tile_rows: u32,
        /// Positions before its own that a query sees at most, or [`NO_WINDOW`]; behind it too where
        /// queries see whole segments.
        pub window: u32,
        /// Bound of the scaled scores, or 0.
        pub cap: f32,
        /// Distances on either side that have a number of their own in `bias`.
        pub bias_reach: u32,
        /// 0.
        pub reserved: u32,
    }
}

/// The window of a query that sees all positions before its own.
pub const NO_WINDOW: u32 = u32::MAX;

/// Returns whether a kernel of the near form is needed.
pub(super) fn is_near(window: u32, cap: f32, head_dim: u32) -> bool {
    window != NO_WINDOW || cap > 0.0 || head_dim > 128
}

impl AttnVarlenParams {
    /// Returns a launch of one block for each tile and key-value head. None for a `head_dim` or
    /// `tile_rows` that no kernel takes.
    #[must_use]
    pub fn launch(&self) -> Option<Launch> {
        let padded = padded_head_dim(self.head_dim);
        let near = is_near(self.window, self.cap, self.head_dim);
        let (kernel, padded) = match (padded, self.tile_rows) {
            (Some(32), Tile::ROWS) if near => ("prelude_attn_varlen_near_32", 32),
            (Some(64), Tile::ROWS) if near => ("prelude_attn_varlen_near_64", 64),
            (Some(128), Tile::ROWS) if near => ("prelude_attn_varlen_near_128", 128),
            (Some(256), Tile::ROWS) => ("prelude_attn_varlen_near_256", 256),
            _ if near => return None,
            (Some(32), Tile::ROWS) => ("prelude_attn_varlen_32", 32),
            (Some(64), Tile::ROWS) => ("prelude_attn_varlen_64", 64),
            (Some(128), Tile::ROWS) => ("prelude_attn_varlen_128", 128),
            (Some(32), Tile::ROWS_WIDE) => ("prelude_attn_varlen_wide_32", 32),
            (Some(64), Tile::ROWS_WIDE) => ("prelude_attn_varlen_wide_64", 64),
            (Some(128), Tile::ROWS_WIDE) => ("prelude_attn_varlen_wide_128", 128),
            _ => return None,
        };
        Some(self.launch_of(kernel, padded))
    }

    /// Returns the launch for queries that see whole segments, each of one span in the step's K and V.
    /// None for a `head_dim` or `tile_rows` that no kernel takes, and with a `cap`.
    #[must_use]
    pub fn launch_whole(&self) -> Option<Launch> {
        let padded = padded_head_dim(self.head_dim);
        let is_biased = self.bias != DevicePtr::NULL;
        let (kernel, padded) = match (padded, self.tile_rows) {
            _ if self.cap > 0.0 => return None,
            (Some(32), Tile::ROWS) if is_biased => ("prelude_attn_biased_32", 32),
            (Some(64), Tile::ROWS) if is_biased => ("prelude_attn_biased_64", 64),
            (Some(128), Tile::ROWS) if is_biased => ("prelude_attn_biased_128", 128),
            _ if is_biased => return None,
            (Some(32), Tile::ROWS) => ("prelude_attn_whole_32", 32),
            (Some(64), Tile::ROWS) => ("prelude_attn_whole_64", 64),
            (Some(128), Tile::ROWS) => ("prelude_attn_whole_128", 128),
            (Some(256), Tile::ROWS) => ("prelude_attn_whole_256", 256),
            (Some(32), Tile::ROWS_WIDE) => ("prelude_attn_whole_wide_32", 32),
            (Some(64), Tile::ROWS_WIDE) => ("prelude_attn_whole_wide_64", 64),
            _ => return None,
        };
        Some(self.launch_of(kernel, padded))
    }

    fn launch_of(&self, kernel: &'static str, padded: u32) -> Launch {
        Launch {
            kernel,
            grid: [self.tiles_max, self.kv_heads, 1],
            block: [128, 1, 1],
            // The rows of Q, 64 each of K and V, of bf16, 8 elements apart.
            shared_bytes: (self.tile_rows + 2 * 64) * (padded + 8) * 2,
        }
    }
}

/// Returns the size that a kernel for `head_dim` works with, if there is one.
pub(super) const fn padded_head_dim(head_dim: u32) -> Option<u32> {
    match head_dim {
        0 => None,
        d if !d.is_multiple_of(8) => None,
        1..=32 => Some(32),
        33..=64 => Some(64),
        65..=128 => Some(128),
        129..=256 => Some(256),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_dims() {
        let kernel_of = |head_dim, tile_rows| {
            let params = AttnVarlenParams {
                head_dim,
                tile_rows,
                window: NO_WINDOW,
                ..bytemuck::Zeroable::zeroed()
            };
            params.launch().map(|l| (l.kernel, l.shared_bytes))
        };
        let kernel = |head_dim| kernel_of(head_dim, Tile::ROWS);
        let wide = kernel_of(128, Tile::ROWS_WIDE);
        assert_eq!(wide, Some(("prelude_attn_varlen_wide_128", 69_632)));
        assert_eq!(kernel_of(128, 96), None);
        assert_eq!(kernel(24), Some(("prelude_attn_varlen_32", 15_360)));
        assert_eq!(kernel(32), kernel(8));
        assert_eq!(kernel(40).map(|k| k.0), Some("prelude_attn_varlen_64"));
        assert_eq!(kernel(128), Some(("prelude_attn_varlen_128", 52_224)));
        let widest = kernel_of(256, Tile::ROWS);
        assert_eq!(widest, Some(("prelude_attn_varlen_near_256", 101_376)));
        assert_eq!(kernel_of(256, Tile::ROWS_WIDE), None);
        for none in [0, 4, 36, 264] {
            assert_eq!(kernel(none), None, "{none}");
        }
    }

    #[test]
    fn whole_segments() {
        let kernel = |head_dim, tile_rows, bias: u64, cap| {
            let params = AttnVarlenParams {
                head_dim,
                tile_rows,
                bias: DevicePtr(bias),
                cap,
                window: NO_WINDOW,
                ..bytemuck::Zeroable::zeroed()
            };
            params.launch_whole().map(|l| l.kernel)
        };
        let (narrow, wide) = (Tile::ROWS, Tile::ROWS_WIDE);
        assert_eq!(kernel(24, narrow, 0, 0.0), Some("prelude_attn_whole_32"));
        assert_eq!(kernel(64, wide, 0, 0.0), Some("prelude_attn_whole_wide_64"));
        assert_eq!(kernel(72, narrow, 8, 0.0), Some("prelude_attn_biased_128"));
        assert_eq!(kernel(136, narrow, 0, 0.0), Some("prelude_attn_whole_256"));
        // No kernel of these: too large a head, a bias or a large head in wide tiles, a bound.
        let none = [
            (136, narrow, 8, 0.0),
            (136, wide, 0, 0.0),
            (64, wide, 8, 0.0),
            (128, wide, 0, 0.0),
            (64, narrow, 0, 1.0),
        ];
        for (dim, rows, bias, cap) in none {
            assert_eq!(
                kernel(dim, rows, bias, cap),
                None,
                "{dim} {rows} {bias} {cap}"
            );
        }
    }

    #[test]
    fn tiles_hold_whole_groups() {
        let tokens = [1, 3, 8, 64].map(|group| Tile::tokens_max(group, Tile::ROWS));
        assert_eq!(tokens, [Some(64), Some(21), Some(8), Some(1)]);
        let none = [0, 65].map(|group| Tile::tokens_max(group, Tile::ROWS));
        assert_eq!(none, [None, None]);
        assert_eq!(Tile::tokens_max(3, Tile::ROWS_WIDE), Some(42));
    }
}
