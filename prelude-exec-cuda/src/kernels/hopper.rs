//! `sm90_attn`: attention of prompts by Hopper's own instructions, on GPUs of compute capability 9.0:
//! [`crate::PromptAttention`].

use half::bf16;
use prelude_core::Attention as VisibleTokens;
use prelude_kernels::{
    DevicePtr, TensorMap,
    families::{Sm90AttnParams, Tile},
};
use prelude_models::{AttnShape, ModelConfig};

use super::{
    attention::{Attention, Prompts},
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

const KERNEL: &str = "sm90_attn";

/// Returns whether the kernel takes every layer of a model: causal, heads of 64 or 128 elements, no
/// windows and no bound of scores.
pub(crate) fn takes(model: &ModelConfig) -> bool {
    model.attention == VisibleTokens::Causal
        && model.local.is_none()
        && model.scales.attention_cap.is_none()
        && model.encoder.is_none()
        && [64, 128].contains(&model.head_dim)
}

impl Attention {
    /// Launches attention of prompts as [`Attention::prompts`] does, of tiles of [`Tile::ROWS_WIDE`]
    /// rows.
    pub(super) fn prompts_on_hopper(
        &self,
        launcher: &mut Launcher,
        on: Prompts,
    ) -> Result<(), Error> {
        let shape = self.shape;
        let (k_step, v_step) = on.step;
        rules! {
            KERNEL;
            on.tile_rows == Tile::ROWS_WIDE => "tiles of another size",
            self.window.is_none() && self.bias.is_none() && shape.soft_cap.is_none()
                && shape.attention == VisibleTokens::Causal
                => "a form of attention that it does not have",
        }
        let (k_pages, v_pages) = self.pages.unzip();
        let params = Sm90AttnParams {
            k: self.boxes(launcher, k_step, k_pages)?,
            v: self.boxes(launcher, v_step, v_pages)?,
            q: self.q.ptr(),
            out: self.out.ptr(),
            tables: self.tables.ptr(),
            segments: on.segments.ptr(),
            spans: on.spans.ptr(),
            tiles: on.tiles.ptr(),
            live: DevicePtr::NULL,
            tiles_max: int(on.tiles.width()),
            heads: int(shape.heads),
            kv_heads: int(shape.kv_heads),
            q_stride: int(self.q.stride()),
            out_stride: int(self.out.stride()),
            step_rows: int(k_step.rows()),
            block_size: int(self.block_size),
            scale: shape.scale,
            reserved: [0; 10],
        };
        let launch = params.launch(int(shape.head_dim), launcher.multiprocessors());
        let launch = launch.ok_or_else(|| Error::launch(KERNEL, "no such head_dim"))?;
        let reads = self.prompt_reads(on);
        launcher.launch(&launch, &params, &reads, &[access("out", self.out)])
    }

    /// Returns the boxes that keys, or values, are copied in: of the step's and of the pages'.
    fn boxes(
        &self,
        launcher: &Launcher,
        step: View<bf16>,
        pages: Option<View<bf16>>,
    ) -> Result<[TensorMap; 5], Error> {
        let AttnShape {
            kv_heads, head_dim, ..
        } = self.shape;
        let [rows, width, stride] = [step.rows(), step.width(), step.stride()].map(|n| n as u64);
        let step = Sm90AttnParams::boxes(step.ptr(), rows, width, stride);
        let pages = pages.map(|pages| {
            let rows = pages.rows() * kv_heads * self.block_size;
            let width = head_dim as u64;
            Sm90AttnParams::boxes(pages.ptr(), rows as u64, width, width)
        });
        let map = |tile| launcher.tensor_map(tile);
        let [by_16, by_1, by_128] = step;
        let [pages_by_16, pages_by_1] = match pages {
            Some([by_16, by_1, _]) => [map(by_16)?, map(by_1)?],
            // No test reads the page.
            None => [TensorMap::new([0; 16]); 2],
        };
        let [by_16, by_1, by_128] = [map(by_16)?, map(by_1)?, map(by_128)?];
        Ok([by_16, by_1, pages_by_16, pages_by_1, by_128])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{memory::space::Space, record::Recording};

    /// Returns the record of a launch of three tiles, or the reason why it is refused.
    fn launch(head_dim: usize, tile_rows: u32, window: Option<u32>) -> Result<String, String> {
        let recording = Arc::new(Recording::default());
        let space = Space::Virtual(Arc::clone(&recording));
        let alloc = |name| space.alloc(name, 1 << 16).unwrap();
        let shape = AttnShape {
            attention: VisibleTokens::Causal,
            heads: 4,
            kv_heads: 2,
            head_dim,
            scale: 0.125,
            soft_cap: None,
        };
        let pages = || alloc("pages").view(0, 4, 2 * 16 * head_dim);
        let attention = Attention {
            shape,
            q: alloc("q").view(0, 8, 4 * head_dim),
            out: alloc("out").view(0, 8, 4 * head_dim),
            pages: Some((pages(), pages())),
            block_size: 16,
            tables: alloc("tables").view(0, 1, 4),
            window,
            bias: None,
        };
        let step = || alloc("step").view(0, 8, 2 * head_dim);
        let prompts = Prompts {
            step: (step(), step()),
            segments: alloc("segments").view(0, 1, 1),
            spans: alloc("spans").view(0, 1, 1),
            tiles: alloc("tiles").view(0, 1, 3),
            tile_rows,
            on_hopper: true,
        };
        let mut launcher = Launcher::Record(Arc::clone(&recording), None);
        let result = attention.prompts(&mut launcher, prompts);
        let lines = recording.take().join("\n");
        result.map(|()| lines).map_err(|e| e.to_string())
    }

    /// The kernel is launched where it is asked for, and refused what it does not have.
    #[test]
    fn the_kernel_is_launched_or_refused_by_shape() {
        let check = |head_dim, tile_rows, window, expected: &str| {
            let text = launch(head_dim, tile_rows, window).unwrap_or_else(|why| why);
            assert!(text.contains(expected), "{text}");
        };
        let wide = Tile::ROWS_WIDE;
        check(
            64,
            wide,
            None,
            "prelude_sm90_attn_64 <<<3, 384, 98368 B>>> q=q",
        );
        check(
            128,
            wide,
            None,
            "prelude_sm90_attn_128 <<<3, 384, 196672 B>>> q=q",
        );
        check(64, wide, None, "step_rows=8 block_size=16 scale=0.125");
        check(32, wide, None, "no such head_dim");
        check(64, Tile::ROWS, None, "tiles of another size");
        check(
            64,
            wide,
            Some(5),
            "a form of attention that it does not have",
        );
    }
}
