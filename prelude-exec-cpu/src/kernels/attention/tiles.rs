//! [`super::Attention`] on matrix units: gathers queries, keys and values for [`Flash`].

use super::{Attention, Scratch, SegmentPart, TASK_ROWS_ON_TILES, for_locations};
use crate::{
    kernels::{
        Supported,
        kv::KvElement,
        panel::NR,
        tiles::ROWS,
        x86::{amx::Tiles, amx_attention::Flash},
    },
    pool::TileMut,
};

/// Buffers of one worker.
#[derive(Debug)]
pub(super) struct TileScratch {
    flash: Flash,
    /// Outputs of 16 queries, 16 components at a time.
    rows: Vec<[f32; ROWS]>,
}

impl TileScratch {
    pub(super) fn new(isa: Supported, head_dim: usize) -> Self {
        Self {
            flash: Flash::new(isa, head_dim, TASK_ROWS_ON_TILES),
            rows: vec![[0.0; ROWS]; head_dim.next_multiple_of(ROWS)],
        }
    }
}

/// Returns about how many bytes [`TileScratch`] takes.
pub(super) fn scratch_bytes(head_dim: usize) -> usize {
    Flash::bytes(head_dim, TASK_ROWS_ON_TILES)
}

impl<E: KvElement> Attention<'_, E> {
    pub(super) fn run_on_tiles(
        &self,
        isa: Supported,
        part: &SegmentPart<'_>,
        scratch: &mut Scratch,
        tile: &mut TileMut<'_, f32>,
    ) {
        let (dim, half) = (self.shape.head_dim, self.kv.half);
        let group = self.shape.heads / self.shape.kv_heads;
        let kv_head = self.head(tile);
        let SegmentPart { tokens, path, .. } = part;
        let count = tokens.len() * group;
        let TileScratch { flash, rows } = scratch
            .tiles
            .get_or_insert_with(|| TileScratch::new(isa, dim));
        flash.begin(count);
        let sixteens = || (0..count).step_by(ROWS).enumerate();
        for (index, first) in sixteens() {
            let (mut queries, mut positions): ([&[f32]; ROWS], _) = ([&[]; ROWS], [0; ROWS]);
            let lanes = ROWS.min(count - first);
            for lane in 0..lanes {
                let row = first + lane;
                let token = tokens.start + row / group;
                queries[lane] = self.query(token, kv_head * group + row % group);
                positions[lane] = part.last_seen(self.layout, token);
            }
            flash.set_queries(index, &queries[..lanes], &positions[..lanes]);
        }
        let tiles = Tiles::new(isa);
        let end = part.last_seen(self.layout, tokens.end - 1) + 1;
        let head = kv_head * dim..(kv_head + 1) * dim;
        let mut cursor = 0;
        for start in (0..end).step_by(NR) {
            let keys = (end - start).min(NR as u32);
            let (mut tile_keys, mut tile_values) = ([[].as_slice(); NR], [[].as_slice(); NR]);
            let range = start..start + keys;
            for_locations(
                self.layout,
                path,
                &mut cursor,
                range,
                |position, location| {
                    let (k, v) = self.row(location).split_at(half);
                    let lane = (position - start) as usize;
                    tile_keys[lane] = E::bf16_bits(&k[head.clone()]);
                    tile_values[lane] = E::bf16_bits(&v[head.clone()]);
                },
            );
            let keys = keys as usize;
            flash.set_keys(start, &tile_keys[..keys], &tile_values[..keys]);
            flash.attend(&tiles, self.shape.scale);
        }
        drop(tiles);
        for (index, first) in sixteens() {
            flash.finish(index, rows);
            for lane in 0..ROWS.min(count - first) {
                let row = first + lane;
                let token = tokens.start + row / group;
                let out = tile.row(token - self.rows.start - tile.first_row);
                let out = out[row % group * dim..][..dim].chunks_mut(ROWS);
                for (out, components) in out.zip(rows[lane..].iter().step_by(ROWS)) {
                    out.copy_from_slice(&components[..out.len()]);
                }
            }
        }
    }
}
