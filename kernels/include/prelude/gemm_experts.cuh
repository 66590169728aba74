// The products of a mixture of experts: rows sorted by expert, all experts in one launch.
//
// gemm_experts_up:    y[r] = silu(g) · u, where g and u are the halves of w[e] · x[tokens[r]]
//                     w [experts, 2·n, k]: of each expert n rows of the gate, then n of the other
// gemm_experts_down:  y[r] = w[e] · x[r]       w [experts, n, k]
// gemm_experts_{up,down}_fp8:        the same of e4m3, with a scale for each row of x and of w
// gemm_experts_{up,down}_fp8_block:  the same of e4m3, with scales of 128 elements and of blocks
//
// y bf16, x and w bf16 or e4m3; e is the expert of the tile that row r belongs to, of those that
// experts_order made. n and k are multiples of 8; of e4m3 k is a multiple of 16, with scales of blocks of
// 128, and n of 128 in gemm_experts_up_fp8_block. Sums of bf16 as gemm_mma's: in f32 with k ascending, in
// steps of 16, never split; of e4m3 as gemm_fp8's or gemm_fp8_block's. So a row's bits depend on that row
// and its expert alone: not on how many there are, nor on their order. g, u and the gate are not rounded,
// their product is.
//
// Scales of rows: f32 [rows of x], and [experts · rows of an expert]. Scales of blocks as fp8_scales.cuh
// has them, of x as of one matrix, of w expert by expert.
//
// Strides in elements, of x and y multiples of 8, of x in e4m3 of 16; w has no gaps. Blocks beyond
// tile_count do nothing: a launch has as many as the number of rows may need at most, whatever experts they
// choose, so that nothing waits for a count and captured launches serve all choices.
//
// Launch: up, ⌈n/64⌉ × tiles blocks of 256 threads; down, ⌈n/128⌉ × tiles; 48 KB dynamic shared memory.
// Bound: 6·rows·n·k FLOPs for both, or the bytes of the chosen experts' weights where rows are few.
//
//   block  64 rows × 128 rows of w, 8 warps as 2 × 4, a warp 32 × 32 in 2 × 4 tiles of m16n8k16. Of
//          a warp's 32 rows of w in gemm_experts_up 16 are of the gate and 16 of the other half, so
//          that a thread holds both factors of a product
//   k      slabs of 64 bytes in a ring of 4 stages, as gemm_mma's
//
// Not tuned, and not measured. With few rows an expert, most of a block's multiplications are of
// nothing.
#pragma once

#include "prelude/experts.cuh"
#include "prelude/gemm_fp8_block.cuh"
#include "prelude/silu_mul.cuh"

