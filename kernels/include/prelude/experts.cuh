// The routing of a mixture of experts, and the sum of what a token's experts computed.
//
// experts_route:  chosen[t], shares[t] of the `per_token` largest of logits[t], by number of expert;
//                 of equal logits the first. A share is e^logit over the sum of those of all
//                 experts or, if normalised, of the chosen ones.
// experts_order:  sorts all choices by expert, then by token:
//                   tokens[r]   the token of sorted row r
//                   places[c]   the sorted row of choice c = token · per_token + i
//                   tiles[i]    {expert, first row, rows, 0}: at most EXPERT_TILE rows of one expert
//                   tile_count  the number of tiles, at most ⌊choices / EXPERT_TILE⌋ +
//                               min(experts, choices)
// experts_sum:    h[t] += Σ shares[t, i] · out[places[t · per_token + i]], in the order of experts,
//                 in f32 and rounded once
//
// logits f32 [rows, experts]; chosen u32, shares f32 [rows, per_token]; out bf16 [choices, width].
// per_token is at most 32 and at most `experts`; of these at most 4,096. What is computed for a token
// depends on its own logits alone. A row with a NaN chooses experts that exist and has shares that
// are NaN: it fails, and no other row does.
//
// Counts are made by atomics on integers, whose order does not matter.
//
// Launch: route, a warp a row: ⌈rows / 8⌉ blocks of 256 threads; order, a block of 256 threads an
// expert, 4 bytes of dynamic shared memory for each expert; sum, 8 elements a thread:
// ⌈rows · width / 2048⌉ blocks of 256, rows · width below 2^34.
// Bound: sum, 2 · (per_token + 2) · rows · width bytes. Not tuned: every block of order reads all
// choices twice.
#pragma once

#include "prelude/select.cuh"

namespace prelude {

// Most sorted rows that a block of the products takes.
constexpr u32 EXPERT_TILE = 64;
constexpr u32 ORDER_THREADS = 256;

struct ExpertsRouteParams {
    Global<const float> logits;
    Global<u32> chosen;
    Global<float> shares;
    u32 rows;
    u32 experts;
    u32 per_token;
    u32 logits_stride;
    u32 normalise;  // 1 if shares of the chosen ones add up to 1
    u32 reserved;
};
PRELUDE_PARAMS(ExpertsRouteParams, 48, logits, chosen, shares, rows, experts, per_token,
               logits_stride, normalise, reserved);

struct ExpertsOrderParams {
    Global<const u32> chosen;
    Global<u32> tokens;
    Global<u32> places;
    Global<u32x4> tiles;
    Global<u32> tile_count;
    u32 choices;
    u32 per_token;
    u32 experts;
    u32 reserved;
};
PRELUDE_PARAMS(ExpertsOrderParams, 56, chosen, tokens, places, tiles, tile_count, choices,
               per_token, experts, reserved);

struct ExpertsSumParams {
    Global<const bf16> out;
    Global<const u32> places;
    Global<const float> shares;
    Global<bf16> h;
    u32 rows;
    u32 width;  // a multiple of 8
    u32 per_token;
    u32 out_stride;
    u32 h_stride;
    u32 reserved;
};
PRELUDE_PARAMS(ExpertsSumParams, 56, out, places, shares, h, rows, width, per_token, out_stride,
               h_stride, reserved);

// Orders logits, of equal ones the first; no two of a row are equal.
PRELUDE_DEVICE u64 choice_key(float logit, u32 expert) { return u64(key_of(logit)) << 32 | ~expert; }

PRELUDE_DEVICE u64 warp_max_u64(u64 x) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        u32 low = shuffle_xor(u32(x), distance), high = shuffle_xor(u32(x >> 32), distance);
        u64 other = u64(high) << 32 | low;
        x = other > x ? other : x;
    }
    return x;
}

