// Conversions and functions that are the same code on host and device, bit for bit.
#pragma once

namespace prelude {

constexpr u32 FULL_WARP = 0xffffffffu;
constexpr u32 WARP = 32;
constexpr float NEG_INFINITY = -PRELUDE_INFINITY;

PRELUDE_DEVICE u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }
PRELUDE_DEVICE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }
PRELUDE_DEVICE u32 div_up(u32 a, u32 b) { return (a + b - 1) / b; }

PRELUDE_DEVICE float to_f32(bf16 x) { return bit_cast<float>(u32(x.bits) << 16); }

// Two bf16 in one register, as the tensor-core instructions take them.
PRELUDE_DEVICE u32 pack_bf16(float low, float high) {
    return u32(to_bf16(low).bits) | (u32(to_bf16(high).bits) << 16);
}

PRELUDE_DEVICE float to_f32(e4m3 x) {
    u32 sign = u32(x.bits & 0x80) << 24, magnitude = x.bits & 0x7f;
    if (magnitude == 0x7f) return bit_cast<float>(sign | 0x7fc00000u);
    // Subnormals are multiples of 2^-9; the others have bias 7.
    if (magnitude < 8) return bit_cast<float>(sign | bit_cast<u32>(float(magnitude) * 0x1p-9f));
    return bit_cast<float>(sign | ((magnitude << 20) + ((127 - 7) << 23)));
}

// Returns the nearest e4m3, ties to even, larger magnitudes to 448; NaN stays.
PRELUDE_DEVICE e4m3 to_e4m3(float x) {
    u32 bits = bit_cast<u32>(x);
    u8 sign = u8((bits >> 24) & 0x80);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return {u8(sign | 0x7f)};
    if (bits >= 0x43e00000u) return {u8(sign | 0x7e)};  // 448
    if (bits < 0x3c800000u) {
        // Below 2^-6 the step is 2^-9: adding 1.5·2^14 leaves units of 2^-9 in the mantissa's end.
        float shifted = add_rn(bit_cast<float>(bits), 0x1.8p14f);
        return {u8(sign | u8(bit_cast<u32>(shifted) & 0xf))};
    }
    bits += 0x7ffff + ((bits >> 20) & 1);
    u32 magnitude = (bits >> 20) - ((127 - 7) << 3);
    return {u8(sign | u8(magnitude < 0x7e ? magnitude : 0x7e))};
}

// Two e4m3 in 16 bits, the first the low byte.
PRELUDE_DEVICE u16 pack_e4m3(float low, float high) {
#ifdef PRELUDE_ROUNDS_E4M3
    return round_e4m3(low, high);
#else
    return u16(u16(to_e4m3(low).bits) | u16(to_e4m3(high).bits) << 8);
#endif
}

// e^x within 2 units in the last place for x in [-87, 88]; 0 below, infinity above; NaN stays.
// Operation by operation what the CPU executor computes, so that weights of sampling have the
// same bits there, here and in emulation.
PRELUDE_DEVICE float exp_exact(float x) {
    float clamped = x < -87.0f ? -87.0f : x;
    clamped = clamped > 88.0f ? 88.0f : clamped;
    // 1.5 · 2^23: adding it rounds to an integer, which then sits in the low mantissa bits.
    const float magic = 12582912.0f;
    float t = add_rn(mul_rn(clamped, 1.44269504f), magic);
    float n = add_rn(t, -magic);
    float r = add_rn(clamped, -mul_rn(n, 0.6933594f));
    r = add_rn(r, -mul_rn(n, -2.12194440e-4f));
    float p = 1.9875691e-4f;
    p = add_rn(mul_rn(p, r), 1.3981999e-3f);
    p = add_rn(mul_rn(p, r), 8.333452e-3f);
    p = add_rn(mul_rn(p, r), 4.1665796e-2f);
    p = add_rn(mul_rn(p, r), 1.6666665e-1f);
    p = add_rn(mul_rn(p, r), 0.5f);
    float value = add_rn(add_rn(mul_rn(mul_rn(p, r), r), r), 1.0f);
    float power = bit_cast<float>((bit_cast<u32>(t) << 23) + (127u << 23));
    float result = mul_rn(value, power);
    result = x < -87.0f ? 0.0f : result;
    return x > 88.0f ? bit_cast<float>(0x7f800000u) : result;
}

// cap · tanh(x / cap), operation by operation what the CPU executor computes; NaN stays.
PRELUDE_DEVICE float soft_cap(float x, float cap) {
    float y = mul_rn(x, div_rn(1.0f, cap));
    float e = exp_exact(mul_rn(2.0f, y));
    return mul_rn(cap, add_rn(1.0f, -div_rn(2.0f, add_rn(e, 1.0f))));
}

// Returns to every lane the sum over the 32 lanes: pairs at distance 16, 8, 4, 2, 1.
PRELUDE_DEVICE float warp_sum(float x) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        x = add_rn(x, shuffle_xor(x, distance));
    }
    return x;
}

// Shuffles of 8 bytes, as two of 4.
PRELUDE_DEVICE u64 shuffle_u64(u64 x, u32 source) {
    u32 low = shuffle(u32(x), source), high = shuffle(u32(x >> 32), source);
    return u64(high) << 32 | low;
}
PRELUDE_DEVICE u64 shuffle_up_u64(u64 x, u32 distance) {
    u32 low = shuffle_up(u32(x), distance), high = shuffle_up(u32(x >> 32), distance);
    return u64(high) << 32 | low;
}

PRELUDE_DEVICE float warp_max(float x) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        float other = shuffle_xor(x, distance);
        x = other > x ? other : x;
    }
    return x;
}

// Returns the largest x of the 32 lanes; NaN if any lane has one.
PRELUDE_DEVICE float warp_max_nan(float x) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        float other = shuffle_xor(x, distance);
        x = other > x || other != other ? other : x;
    }
    return x;
}

// Returns to every thread the sum over a 1-D block of whole warps: lanes are added, then warps.
// `scratch` holds 32 floats; it may be used again after the next sync_block().
PRELUDE_DEVICE float block_sum(float x, Shared<float> scratch) {
    x = warp_sum(x);
    if (lane_id() == 0) store(scratch + warp_id(), x);
    sync_block();
    u32 warps = block_dim().x / WARP;
    return warp_sum(lane_id() < warps ? load(scratch + lane_id()) : 0.0f);
}

// Returns to every thread the largest x of a 1-D block of whole warps; NaN if any is. `scratch` is as in
// block_sum().
PRELUDE_DEVICE float block_max_nan(float x, Shared<float> scratch) {
    float most = warp_max_nan(x);
    if (lane_id() == 0) store(scratch + warp_id(), most);
    sync_block();
    u32 warps = block_dim().x / WARP;
    return warp_max_nan(lane_id() < warps ? load(scratch + lane_id()) : NEG_INFINITY);
}

// Returns the number of rows that hold real work: the count at `live` in device memory if there is one
// (so that a captured launch serves every smaller batch), else `rows`.
PRELUDE_DEVICE u32 live_rows(Global<const u32> live, u32 rows) {
    return live ? min_u32(load(live), rows) : rows;
}

}  // namespace prelude
