// What attn_varlen and attn_decode share: a warp multiplies 16 query rows with one tile of keys after
// another, and keeps the softmax of each row as (maximum, sum, weighted values).
//
// Dao, FlashAttention-2 (2023), §3. Scores and sums are f32; weights are rounded to bf16 for the
// product with V, the sum of weights is not. A row's bits depend on its own scores and on where
// the tiles begin, which is at absolute positions: a masked key has the weight exp2(-inf) = 0
// and leaves maximum, sum and values as they are, and so does a tile of masked keys
// (the old values are scaled by exp2(0) = 1). The maximum is finite from a row's first tile on,
// since tiles are visited from the first key and no mask hides that key. The maximum of a row that sees
// a window is finite from the first tile on of which the row sees a key.
#pragma once

#include "prelude/dev.h"

namespace prelude {

// Where K and V of `len` positions of a segment lie; a segment's spans cover its positions from 0 on
// without gap or overlap.
// kind SPAN_PAGES: position p in block tables[at + p / block_size];
//      SPAN_STEP:  position p in row at + (p - kv_start) of the step's K and V.
struct Span {
    u32 kv_start;
    u32 len;
    u32 at;
    u32 kind;
};
constexpr u32 SPAN_PAGES = 0, SPAN_STEP = 1;

namespace attention {

constexpr float LOG2_E = 1.4426950408889634f;

// Elements from one row in shared memory to the next: 8 rows fall on different banks.
template <u32 Dim>
constexpr u32 PITCH = Dim + 8;

// The state of the softmax that lane l holds: its part of rows l/4 and l/4 + 8 of the warp's 16.
template <u32 Dim>
struct Rows {
    float max[2];
    float sum[2];            // over the lane's own columns
    float values[Dim / 8][4];  // in the order in which mma_m16n8k16 leaves them

