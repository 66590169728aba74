// activate:      x = f(x), in place                     bf16 [rows, width]
// gelu_erf_mul:  a = gelu_erf(g) · u, as silu_mul.cuh   bf16 [rows, 2·width] → [rows, width]
// relu_mul:      a = relu(g) · u
//
//   gelu_erf(x) = x / 2 · (1 + erf(x / √2))    erf within 1.5e-7
//   gelu(x)     gelu_erf approximated by tanh: see silu_mul.cuh
//   relu(x)     = max(x, 0)
//   tanh_of(x)  = 1 - 2 / (e^2x + 1)           within some units of the last place of 1
//
// f32 inside, rounded once. width and stride are multiples of 8 elements; rows · width is below
// 2^34, as in silu_mul.cuh. NaN stays.
//
// Launch: 256 threads, 8 elements a thread: ⌈rows · width / 2048⌉ blocks.
// Bound: 4 · rows · width bytes.
#pragma once

#include "prelude/silu_mul.cuh"

namespace prelude {

struct ActivateParams {
    Global<bf16> x;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 stride;
    u32 reserved;
};
PRELUDE_PARAMS(ActivateParams, 32, x, live, rows, width, stride, reserved);

// erf by Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 7.1.26, of y = x / √2:
// 1 - p(t) · t · e^(-y²), t = 1 / (1 + 0.3275911 |y|). Where y² overflows, the power is 0.
PRELUDE_DEVICE float gelu_erf(float x) {
    float y = mul_rn(x, 0.70710678f);
    float size = y < 0.0f ? -y : y;
    float t = div_rn(1.0f, add_rn(1.0f, mul_rn(0.3275911f, size)));
    float p = add_rn(mul_rn(1.0614054f, t), -1.453152f);
    p = add_rn(mul_rn(p, t), 1.4214137f);
    p = add_rn(mul_rn(p, t), -0.28449674f);
    p = add_rn(mul_rn(p, t), 0.2548296f);
    float power = exp2_fast(mul_rn(-1.44269504f, mul_rn(y, y)));
    float erf = add_rn(1.0f, -mul_rn(mul_rn(p, t), power));
    erf = y < 0.0f ? -erf : erf;
    return mul_rn(mul_rn(0.5f, x), add_rn(1.0f, erf));
}

PRELUDE_DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }

PRELUDE_DEVICE float tanh_of(float x) {
    float power = exp2_fast(mul_rn(2.88539008f, x));
    // Beyond the range of div_fast the quotient is 0.
    return power > 1e30f ? 1.0f : add_rn(1.0f, -div_fast(2.0f, add_rn(power, 1.0f)));
}

template <float (*F)(float)>
PRELUDE_DEVICE void activate(const ActivateParams& p) {
    dep_wait();
    u32 vectors = p.width / 8;
    u32 i = block_idx().x * block_dim().x + thread_idx().x;
    u32 row = i / vectors, column = (i - row * vectors) * 8;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<bf16> at = p.x + (u64(row) * p.stride + column);
    bf16x8 v = load(as<bf16x8>(at));
    for (int j = 0; j < 8; j++) v[j] = to_bf16(F(to_f32(v[j])));
    store(as<bf16x8>(at), v);
    dep_launch();
}

}  // namespace prelude
