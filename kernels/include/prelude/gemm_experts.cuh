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
// Launch: up, ⌈n/64⌉ × tiles blocks of 256 threads; down, ⌈n/128⌉ × tiles; 36 KB dynamic shared memory.
// Bound: 6·rows·n·k FLOPs for both, or the bytes of the chosen experts' weights where rows are few.
//
//   block  64 rows × 128 rows of w, 8 warps as 2 × 4, a warp 32 × 32 in 2 × 4 tiles of m16n8k16. Of
//          a warp's 32 rows of w in gemm_experts_up 16 are of the gate and 16 of the other half, so
//          that a thread holds both factors of a product
//   k      slabs of 32 in a ring of 3 stages, each [x 64 rows | w 128 rows], placed as gemm_mma's
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
    using gemm::CHUNKS;
    using gemm::place;
    using gemm::SLAB;
    constexpr u32 COLUMNS = Gated ? gemm::TILE / 2 : gemm::TILE;
    dep_wait();
    if (block_idx().y >= load(p.tile_count)) return;
    u32x4 tile = load(p.tiles + block_idx().y);
    u32 expert = tile[0], first_row = tile[1], rows = tile[2];
    u32 first_column = block_idx().x * COLUMNS;
    Shared<bf16> ring = dynamic_shared<bf16>();

    // A thread copies the same 16 bytes of a slab's row of x and of two rows of w every time.
    u32 chunk = thread_idx().x % CHUNKS, own = thread_idx().x / CHUNKS;
    bool x_there = own < rows;
    u32 source = x_there ? first_row + own : 0;
    if (Gated && x_there) source = load(p.tokens + source);
    Global<const bf16> x_from = p.x + u64(source) * p.x_stride;
    Global<const bf16> w = p.w + u64(expert) * (Gated ? 2u : 1u) * p.n * p.k;
    bool w_there[2];
    Global<const bf16> w_from[2];
    PRELUDE_UNROLL
    for (u32 i = 0; i < 2; i++) {
        u32 row = own + 64 * i;
        u32 column = first_column + (Gated ? row / 32 * 16 + row % 16 : row);
        w_there[i] = column < p.n;
        u32 at = Gated && row / 16 % 2 == 1 ? p.n + column : column;
        w_from[i] = w + u64(w_there[i] ? at : 0) * p.k;
    }
    u32 slabs = div_up(p.k, SLAB);
    auto fetch_slab = [&](u32 slab, Shared<bf16> stage) {
        Shared<bf16> w_to = stage + EXPERT_TILE * SLAB;
        u32 column = slab * SLAB + 8 * chunk;
        bool there = column < p.k;
        u32 offset = there ? column : 0;
        cp_async_16(stage + place(own, chunk), x_from + offset, there && x_there);
        cp_async_16(w_to + place(own, chunk), w_from[0] + offset, there && w_there[0]);
        cp_async_16(w_to + place(own + 64, chunk), w_from[1] + offset, there && w_there[1]);
    };

    u32 lane = lane_id();
    u32 warp_row = warp_id() / 4 * 32, warp_column = warp_id() % 4 * 32;
    u32 column_of_warp = first_column + (Gated ? warp_column / 2 : warp_column);
    // A warp with nothing to write multiplies nothing; it copies like the others.
    bool useful = warp_row < rows && column_of_warp < p.n;
    float sums[2][4][4];
    gemm::multiply_slabs<2, EXPERT_TILE>(sums, ring, slabs, warp_row, warp_column, useful,
                                         fetch_slab);
    dep_launch();
    if (!useful) return;
    PRELUDE_UNROLL
    for (u32 i = 0; i < 2; i++) {
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            u32 row = warp_row + 16 * i + 8 * half + lane / 4;
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
