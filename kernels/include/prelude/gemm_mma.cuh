// gemm_mma:      y[m, n]  = x[m, k] · w[n, k]ᵀ (+ bias[n])     x, w, bias bf16; y bf16
// gemm_mma_add:  y[m, n] += x · wᵀ (+ bias)                    y bf16, rounded once
// gemm_mma_f32:  y[m, n]  = x · wᵀ (+ bias)                    y f32, not rounded
//
// Any m, n ≥ 1 and k a multiple of 8; sums in f32 with k ascending, in steps of 16, never split.
// So an element's bits depend on its row of x and its row of w alone: not on m, not on where in
// the batch the row lies. Used where cuBLASLt is absent, in deterministic mode, and as an oracle.
//
// Strides in elements; rows of x and w start at multiples of 16 bytes, rows of y at multiples of
// 4 (bf16) and 8 (f32), the bias at one of 4. `live`, if given, is the number of rows that count.
//
// Launch: a block for each tile of y, of one of the shapes of src/gemm_mma.cu; bits do not depend on
// which: each element is summed by the same instructions.
// Bound: 2·m·n·k FLOPs, or 2·(m·k + n·k + m·n) bytes where m is small.
//
//   block  a tile of y: X rows of x by W rows of w, of which a warp has a part in tiles of m16n8k16
//   k      slabs of 32 or 64 in a ring of stages, each [x X rows | w W rows]; all stages but one are
//          under way while that one is multiplied. The 16-byte column c of a row lies at place
//          c xor bits of the row's number, so that the 8 rows of an ldmatrix fall on different banks.
//          What a step of 16 multiplies is read while the step before it multiplies
//   order  blocks go through 8 rows of tiles, column by column, then through the next 8, so that blocks
//          that run at the same time share rows of x and of w
//
// Not tried yet: stores of 16 bytes.
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

// k is rounded up to whole units of 64 elements, whatever the size of a slab: so tiles of every shape
// multiply the same steps, also those of the zeros beyond k.
constexpr u32 UNIT = 64;
// Rows of tiles whose blocks follow one another.
constexpr u32 GROUP = 8;

// The part of y that a block computes: X rows of x by W rows of w, of which each warp computes WARP_X by
// WARP_W. The block has a ring of STAGES slabs of SLAB elements of k.
template <u32 X_, u32 W_, u32 WARP_X, u32 WARP_W, u32 SLAB_, u32 STAGES_>
struct Tile {
    static constexpr u32 X = X_, W = W_, SLAB = SLAB_, STAGES = STAGES_;
    static constexpr u32 ROWS = WARP_X / 16;     // tiles of m16n8k16 of a warp, down and across
    static constexpr u32 COLUMNS = WARP_W / 8;
    static constexpr u32 ACROSS = W / WARP_W;    // warps of a block side by side
    static constexpr u32 THREADS = X / WARP_X * ACROSS * WARP;
    static constexpr u32 CHUNKS = SLAB / 8;      // 16-byte chunks of a row of a slab
    static constexpr u32 STEPS = SLAB / 16;
    static constexpr u32 STAGE = (X + W) * SLAB; // elements of a stage
    static_assert(X % WARP_X == 0 && W % WARP_W == 0 && WARP_X % 16 == 0 && WARP_W % 16 == 0);
    static_assert(SLAB == 32 || SLAB == 64);
    static_assert(X * CHUNKS % THREADS == 0 && W * CHUNKS % THREADS == 0);
    static_assert(THREADS / CHUNKS % 8 == 0);

    // Returns where the 16-byte column `chunk` of a row lies in the part of a stage for its matrix.
    static PRELUDE_DEVICE u32 place(u32 row, u32 chunk) {
        return row * SLAB + 8 * (chunk ^ (row / (8 / CHUNKS) % CHUNKS));
    }
    static PRELUDE_DEVICE u32 slabs(u32 k) { return div_up(k, UNIT) * (UNIT / SLAB); }
    static PRELUDE_DEVICE u32 warp_row() { return warp_id() / ACROSS * WARP_X; }
    static PRELUDE_DEVICE u32 warp_column() { return warp_id() % ACROSS * WARP_W; }
};

