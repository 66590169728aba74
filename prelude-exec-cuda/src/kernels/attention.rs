//! `attn_varlen` for prompts, `attn_decode` and `attn_combine` for rows of one token.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{AttnDecodeParams, AttnVarlenParams, DecodeRow, NO_WINDOW, Segment, Span, Tile},
};
use prelude_models::AttnShape;

use super::{
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

/// Keys of a split of `attn_decode`, at absolute positions.
pub(crate) const SPLIT_KEYS: usize = AttnDecodeParams::SPLIT_KEYS as usize;

/// The tensors that attention of one layer reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    pub(crate) shape: AttnShape,
    /// `[n, Hq · D]`, rows of the chunk.
    pub(crate) q: View<bf16>,
    /// `[n, Hq · D]`.
    pub(crate) out: View<bf16>,
    /// This layer's keys and values in the pool, a row for each block.
    pub(crate) pages: (View<bf16>, View<bf16>),
    pub(crate) block_size: usize,
    /// Block tables, `[1, _]`.
    pub(crate) tables: View<i32>,
    /// Positions before its own that a query sees at most, if not all.
    pub(crate) window: Option<u32>,
}

/// Queries of prompts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompts {
    /// Keys and values of the step's tokens, `[tokens, Hkv · D]` each.
    pub(crate) step: (View<bf16>, View<bf16>),
    pub(crate) segments: View<Segment>,
    pub(crate) spans: View<Span>,
    /// The chunk's.
    pub(crate) tiles: View<Tile>,
    /// Rows of a tile: [`Tile::ROWS`] or [`Tile::ROWS_WIDE`].
    pub(crate) tile_rows: u32,
}

/// Rows of one token whose keys and values are all in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decode {
    /// The chunk's.
    pub(crate) rows: View<DecodeRow>,
    /// Splits of the longest context.
    pub(crate) splits: usize,
    /// `[rows · Hq · splits, D + 2]`: maximum, sum and unscaled output of each split.
    pub(crate) partial: View<f32>,
}

impl Attention {
    fn check(&self, kernel: &'static str) -> Result<(), Error> {
        let shape = self.shape;
        let width = shape.out_width();
        rules! {
            kernel;
            self.q.width() == width && self.out.width() == width => "q or out has another width",
            self.q.rows() == self.out.rows() => "q and out differ in rows",
        }
        let dim = shape.head_dim;
        rules! {
            kernel;
            dim.is_multiple_of(8) && dim <= 256 => "no such head_dim",
            shape.heads.is_multiple_of(shape.kv_heads) => "key-value heads do not divide the heads",
        }
        let page = self.block_size * shape.kv_heads * dim;
        rules! {
            kernel;
            self.pages.0.width() == page && self.pages.1.width() == page
                => "pages of another shape",
        }
        Ok(())
    }

    /// The window and the cap as kernels take them.
    fn near(&self) -> (u32, f32) {
        let cap = self.shape.soft_cap.unwrap_or(0.0);
        (self.window.unwrap_or(NO_WINDOW), cap)
    }

    /// Attention of prompts.
    pub(crate) fn prompts(&self, launcher: &mut Launcher, on: Prompts) -> Result<(), Error> {
        const KERNEL: &str = "attn_varlen";
        self.check(KERNEL)?;
        let shape = self.shape;
        let (k_step, v_step) = on.step;
        let kv_width = shape.kv_heads * shape.head_dim;
        rules! {
            KERNEL;
            k_step.width() == kv_width && v_step.width() == kv_width
                => "the step's K/V have another width",
            k_step.stride() == v_step.stride() => "K and V differ in stride",
        }
        let reads = [
            access("q", self.q),
            access("k_step", k_step),
            access("v_step", v_step),
            access("k_pages", self.pages.0),
            access("v_pages", self.pages.1),
            access("tables", self.tables),
            access("segments", on.segments),
            access("spans", on.spans),
            access("tiles", on.tiles),
        ];
        let (window, cap) = self.near();
        let params = AttnVarlenParams {
            q: self.q.ptr(),
            out: self.out.ptr(),
            k_step: k_step.ptr(),
            v_step: v_step.ptr(),
            k_pages: self.pages.0.ptr(),
            v_pages: self.pages.1.ptr(),
            tables: self.tables.ptr(),
            segments: on.segments.ptr(),
            spans: on.spans.ptr(),
            tiles: on.tiles.ptr(),
            live: DevicePtr::NULL,
            tiles_max: int(on.tiles.width()),
            heads: int(shape.heads),
            kv_heads: int(shape.kv_heads),
            head_dim: int(shape.head_dim),
            q_stride: int(self.q.stride()),
            out_stride: int(self.out.stride()),
            step_stride: int(k_step.stride()),
            block_size: int(self.block_size),
            scale: shape.scale,
            tile_rows: on.tile_rows,
            window,
            cap,
        };
        let launch = params
            .launch()
            .ok_or_else(|| Error::launch(KERNEL, "no such head_dim"))?;
        launcher.launch(&launch, &params, &reads, &[access("out", self.out)])
    }

    /// Attention of decode rows: splits, then their combination if there are several.
    pub(crate) fn decode(&self, launcher: &mut Launcher, on: Decode) -> Result<(), Error> {
        const KERNEL: &str = "attn_decode";
        self.check(KERNEL)?;
        let shape = self.shape;
        let rows = on.rows.width();
        rules! {
            KERNEL;
            on.partial.rows() >= rows * shape.heads * on.splits
                && on.partial.width() >= shape.head_dim + 2
                => "no room for the splits",
        }
        let (window, cap) = self.near();
        let params = AttnDecodeParams {
            q: self.q.ptr(),
            out: self.out.ptr(),
            k_pages: self.pages.0.ptr(),
            v_pages: self.pages.1.ptr(),
            tables: self.tables.ptr(),
            rows: on.rows.ptr(),
            partial: on.partial.ptr(),
            live: DevicePtr::NULL,
            rows_max: int(rows),
            splits: int(on.splits),
            heads: int(shape.heads),
            kv_heads: int(shape.kv_heads),
            head_dim: int(shape.head_dim),
            q_stride: int(self.q.stride()),
            out_stride: int(self.out.stride()),
            block_size: int(self.block_size),
            scale: shape.scale,
            window,
            cap,
            reserved: 0,
        };
        let reads = [
            access("q", self.q),
            access("k_pages", self.pages.0),
            access("v_pages", self.pages.1),
            access("tables", self.tables),
            access("rows", on.rows),
        ];
        let launch = params
            .launch()
            .ok_or_else(|| Error::launch(KERNEL, "no such head_dim"))?;
        let writes = [access("out", self.out), access("partial", on.partial)];
        launcher.launch(&launch, &params, &reads, &writes)?;
        let Some(launch) = params.launch_combine() else {
            return Ok(());
        };
        let reads = [access("rows", on.rows), access("partial", on.partial)];
        launcher.launch(&launch, &params, &reads, &[access("out", self.out)])
    }
}
