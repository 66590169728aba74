// quant_fp8_row:  scale[r] = max(max |x[r]|, 2^-24) / 448     f32
//                 q[r]     = e4m3(x[r] / scale[r])            x bf16, q e4m3, [rows, width]
// silu_mul_fp8_row:  scale and q of a[r] = silu(g) · u; a row of x holds g, then u: [rows, 2·width]
// rms_norm_fp8_row:  scale and q of x[r] = norm(h[r]) · w
//
// a and norm(h) · w are rounded to bf16 as silu_mul and rms_norm round them: the bits are those of
// silu_mul or rms_norm followed by quant_fp8_row.
// The largest magnitude of a row is exact, and so a row's result does not depend on what else is in the
// batch. Quotients are rounded to f32, then to the nearest e4m3, ties to even. The scale of a row with a
// NaN is NaN, that of a row with an infinity is infinite: results computed with either are not finite.
//
// `x` and `h` have row strides of their own, rows of q lie close together; width and stride are multiples
// of 8 elements, pointers to x, h and w multiples of 16 bytes, to q of 8.
//
// Launch: a block a row; width / 8 threads, rounded up to a warp, at most 1,024. silu_mul_fp8_row:
// width / 32 threads, rounded up to a warp, 32 to 512, and 2 · width bytes of dynamic shared memory, in
// which a thread keeps its own numbers between their largest and their rounding.
// Bound: 3 · rows · width bytes; silu_mul_fp8_row 5 · rows · width.
#pragma once

#include "prelude/rms_norm.cuh"
#include "prelude/silu_mul.cuh"

namespace prelude {

struct QuantFp8RowParams {
    Global<const bf16> x;
    Global<e4m3> q;
    Global<float> scale;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 x_stride;
    u32 reserved;
};
PRELUDE_PARAMS(QuantFp8RowParams, 48, x, q, scale, live, rows, width, x_stride, reserved);

struct RmsNormFp8RowParams {
    Global<const bf16> h;
    Global<const bf16> w;
    Global<e4m3> q;
    Global<float> scale;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 h_stride;
    float eps;
    float offset;  // added to w
    u32 reserved;
};
PRELUDE_PARAMS(RmsNormFp8RowParams, 64, h, w, q, scale, live, rows, width, h_stride, eps, offset, reserved);

namespace fp8 {

constexpr float LARGEST = 448.0f;  // the largest e4m3
constexpr float LEAST = 0x1p-24f;  // the least magnitude for which a scale is made

// Returns eight numbers divided by `scale` and rounded, two e4m3 in each u16.
PRELUDE_DEVICE Vec<u16, 4> round_row_part(const bf16x8& x, float scale) {
    Vec<u16, 4> q;
    PRELUDE_UNROLL
    for (int j = 0; j < 4; j++) {
        q[j] = pack_e4m3(div_rn(to_f32(x[2 * j]), scale), div_rn(to_f32(x[2 * j + 1]), scale));
    }
    return q;
}

// Returns the largest of `most` and the magnitudes of eight numbers; NaN if any is.
PRELUDE_DEVICE float magnitude(const bf16x8& x, float most) {
    PRELUDE_UNROLL
    for (int j = 0; j < 8; j++) {
        float size = to_f32(bf16{u16(x[j].bits & 0x7fff)});
        most = size > most || size != size ? size : most;
    }
    return most;
}

PRELUDE_DEVICE float scale_of(float most) {
    return div_rn(most < LEAST ? LEAST : most, LARGEST);
}

// Returns eight numbers of silu(g) · u, from element `i` on, rounded as silu_mul rounds them.
PRELUDE_DEVICE bf16x8 gated_part(Global<const bf16> gate, u32 width, u32 i) {
    bf16x8 g = load(as<const bf16x8>(gate + i)), u = load(as<const bf16x8>(gate + (width + i)));
    bf16x8 a;
    PRELUDE_UNROLL
    for (int j = 0; j < 8; j++) {
        a[j] = to_bf16(mul_rn(to_f32(to_bf16(silu(to_f32(g[j])))), to_f32(u[j])));
    }
    return a;
}

}  // namespace fp8

PRELUDE_DEVICE void quant_fp8_row(const QuantFp8RowParams& p) {
    PRELUDE_SHARED(float, scratch, 32);
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> x = p.x + u64(row) * p.x_stride;
    u32 first = 8 * thread_idx().x, step = 8 * block_dim().x;
    // The first 8 elements of a thread stay in registers; wider rows are read twice.
    bf16x8 kept{};
    float most = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = load(as<const bf16x8>(x + i));
        most = fp8::magnitude(v, most);
        if (i == first) kept = v;
    }
    float scale = fp8::scale_of(block_max_nan(most, scratch));
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = i == first ? kept : load(as<const bf16x8>(x + i));
        store(as<Vec<u16, 4>>(p.q + (u64(row) * p.width + i)), fp8::round_row_part(v, scale));
    }
    if (thread_idx().x == 0) store(p.scale + row, scale);
    dep_launch();
}

PRELUDE_DEVICE void silu_mul_fp8_row(const QuantFp8RowParams& p) {
    PRELUDE_SHARED(float, scratch, 32);
    Shared<bf16> own = dynamic_shared<bf16>();
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> gate = p.x + u64(row) * p.x_stride;
    u32 first = 8 * thread_idx().x, step = 8 * block_dim().x;
    float most = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 a = fp8::gated_part(gate, p.width, i);
        most = fp8::magnitude(a, most);
        store(as<bf16x8>(own + i), a);
    }
    float scale = fp8::scale_of(block_max_nan(most, scratch));
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 a = load(as<bf16x8>(own + i));
        store(as<Vec<u16, 4>>(p.q + (u64(row) * p.width + i)), fp8::round_row_part(a, scale));
    }
    if (thread_idx().x == 0) store(p.scale + row, scale);
    dep_launch();
}

// Sums in the order of rms_norm, with as many threads as rms_norm has.
PRELUDE_DEVICE void rms_norm_fp8_row(const RmsNormFp8RowParams& p) {
    PRELUDE_SHARED(float, sums, 32);
    PRELUDE_SHARED(float, scratch, 32);
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const bf16> h = p.h + u64(row) * p.h_stride;
    u32 first = 8 * thread_idx().x, step = 8 * block_dim().x;
    // The first 8 elements of a thread stay in registers; wider rows are read and normed twice more.
    bf16x8 kept{};
    float sum = 0.0f;
    for (u32 i = first; i < p.width; i += step) {
        bf16x8 v = load(as<const bf16x8>(h + i));
        sum = add_squares(sum, v);
        if (i == first) kept = v;
    }
    float root = norm_scale(block_sum(sum, sums), p.width, p.eps);
    auto normed = [&](u32 i, const bf16x8& v) {
        return norm_part(v, load_ro(as<const bf16x8>(p.w + i)), root, p.offset);
    };
    if (first < p.width) kept = normed(first, kept);
    auto part = [&](u32 i) { return i == first ? kept : normed(i, load(as<const bf16x8>(h + i))); };
    float most = 0.0f;
    for (u32 i = first; i < p.width; i += step) most = fp8::magnitude(part(i), most);
    float scale = fp8::scale_of(block_max_nan(most, scratch));
    for (u32 i = first; i < p.width; i += step) {
        store(as<Vec<u16, 4>>(p.q + (u64(row) * p.width + i)), fp8::round_row_part(part(i), scale));
    }
    if (thread_idx().x == 0) store(p.scale + row, scale);
    dep_launch();
}

}  // namespace prelude
