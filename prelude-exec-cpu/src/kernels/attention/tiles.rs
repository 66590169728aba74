//! [`super::Attention`] on matrix units: gathers queries, keys and values for [`Flash`].

use super::{Attention, Queries, Scratch, TASK_ROWS_ON_TILES, locations::for_runs};
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
    head_dim: usize,
    flash: Flash,
    /// Outputs of 16 queries, 16 components at a time.
    rows: Vec<[f32; ROWS]>,
}

impl TileScratch {
    pub(super) fn new(isa: Supported, head_dim: usize) -> Self {
        Self {
            head_dim,
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
    /// Attends on a matrix unit, 16 queries at a time.
    pub(super) fn run_on_tiles(
        &self,
        isa: Supported,
        queries: &Queries<'_>,
        scratch: &mut Scratch,
        tile: &mut TileMut<'_, f32>,
    ) {
        let count = queries.rows();
        let dim = self.shape.head_dim;
        // Layers behind a model's own may have heads of another size.
        scratch.tiles.take_if(|tiles| tiles.head_dim != dim);
        let tiles = scratch
            .tiles
            .get_or_insert_with(|| TileScratch::new(isa, dim));
        let TileScratch { flash, rows, .. } = tiles;
        flash.begin(count);
        let sixteens = || (0..count).step_by(ROWS).enumerate();
        for (index, first) in sixteens() {
            let (mut lanes, mut positions): ([&[f32]; ROWS], _) = ([&[]; ROWS], [0; ROWS]);
            let len = ROWS.min(count - first);
            for lane in 0..len {
                lanes[lane] = self.query(queries, first + lane);
                positions[lane] = queries.last_seen(first + lane);
            }
            flash.set_queries(index, &lanes[..len], &positions[..len]);
        }
        let tiles = Tiles::new(isa);
        let mut cursor = 0;
        for positions in self.tiles(queries) {
            let (mut keys, mut values) = ([[].as_slice(); NR], [[].as_slice(); NR]);
            let (start, count) = (positions.start, positions.len());
            for_runs(
                self.layout,
                queries.path,
                &mut cursor,
                positions,
                |position, location, run| {
                    let lanes = (position - start) as usize..;
                    for (lane, i) in lanes.zip(0..run) {
                        let (key, value) = self.head(location, i, queries.kv_head);
                        (keys[lane], values[lane]) = (E::bf16_bits(key), E::bf16_bits(value));
                    }
                },
            );
            flash.set_keys(start, &keys[..count], &values[..count]);
            flash.attend(&tiles, self.shape.scale);
        }
        drop(tiles);
        for (index, first) in sixteens() {
            flash.finish(index, rows);
            for lane in 0..ROWS.min(count - first) {
                let out = self.out(queries, first + lane, tile).chunks_mut(ROWS);
                for (out, components) in out.zip(rows[lane..].iter().step_by(ROWS)) {
                    out.copy_from_slice(&components[..out.len()]);
                }
            }
        }
    }
}
