// qk_norm_rope_store: for each token of qkv `[rows, (Hq + 2 Hkv) · D]` and each head of q and k
//
//   y = x / sqrt(mean(x²) + eps) · (offset + w)   w is q_norm or k_norm, [D]; without them y = x
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
// multiple of 8 up to 128, in the wide form up to 256; strides are multiples of 8 elements;
// block_size is a power of two; rows · (Hq + 2 Hkv) is below 2^32.
//
// Launch: blocks of 256 threads. Half a warp has one head of one token, in the wide form a whole warp:
// ⌈rows · (Hq + 2 Hkv) / 16⌉ blocks, or twice as many. Lane l has elements 4l.. of each half of a head,
// so an access has 8 bytes, and there are half the square roots of lanes with 2 elements of each half. V
// is not read where it goes nowhere.
// Bound: 4 · rows · (Hq + Hkv) · D bytes, and 6 · Hkv · D bytes for a token that is kept.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct QkNormRopeStoreParams {
    Global<bf16> qkv;
    Global<const i32> positions;
    Global<const i32> slots;
    Global<const float> rope;
    Global<const bf16> q_norm;  // q_norm and k_norm are null if heads are not normalised
    Global<const bf16> k_norm;
    Global<bf16> k_pages;
    Global<bf16> v_pages;
    Global<bf16> k_step;  // k_step and v_step may be null
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
    float offset;  // added to the norms' weights
    u32 reserved;
};
PRELUDE_PARAMS(QkNormRopeStoreParams, 136, qkv, positions, slots, rope, q_norm, k_norm, k_pages,
               v_pages, k_step, v_step, live, rows, heads, kv_heads, head_dim, qkv_stride,
               block_size, step_first, step_stride, rope_positions, eps, offset, reserved);

namespace rope {

constexpr u32 EACH = 4;    // elements of each half that a lane has
using Four = Vec<bf16, 4>;

// The part of a head that a lane has: four neighbours of each half.
struct Part {
    float low[EACH], high[EACH];
};

PRELUDE_DEVICE Part load_part(Global<const bf16> head, u32 i, u32 half) {
    Four low = load(as<const Four>(head + i)), high = load(as<const Four>(head + (i + half)));
    Part x;
    for (u32 e = 0; e < EACH; e++) {
        x.low[e] = to_f32(low[e]);
        x.high[e] = to_f32(high[e]);
    }
    return x;
}

PRELUDE_DEVICE Part ones() {
    Part x;
    for (u32 e = 0; e < EACH; e++) x.low[e] = x.high[e] = 1.0f;
    return x;
}

PRELUDE_DEVICE void store_part(Global<bf16> head, u32 i, u32 half, const Part& x) {
    using Two = Vec<u32, 2>;
    Two low{{pack_bf16(x.low[0], x.low[1]), pack_bf16(x.low[2], x.low[3])}};
    Two high{{pack_bf16(x.high[0], x.high[1]), pack_bf16(x.high[2], x.high[3])}};
    store(as<Two>(head + i), low);
    store(as<Two>(head + (i + half)), high);
}

PRELUDE_DEVICE float squares(const Part& x) {
    float sum = 0.0f;
    for (u32 e = 0; e < EACH; e++) sum = add_rn(sum, mul_rn(x.low[e], x.low[e]));
    for (u32 e = 0; e < EACH; e++) sum = add_rn(sum, mul_rn(x.high[e], x.high[e]));
    return sum;
}

// Returns x · scale · (offset + w), turned by the angles of one row of the table.
PRELUDE_DEVICE Part turn(const Part& x, float scale, float offset, const Part& w,
                         Global<const float> angles, u32 i, u32 half) {
    f32x4 cos = load_ro(as<const f32x4>(angles + i));
    f32x4 sin = load_ro(as<const f32x4>(angles + (i + half)));
    Part z;
    for (u32 e = 0; e < EACH; e++) {
        float low = mul_rn(mul_rn(x.low[e], scale), add_rn(offset, w.low[e]));
        float high = mul_rn(mul_rn(x.high[e], scale), add_rn(offset, w.high[e]));
        z.low[e] = add_rn(mul_rn(low, cos[e]), -mul_rn(high, sin[e]));
        z.high[e] = add_rn(mul_rn(high, cos[e]), mul_rn(low, sin[e]));
    }
    return z;
}

}  // namespace rope

// Does all the above; `LANES` lanes have one head.
template <u32 LANES>
PRELUDE_DEVICE void qk_norm_rope_store(const QkNormRopeStoreParams& p) {
    using namespace rope;
    dep_wait();
    u32 heads = p.heads + 2 * p.kv_heads;
    u32 item = block_idx().x * (block_dim().x / LANES) + thread_idx().x / LANES;
    u32 row = item / heads, head = item % heads;
    u32 half = p.head_dim / 2, i = EACH * (thread_idx().x % LANES);
    // All lanes of a warp go through the sum together, also those without a part.
    bool is_live = row < live_rows(p.live, p.rows);
    bool is_query = head < p.heads, is_value = head >= p.heads + p.kv_heads;
    i32 slot = is_live && !is_query ? load_ro(p.slots + row) : -1;
    bool is_kept = slot >= 0 || (p.k_step && !is_query);
    bool has_part = is_live && i < half && (!is_value || is_kept);
    Global<bf16> at = p.qkv + (u64(is_live ? row : 0) * p.qkv_stride + head * p.head_dim);
    Part x{};
    if (has_part) x = load_part(at, i, half);
    float sum = squares(x);
    for (u32 distance = 1; distance < LANES; distance *= 2) {
        sum = add_rn(sum, shuffle_xor(sum, distance));
    }
    if (!has_part) return;
    if (!is_value) {
        Global<const bf16> norm = is_query ? p.q_norm : p.k_norm;
        float scale =
            norm ? div_rn(1.0f, sqrt_rn(add_rn(div_rn(sum, float(p.head_dim)), p.eps))) : 1.0f;
        i32 position = load_ro(p.positions + row);
        bool is_known = position >= 0 && u32(position) < p.rope_positions;
        if (!is_known) scale = bit_cast<float>(0x7fc00000u);
        Part w = norm ? load_part(norm, i, half) : ones();
        Global<const float> angles = p.rope + u64(is_known ? position : 0) * p.head_dim;
        x = turn(x, scale, norm ? p.offset : 0.0f, w, angles, i, half);
        store_part(at, i, half, x);
    }
    if (is_kept) {
        u32 kv_head = (head - p.heads) % p.kv_heads;
        if (slot >= 0) {
            u64 block = u32(slot) / p.block_size, offset = u32(slot) % p.block_size;
            u64 place = ((block * p.kv_heads + kv_head) * p.block_size + offset) * p.head_dim;
            store_part((is_value ? p.v_pages : p.k_pages) + place, i, half, x);
        }
        if (p.k_step) {
            u64 place = u64(p.step_first + row) * p.step_stride + kv_head * p.head_dim;
            store_part((is_value ? p.v_step : p.k_step) + place, i, half, x);
        }
    }
    dep_launch();
}

}  // namespace prelude
