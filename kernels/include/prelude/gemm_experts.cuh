// The products of a mixture of experts: rows sorted by expert, all experts in one launch.
//
// gemm_experts_up:    y[r] = silu(g) · u, where g and u are the halves of w[e] · x[tokens[r]]
//                     w [experts, 2·n, k]: of each expert n rows of the gate, then n of the other
// gemm_experts_down:  y[r] = w[e] · x[r]       w [experts, n, k]
//
// bf16; e is the expert of the tile that row r belongs to, of those that experts_order made. n and k
// are multiples of 8. Sums as gemm_mma's: in f32 with k ascending, in steps of 16, never split. So a
// row's bits depend on that row and its expert alone: not on how many there are, nor on their order.
// g, u and the gate are not rounded, their product is.
//
// Strides in elements, of x and y multiples of 8; w has no gaps. Blocks beyond tile_count do nothing:
// a launch has as many as the number of rows may need at most, whatever experts they choose, so that
// nothing waits for a count and captured launches serve all choices.
//
// Launch: up, ⌈n/64⌉ × tiles blocks of 256 threads; down, ⌈n/128⌉ × tiles; 48 KB dynamic shared memory.
// Bound: 6·rows·n·k FLOPs for both, or the bytes of the chosen experts' weights where rows are few.
//
//   block  64 rows × 128 rows of w, 8 warps as 2 × 4, a warp 32 × 32 in 2 × 4 tiles of m16n8k16. Of
//          a warp's 32 rows of w in gemm_experts_up 16 are of the gate and 16 of the other half, so
//          that a thread holds both factors of a product
//   k      slabs of 32 in a ring of 4 stages, as gemm_mma's
//
// Not tuned, and not measured. With few rows an expert, most of a block's multiplications are of
// nothing.
#pragma once

#include "prelude/experts.cuh"
#include "prelude/gemm_mma.cuh"
#include "prelude/silu_mul.cuh"

namespace prelude {

struct ExpertsGemmParams {
    Global<const bf16> x;
    Global<const bf16> w;
    Global<bf16> y;
    Global<const u32> tokens;  // rows of x; null for gemm_experts_down
    Global<const u32x4> tiles;
    Global<const u32> tile_count;
    u32 n;
    u32 k;
    u32 x_stride;
    u32 y_stride;
};
PRELUDE_PARAMS(ExpertsGemmParams, 64, x, w, y, tokens, tiles, tile_count, n, k, x_stride, y_stride);

// `Gated`: gemm_experts_up.
template <bool Gated>
PRELUDE_DEVICE void gemm_experts(const ExpertsGemmParams& p) {
    using Tile = gemm::Tile<EXPERT_TILE, 128, 32, 32, 32, 4>;
    constexpr u32 COLUMNS = Gated ? Tile::W / 2 : Tile::W;
    dep_wait();
    if (block_idx().y >= load(p.tile_count)) return;
    u32x4 tile = load(p.tiles + block_idx().y);
    u32 expert = tile[0], first_row = tile[1], rows = tile[2];
    u32 first_column = block_idx().x * COLUMNS;

    gemm::Source<Tile, Tile::X> x_source;
    PRELUDE_UNROLL
    for (u32 i = 0; i < x_source.COUNT; i++) {
        u32 row = x_source.own_row() + i * x_source.STEP;
        u32 at = row < rows ? first_row + row : 0;
        if (Gated && row < rows) at = load(p.tokens + at);
        x_source.set(i, p.x + u64(at) * p.x_stride, row < rows, p.k);
    }
    gemm::Source<Tile, Tile::W> w_source;
    Global<const bf16> w = p.w + u64(expert) * (Gated ? 2u : 1u) * p.n * p.k;
    PRELUDE_UNROLL
    for (u32 i = 0; i < w_source.COUNT; i++) {
        u32 row = w_source.own_row() + i * w_source.STEP;
        u32 column = first_column + (Gated ? row / 32 * 16 + row % 16 : row);
        bool there = column < p.n;
        u32 at = Gated && row / 16 % 2 == 1 ? p.n + column : column;
        w_source.set(i, w + u64(there ? at : 0) * p.k, there, p.k);
    }

    u32 lane = lane_id();
    u32 column_of_warp = first_column + (Gated ? Tile::warp_column() / 2 : Tile::warp_column());
    float sums[Tile::ROWS][Tile::COLUMNS][4];
    gemm::multiply_slabs<Tile>(sums, dynamic_shared<bf16>(), x_source, w_source, p.k);
    dep_launch();
    PRELUDE_UNROLL
    for (u32 i = 0; i < 2; i++) {
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            u32 row = Tile::warp_row() + 16 * i + 8 * half + lane / 4;
            if (row >= rows) continue;
            Global<bf16> y = p.y + u64(first_row + row) * p.y_stride;
            PRELUDE_UNROLL
            for (u32 j = 0; j < (Gated ? 2 : 4); j++) {
                u32 column = column_of_warp + 8 * j + lane % 4 * 2;
                if (column >= p.n) continue;
                float low = sums[i][j][2 * half], high = sums[i][j][2 * half + 1];
                if (Gated) {
                    low = mul_rn(silu(low), sums[i][(j + 2) % 4][2 * half]);
                    high = mul_rn(silu(high), sums[i][(j + 2) % 4][2 * half + 1]);
                }
                store(as<u32>(y + column), pack_bf16(low, high));
            }
        }
    }
}

}  // namespace prelude
