// gemm_fp8_block:          y[m, n]  = Σ_b (x[m, b] · w[n, b]ᵀ) · x_scale[m, b] · w_scale[n / 128, b] (+ bias[n])
// gemm_fp8_block_add:      y[m, n] += the same                                 rounded once
// gemm_fp8_block_few:      as gemm_fp8_block, m ≤ 16
// gemm_fp8_block_few_add:  as gemm_fp8_block_add, m ≤ 16
//
// b: blocks of 128 elements of k, which is a multiple of 128. x_scale f32: for each row of x in each block;
// w_scale f32: for 128 rows of w at a time; both as fp8_scales.cuh has them. The rest as in gemm_fp8.
//
// The sum of a block's products, times the product of the two scales, is added to the sum of f32 of
// those before it, rounded once, blocks ascending; in gemm_fp8_block_few the half of a block is summed by
// itself. So an element's bits depend on its row of x and its row of w alone: in gemm_fp8_block for
// every m and each tile, in gemm_fp8_block_few for m ≤ 16.
//
// e4m3 are multiplied by the instruction for them. On GPUs of compute capability 9.0 that keeps some 14
// bits of a sum, which is of at most 128 products here and not of k.
//
// Launch: a block for each tile of y, 64 × 64 or 128 × 128; or as gemm_skinny, with 256 threads.
// Bound: m · n · k FLOPs of bf16, or n · k bytes where m is small.
//
// Not tuned: tiles, stages; wgmma.
#pragma once

#include "prelude/fp8_scales.cuh"
#include "prelude/gemm_fp8.cuh"

namespace prelude {

namespace fp8 {

constexpr u32 BLOCK_PAIRS = BLOCK / 2;  // of k, in pairs of bytes

// Four e4m3 a register, multiplied as such.
struct Bytes {
    static PRELUDE_DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
        // Compiled, and refused before it is launched: sums are 2^-16 times what they should be.
        Factors::multiply(c, a, b0, b1);
#else
        mma_m16n8k32(c, a, b0, b1);
#endif
    }
};

// The same for few rows, whose sums are of half a block.
struct BlockFactors : Bytes {
    static constexpr bool BLOCKS = true;
    Global<const float> x_scale, w_scale;
    u32 blocks;  // of k

