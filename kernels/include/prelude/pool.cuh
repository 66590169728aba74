// pool:           an embedding from hidden states, f32. Each block computes one row of the output:
//
//   last    the state at the last position
//   mean    over positions: sums of 256-position chunks that start at absolute multiples of 256,
//           added in order, by the count
//   then    the first `dimensions` elements, scaled to length 1 if wanted (as far as the length
//           is above 1e-12, which is where the reference stops)
//
// hidden bf16 [_, width]; a row reads hidden[index[first .. first + count]], whose positions
// ascend by one from first_position. out f32 [rows, dimensions of each]. The sums have the CPU
// executor's order; the squared length is summed in f64.
//
// pool_bf16:      the same without a scale to length 1, rounded to bf16: what products follow; out
//                 is bf16, its stride counted in elements of it
// segment_means:  y[r] = the mean over the x of `count` tokens of the step from `first` on, summed
//                 as above from position 0, rounded to bf16. x holds tokens first.. of the step; a
//                 row whose tokens are elsewhere stays as it is: another launch fills it
//
// Launch: a block of 256 threads a row. Bound: 2 · tokens · width bytes.
#pragma once

#include "prelude/dev.h"

namespace prelude {

constexpr u32 POOL_MEAN = 1, POOL_NORMALISE = 2;
constexpr u32 MEAN_CHUNK = 256;

struct PoolRow {
    u32 first;  // into index
    u32 count;  // at least 1
    u32 first_position;
    u32 flags;
    u32 dimensions;  // at most width
    u32 reserved;
};
PRELUDE_PARAMS(PoolRow, 24, first, count, first_position, flags, dimensions, reserved);

struct PoolParams {
    Global<const PoolRow> row;
    Global<const i32> index;
    Global<const bf16> hidden;
    Global<float> out;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 hidden_stride;
    u32 out_stride;
};
PRELUDE_PARAMS(PoolParams, 56, row, index, hidden, out, live, rows, width, hidden_stride, out_stride);

struct MeanRow {
    u32 first;  // token of the step
    u32 count;  // at least 1
};
PRELUDE_PARAMS(MeanRow, 8, first, count);

struct SegmentMeansParams {
    Global<const MeanRow> row;
    Global<const bf16> x;
    Global<bf16> y;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 x_rows;
    u32 first;  // token of the first row of x
    u32 x_stride;
    u32 y_stride;
};
PRELUDE_PARAMS(SegmentMeansParams, 56, row, x, y, live, rows, width, x_rows, first, x_stride, y_stride);

PRELUDE_DEVICE float pool_mean(const PoolParams& p, u32 first, u32 count, u32 position, u32 column) {
    float total = 0.0f, chunk = 0.0f;
    for (u32 i = 0; i < count; i++) {
        if (i > 0 && (position + i) % MEAN_CHUNK == 0) {
            total = add_rn(total, chunk);
            chunk = 0.0f;
        }
        u64 state = u64(load(p.index + (first + i))) * p.hidden_stride;
        chunk = add_rn(chunk, to_f32(load(p.hidden + (state + column))));
    }
    return div_rn(add_rn(total, chunk), float(count));
}

template <bool Narrow>
PRELUDE_DEVICE void pool(const PoolParams& p) {
    PRELUDE_SHARED(double, squares, 256);
    dep_wait();
    u32 r = block_idx().x, t = thread_idx().x;
    if (r >= live_rows(p.live, p.rows)) return;
    Global<const u32> row = as<const u32>(p.row + r);
    u32 first = load(row), count = load(row + 1), position = load(row + 2);
    u32 flags = load(row + 3), dimensions = load(row + 4);
    Global<float> out = p.out + (Narrow ? 0 : u64(r) * p.out_stride);
    Global<bf16> narrow = as<bf16>(p.out) + u64(r) * p.out_stride;
    double square = 0.0;
    for (u32 i = t; i < dimensions; i += 256) {
        float x;
        if (flags & POOL_MEAN) {
            x = pool_mean(p, first, count, position, i);
        } else {
            u64 state = u64(load(p.index + (first + count - 1))) * p.hidden_stride;
            x = to_f32(load(p.hidden + (state + i)));
        }
        if constexpr (Narrow) {
            store(narrow + i, to_bf16(x));
        } else {
            square = add_rn(square, mul_rn(double(x), double(x)));
            store(out + i, x);
        }
    }
    if (!Narrow && (flags & POOL_NORMALISE)) {
        store(squares + t, square);
        for (u32 half = 128; half > 0; half /= 2) {
            sync_block();
            if (t < half) store(squares + t, add_rn(load(squares + t), load(squares + (t + half))));
        }
        sync_block();
        double length = sqrt_rn(load(squares + 0));
        length = length > 1e-12 ? length : 1e-12;
        // Each thread scales what it has written itself.
        for (u32 i = t; i < dimensions; i += 256) {
            store(out + i, float(div_rn(double(load(out + i)), length)));
        }
    }
    dep_launch();
}

PRELUDE_DEVICE void segment_means(const SegmentMeansParams& p) {
    dep_wait();
    u32 r = block_idx().x;
    if (r >= live_rows(p.live, p.rows)) return;
    MeanRow row = load(p.row + r);
    u32 at = row.first - p.first;  // before the first: too large
    if (at >= p.x_rows || row.count > p.x_rows - at) return;
    for (u32 column = thread_idx().x; column < p.width; column += block_dim().x) {
        float total = 0.0f, chunk = 0.0f;
        for (u32 i = 0; i < row.count; i++) {
            if (i > 0 && i % MEAN_CHUNK == 0) {
                total = add_rn(total, chunk);
                chunk = 0.0f;
            }
            chunk = add_rn(chunk, to_f32(load(p.x + (u64(at + i) * p.x_stride + column))));
        }
        float mean = div_rn(add_rn(total, chunk), float(row.count));
        store(p.y + (u64(r) * p.y_stride + column), to_bf16(mean));
    }
    dep_launch();
}

}  // namespace prelude