namespace prelude {

struct ExpertsGemmParams {
    Global<const bf16> x;  // or e4m3
    Global<const bf16> w;  // or e4m3
    Global<bf16> y;
    Global<const u32> tokens;  // rows of x; null for gemm_experts_down
    Global<const u32x4> tiles;
    Global<const u32> tile_count;
    Global<const float> x_scale;  // null for bf16
    Global<const float> w_scale;  // null for bf16
    u32 n;
    u32 k;
    u32 x_rows;
    u32 x_stride;
    u32 y_stride;
    u32 reserved;
};
PRELUDE_PARAMS(ExpertsGemmParams, 88, x, w, y, tokens, tiles, tile_count, x_scale, w_scale, n, k, x_rows,
               x_stride, y_stride, reserved);

// The type of x and w, and their scales.
enum class ExpertFactors { Bf16, Fp8Rows, Fp8Blocks };

// `Gated`: gemm_experts_up.
template <bool Gated, ExpertFactors Factors>
PRELUDE_DEVICE void gemm_experts(const ExpertsGemmParams& p) {
    using Tile = gemm::Tile<EXPERT_TILE, 128, 32, 32, 32, 4>;
    constexpr u32 PARTS = Gated ? 2 : 1;
    constexpr u32 COLUMNS = Tile::W / PARTS;
    // Elements that are copied and counted as one: e4m3 in pairs.
    constexpr u32 PAIR = Factors == ExpertFactors::Bf16 ? 1 : 2;
    dep_wait();
    if (block_idx().y >= load(p.tile_count)) return;
    u32x4 tile = load(p.tiles + block_idx().y);
    u32 expert = tile[0], first_row = tile[1], rows = tile[2];
    u32 first_column = block_idx().x * COLUMNS, k = p.k / PAIR;
    auto row_of_x = [&](u32 row) {
        u32 at = row < rows ? first_row + row : 0;
        if (Gated && row < rows) at = load(p.tokens + at);
        return at;
    };

    gemm::Source<Tile, Tile::X> x_source;
    PRELUDE_UNROLL
    for (u32 i = 0; i < x_source.COUNT; i++) {
        u32 row = x_source.own_row() + i * x_source.STEP;
        x_source.set(i, p.x + u64(row_of_x(row)) * (p.x_stride / PAIR), row < rows, k);
    }
    gemm::Source<Tile, Tile::W> w_source;
    Global<const bf16> w = p.w + u64(expert) * PARTS * p.n * k;
    PRELUDE_UNROLL
    for (u32 i = 0; i < w_source.COUNT; i++) {
        u32 row = w_source.own_row() + i * w_source.STEP;
        u32 column = first_column + (Gated ? row / 32 * 16 + row % 16 : row);
        bool there = column < p.n;
        u32 at = Gated && row / 16 % 2 == 1 ? p.n + column : column;
        w_source.set(i, w + u64(there ? at : 0) * k, there, k);
    }

    u32 lane = lane_id();
    float sums[Tile::ROWS][Tile::COLUMNS][4];
    fp8::Factors of_rows{p.x_scale, p.w_scale};
    if constexpr (Factors == ExpertFactors::Bf16) {
        gemm::multiply_slabs<Tile>(sums, dynamic_shared<bf16>(), x_source, w_source, k);
    } else if constexpr (Factors == ExpertFactors::Fp8Rows) {
        of_rows.w_scale = of_rows.w_scale + u64(expert) * PARTS * p.n;
        gemm::multiply_slabs<Tile, fp8::Factors>(sums, dynamic_shared<bf16>(), x_source, w_source, k);
    } else {
        // The columns of a tile lie within a row of blocks of w, in either half.
        static_assert(fp8::BLOCK % COLUMNS == 0);
        u32 blocks = p.k / fp8::BLOCK, stride = fp8::block_stride(blocks);
        u64 first_scale = u64(expert) * div_up(PARTS * p.n, fp8::BLOCK) + first_column / fp8::BLOCK;
        Global<const float> w_scale = p.w_scale + first_scale * stride;
        u32 row = Tile::warp_row() + lane;
        fp8::RowScales x_scale(row_of_x(row), p.x_rows, blocks);
        auto fetch_scales = [&](u32 block, fp8::LaneScales<Tile, PARTS>& scales) {
            static_assert(fp8::LaneScales<Tile, PARTS>::COUNT == 1);
            // Of a row that is not there another one's, for sums that are not stored.
            float of_x = load(p.x_scale + x_scale.at(block));
            PRELUDE_UNROLL
            for (u32 part = 0; part < PARTS; part++) {
                u32 at = part * (p.n / fp8::BLOCK) * stride + block;
                scales.of[part][0] = mul_rn(of_x, load_ro(w_scale + at));
            }
        };
        fp8::multiply_blocks<Tile, PARTS>(sums, x_source, w_source, k, fetch_scales);
    }
    dep_launch();
    u32 column_of_warp = first_column + Tile::warp_column() / PARTS;
    PRELUDE_UNROLL
    for (u32 i = 0; i < 2; i++) {
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            u32 row = Tile::warp_row() + 16 * i + 8 * half + lane / 4;
            if (row >= rows) continue;
            Global<bf16> y = p.y + u64(first_row + row) * p.y_stride;
            u32 x_row = Factors == ExpertFactors::Fp8Rows ? row_of_x(row) : 0;
            auto value = [&](u32 column, float sum) {
                return Factors == ExpertFactors::Fp8Rows ? of_rows.value(x_row, column, sum) : sum;
            };
            PRELUDE_UNROLL
            for (u32 j = 0; j < 4 / PARTS; j++) {
                u32 column = column_of_warp + 8 * j + lane % 4 * 2;
                if (column >= p.n) continue;
                float low = value(column, sums[i][j][2 * half]);
                float high = value(column + 1, sums[i][j][2 * half + 1]);
                if (Gated) {
                    float up_low = value(p.n + column, sums[i][(j + 2) % 4][2 * half]);
                    float up_high = value(p.n + column + 1, sums[i][(j + 2) % 4][2 * half + 1]);
                    low = mul_rn(silu(low), up_low);
                    high = mul_rn(silu(high), up_high);
                }
                store(as<u32>(y + column), pack_bf16(low, high));
            }
        }
    }
}

}  // namespace prelude
