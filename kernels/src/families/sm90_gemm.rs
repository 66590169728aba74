use crate::{DevicePtr, Launch, TensorMap, TensorTile, params::params};

params! {
    /// Parameters of `prelude_sm90_gemm`, `prelude_sm90_gemm_add` and `prelude_sm90_gemm_silu_mul`, and
    /// of `prelude_sm90_gemm_apart` and so on: products on Hopper. bf16 unless stated.
    pub struct Sm90GemmParams: 384 {
        /// [`Sm90GemmParams::tile`] of `[m, k]`.
        pub x: TensorMap,
        /// [`Sm90GemmParams::tile`] of `[n, k]`, or for [`Sm90Output::SiluMul`] of `[2n, k]`: gates
        /// first.
        pub w: TensorMap,
        /// `[m, n]`.
        pub y: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub m: u32,
        /// Columns of `y`: a multiple of 8.
        pub n: u32,
        /// Elements of a row of `x` and of `w`: a multiple of 8.
        pub k: u32,
        /// Elements from one row of `y` to the next: a multiple of 8.
        pub y_stride: u32,
        /// 0.
        pub reserved: [u32; 24],
    }
}

/// The use of a product on Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sm90Output {
    /// `y = x · wᵀ`.
    Write,
    /// `y += x · wᵀ`, rounded once.
    Add,
    /// `y = silu(x · gateᵀ) · (x · upᵀ)`, of the two halves of `w`.
    SiluMul,
}

/// Sums of a tile: rows of `x` by rows of `w`.
const TILE: [u32; 2] = [128, 256];

impl Sm90GemmParams {
    /// Returns the boxes in which the kernels copy `x` or `w`.
    #[must_use]
    pub const fn tile(at: DevicePtr, rows: u64, columns: u64, stride: u64) -> TensorTile {
        TensorTile {
            at,
            columns,
            rows,
            stride,
            box_columns: 64,
            box_rows: 128,
        }
    }

    /// Returns a launch of one block for each of a GPU's multiprocessors, but no more than there are
    /// tiles of `y`. Tiles are stored by the warps that multiply, or apart, by others meanwhile. Bits
    /// are the same.
    #[must_use]
    pub fn launch(&self, output: Sm90Output, apart: bool, multiprocessors: u32) -> Launch {
        let [rows, sums] = TILE;
        let kernel = match (output, apart) {
            (Sm90Output::Write, false) => "prelude_sm90_gemm",
            (Sm90Output::Add, false) => "prelude_sm90_gemm_add",
            (Sm90Output::SiluMul, false) => "prelude_sm90_gemm_silu_mul",
            (Sm90Output::Write, true) => "prelude_sm90_gemm_apart",
            (Sm90Output::Add, true) => "prelude_sm90_gemm_apart_add",
            (Sm90Output::SiluMul, true) => "prelude_sm90_gemm_apart_silu_mul",
        };
        let columns = match output {
            Sm90Output::SiluMul => sums / 2,
            Sm90Output::Write | Sm90Output::Add => sums,
        };
        // Stages of 64 elements of k, and columns of a tile that are to be stored.
        let (stages, kept) = if apart { (3, sums) } else { (4, sums / 2) };
        let tiles = u64::from(self.m.div_ceil(rows)) * u64::from(self.n.div_ceil(columns));
        let blocks = tiles.min(u64::from(multiprocessors));
        Launch {
            kernel,
            grid: [u32::try_from(blocks).unwrap_or(multiprocessors), 1, 1],
            block: [384, 1, 1],
            // Both, and at most 16 barriers.
            shared_bytes: stages * (rows + sums) * 64 * 2 + rows * kept * 2 + 128,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3-4B's products on 132 multiprocessors.
    #[test]
    fn blocks_follow_tiles_and_multiprocessors() {
        let check = |m, n, output, blocks| {
            let params = Sm90GemmParams {
                m,
                n,
                ..bytemuck::Zeroable::zeroed()
            };
            for (apart, bytes) in [(false, 229_504), (true, 213_120)] {
                let launch = params.launch(output, apart, 132);
                assert_eq!((launch.grid[0], launch.shared_bytes), (blocks, bytes));
            }
        };
        check(4096, 9728, Sm90Output::SiluMul, 132);
        check(1, 2560, Sm90Output::Add, 10);
        check(129, 2568, Sm90Output::Write, 22);
        check(129, 2568, Sm90Output::SiluMul, 42);
        check(0, 2560, Sm90Output::Write, 0);
        check(u32::MAX, u32::MAX, Sm90Output::Write, 132);
    }
}