// What one thread copies of the ROWS rows of a matrix: of each slab, one 16-byte column of COUNT rows.
template <class T, u32 ROWS>
struct Source {
    static constexpr u32 STEP = T::THREADS / T::CHUNKS, COUNT = ROWS / STEP;
    Global<const bf16> from[COUNT];  // where the next slab's columns lie
    u32 column = own_column();
    u32 end[COUNT];  // k, or 0 for a row beyond the matrix; what lies beyond the end is copied as zeros

    // The thread's first row; its others follow at distances of STEP.
    static PRELUDE_DEVICE u32 own_row() { return thread_idx().x / T::CHUNKS; }
    static PRELUDE_DEVICE u32 own_column() { return 8 * (thread_idx().x % T::CHUNKS); }
    PRELUDE_DEVICE void set(u32 i, Global<const bf16> row, bool there, u32 k) {
        from[i] = row + own_column();
        end[i] = there ? k : 0;
    }
    // Starts copying the next slab.
    PRELUDE_DEVICE void fetch(Shared<bf16> side) {
        Shared<bf16> to = side + T::place(own_row(), own_column() / 8);
        PRELUDE_UNROLL
        for (u32 i = 0; i < COUNT; i++) {
            // STEP is a multiple of 8, and `place` orders the columns of rows 8 apart alike.
            cp_async_16(to + i * STEP * T::SLAB, from[i], column < end[i]);
            from[i] = from[i] + T::SLAB;
        }
        column += T::SLAB;
    }
};

// Returns the thread's source for ROWS rows of a matrix, from row `first` on.
template <class T, u32 ROWS>
PRELUDE_DEVICE Source<T, ROWS> source(Global<const bf16> from, u32 stride, u32 first, u32 rows,
                                      u32 k) {
    Source<T, ROWS> source;
    PRELUDE_UNROLL
    for (u32 i = 0; i < source.COUNT; i++) {
        u32 row = first + source.own_row() + i * source.STEP;
        source.set(i, from + u64(row < rows ? row : 0) * stride, row < rows, k);
    }
    return source;
}

// Factors that are multiplied as they are stored, two bf16 in a register.
struct Plainly {
    static constexpr bool BLOCKS = false;  // whether blocks of k have scales of their own
    // Adds a[16×16] · b[16×8] to c[16×8].
    static PRELUDE_DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        mma_m16n8k16(c, a, b0, b1);
    }
    // Returns the element of y whose sum is `sum`.
    PRELUDE_DEVICE float value(u32, u32, float sum) const { return sum; }
};

// The operands that a warp multiplies in one step.
template <class T, class Factors>
struct Fragments {
    u32 a[T::ROWS][4], b[T::COLUMNS / 2][4];