    PRELUDE_DEVICE void clear() {
        max[0] = max[1] = NEG_INFINITY;
        sum[0] = sum[1] = 0.0f;
        PRELUDE_UNROLL
        for (u32 i = 0; i < Dim / 8; i++) {
            PRELUDE_UNROLL
            for (u32 e = 0; e < 4; e++) values[i][e] = 0.0f;
        }
    }
};

// Computes s = q · kᵀ for `Keys` keys, which are rows of `k` in shared memory.
template <u32 Dim, u32 Keys>
PRELUDE_DEVICE void score(float (&s)[Keys / 8][4], const u32 (&q)[Dim / 16][4], Shared<const bf16> k) {
    u32 lane = lane_id();
    PRELUDE_UNROLL
    for (u32 i = 0; i < Keys / 8; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) s[i][e] = 0.0f;
    }
    PRELUDE_UNROLL
    for (u32 d = 0; d < Dim / 16; d++) {
        PRELUDE_UNROLL
        for (u32 j = 0; j < Keys / 16; j++) {
            u32 row = 16 * j + lane / 16 * 8 + lane % 8, column = 16 * d + lane / 8 % 2 * 8;
            u32 b[4];
            ldmatrix_x4(b, k + (row * PITCH<Dim> + column));
            mma_m16n8k16(s[2 * j], q[d], b[0], b[1]);
            mma_m16n8k16(s[2 * j + 1], q[d], b[2], b[3]);
        }
    }
}

// Computes s = q · kᵀ for `M` times 16 rows of a warp; `q` is the first of them, in shared memory. Each
// part of k is read once for all rows. The order of each sum is that of `score`.
template <u32 Dim, u32 Keys, u32 M>
PRELUDE_DEVICE void score_many(float (&s)[M][Keys / 8][4], Shared<const bf16> q,
                               Shared<const bf16> k) {
    u32 lane = lane_id();
    PRELUDE_UNROLL
    for (u32 m = 0; m < M; m++) {
        PRELUDE_UNROLL
        for (u32 i = 0; i < Keys / 8; i++) {
            PRELUDE_UNROLL
            for (u32 e = 0; e < 4; e++) s[m][i][e] = 0.0f;
        }
    }
    PRELUDE_UNROLL
    for (u32 d = 0; d < Dim / 16; d++) {
        u32 a[M][4];
        PRELUDE_UNROLL
        for (u32 m = 0; m < M; m++) {
            u32 row = 16 * m + lane % 16, column = 16 * d + lane / 16 * 8;
            ldmatrix_x4(a[m], q + (row * PITCH<Dim> + column));
        }
        PRELUDE_UNROLL
        for (u32 j = 0; j < Keys / 16; j++) {
            u32 row = 16 * j + lane / 16 * 8 + lane % 8, column = 16 * d + lane / 8 % 2 * 8;
            u32 b[4];
            ldmatrix_x4(b, k + (row * PITCH<Dim> + column));
            PRELUDE_UNROLL
            for (u32 m = 0; m < M; m++) {
                mma_m16n8k16(s[m][2 * j], a[m], b[0], b[1]);
                mma_m16n8k16(s[m][2 * j + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Hides the keys from `end_low` on from row l/4 and those from `end_high` on from row l/4 + 8; `key` is
// the first key of the tile.
template <u32 Tiles>
PRELUDE_DEVICE void mask(float (&s)[Tiles][4], u32 key, u32 end_low, u32 end_high) {
    u32 first = key + lane_id() % 4 * 2;
    PRELUDE_UNROLL
    for (u32 i = 0; i < Tiles; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) {
            u32 end = e < 2 ? end_low : end_high;
            if (first + 8 * i + e % 2 >= end) s[i][e] = NEG_INFINITY;
        }
    }
}

// Hides the keys before `begin_low` from row l/4 and those before `begin_high` from row l/4 + 8.
template <u32 Tiles>
PRELUDE_DEVICE void mask_before(float (&s)[Tiles][4], u32 key, u32 begin_low, u32 begin_high) {
    u32 first = key + lane_id() % 4 * 2;
    PRELUDE_UNROLL
    for (u32 i = 0; i < Tiles; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) {
            u32 begin = e < 2 ? begin_low : begin_high;
            if (first + 8 * i + e % 2 < begin) s[i][e] = NEG_INFINITY;
        }
    }
}

// The first position that a token sees: `window` positions before its own.
PRELUDE_DEVICE u32 first_seen(u32 position, u32 window) {
    return position > window ? position - window : 0;
}

// Sets s = cap · tanh(s · scale / cap), where tanh x = 1 - 2 / (e^2x + 1).
template <u32 Tiles>
PRELUDE_DEVICE void bound(float (&s)[Tiles][4], float scale, float cap) {
    float factor = mul_rn(div_rn(scale, cap), 2.0f * LOG2_E);
    PRELUDE_UNROLL
    for (u32 i = 0; i < Tiles; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) {
            float power = exp2_fast(mul_rn(s[i][e], factor));
            // Beyond the range of div_fast the quotient is 0.
            float rest = power > 1e30f ? 0.0f : div_fast(2.0f, add_rn(power, 1.0f));
            s[i][e] = mul_rn(cap, add_rn(1.0f, -rest));
        }
    }
}

// The largest value, and below the sum, over the four lanes that hold a row.
PRELUDE_DEVICE float row_max(float x) {
    for (u32 distance = 1; distance < 4; distance *= 2) {
        float other = shuffle_xor(x, distance);
        x = other > x ? other : x;
    }
    return x;
}
PRELUDE_DEVICE float row_sum(float x) {
    x = add_rn(x, shuffle_xor(x, 1));
    return add_rn(x, shuffle_xor(x, 2));
}

// Turns scores into weights exp2(factor · (s - maximum)) and scales the sums and values so far to the
// new maximum. factor > 0. With `Near` a row may have seen no key yet: its maximum stays -inf, and
// its sums stay 0.
template <bool Near = false, u32 Dim, u32 Tiles>
PRELUDE_DEVICE void weigh(Rows<Dim>& rows, float (&s)[Tiles][4], float factor) {
    PRELUDE_UNROLL
    for (u32 half = 0; half < 2; half++) {
        float max = rows.max[half];
        PRELUDE_UNROLL
        for (u32 i = 0; i < Tiles; i++) {
            PRELUDE_UNROLL
            for (u32 e = 2 * half; e < 2 * half + 2; e++) max = s[i][e] > max ? s[i][e] : max;
        }
        max = row_max(max);
        float base = Near && max == NEG_INFINITY ? 0.0f : max;
        float scaled = mul_rn(base, factor);
        float keep = exp2_fast(mul_rn(add_rn(rows.max[half], -base), factor));
        rows.max[half] = max;
        float sum = mul_rn(rows.sum[half], keep);
        PRELUDE_UNROLL
        for (u32 i = 0; i < Tiles; i++) {
            PRELUDE_UNROLL
            for (u32 e = 2 * half; e < 2 * half + 2; e++) {
                s[i][e] = exp2_fast(fma(s[i][e], factor, -scaled));
                sum = add_rn(sum, s[i][e]);
            }
        }
        rows.sum[half] = sum;
        PRELUDE_UNROLL
        for (u32 i = 0; i < Dim / 8; i++) {
            PRELUDE_UNROLL
            for (u32 e = 2 * half; e < 2 * half + 2; e++) {
                rows.values[i][e] = mul_rn(rows.values[i][e], keep);
            }
        }
    }
}

// Adds weights · v to the values of `M` times 16 rows. A key's value is a row of `v` in shared memory;
// each part of v is read once for all rows.
template <u32 Dim, u32 Keys, u32 M>
PRELUDE_DEVICE void add_values(Rows<Dim> (&rows)[M], const float (&s)[M][Keys / 8][4],
                               Shared<const bf16> v) {
    u32 lane = lane_id();
    PRELUDE_UNROLL
    for (u32 j = 0; j < Keys / 16; j++) {
        u32 weights[M][4];
        PRELUDE_UNROLL
        for (u32 m = 0; m < M; m++) {
            PRELUDE_UNROLL
            for (u32 e = 0; e < 4; e++) {
                const float(&pair)[4] = s[m][2 * j + e / 2];
                weights[m][e] = pack_bf16(pair[e % 2 * 2], pair[e % 2 * 2 + 1]);
            }
        }
        PRELUDE_UNROLL
        for (u32 i = 0; i < Dim / 16; i++) {
            u32 b[4];
            ldmatrix_x4_trans(b, v + ((16 * j + lane % 16) * PITCH<Dim> + 16 * i + lane / 16 * 8));
            PRELUDE_UNROLL
            for (u32 m = 0; m < M; m++) {
                mma_m16n8k16(rows[m].values[2 * i], weights[m], b[0], b[1]);
                mma_m16n8k16(rows[m].values[2 * i + 1], weights[m], b[2], b[3]);
            }
        }
    }
}

}  // namespace attention

}  // namespace prelude
