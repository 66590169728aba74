// qk_norm_rope_store: for each token of qkv `[rows, (Hq + 2 Hkv) · D]` and each head of q and k
//
//   y = x / sqrt(mean(x²) + eps) · w            w is q_norm or k_norm, [D]
//   z[i]       = y[i] · cos − y[i + D/2] · sin  i < D/2; cos and sin of the token's position
//   z[i + D/2] = y[i + D/2] · cos + y[i] · sin
//
// in f32, rounded to bf16 once, written in place. K and V (V as it is) also go
// - to the pages, if slots[t] ≥ 0: position slot % block_size of block slot / block_size, pages
//   `[block][kv_head][block_size][D]`; a slot of −1 is a token that is not kept;
// - to row step_first + t of k_step and v_step `[_, Hkv · D]`, unless those are null.
//
// rope `f32 [rope_positions, D]`: D/2 cosines, then D/2 sines, made on the host. A position
// outside it turns the token's q and k into NaN, so that its row fails and no other. D is a
// multiple of 8 up to 128; strides are multiples of 8 elements; block_size is a power of two;
// rows · (Hq + 2 Hkv) is below 2^32.
//
// Launch: 256 threads, a warp a (token, head): ⌈rows · (Hq + 2 Hkv) / 8⌉ blocks. A lane has the
// pairs (2l, 2l+1) and (2l + D/2, 2l+1 + D/2).
// Bound: 4 · rows · (Hq + Hkv) · D bytes, and 6 · Hkv · D bytes for a token that is kept.
//
// Not tuned: accesses are of 4 bytes a lane. Not yet run on a GPU.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct QkNormRopeStoreParams {
    Global<bf16> qkv;
    Global<const i32> positions;
    Global<const i32> slots;
    Global<const float> rope;
    Global<const bf16> q_norm;
    Global<const bf16> k_norm;
    Global<bf16> k_pages;
    Global<bf16> v_pages;
    Global<bf16> k_step;  // or null, as v_step
    Global<bf16> v_step;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 qkv_stride;
    u32 block_size;
    u32 step_first;
    u32 step_stride;
    u32 rope_positions;
    float eps;
};
PRELUDE_PARAMS(QkNormRopeStoreParams, 128, qkv, positions, slots, rope, q_norm, k_norm, k_pages,
               v_pages, k_step, v_step, live, rows, heads, kv_heads, head_dim, qkv_stride,
               block_size, step_first, step_stride, rope_positions, eps);

namespace rope {

// A lane's part of a head: two neighbours of each half.
struct Pairs {
    float low[2], high[2];
};

PRELUDE_DEVICE Pairs load_pairs(Global<const bf16> head, u32 i, u32 half) {
    bf16x2 low = load(as<const bf16x2>(head + i)), high = load(as<const bf16x2>(head + (i + half)));
    return {{to_f32(low[0]), to_f32(low[1])}, {to_f32(high[0]), to_f32(high[1])}};
}

PRELUDE_DEVICE void store_pairs(Global<bf16> head, u32 i, u32 half, const Pairs& x) {
    store(as<u32>(head + i), pack_bf16(x.low[0], x.low[1]));
    store(as<u32>(head + (i + half)), pack_bf16(x.high[0], x.high[1]));
}

PRELUDE_DEVICE float squares(const Pairs& x) {
    float low = add_rn(mul_rn(x.low[0], x.low[0]), mul_rn(x.low[1], x.low[1]));
    float high = add_rn(mul_rn(x.high[0], x.high[0]), mul_rn(x.high[1], x.high[1]));
    return add_rn(low, high);
}

// y = x · scale · w, then turned by the angles of one row of the table.
PRELUDE_DEVICE Pairs turn(const Pairs& x, float scale, const Pairs& w, Global<const float> angles,
                          u32 i, u32 half) {
    Pairs z;
    for (int e = 0; e < 2; e++) {
        float low = mul_rn(mul_rn(x.low[e], scale), w.low[e]);
        float high = mul_rn(mul_rn(x.high[e], scale), w.high[e]);
        float cos = load_ro(angles + (i + e)), sin = load_ro(angles + (i + half + e));
        z.low[e] = add_rn(mul_rn(low, cos), -mul_rn(high, sin));
        z.high[e] = add_rn(mul_rn(high, cos), mul_rn(low, sin));
    }
    return z;
}

}  // namespace rope

PRELUDE_DEVICE void qk_norm_rope_store(const QkNormRopeStoreParams& p) {
    using namespace rope;
    dep_wait();
    u32 heads = p.heads + 2 * p.kv_heads;
    u32 item = block_idx().x * (block_dim().x / WARP) + warp_id();
    u32 row = item / heads, head = item % heads;
    if (row >= live_rows(p.live, p.rows)) return;
    u32 half = p.head_dim / 2, i = 2 * lane_id();
    bool has_part = i < half;
    bool is_query = head < p.heads, is_value = head >= p.heads + p.kv_heads;
    Global<bf16> at = p.qkv + (u64(row) * p.qkv_stride + head * p.head_dim);
    Pairs x{};
    if (has_part) x = load_pairs(at, i, half);
    if (!is_value) {
        float sum = warp_sum(squares(x));
        float scale = div_rn(1.0f, sqrt_rn(add_rn(div_rn(sum, float(p.head_dim)), p.eps)));
        i32 position = load_ro(p.positions + row);
        bool is_known = position >= 0 && u32(position) < p.rope_positions;
        if (!is_known) scale = bit_cast<float>(0x7fc00000u);
        if (has_part) {
            Pairs w = load_pairs(is_query ? p.q_norm : p.k_norm, i, half);
            Global<const float> angles = p.rope + u64(is_known ? position : 0) * p.head_dim;
            x = turn(x, scale, w, angles, i, half);
            store_pairs(at, i, half, x);
        }
    }
    if (!is_query && has_part) {
        u32 kv_head = (head - p.heads) % p.kv_heads;
        i32 slot = load_ro(p.slots + row);
        if (slot >= 0) {
            u64 block = u32(slot) / p.block_size, offset = u32(slot) % p.block_size;
            u64 place = ((block * p.kv_heads + kv_head) * p.block_size + offset) * p.head_dim;
            store_pairs((is_value ? p.v_pages : p.k_pages) + place, i, half, x);
        }
        if (p.k_step) {
            u64 place = u64(p.step_first + row) * p.step_stride + kv_head * p.head_dim;
            store_pairs((is_value ? p.v_step : p.k_step) + place, i, half, x);
        }
    }
    dep_launch();
}

}  // namespace prelude
