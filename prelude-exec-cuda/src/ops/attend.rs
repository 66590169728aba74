//! Attention of a chunk: rows of prompts, then rows that decode.

use std::ops::Range;

use half::bf16;
use prelude_models::{AttnShape, Distances, step::ArenaTensor};

use super::{CudaOps, chunk};
use crate::{
    Error, StepPlan, Weight,
    kernels::attention::{Attention, Decode, Prompts},
    memory::view::View,
    plan::DecodeLaunch,
};

impl CudaOps {
    /// Returns the step's own keys and values: in a buffer for all of them if there is one, else in
    /// the fused rows of the only chunk.
    fn step_kv(&self, shape: AttnShape, qkv: View<bf16>) -> (View<bf16>, View<bf16>) {
        let (q, kv) = (shape.out_width(), shape.kv_heads * shape.head_dim);
        match &self.own_kv {
            Some([k, v]) => (self.arena.view(k), self.arena.view(v)),
            None => (qkv.columns(q..q + kv), qkv.columns(q + kv..q + 2 * kv)),
        }
    }

    /// Launches attention of a chunk, as far as `distances` let it see.
    pub(super) fn attend(
        &mut self,
        inputs: &StepPlan,
        layer: usize,
        rows: Range<usize>,
        (shape, distances): (AttnShape, Distances<'_, Weight>),
        qkv: &ArenaTensor,
        out: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let chunk = chunk(inputs, &rows)?;
        let qkv = self.arena.view(qkv).slice(0..rows.len());
        let attention = Attention {
            shape,
            q: qkv.columns(0..shape.out_width()),
            out: self.arena.view(out).slice(0..rows.len()),
            pages: self.pages(layer),
            block_size: self.kv.shape().block_size,
            tables: self.metadata.view(self.fields.tables),
            window: distances.window,
            bias: distances.bias.map(Weight::vector),
        };
        let prompts = Prompts {
            step: self.step_kv(shape, qkv),
            segments: self.metadata.view(self.fields.segments),
            spans: self.metadata.view(self.fields.spans),
            tiles: self.metadata.part(self.fields.tiles, chunk.tiles.clone()),
            tile_rows: chunk.tile_rows,
            on_hopper: self.on_hopper,
        };
        attention.prompts(&mut self.launcher, prompts)?;
        self.attend_decode(attention, &inputs.launches[chunk.launches.clone()])
    }

    fn attend_decode(&mut self, on: Attention, launches: &[DecodeLaunch]) -> Result<(), Error> {
        let width = on.shape.head_dim + 2;
        for launch in launches {
            let rows = launch.rows.len() * on.shape.heads * launch.splits;
            on.decode(
                &mut self.launcher,
                Decode {
                    rows: self.metadata.part(self.fields.decode, launch.rows.clone()),
                    items: self.metadata.part(self.fields.items, launch.items.clone()),
                    splits: launch.splits,
                    partial: self.partial.view(0, rows, width),
                },
            )?;
        }
        Ok(())
    }
}
