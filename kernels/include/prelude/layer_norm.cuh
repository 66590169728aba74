// layer_norm:  x = (h - mean(h)) / sqrt(var(h) + eps) · w + b      bf16 [rows, width]
//
// Ba et al., Layer Normalization (2016), §3. The mean, then the mean square of the differences from
// it, both in f32; rounded to bf16 once. x may be h. w and b are [width]. width and strides are
// multiples of 8 elements, pointers of 16 bytes.
//
// Launch: a block a row; width / 8 threads, rounded up to a warp, at most 1,024.
// Bound: 4 · rows · width bytes.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct LayerNormParams {
    Global<const bf16> h;
    Global<const bf16> w;
    Global<const bf16> b;
    Global<bf16> x;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 h_stride;
    u32 x_stride;
    float eps;
    u32 reserved;
};
PRELUDE_PARAMS(LayerNormParams, 64, h, w, b, x, live, rows, width, h_stride, x_stride, eps, reserved);

PRELUDE_DEVICE void layer_norm(const LayerNormParams& p) {
    PRELUDE_SHARED(float, sums, 32);
    PRELUDE_SHARED(float, squares, 32);
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> h = p.h + u64(row) * p.h_stride;
    u32 first = 8 * thread_idx().x, step = 8 * block_dim().x;
    // The first 8 elements of a thread stay in registers; wider rows are read three times, each
    // element by one thread, which is the one that writes it.
    bf16x8 kept{};
    float sum = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = load(as<const bf16x8>(h + i));
        for (int j = 0; j < 8; j++) sum = add_rn(sum, to_f32(v[j]));
        if (i == first) kept = v;
    }
    float mean = div_rn(block_sum(sum, sums), float(p.width));
    float square = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = i == first ? kept : load(as<const bf16x8>(h + i));
        for (int j = 0; j < 8; j++) {
            float difference = add_rn(to_f32(v[j]), -mean);
            square = add_rn(square, mul_rn(difference, difference));
        }
    }
    float variance = div_rn(block_sum(square, squares), float(p.width));
    float scale = div_rn(1.0f, sqrt_rn(add_rn(variance, p.eps)));
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = i == first ? kept : load(as<const bf16x8>(h + i));
        bf16x8 w = load_ro(as<const bf16x8>(p.w + i)), b = load_ro(as<const bf16x8>(p.b + i));
        for (int j = 0; j < 8; j++) {
            float normed = mul_rn(add_rn(to_f32(v[j]), -mean), scale);
            v[j] = to_bf16(add_rn(mul_rn(normed, to_f32(w[j])), to_f32(b[j])));
        }
        store(as<bf16x8>(p.x + (u64(row) * p.x_stride + i)), v);
    }
    dep_launch();
}

}  // namespace prelude
