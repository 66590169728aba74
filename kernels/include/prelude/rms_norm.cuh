// rms_norm:      x = norm(h) · w                         bf16 [rows, width]
// add_rms_norm:  h += d, then x = norm(h) · w
// rms_norm_add:  h += norm(d) · w
//
// norm(h) = h / sqrt(mean(h²) + eps), mean square in f32, the quotient rounded to bf16 before the
// product with w, as the reference does. With an offset the product is norm(h) · (offset + w), and
// the product, or its sum with h, is rounded once, as the reference does for models whose weights are
// stored less 1. `h`, `d`, `x` have row strides of their own; w is [width]. width and strides are
// multiples of 8 elements, pointers of 16 bytes.
//
// Launch: a block a row; width / 8 threads, rounded up to a warp, at most 1,024.
// Bound: 4 · rows · width bytes, and 8 · rows · width for the forms that add.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct RmsNormParams {
    Global<bf16> h;  // not written by the plain form
    Global<const bf16> d;
    Global<const bf16> w;
    Global<bf16> x;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 h_stride;
    u32 d_stride;
    u32 x_stride;
    float eps;
    float offset;  // added to w
    u32 reserved;
};
PRELUDE_PARAMS(RmsNormParams, 72, h, d, w, x, live, rows, width, h_stride, d_stride, x_stride, eps,
               offset, reserved);

// Returns `sum` plus the squares of eight numbers.
PRELUDE_DEVICE float add_squares(float sum, const bf16x8& v) {
    for (int j = 0; j < 8; j++) sum = add_rn(sum, mul_rn(to_f32(v[j]), to_f32(v[j])));
    return sum;
}

// Returns the factor that scales a row, from the row's sum of squares.
PRELUDE_DEVICE float norm_scale(float sum, u32 width, float eps) {
    return div_rn(1.0f, sqrt_rn(add_rn(div_rn(sum, float(width)), eps)));
}

// Returns norm(v) · w of eight numbers.
PRELUDE_DEVICE bf16x8 norm_part(const bf16x8& v, const bf16x8& w, float scale, float offset) {
    bf16x8 x;
    for (int j = 0; j < 8; j++) {
        float normed = mul_rn(to_f32(v[j]), scale);
        if (offset == 0.0f) normed = to_f32(to_bf16(normed));
        x[j] = to_bf16(mul_rn(normed, add_rn(offset, to_f32(w[j]))));
    }
    return x;
}

template <bool Add>
PRELUDE_DEVICE void rms_norm(const RmsNormParams& p) {
    PRELUDE_SHARED(float, scratch, 32);
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<bf16> h = p.h + u64(row) * p.h_stride;
    u32 first = 8 * thread_idx().x, step = 8 * block_dim().x;
    // The first 8 elements of a thread stay in registers; wider rows are read twice.
    bf16x8 kept{};
    float sum = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = load(as<bf16x8>(h + i));
        if (Add) {
            bf16x8 d = load(as<const bf16x8>(p.d + (u64(row) * p.d_stride + i)));
            for (int j = 0; j < 8; j++) v[j] = to_bf16(add_rn(to_f32(v[j]), to_f32(d[j])));
            store(as<bf16x8>(h + i), v);
        }
        sum = add_squares(sum, v);
        if (i == first) kept = v;
    }
    float scale = norm_scale(block_sum(sum, scratch), p.width, p.eps);
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = i == first ? kept : load(as<bf16x8>(h + i));
        bf16x8 w = load_ro(as<const bf16x8>(p.w + i));
        store(as<bf16x8>(p.x + (u64(row) * p.x_stride + i)), norm_part(v, w, scale, p.offset));
    }
    dep_launch();
}

// Rows of d are read twice: the sum of squares, then the product.
PRELUDE_DEVICE void rms_norm_add(const RmsNormParams& p) {
    PRELUDE_SHARED(float, scratch, 32);
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> d = p.d + u64(row) * p.d_stride;
    Global<bf16> h = p.h + u64(row) * p.h_stride;
    u32 first = 8 * thread_idx().x, step = 8 * block_dim().x;
    float sum = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        sum = add_squares(sum, load(as<const bf16x8>(d + i)));
    }
    float scale = norm_scale(block_sum(sum, scratch), p.width, p.eps);
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = load(as<const bf16x8>(d + i)), w = load_ro(as<const bf16x8>(p.w + i));
        bf16x8 y = load(as<bf16x8>(h + i));
        for (int j = 0; j < 8; j++) {
            float normed = mul_rn(mul_rn(to_f32(v[j]), scale), add_rn(p.offset, to_f32(w[j])));
            y[j] = to_bf16(add_rn(to_f32(y[j]), normed));
        }
        store(as<bf16x8>(h + i), y);
    }
    dep_launch();
}

}  // namespace prelude