    PRELUDE_DEVICE BlockFactors(const GemmFp8Params& p)
        : x_scale(p.x_scale), w_scale(p.w_scale), blocks(p.k / BLOCK) {}
    // What the sum of products of the block of pair `at` is multiplied with.
    PRELUDE_DEVICE float scale(u32 row, u32 column, u32 at) const {
        u32 block = at / BLOCK_PAIRS;
        // Few rows: row by row.
        float of_x = load(x_scale + (u64(row) * blocks + block));
        u64 of_w = u64(column / BLOCK) * block_stride(blocks) + block;
        return mul_rn(of_x, load_ro(w_scale + of_w));
    }
    PRELUDE_DEVICE float value(u32, u32, float sum) const { return sum; }
};

// The scales of a block of k: of the warp's rows, one of every 32 a lane, for each of PARTS equal ranges of the
// warp's columns.
template <class T, u32 PARTS>
struct LaneScales {
    static_assert(16 * T::ROWS % WARP == 0 && T::COLUMNS % PARTS == 0);
    static constexpr u32 COUNT = 16 * T::ROWS / WARP;
    float of[PARTS][COUNT];
};

// Multiplies all blocks of k of a tile, which is counted in pairs of bytes, and adds up their sums times
// their scales. `fetch_scales` reads those of a block, asked for while the one before it is multiplied. All
// threads of a block of threads call this.
template <class T, u32 PARTS, class Fetch>
PRELUDE_DEVICE void multiply_blocks(float (&sums)[T::ROWS][T::COLUMNS][4], gemm::Source<T, T::X> x,
                                    gemm::Source<T, T::W> w, u32 k, const Fetch& fetch_scales) {
    static_assert(BLOCK_PAIRS % T::SLAB == 0);
    constexpr u32 SLABS = BLOCK_PAIRS / T::SLAB;  // of a block
    constexpr u32 COLUMNS = T::COLUMNS / PARTS;
    LaneScales<T, PARTS> scales;
    fetch_scales(0, scales);
    float part[T::ROWS][T::COLUMNS][4];
    PRELUDE_UNROLL
    for (u32 i = 0; i < T::ROWS * T::COLUMNS * 4; i++) {
        sums[i / 4 / T::COLUMNS][i / 4 % T::COLUMNS][i % 4] = 0.0f;
    }
    auto end_block = [&](u32 slab) {
        if ((slab + 1) % SLABS != 0) return;
        PRELUDE_UNROLL
        for (u32 i = 0; i < 2 * T::ROWS; i++) {
            PRELUDE_UNROLL
            for (u32 j = 0; j < T::COLUMNS; j += COLUMNS) {
                // Eight rows of the warp.
                float scale = shuffle(scales.of[j / COLUMNS][8 * i / WARP], 8 * i % WARP + lane_id() / 4);
                PRELUDE_UNROLL
                for (u32 n = 0; n < COLUMNS; n++) {
                    PRELUDE_UNROLL
                    for (u32 e = i % 2 * 2; e < i % 2 * 2 + 2; e++) {
                        float& sum = sums[i / 2][j + n][e];
                        sum = fma(part[i / 2][j + n][e], scale, sum);
                        part[i / 2][j + n][e] = 0.0f;
                    }
                }
            }
        }
        u32 next = slab / SLABS + 1;
        if (next < k / BLOCK_PAIRS) fetch_scales(next, scales);
    };
    gemm::multiply_slabs<T, Bytes>(part, dynamic_shared<bf16>(), x, w, k, end_block);
}

}  // namespace fp8

template <class T, GemmOutput Output>
PRELUDE_DEVICE void gemm_fp8_block(const GemmFp8Params& params) {
    // A tile lies within a row of blocks of w.
    static_assert(fp8::BLOCK % T::W == 0);
    GemmParams p = fp8::pairs(params);
    dep_wait();
    u32 rows = live_rows(p.live, p.m);
    Index3 tile = gemm::tile_of_block();
    u32 first_row = tile.y * T::X, first_column = tile.x * T::W;
    if (first_row >= rows) return;
    u32 blocks = p.k / fp8::BLOCK_PAIRS;
    Global<const float> w_scale = params.w_scale + u64(first_column / fp8::BLOCK) * fp8::block_stride(blocks);
    auto fetch_scales = [&](u32 block, fp8::LaneScales<T, 1>& scales) {
        float of_w = load_ro(w_scale + block);
        PRELUDE_UNROLL
        for (u32 i = 0; i < scales.COUNT; i++) {
            u32 row = first_row + T::warp_row() + WARP * i + lane_id();
            u64 at = fp8::RowScales(row, p.m, blocks).at(block);
            float of_x = row < rows ? load(params.x_scale + at) : 0.0f;
            scales.of[0][i] = mul_rn(of_x, of_w);
        }
    };
    float sums[T::ROWS][T::COLUMNS][4];
    fp8::multiply_blocks<T, 1>(sums, gemm::source<T, T::X>(p.x, p.x_stride, first_row, rows, p.k),
                               gemm::source<T, T::W>(p.w, p.w_stride, first_column, p.n, p.k), p.k,
                               fetch_scales);
    dep_launch();
    gemm::put_tile<T, Output>(p, gemm::Plainly{}, rows, first_row, first_column, sums);
}

template <GemmOutput Output, u32 Tiles>
PRELUDE_DEVICE void gemm_fp8_block_few(const GemmFp8Params& p) {
    gemm_skinny<Output, Tiles>(fp8::pairs(p), fp8::BlockFactors(p));
}

}  // namespace prelude
