use super::{GemmFp8Params, GemmOutput};
use crate::Launch;

/// Elements of `k`, and rows of `w`, that have a scale in common.
pub const FP8_BLOCK: u32 = 128;
/// Scales are laid out for a multiple of this number: of rows of `x` whose scales lie group by group,
/// and of blocks in a row of blocks of `w`. Mirrors `fp8::FOUR`.
pub const FP8_FOUR: u32 = 4;
/// Rows whose scales lie row by row, whatever their number: mirrors `fp8::FEW`.
pub const FP8_FEW: u32 = 16;

/// Threads of the kernels for few rows, whatever `n` is: with 512 they would have too few registers.
const FEW_THREADS: u32 = 256;

/// The part of `y` that a block computes: mirrors `src/gemm_fp8_block.cu`. The bits of `y` are the same
/// with each.
struct Tile {
    /// The kernels for [`GemmOutput::Write`] and for [`GemmOutput::Add`], in this order.
    kernels: [&'static str; 2],
    /// Rows and columns of `y`.
    side: u32,
    threads: u32,
    stages: u32,
}

/// Blocks from which on tiles are large: as products in bf16 have it with tiles of half the size, and not
/// measured.
const LEAST_BLOCKS: u64 = 96;

/// Both tiles, the large one first.
const TILES: [Tile; 2] = [
    Tile {
        kernels: [
            "prelude_gemm_fp8_block_128x128",
            "prelude_gemm_fp8_block_add_128x128",
        ],
        side: 128,
        threads: 256,
        stages: 3,
    },
    Tile {
        kernels: [
            "prelude_gemm_fp8_block_64x64",
            "prelude_gemm_fp8_block_add_64x64",
        ],
        side: 64,
        threads: 128,
        stages: 5,
    },
];

/// `prelude_gemm_fp8_block_{128x128,64x64}`, `prelude_gemm_fp8_block_few_{8,16}` and those that add: `k` is
/// a multiple of [`FP8_BLOCK`]; scales are in the order of `fp8_scales.cuh`.
impl GemmFp8Params {
    /// The kernels for few rows and scales of blocks: 16 rows of `w` a block. None for more than 16
    /// rows, and for f32.
    #[must_use]
    pub fn launch_blocks_few(&self, output: GemmOutput) -> Option<Launch> {
        let kernel = match (output, self.m <= 8) {
            (GemmOutput::Write, true) => "prelude_gemm_fp8_block_few_8",
            (GemmOutput::Write, false) => "prelude_gemm_fp8_block_few_16",
            (GemmOutput::Add, true) => "prelude_gemm_fp8_block_few_add_8",
            (GemmOutput::Add, false) => "prelude_gemm_fp8_block_few_add_16",
            (GemmOutput::F32, _) => return None,
        };
        let launch = self.plain().launch_skinny(output)?;
        let [threads, ..] = launch.block;
        Some(Launch {
            kernel,
            block: [FEW_THREADS, 1, 1],
            // So much for each warp.
            shared_bytes: launch.shared_bytes / threads * FEW_THREADS,
            ..launch
        })
    }

    /// A block for each tile of `y`, of a shape that follows from the size of `y` alone, with scales of
    /// blocks. None for f32.
    #[must_use]
    pub fn launch_blocks(&self, output: GemmOutput) -> Option<Launch> {
        let [large, small] = self.launch_blocks_tiles(output)?;
        let [across, down, _] = large.grid;
        let blocks = u64::from(across) * u64::from(down);
        Some(if blocks < LEAST_BLOCKS { small } else { large })
    }

    /// The same with large tiles, and with small ones.
    #[must_use]
    pub fn launch_blocks_tiles(&self, output: GemmOutput) -> Option<[Launch; 2]> {
        let adds = match output {
            GemmOutput::Write => 0,
            GemmOutput::Add => 1,
            GemmOutput::F32 => return None,
        };
        Some(TILES.map(|tile| Launch {
            kernel: tile.kernels[adds],
            grid: [self.n.div_ceil(tile.side), self.m.div_ceil(tile.side), 1],
            block: [tile.threads, 1, 1],
            // A row of a stage has a block of k.
            shared_bytes: tile.stages * 2 * tile.side * FP8_BLOCK,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_products_have_small_tiles() {
        let launch = |m, n| {
            let params = GemmFp8Params {
                m,
                n,
                ..bytemuck::Zeroable::zeroed()
            };
            let launch = params.launch_blocks(GemmOutput::Write).unwrap();
            (launch.kernel, launch.grid)
        };
        let small = "prelude_gemm_fp8_block_64x64";
        assert_eq!(launch(17, 1000), (small, [16, 1, 1]));
        assert_eq!(launch(128, 12_160), (small, [190, 2, 1]));
        let large = ("prelude_gemm_fp8_block_128x128", [96, 1, 1]);
        assert_eq!(launch(100, 12_161), large);
    }
}