    // Reads the operands of the step whose first columns lie `x_at` and `w_at` elements after the start
    // of the stage.
    PRELUDE_DEVICE void read(Shared<const bf16> stage, u32 x_at, u32 w_at) {
        PRELUDE_UNROLL
        for (u32 i = 0; i < T::ROWS; i++) ldmatrix_x4(a[i], stage + (x_at + 16 * i * T::SLAB));
        PRELUDE_UNROLL
        for (u32 j = 0; j < T::COLUMNS / 2; j++) {
            ldmatrix_x4(b[j], stage + (w_at + 16 * j * T::SLAB));
        }
    }
    PRELUDE_DEVICE void multiply(float (&sums)[T::ROWS][T::COLUMNS][4]) const {
        PRELUDE_UNROLL
        for (u32 i = 0; i < T::ROWS; i++) {
            PRELUDE_UNROLL
            for (u32 j = 0; j < T::COLUMNS; j++) {
                Factors::multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
};

// The `behind` of multiply_slabs that does nothing.
struct Nothing {
    PRELUDE_DEVICE void operator()(u32) const {}
};

// Multiplies all slabs of a tile: a warp's rows of x by its rows of w, k ascending. `behind` is called
// with the number of each slab after the slab's products were added to the sums. All threads of a block
// call this.
template <class T, class Factors = Plainly, class Behind = Nothing>
PRELUDE_DEVICE void multiply_slabs(float (&sums)[T::ROWS][T::COLUMNS][4], Shared<bf16> ring,
                                   Source<T, T::X> x, Source<T, T::W> w, u32 k,
                                   const Behind& behind = {}) {
    u32 slabs = T::slabs(k);
    // A group of copies is committed even where no slab is left, so that waiting for all groups but the
    // newest STAGES - 2 always waits for the slab that is read next.
    auto fetch_slab = [&](u32 slab, u32 stage) {
        if (slab < slabs) {
            x.fetch(ring + stage * T::STAGE);
            w.fetch(ring + (stage * T::STAGE + T::X * T::SLAB));
        }
        cp_async_commit();
    };
    PRELUDE_UNROLL
    for (u32 i = 0; i < T::ROWS * T::COLUMNS * 4; i++) {
        sums[i / 4 / T::COLUMNS][i / 4 % T::COLUMNS][i % 4] = 0.0f;
    }
    u32 lane = lane_id();
    u32 x_at = T::place(T::warp_row() + lane % 16, lane / 16);
    u32 w_at = T::X * T::SLAB + T::place(T::warp_column() + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    PRELUDE_UNROLL
    for (u32 slab = 0; slab < T::STAGES - 1; slab++) fetch_slab(slab, slab);
    cp_async_wait<T::STAGES - 2>();
    sync_block();
    Fragments<T, Factors> parts[2];
    parts[0].read(ring, x_at, w_at);
    u32 stage = 0, free = T::STAGES - 1;
    for (u32 slab = 0; slab < slabs; slab++) {
        PRELUDE_UNROLL
        for (u32 step = 0; step + 1 < T::STEPS; step++) {
            // `place` is an exclusive or, so the next step's columns are found by one too.
            u32 next = 16 * (step + 1);
            parts[(step + 1) % 2].read(ring + stage * T::STAGE, x_at ^ next, w_at ^ next);
            // The previous slab's stage is free: all threads had read it at the last barrier.
            if (step == 0) fetch_slab(slab + T::STAGES - 1, free);
            parts[step % 2].multiply(sums);
        }
        free = stage;
        stage = stage + 1 == T::STAGES ? 0 : stage + 1;
        cp_async_wait<T::STAGES - 2>();
        // All threads see the next slab.
        sync_block();
        if (slab + 1 < slabs) parts[0].read(ring + stage * T::STAGE, x_at, w_at);
        parts[(T::STEPS - 1) % 2].multiply(sums);
        behind(slab);
    }
}

// Loads two neighbours, or one and 0 if there is no pair.
PRELUDE_DEVICE Vec<float, 2> load_two(Global<const bf16> from, bool pair) {
    if (!pair) return {{to_f32(load(from)), 0.0f}};
    bf16x2 two = load(as<const bf16x2>(from));
    return {{to_f32(two[0]), to_f32(two[1])}};
}

// Stores two neighbours of y from an even column on, or only the last element of a row; `before` is what
// y holds there, for the form that adds.
template <GemmOutput Output, class Factors>
PRELUDE_DEVICE void put(const GemmParams& p, const Factors& factors, u32 row, u32 column, u64 at,
                        float low, float high, Vec<float, 2> before) {
    bool pair = column + 1 < p.n;
    low = factors.value(row, column, low);
    if (pair) high = factors.value(row, column + 1, high);
    if (p.bias) {
        Vec<float, 2> bias = load_two(p.bias + column, pair);
        low = add_rn(low, bias[0]);
        high = add_rn(high, bias[1]);
    }
    if (Output == GemmOutput::F32) {
        Global<float> y = as<float>(p.y) + at;
        if (pair) {
            store(as<Vec<float, 2>>(y), Vec<float, 2>{{low, high}});
        } else {
            store(y, low);
        }
        return;
    }
    if (Output == GemmOutput::Add) {
        low = add_rn(low, before[0]);
        high = add_rn(high, before[1]);
    }
    Global<bf16> y = p.y + at;
    if (pair) {
        store(as<u32>(y), pack_bf16(low, high));
    } else {
        store(y, to_bf16(low));
    }
}

// Stores a thread's part of a row of y: two of every 8 columns from `first` on, from elements `e` and
// e + 1 of its sums. All of y that is added to is read before any of it is written, so that the thread
// waits once.
template <class T, GemmOutput Output, class Factors>
PRELUDE_DEVICE void put_row(const GemmParams& p, const Factors& factors, u32 row, u32 first,
                            const float (&sums)[T::COLUMNS][4], u32 e) {
    u64 at = u64(row) * p.y_stride + first;
    Vec<float, 2> before[T::COLUMNS] = {};
    PRELUDE_UNROLL
    for (u32 j = 0; Output == GemmOutput::Add && j < T::COLUMNS; j++) {
        u32 column = first + 8 * j;
        if (column < p.n) before[j] = load_two(p.y + (at + 8 * j), column + 1 < p.n);
    }
    PRELUDE_UNROLL
    for (u32 j = 0; j < T::COLUMNS; j++) {
        u32 column = first + 8 * j;
        if (column < p.n) {
            put<Output>(p, factors, row, column, at + 8 * j, sums[j][e], sums[j][e + 1], before[j]);
        }
    }
}

// Returns the tile of this block: groups of GROUP rows of tiles follow one another, and within a group
// tiles go column by column.
PRELUDE_DEVICE Index3 tile_of_block() {
    u32 across = grid_dim().x, index = block_idx().y * across + block_idx().x;
    u32 first = index / (GROUP * across) * GROUP;
    u32 height = min_u32(GROUP, grid_dim().y - first);
    index -= first * across;
    return {index / height, first + index % height, 0};
}

// Stores a thread's part of a tile of y, from its sums.
template <class T, GemmOutput Output, class Factors>
PRELUDE_DEVICE void put_tile(const GemmParams& p, const Factors& factors, u32 rows, u32 first_row,
                             u32 first_column, const float (&sums)[T::ROWS][T::COLUMNS][4]) {
    u32 lane = lane_id();
    first_column += T::warp_column() + lane % 4 * 2;
    PRELUDE_UNROLL
    for (u32 i = 0; i < T::ROWS; i++) {
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            u32 row = first_row + T::warp_row() + 16 * i + 8 * half + lane / 4;
            if (row < rows) put_row<T, Output>(p, factors, row, first_column, sums[i], 2 * half);
        }
    }
}

template <class T, GemmOutput Output, class Factors = Plainly>
PRELUDE_DEVICE void gemm_mma(const GemmParams& p, const Factors& factors = {}) {
    dep_wait();
    u32 rows = live_rows(p.live, p.m);
    Index3 tile = tile_of_block();
    u32 first_row = tile.y * T::X, first_column = tile.x * T::W;
    if (first_row >= rows) return;
    float sums[T::ROWS][T::COLUMNS][4];
    multiply_slabs<T, Factors>(sums, dynamic_shared<bf16>(),
                               source<T, T::X>(p.x, p.x_stride, first_row, rows, p.k),
                               source<T, T::W>(p.w, p.w_stride, first_column, p.n, p.k), p.k);
    dep_launch();
    put_tile<T, Output>(p, factors, rows, first_row, first_column, sums);
}

}  // namespace gemm

}  // namespace prelude
