use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_gemm_mma`, `prelude_gemm_mma_add` and `prelude_gemm_mma_f32`, and of
    /// `prelude_gemm_skinny_{8,16}`, `prelude_gemm_skinny_add_{8,16}` and
    /// `prelude_gemm_skinny_f32_{8,16}`:
    /// `y = x · wᵀ (+ bias)`, or `y += …`. bf16 unless stated.
    pub struct GemmParams: 64 {
        /// `[m, k]`.
        pub x: DevicePtr,
        /// `[n, k]`.
        pub w: DevicePtr,
        /// `[n]`, or null.
        pub bias: DevicePtr,
        /// `[m, n]`, f32 for [`GemmOutput::F32`].
        pub y: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub m: u32,
        /// Rows of `w`.
        pub n: u32,
        /// Elements of a row of `x` and of `w`: a multiple of 8.
        pub k: u32,
        /// Elements from one row of `x` to the next: a multiple of 8.
        pub x_stride: u32,
        /// Elements from one row of `w` to the next.
        pub w_stride: u32,
        /// Elements from one row of `y` to the next, a multiple of 2.
        pub y_stride: u32,
    }
}

/// The use of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmOutput {
    /// `y = x · wᵀ (+ bias)`, bf16.
    Write,
    /// `y += x · wᵀ (+ bias)`, bf16, rounded once.
    Add,
    /// `y = x · wᵀ (+ bias)`, f32.
    F32,
}

/// Most rows of [`GemmParams::launch_skinny`].
const SKINNY_ROWS: u32 = 16;
/// Rows of `w` of one block of the kernels for few rows.
const SKINNY_TILE: u32 = 16;
/// The number of blocks, more than some GPUs have multiprocessors, below which blocks are larger.
const SKINNY_BLOCKS: u32 = 132;

/// The part of `y` that a block computes: mirrors `gemm::Tile`. The bits of `y` are the same with each.
#[derive(Debug)]
pub struct GemmTile {
    /// The kernels, by [`GemmOutput`].
    kernels: [&'static str; 3],
    rows: u32,
    columns: u32,
    threads: u32,
    /// Elements of `k` of a stage.
    slab: u32,
    stages: u32,
    /// The number of blocks from which on a product takes this tile: it takes the first tile that gives
    /// its grid so many. With fewer, multiprocessors have nothing to do, and those that do wait for
    /// memory most of the time. Tiles and numbers were chosen by measuring 19 tiles on an H100, over
    /// the shapes of Qwen3-0.6B and 4B.
    least_blocks: u32,
}

impl GemmTile {
    /// The tiles, from large to small.
    pub const ALL: [Self; 4] = [
        Self {
            kernels: [
                "prelude_gemm_mma_128x256",
                "prelude_gemm_mma_add_128x256",
                "prelude_gemm_mma_f32_128x256",
            ],
            rows: 128,
            columns: 256,
            threads: 256,
            slab: 32,
            stages: 4,
            least_blocks: 70,
        },
        Self {
            kernels: [
                "prelude_gemm_mma_128x64",
                "prelude_gemm_mma_add_128x64",
                "prelude_gemm_mma_f32_128x64",
            ],
            rows: 128,
            columns: 64,
            threads: 128,
            slab: 64,
            stages: 4,
            least_blocks: 96,
        },
        Self {
            kernels: [
                "prelude_gemm_mma_64x64",
                "prelude_gemm_mma_add_64x64",
                "prelude_gemm_mma_f32_64x64",
            ],
            rows: 64,
            columns: 64,
            threads: 128,
            slab: 64,
            stages: 5,
            least_blocks: 80,
        },
        Self {
            kernels: [
                "prelude_gemm_mma_32x32",
                "prelude_gemm_mma_add_32x32",
                "prelude_gemm_mma_f32_32x32",
            ],
            rows: 32,
            columns: 32,
            threads: 128,
            slab: 64,
            stages: 10,
            least_blocks: 0,
        },
    ];

    /// The tile of products whose kernels have one alone.
    pub(super) const MIDDLE: Self = {
        let [.., middle, _] = Self::ALL;
        middle
    };

    const fn grid(&self, params: &GemmParams) -> [u32; 3] {
        let across = params.n.div_ceil(self.columns);
        [across, params.m.div_ceil(self.rows), 1]
    }
}

impl GemmParams {
    /// Returns the launch of the kernels for few rows: one block for each 16 rows of `w`. None for more
    /// than 16 rows.
    #[must_use]
    pub const fn launch_skinny(&self, output: GemmOutput) -> Option<Launch> {
        if self.m > SKINNY_ROWS {
            return None;
        }
        let kernel = match (output, self.m <= 8) {
            (GemmOutput::Write, true) => "prelude_gemm_skinny_8",
            (GemmOutput::Write, false) => "prelude_gemm_skinny_16",
            (GemmOutput::Add, true) => "prelude_gemm_skinny_add_8",
            (GemmOutput::Add, false) => "prelude_gemm_skinny_add_16",
            (GemmOutput::F32, true) => "prelude_gemm_skinny_f32_8",
            (GemmOutput::F32, false) => "prelude_gemm_skinny_f32_16",
        };
        let blocks = self.n.div_ceil(SKINNY_TILE);
        let warps = if blocks < SKINNY_BLOCKS { 16 } else { 8 };
        let sums = if self.m <= 8 { 8 } else { 16 };
        Some(Launch {
            kernel,
            grid: [blocks, 1, 1],
            block: [32 * warps, 1, 1],
            shared_bytes: warps * SKINNY_TILE * (sums + 1) * 4,
        })
    }

    /// Returns a launch of one block for each tile of `y`, of a shape that follows from the size of `y`
    /// alone.
    #[must_use]
    pub const fn launch(&self, output: GemmOutput) -> Launch {
        let mut i = 0;
        loop {
            let tile = &GemmTile::ALL[i];
            let [across, down, _] = tile.grid(self);
            i += 1;
            let is_last = i == GemmTile::ALL.len();
            if is_last || across as u64 * down as u64 >= tile.least_blocks as u64 {
                return self.launch_tile(output, tile);
            }
        }
    }

    /// Returns a launch of one block for each tile of `y` of this shape.
    #[must_use]
    pub const fn launch_tile(&self, output: GemmOutput, tile: &GemmTile) -> Launch {
        Launch {
            kernel: tile.kernels[output as usize],
            grid: tile.grid(self),
            block: [tile.threads, 1, 1],
            shared_bytes: tile.stages * (tile.rows + tile.columns) * tile.slab * 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_shrink_until_there_are_enough_blocks() {
        let grid = |m, n| {
            let params = GemmParams {
                m,
                n,
                ..bytemuck::Zeroable::zeroed()
            };
            let launch = params.launch(GemmOutput::Add);
            (launch.kernel, launch.grid)
        };
        // Qwen3-0.6B's products of 128 tokens and of 8,192.
        assert_eq!(grid(128, 4096), ("prelude_gemm_mma_add_64x64", [64, 2, 1]));
        assert_eq!(grid(128, 1024), ("prelude_gemm_mma_add_32x32", [32, 4, 1]));
        let large = ("prelude_gemm_mma_add_128x256", [4, 64, 1]);
        assert_eq!(grid(8192, 1024), large);
        // 2³² blocks and more.
        let [across, ..] = grid(u32::MAX, u32::MAX).1;
        assert_eq!(across, 1 << 24);
    }
}
