// gemm_mma:      y[m, n]  = x[m, k] · w[n, k]ᵀ (+ bias[n])     x, w, bias bf16; y bf16
// gemm_mma_add:  y[m, n] += the same                           y bf16, rounded once
// gemm_mma_f32:  y[m, n]  = the same                           y f32, not rounded
//
// Any m, n ≥ 1 and k a multiple of 8; sums in f32 with k ascending, in steps of 16, never split.
// So an element's bits depend on its row of x and its row of w alone: not on m, not on where in
// the batch the row lies. Used where cuBLASLt is absent, in deterministic mode, and as an oracle.
//
// Strides in elements; rows of x and w start at multiples of 16 bytes, rows of y at multiples of
// 4 (bf16) and 8 (f32), the bias at one of 4. `live`, if given, is the number of rows that count.
//
// Launch: ⌈n/128⌉ × ⌈m/128⌉ blocks of 256 threads, 48 KB dynamic shared memory.
// Bound: 2·m·n·k FLOPs, or 2·(m·k + n·k + m·n) bytes where m is small.
//
//   block  128 × 128 of y, 8 warps as 2 × 4, a warp 64 × 32 in 4 × 4 tiles of m16n8k16
//   k      slabs of 32 in a ring of 3 stages, each [x 128 rows | w 128 rows] of 64 bytes; the
//          slab two ahead is under way while one is multiplied. A 16-byte column c of row r lies
//          at c ^ (r/2 % 4), so that the 8 rows of an ldmatrix fall on different banks
//
// Not tuned: stages, tile shape for small m, order of blocks with regard to L2, stores of 16
// bytes. On an H200: 305 TFLOP/s at 8192³, where cuBLASLt has 783.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct GemmParams {
    Global<const bf16> x;
    Global<const bf16> w;
    Global<const bf16> bias;  // or null
    Global<bf16> y;           // f32 for gemm_mma_f32
    Global<const u32> live;   // rows that count, or null for all
    u32 m;
    u32 n;
    u32 k;
    u32 x_stride;
    u32 w_stride;
    u32 y_stride;
};
PRELUDE_PARAMS(GemmParams, 64, x, w, bias, y, live, m, n, k, x_stride, w_stride, y_stride);

enum class GemmOutput { Write, Add, F32 };

namespace gemm {

constexpr u32 TILE = 128;             // rows of x, and of w, a block
constexpr u32 SLAB = 32;              // elements of k a stage
constexpr u32 STAGES = 3;
constexpr u32 SIDE = TILE * SLAB;     // elements of x, and of w, a stage
constexpr u32 CHUNKS = SLAB / 8;      // of 16 bytes a row
constexpr u32 THREADS = 256;

// Where the 16-byte column `chunk` of a row lies within its side of a stage.
PRELUDE_DEVICE u32 place(u32 row, u32 chunk) { return row * SLAB + 8 * (chunk ^ (row / 2 % CHUNKS)); }

// Starts copying one slab of 128 rows; zeros beyond the last row and beyond k.
PRELUDE_DEVICE void fetch(Shared<bf16> to, Global<const bf16> from, u32 stride, u32 first, u32 rows,
                          u32 at_k, u32 k) {
    u32 chunk = thread_idx().x % CHUNKS;
    PRELUDE_UNROLL
    for (u32 i = 0; i < TILE; i += THREADS / CHUNKS) {
        u32 row = thread_idx().x / CHUNKS + i;
        u32 column = at_k + 8 * chunk;
        bool valid = first + row < rows && column < k;
        u64 offset = valid ? u64(first + row) * stride + column : 0;
        cp_async_16(to + place(row, chunk), from + offset, valid);
    }
}

// Factors as they are stored: two bf16 a register.
struct Plainly {
    // c[16×8] += a[16×16] · b[16×8].
    static PRELUDE_DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        mma_m16n8k16(c, a, b0, b1);
    }
    // What an element of y is, of its sum.
    PRELUDE_DEVICE float value(u32, u32, float sum) const { return sum; }
};

