// silu_mul:  a = silu(g) · u,  silu(g) = g / (1 + e^-g)      bf16 [rows, 2·width] → [rows, width]
// gelu_mul:  a = gelu(g) · u,  gelu(g) = g / (1 + e^-2y),  y = √(2/π) · (g + 0.044715 g³)
//
// gelu(g) is g / 2 · (1 + tanh y), written without the cancellation in 1 + tanh y.
// f32 inside; the gate is rounded to bf16 before the product, as the reference's two kernels do.
// A row of `gate_up` holds g, then u. width and strides are multiples of 8 elements; rows · width
// is below 2^34, so that a thread finds its row and column by a 32-bit division, which is fast.
//
// Launch: 256 threads, 8 elements a thread: ⌈rows · width / 2048⌉ blocks.
// Bound: 6 · rows · width bytes.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct SiluMulParams {
    Global<const bf16> gate_up;
    Global<bf16> a;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 gate_up_stride;
    u32 a_stride;
};
PRELUDE_PARAMS(SiluMulParams, 40, gate_up, a, live, rows, width, gate_up_stride, a_stride);

// e^-g = 2^(-g · log2 e). Where it overflows, g / ∞ is -0, which is right: silu(-1e4) is tiny.
PRELUDE_DEVICE float silu(float g) {
    float e = exp2_fast(mul_rn(-1.44269504f, g));
    return e > 1e30f ? 0.0f : div_fast(g, add_rn(1.0f, e));
}

// -2 · log2 e · √(2/π) = -2.3022082. Where g³ overflows, so does e, or it is 0: both are right.
PRELUDE_DEVICE float gelu(float g) {
    float cube = mul_rn(mul_rn(g, g), g);
    float e = exp2_fast(mul_rn(-2.3022082f, add_rn(g, mul_rn(0.044715f, cube))));
    return e > 1e30f ? 0.0f : div_fast(g, add_rn(1.0f, e));
}

template <float (*Gate)(float)>
PRELUDE_DEVICE void gate_mul(const SiluMulParams& p) {
    dep_wait();
    u32 vectors = p.width / 8;
    u32 i = block_idx().x * block_dim().x + thread_idx().x;
    u32 row = i / vectors, column = (i - row * vectors) * 8;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> gate = p.gate_up + (u64(row) * p.gate_up_stride + column);
    bf16x8 g = load(as<const bf16x8>(gate)), u = load(as<const bf16x8>(gate + p.width));
    bf16x8 a;
    for (int j = 0; j < 8; j++) {
        float s = to_f32(to_bf16(Gate(to_f32(g[j]))));
        a[j] = to_bf16(mul_rn(s, to_f32(u[j])));
    }
    store(as<bf16x8>(p.a + (u64(row) * p.a_stride + column)), a);
    dep_launch();
}

}  // namespace prelude
