// quant_fp8_group:  scale[r, g] = max(max |x[r, g]|, 2^-24) / 448     f32, as fp8_scales.cuh has them
//                   q[r, g]     = e4m3(x[r, g] / scale[r, g])         x bf16, q e4m3, [rows, width]
// silu_mul_fp8_group:  scale and q of a[r] = silu(g) · u; a row of x holds g, then u: [rows, 2·width]
// rms_norm_fp8_group:  scale and q of x[r] = norm(h[r]) · w
//
// g counts groups of 128 elements of a row; width is a multiple of 128. Roundings, strides and alignment
// are those of quant_fp8_row; a number that is not finite affects its group alone. The bits are those of
// silu_mul or rms_norm followed by quant_fp8_group.
//
// Launch: a block a row; width / 8 threads, rounded up to a warp, at most 1,024. silu_mul_fp8_group:
// width / 16 threads, rounded up to a warp, 32 to 512. 16 lanes hold a group, 8 elements each.
// Bound: 3 · rows · width bytes; silu_mul_fp8_group 5 · rows · width.
#pragma once

#include "prelude/fp8_scales.cuh"
#include "prelude/quant_fp8_row.cuh"

namespace prelude {

namespace fp8 {

constexpr u32 GROUP_LANES = BLOCK / 8;

// Rounds and stores a lane's eight numbers of a row, from element `i` on. All lanes of a warp call this
// with neighbouring `i`, also lanes whose `i` is beyond the row.
template <class Params>
PRELUDE_DEVICE void put_part(const Params& p, u32 row, u32 i, const bf16x8& x) {
    float most = magnitude(x, 0.0f);
    PRELUDE_UNROLL
    for (u32 distance = GROUP_LANES / 2; distance > 0; distance /= 2) {
        float other = shuffle_xor(most, distance);
        most = other > most || other != other ? other : most;
    }
    if (i >= p.width) return;
    float scale = scale_of(most);
    store(as<Vec<u16, 4>>(p.q + (u64(row) * p.width + i)), round_row_part(x, scale));
    if (i % BLOCK == 0) store(p.scale + RowScales(row, p.rows, p.width / BLOCK).at(i / BLOCK), scale);
}

}  // namespace fp8

PRELUDE_DEVICE void quant_fp8_group(const QuantFp8RowParams& p) {
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> x = p.x + u64(row) * p.x_stride;
    for (u32 at = 0; at < p.width; at += 8 * block_dim().x) {
        u32 i = at + 8 * thread_idx().x;
        bf16x8 v{};
        if (i < p.width) v = load(as<const bf16x8>(x + i));
        fp8::put_part(p, row, i, v);
    }
    dep_launch();
}

PRELUDE_DEVICE void silu_mul_fp8_group(const QuantFp8RowParams& p) {
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> gate = p.x + u64(row) * p.x_stride;
    for (u32 at = 0; at < p.width; at += 8 * block_dim().x) {
        u32 i = at + 8 * thread_idx().x;
        bf16x8 a{};
        if (i < p.width) a = fp8::gated_part(gate, p.width, i);
        fp8::put_part(p, row, i, a);
    }
    dep_launch();
}

// Sums in the order of rms_norm, with as many threads as rms_norm has.
PRELUDE_DEVICE void rms_norm_fp8_group(const RmsNormFp8RowParams& p) {
    PRELUDE_SHARED(float, sums, 32);
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> h = p.h + u64(row) * p.h_stride;
    u32 first = 8 * thread_idx().x, step = 8 * block_dim().x;
    // The first 8 elements of a thread stay in registers; wider rows are read twice.
    bf16x8 kept{};
    float sum = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = load(as<const bf16x8>(h + i));
        sum = add_squares(sum, v);
        if (i == first) kept = v;
    }
    float root = norm_scale(block_sum(sum, sums), p.width, p.eps);
    for (u32 at = 0; at < p.width; at += step) {
        u32 i = at + first;
        bf16x8 x{};
        if (i < p.width) {
            bf16x8 v = at == 0 ? kept : load(as<const bf16x8>(h + i));
            x = norm_part(v, load_ro(as<const bf16x8>(p.w + i)), root, p.offset);
        }
        fp8::put_part(p, row, i, x);
    }
    dep_launch();
}

}  // namespace prelude