// Multiplies all slabs: 16·M rows of x from `warp_row` on by 32 rows of w from `warp_column` on, of a
// ring whose stages are [x X rows | w TILE rows]. `fetch(slab, stage)` starts copying one of `slabs`.
// All threads of a block call this; those of a warp that is not `useful` copy alone.
template <u32 M, u32 X, class Factors = Plainly, class Fetch>
PRELUDE_DEVICE void multiply_slabs(float (&sums)[M][4][4], Shared<bf16> ring, u32 slabs, u32 warp_row,
                                   u32 warp_column, bool useful, Fetch fetch) {
    constexpr u32 STAGE = (X + TILE) * SLAB;
    u32 lane = lane_id();
    // Empty groups are committed too, so that waiting for "all but one" always means this slab.
    auto fetch_slab = [&](u32 slab) {
        if (slab < slabs) fetch(slab, ring + slab % STAGES * STAGE);
        cp_async_commit();
    };
    PRELUDE_UNROLL
    for (u32 i = 0; i < 16 * M; i++) sums[i / 16][i / 4 % 4][i % 4] = 0.0f;
    fetch_slab(0);
    fetch_slab(1);
    for (u32 slab = 0; slab < slabs; slab++) {
        cp_async_wait<1>();
        // All threads see this slab, and all have read the stage that is refilled next.
        sync_block();
        fetch_slab(slab + 2);
        if (!useful) continue;
        Shared<const bf16> x = ring + slab % STAGES * STAGE;
        Shared<const bf16> w = x + X * SLAB;
        PRELUDE_UNROLL
        for (u32 step = 0; step < SLAB / 16; step++) {
            u32 a[M][4], b[2][4];
            PRELUDE_UNROLL
            for (u32 i = 0; i < M; i++) {
                ldmatrix_x4(a[i], x + place(warp_row + 16 * i + lane % 16, 2 * step + lane / 16));
            }
            PRELUDE_UNROLL
            for (u32 j = 0; j < 2; j++) {
                u32 row = warp_column + 16 * j + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(b[j], w + place(row, 2 * step + lane / 8 % 2));
            }
            PRELUDE_UNROLL
            for (u32 i = 0; i < M; i++) {
                PRELUDE_UNROLL
                for (u32 j = 0; j < 4; j++) {
                    Factors::multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }
}

// Two neighbours, or one and 0.
PRELUDE_DEVICE Vec<float, 2> load_two(Global<const bf16> from, bool pair) {
    if (!pair) return {{to_f32(load(from)), 0.0f}};
    bf16x2 two = load(as<const bf16x2>(from));
    return {{to_f32(two[0]), to_f32(two[1])}};
}

// Two neighbours of y from an even column on, or the last of a row.
template <GemmOutput Output, class Factors>
PRELUDE_DEVICE void put(const GemmParams& p, const Factors& factors, u32 row, u32 column, float low,
                        float high) {
    bool pair = column + 1 < p.n;
    low = factors.value(row, column, low);
    if (pair) high = factors.value(row, column + 1, high);
    if (p.bias) {
        Vec<float, 2> bias = load_two(p.bias + column, pair);
        low = add_rn(low, bias[0]);
        high = add_rn(high, bias[1]);
    }
    u64 at = u64(row) * p.y_stride + column;
    if (Output == GemmOutput::F32) {
        Global<float> y = as<float>(p.y) + at;
        if (pair) {
            store(as<Vec<float, 2>>(y), Vec<float, 2>{{low, high}});
        } else {
            store(y, low);
        }
        return;
    }
    Global<bf16> y = p.y + at;
    if (Output == GemmOutput::Add) {
        Vec<float, 2> before = load_two(y, pair);
        low = add_rn(low, before[0]);
        high = add_rn(high, before[1]);
    }
    if (pair) {
        store(as<u32>(y), pack_bf16(low, high));
    } else {
        store(y, to_bf16(low));
    }
}

}  // namespace gemm

template <GemmOutput Output, class Factors = gemm::Plainly>
PRELUDE_DEVICE void gemm_mma(const GemmParams& p, const Factors& factors = {}) {
    using namespace gemm;
    dep_wait();
    u32 rows = live_rows(p.live, p.m);
    u32 first_row = block_idx().y * TILE, first_column = block_idx().x * TILE;
    if (first_row >= rows) return;
    Shared<bf16> ring = dynamic_shared<bf16>();
    u32 slabs = div_up(p.k, SLAB);
    auto fetch_slab = [&](u32 slab, Shared<bf16> stage) {
        fetch(stage, p.x, p.x_stride, first_row, rows, slab * SLAB, p.k);
        fetch(stage + SIDE, p.w, p.w_stride, first_column, p.n, slab * SLAB, p.k);
    };

    u32 lane = lane_id();
    u32 warp_row = warp_id() / 4 * 64, warp_column = warp_id() % 4 * 32;
    // A warp with nothing to write multiplies nothing; it copies like the others.
    bool useful = first_row + warp_row < rows && first_column + warp_column < p.n;
    float sums[4][4][4];
    multiply_slabs<4, TILE, Factors>(sums, ring, slabs, warp_row, warp_column, useful, fetch_slab);
    dep_launch();
    if (!useful) return;
    PRELUDE_UNROLL
    for (u32 i = 0; i < 4; i++) {
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            u32 row = first_row + warp_row + 16 * i + 8 * half + lane / 4;
            PRELUDE_UNROLL
            for (u32 j = 0; j < 4; j++) {
                u32 column = first_column + warp_column + 8 * j + lane % 4 * 2;
                if (row < rows && column < p.n) {
                    put<Output>(p, factors, row, column, sums[i][j][2 * half], sums[i][j][2 * half + 1]);
                }
            }
        }
    }
}

}  // namespace prelude
