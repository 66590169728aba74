// gemm_fp8:          y[m, n]  = (x[m, k] · w[n, k]ᵀ) · x_scale[m] · w_scale[n] (+ bias[n])
// gemm_fp8_add:      y[m, n] += the same                                   rounded once
// gemm_fp8_few:      as gemm_fp8, m ≤ 16
// gemm_fp8_few_add:  as gemm_fp8_add, m ≤ 16
//
// x, w e4m3; bias, y bf16; scales f32. Sums of f32, of products that are exact, times x_scale and then
// w_scale; then as gemm_mma and gemm_skinny, whose code and guarantees these are: an element's bits
// depend on its row of x and its row of w alone, in gemm_fp8 for every m, in gemm_fp8_few for m ≤ 16.
// k and the strides of x and w are multiples of 16 elements.
//
// An e4m3 becomes an f16 by moving its bits: exponents of f16 have a bias of 15 and not of 7, so that
// both factors are 2^-8 times what they are, subnormal numbers too, and a sum 2^-16 times.
// Instructions that multiply e4m3 do so with fewer bits in the sum on GPUs of compute capability 9.0.
//
// Launch and bounds: those of gemm_mma and gemm_skinny, of n · k bytes of w.
//
// Not tuned: as gemm_mma; each warp widens what it multiplies.
#pragma once

#include "prelude/gemm_skinny.cuh"

namespace prelude {

struct GemmFp8Params {
    Global<const e4m3> x;
    Global<const e4m3> w;
    Global<const float> x_scale;
    Global<const float> w_scale;
    Global<const bf16> bias;  // or null
    Global<bf16> y;
    Global<const u32> live;  // rows that count, or null for all
    u32 m;
    u32 n;
    u32 k;
    u32 x_stride;
    u32 w_stride;
    u32 y_stride;
};
PRELUDE_PARAMS(GemmFp8Params, 80, x, w, x_scale, w_scale, bias, y, live, m, n, k, x_stride, w_stride,
               y_stride);

namespace fp8 {

// Of four e4m3 the first and third, or the second and fourth, as f16 of 2^-8 times the value.
PRELUDE_DEVICE u32 even_f16(u32 four) {
    u32 high = four << 8;
    return (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
}
PRELUDE_DEVICE u32 odd_f16(u32 four) { return (four & 0x80008000u) | (four >> 1 & 0x3f803f80u); }

// Factors of four e4m3 a register, two steps of 16 elements in place of one. Within a step elements
// may come in any order, if it is the same for both factors.
struct Factors {
    static constexpr bool BLOCKS = false;
    Global<const float> x_scale, w_scale;

    static PRELUDE_DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        u32 even[4], odd[4];
        PRELUDE_UNROLL
        for (u32 i = 0; i < 4; i++) {
            even[i] = even_f16(a[i]);
            odd[i] = odd_f16(a[i]);
        }
        mma_m16n8k16_f16(c, even, even_f16(b0), even_f16(b1));
        mma_m16n8k16_f16(c, odd, odd_f16(b0), odd_f16(b1));
    }

    PRELUDE_DEVICE float value(u32 row, u32 column, float sum) const {
        float scaled = mul_rn(mul_rn(sum, 0x1p16f), load(x_scale + row));
        return mul_rn(scaled, load(w_scale + column));
    }
};

// The same rows as pairs of bytes, which copies and addresses are counted in.
PRELUDE_DEVICE GemmParams pairs(const GemmFp8Params& p) {
    return {as<const bf16>(p.x), as<const bf16>(p.w), p.bias, p.y,          p.live,      p.m, p.n,
            p.k / 2,             p.x_stride / 2,      p.w_stride / 2, p.y_stride};
}

}  // namespace fp8

template <GemmOutput Output>
PRELUDE_DEVICE void gemm_fp8(const GemmFp8Params& p) {
    // The third tile of GemmTile in src/families/gemm_mma.rs.
    using Tile = gemm::Tile<64, 64, 32, 32, 64, 5>;
    gemm::gemm_mma<Tile, Output>(fp8::pairs(p), fp8::Factors{p.x_scale, p.w_scale});
}

template <GemmOutput Output, u32 Tiles>
PRELUDE_DEVICE void gemm_fp8_few(const GemmFp8Params& p) {
    gemm_skinny<Output, Tiles>(fp8::pairs(p), fp8::Factors{p.x_scale, p.w_scale});
}

}  // namespace prelude
