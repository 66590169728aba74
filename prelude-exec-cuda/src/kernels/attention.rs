//! `attn_varlen` and `attn_whole` for prompts; `attn_decode`, or `attn_decode_shared` where rows share
//! pages, and `attn_combine` for rows of one token.

use half::bf16;
use prelude_core::Attention as VisibleTokens;
use prelude_kernels::{
    DevicePtr,
    families::{
        AttnDecodeParams, AttnVarlenParams, DecodeItem, DecodeRow, NO_WINDOW, Segment, Span, Tile,
    },
};
use prelude_models::AttnShape;

use super::{
    int,
    launch::{Access, Launcher, access},
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
    /// The layer's keys and values in the pool, a row for each block; none if nothing is kept.
    pub(crate) pages: Option<(View<bf16>, View<bf16>)>,
    pub(crate) block_size: usize,
    /// Block tables, `[1, _]`.
    pub(crate) tables: View<i32>,
    /// Positions before its own that a query sees at most, if not all; behind it as well where
    /// queries see whole segments.
    pub(crate) window: Option<u32>,
    /// Numbers that distances add to scores, `[1, Hq · (2 R + 1)]`. For whole segments alone.
    pub(crate) bias: Option<View<bf16>>,
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
    /// True if `sm90_attn` is to compute attention.
    pub(crate) on_hopper: bool,
}

/// Rows of one token whose keys and values are all in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decode {
    /// The chunk's.
    pub(crate) rows: View<DecodeRow>,
    /// The splits that rows read together; empty if each row reads for itself.
    pub(crate) items: View<DecodeItem>,
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
            self.pages.is_none_or(|(k, v)| k.width() == page && v.width() == page)
                => "pages of another shape",
        }
        Ok(())
    }

    /// Returns the addresses of the pages, and what a launch reads of them.
    fn pages(&self) -> ([DevicePtr; 2], Vec<Access>) {
        match self.pages {
            Some((k, v)) => {
                let reads = vec![access("k_pages", k), access("v_pages", v)];
                ([k.ptr(), v.ptr()], reads)
            }
            None => ([DevicePtr::NULL; 2], Vec::new()),
        }
    }

    /// Returns the number of distances on either side that have a number of their own.
    fn bias_reach(&self, kernel: &'static str) -> Result<usize, Error> {
        let Some(bias) = self.bias else {
            return Ok(0);
        };
        let numbers = bias.width() / self.shape.heads;
        rules! {
            kernel;
            numbers % 2 == 1 && numbers * self.shape.heads == bias.width()
                => "not an odd count of numbers for each head",
        }
        Ok(numbers / 2)
    }

    /// Returns the window and the cap as kernels take them.
    fn near(&self) -> (u32, f32) {
        let cap = self.shape.soft_cap.unwrap_or(0.0);
        (self.window.unwrap_or(NO_WINDOW), cap)
    }

    /// Launches attention of prompts.
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
        let is_whole = shape.attention == VisibleTokens::Full;
        rules! {
            KERNEL;
            is_whole || self.bias.is_none() => "a bias for queries that do not see whole segments",
        }
        if on.on_hopper {
            return self.prompts_on_hopper(launcher, on);
        }
        let ([k_pages, v_pages], _) = self.pages();
        let reads = self.prompt_reads(on);
        let (window, cap) = self.near();
        let params = AttnVarlenParams {
            q: self.q.ptr(),
            out: self.out.ptr(),
            k_step: k_step.ptr(),
            v_step: v_step.ptr(),
            k_pages,
            v_pages,
            tables: self.tables.ptr(),
            segments: on.segments.ptr(),
            spans: on.spans.ptr(),
            tiles: on.tiles.ptr(),
            live: DevicePtr::NULL,
            bias: self.bias.map_or(DevicePtr::NULL, |bias| bias.ptr()),
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
            bias_reach: int(self.bias_reach(KERNEL)?),
            reserved: 0,
        };
        let launch = match is_whole {
            true => params.launch_whole(),
            false => params.launch(),
        };
        let launch = launch.ok_or_else(|| Error::launch(KERNEL, "no such head_dim or form"))?;
        launcher.launch(&launch, &params, &reads, &[access("out", self.out)])
    }

    /// Returns the lists that a launch for prompts reads.
    pub(super) fn prompt_reads(&self, on: Prompts) -> Vec<Access> {
        let (_, mut reads) = self.pages();
        reads.extend([
            access("q", self.q),
            access("k_step", on.step.0),
            access("v_step", on.step.1),
            access("tables", self.tables),
            access("segments", on.segments),
            access("spans", on.spans),
            access("tiles", on.tiles),
        ]);
        reads.extend(self.bias.map(|bias| access("bias", bias)));
        reads
    }

    /// Launches attention of decode rows: splits, then their combination if there are several.
    pub(crate) fn decode(&self, launcher: &mut Launcher, on: Decode) -> Result<(), Error> {
        const KERNEL: &str = "attn_decode";
        self.check(KERNEL)?;
        let shape = self.shape;
        let rows = on.rows.width();
        rules! {
            KERNEL;
            self.pages.is_some() => "rows of one token without pages",
            on.partial.rows() >= rows * shape.heads * on.splits
                && on.partial.width() >= shape.head_dim + 2
                => "no room for the splits",
        }
        let items = on.items.width();
        let (window, cap) = self.near();
        let ([k_pages, v_pages], mut reads) = self.pages();
        let params = AttnDecodeParams {
            q: self.q.ptr(),
            out: self.out.ptr(),
            k_pages,
            v_pages,
            tables: self.tables.ptr(),
            rows: on.rows.ptr(),
            partial: on.partial.ptr(),
            live: DevicePtr::NULL,
            items: match items {
                0 => DevicePtr::NULL,
                _ => on.items.ptr(),
            },
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
            items_max: int(items),
        };
        reads.extend([
            access("q", self.q),
            access("tables", self.tables),
            access("rows", on.rows),
        ]);
        if items > 0 {
            reads.push(access("items", on.items));
        }
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
