// gemm_skinny:      y[m, n]  = x[m, k] · w[n, k]ᵀ (+ bias[n])     m ≤ 16, bf16
// gemm_skinny_add:  y[m, n] += x · wᵀ (+ bias)                    rounded once
// gemm_skinny_f32:  y[m, n]  = x · wᵀ (+ bias)                    y f32, not rounded
//
// Products of few rows, which take the time of reading w. Otherwise as gemm_mma: k is a multiple of
// 8, strides are in elements, rows of x and w start at multiples of 16 bytes. An element's sum runs
// over the same slabs in the same order for every m ≤ 16, so its bits do not depend on m.
//
// Launch: ⌈n/16⌉ blocks of 256 threads, or of 512 where that many blocks are fewer than GPUs have
// multiprocessors; dynamic shared memory 16 rows of 8 or 16 sums and one between, a warp.
// Bound: 2·n·k bytes.
//
//   block  16 rows of w, the m side of m16n8k16; the rows of x are its n side, 8 or 16 of them
//   warp   takes slabs of 32 elements of k in turn with the other warps; a lane reads 16 bytes of two
//          rows of w and of a row of x. The sum over a slab does not depend on the numbering of k
//          within the slab, so these 8 neighbours serve as a lane's two pairs of two instructions
//   ahead  a warp asks for 4 slabs of w, 8 reads of each lane, before it uses the first, and before
//          the kernel waits for its predecessor: no kernel writes w
//   end    the warps' sums are added in order of warps in shared memory
#pragma once

#include "prelude/gemm_mma.cuh"

namespace prelude {

namespace skinny {

constexpr u32 ROWS = 16;   // rows of w of a block
constexpr u32 SLAB = 32;   // elements of k that a warp takes at a time
constexpr u32 AHEAD = 4;   // slabs of w that a warp has asked for
constexpr u32 WARPS = 16;  // warps of a block, at most

// A lane's part of some slabs of w: its two rows.
struct Part {
    u32x4 rows[AHEAD][2];
};

}  // namespace skinny

// Computes 16 columns of y for all rows; x has `Tiles` times 8 rows at most.
template <GemmOutput Output, u32 Tiles, class Factors = gemm::Plainly>
PRELUDE_DEVICE void gemm_skinny(const GemmParams& p, const Factors& factors = {}) {
    using namespace skinny;
    constexpr u32 PITCH = 8 * Tiles + 1;
    u32 lane = lane_id(), warp = warp_id(), warps = block_dim().x / WARP;
    u32 first = block_idx().x * ROWS, slabs = div_up(p.k, SLAB);
    // Where the lane's elements of the warp's slab `i` begin.
    auto column = [&](u32 i) { return (i * warps + warp) * SLAB + lane % 4 * 8; };
    auto fetch = [&](u32 from) {
        Part part;
        PRELUDE_UNROLL
        for (u32 i = 0; i < AHEAD; i++) {
            PRELUDE_UNROLL
            for (u32 half = 0; half < 2; half++) {
                u32 row = first + lane / 4 + 8 * half, at = column(from + i);
                bool valid = row < p.n && at < p.k;
                u64 offset = valid ? u64(row) * p.w_stride + at : 0;
                u32x4 w = load_ro(as<const u32x4>(p.w + offset));
                part.rows[i][half] = valid ? w : u32x4{};
            }
        }
        return part;
    };
    Part now = fetch(0);
    dep_wait();
    u32 rows = live_rows(p.live, p.m);
    float sums[Tiles][4];
    PRELUDE_UNROLL
    for (u32 tile = 0; tile < Tiles; tile++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) sums[tile][e] = 0.0f;
    }
    for (u32 from = 0; from * warps + warp < slabs; from += AHEAD) {
        Part next = fetch(from + AHEAD);
        u32x4 x[AHEAD][Tiles];
        // The scales of the sums over each slab; each lane has those of one row of x.
        float scales[AHEAD];
        PRELUDE_UNROLL
        for (u32 i = 0; i < AHEAD; i++) {
            if constexpr (Factors::BLOCKS) {
                u32 row = lane % (8 * Tiles), at = column(from + i);
                bool valid = row < rows && at < p.k;
                scales[i] = valid ? factors.scale(row, first, at) : 0.0f;
            }
            PRELUDE_UNROLL
            for (u32 tile = 0; tile < Tiles; tile++) {
                u32 row = 8 * tile + lane / 4, at = column(from + i);
                bool valid = row < rows && at < p.k;
                x[i][tile] = u32x4{};
                if (valid) x[i][tile] = load(as<const u32x4>(p.x + (u64(row) * p.x_stride + at)));
            }
        }
        auto multiply = [&](float (&into)[Tiles][4], u32 i) {
            PRELUDE_UNROLL
            for (u32 pair = 0; pair < 4; pair += 2) {
                const u32x4 &low = now.rows[i][0], &high = now.rows[i][1];
                u32 a[4] = {low[pair], high[pair], low[pair + 1], high[pair + 1]};
                PRELUDE_UNROLL
                for (u32 tile = 0; tile < Tiles; tile++) {
                    Factors::multiply(into[tile], a, x[i][tile][pair], x[i][tile][pair + 1]);
                }
            }
        };
        PRELUDE_UNROLL
        for (u32 i = 0; i < AHEAD; i++) {
            if constexpr (!Factors::BLOCKS) {
                multiply(sums, i);
            } else {
                float part[Tiles][4] = {};
                multiply(part, i);
                PRELUDE_UNROLL
                for (u32 tile = 0; tile < Tiles; tile++) {
                    PRELUDE_UNROLL
                    for (u32 e = 0; e < 2; e++) {
                        float scale = shuffle(scales[i], 8 * tile + lane % 4 * 2 + e);
                        sums[tile][e] = fma(part[tile][e], scale, sums[tile][e]);
                        sums[tile][e + 2] = fma(part[tile][e + 2], scale, sums[tile][e + 2]);
                    }
                }
            }
        }
        now = next;
    }
    // The sums of all warps: [warp][row of w][row of x].
    Shared<float> partial = dynamic_shared<float>();
    PRELUDE_UNROLL
    for (u32 tile = 0; tile < Tiles; tile++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) {
            u32 row = lane / 4 + e / 2 * 8, of_x = 8 * tile + lane % 4 * 2 + e % 2;
            store(partial + ((warp * ROWS + row) * PITCH + of_x), sums[tile][e]);
        }
    }
    sync_block();
    dep_launch();
    for (u32 i = thread_idx().x; i < ROWS * 8 * Tiles; i += block_dim().x) {
        u32 row = i / ROWS, column = i % ROWS;
        if (row >= rows || first + column >= p.n) continue;
        float sum = 0.0f;
        for (u32 w = 0; w < warps; w++) {
            sum = add_rn(sum, load(partial + ((w * ROWS + column) * PITCH + row)));
        }
        sum = factors.value(row, first + column, sum);
        if (p.bias) sum = add_rn(sum, to_f32(load(p.bias + (first + column))));
        u64 at = u64(row) * p.y_stride + first + column;
        if (Output == GemmOutput::F32) {
            store(as<float>(p.y) + at, sum);
            continue;
        }
        Global<bf16> y = p.y + at;
        if (Output == GemmOutput::Add) sum = add_rn(sum, to_f32(load(y)));
        store(y, to_bf16(sum));
    }
}

}  // namespace prelude