PRELUDE_DEVICE void experts_route(const ExpertsRouteParams& p) {
    dep_wait();
    u32 row = block_idx().x * (block_dim().x / WARP) + warp_id(), lane = lane_id();
    if (row >= p.rows) return;
    Global<const float> logits = p.logits + u64(row) * p.logits_stride;
    // Lane i keeps choice i.
    u32 expert = 0;
    float weight = 0.0f, sum = 0.0f, max = 0.0f;
    u64 last = 0;
    for (u32 i = 0; i < p.per_token; i++) {
        u64 best = 0;
        for (u32 e = lane; e < p.experts; e += WARP) {
            u64 key = choice_key(load(logits + e), e);
            if ((i == 0 || key < last) && key > best) best = key;
        }
        best = last = warp_max_u64(best);
        float logit = logit_of(u32(best >> 32));
        if (i == 0) max = logit;
        float of_max = exp_exact(add_rn(logit, -max));
        sum = add_rn(sum, of_max);
        if (lane == i) {
            expert = ~u32(best);
            weight = of_max;
        }
    }
    if (p.normalise == 0) {
        sum = 0.0f;
        for (u32 e = lane; e < p.experts; e += WARP) {
            sum = add_rn(sum, exp_exact(add_rn(load(logits + e), -max)));
        }
        sum = warp_sum(sum);
    }
    // The number of chosen experts before this one.
    u32 at = 0;
    for (u32 i = 0; i < p.per_token; i++) at += shuffle(expert, i) < expert;
    if (lane < p.per_token) {
        u64 to = u64(row) * p.per_token + at;
        store(p.chosen + to, expert);
        store(p.shares + to, div_rn(weight, sum));
    }
    dep_launch();
}

PRELUDE_DEVICE void experts_order(const ExpertsOrderParams& p) {
    PRELUDE_SHARED(u32, warps, ORDER_THREADS / WARP);
    // Rows and tiles of the experts before this one, and all tiles.
    PRELUDE_SHARED(u32, totals, 3);
    Shared<u32> counts = dynamic_shared<u32>();
    dep_wait();
    u32 t = thread_idx().x, own = block_idx().x;
    for (u32 e = t; e < p.experts; e += ORDER_THREADS) store(counts + e, 0u);
    if (t < 3) store(totals + t, 0u);
    sync_block();
    for (u32 c = t; c < p.choices; c += ORDER_THREADS) atomic_add(counts + load(p.chosen + c), 1u);
    sync_block();
    for (u32 e = t; e < p.experts; e += ORDER_THREADS) {
        u32 count = load(counts + e), tiles = div_up(count, EXPERT_TILE);
        if (count == 0) continue;
        atomic_add(totals + 2, tiles);
        if (e >= own) continue;
        atomic_add(totals + 0, count);
        atomic_add(totals + 1, tiles);
    }
    // A thread's run of choices, in order of threads.
    u32 each = div_up(p.choices, ORDER_THREADS);
    u32 first = min_u32(t * each, p.choices), end = min_u32(first + each, p.choices);
    u32 mine = 0;
    for (u32 c = first; c < end; c++) mine += load(p.chosen + c) == own;
    u32 through = mine;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        u32 before = shuffle_up(through, distance);
        if (lane_id() >= distance) through += before;
    }
    if (lane_id() == WARP - 1) store(warps + warp_id(), through);
    sync_block();
    u32 begin = load(totals + 0), row = begin + through - mine;
    for (u32 warp = 0; warp < warp_id(); warp++) row += load(warps + warp);
    for (u32 c = first; c < end; c++) {
        if (load(p.chosen + c) != own) continue;
        store(p.tokens + row, c / p.per_token);
        store(p.places + c, row);
        row++;
    }
    u32 count = load(counts + own), first_tile = load(totals + 1);
    for (u32 i = t; i < div_up(count, EXPERT_TILE); i += ORDER_THREADS) {
        u32 done = i * EXPERT_TILE;
        u32x4 tile{{own, begin + done, min_u32(count - done, EXPERT_TILE), 0}};
        store(p.tiles + (first_tile + i), tile);
    }
    if (own == 0 && t == 0) store(p.tile_count, load(totals + 2));
    dep_launch();
}

PRELUDE_DEVICE void experts_sum(const ExpertsSumParams& p) {
    dep_wait();
    u32 vectors = p.width / 8;
    u32 i = block_idx().x * block_dim().x + thread_idx().x;
    u32 row = i / vectors, column = (i - row * vectors) * 8;
    if (row >= p.rows) return;
    float sum[8];
    PRELUDE_UNROLL
    for (u32 j = 0; j < 8; j++) sum[j] = 0.0f;
    for (u32 choice = row * p.per_token; choice < (row + 1) * p.per_token; choice++) {
        float share = load(p.shares + choice);
        Global<const bf16> out = p.out + (u64(load(p.places + choice)) * p.out_stride + column);
        bf16x8 y = load(as<const bf16x8>(out));
        PRELUDE_UNROLL
        for (u32 j = 0; j < 8; j++) sum[j] = add_rn(sum[j], mul_rn(share, to_f32(y[j])));
    }
    Global<bf16x8> to = as<bf16x8>(p.h + (u64(row) * p.h_stride + column));
    bf16x8 h = load(to);
    PRELUDE_UNROLL
    for (u32 j = 0; j < 8; j++) h[j] = to_bf16(add_rn(to_f32(h[j]), sum[j]));
    store(to, h);
    dep_launch();
}

}  // namespace prelude
