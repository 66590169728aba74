// attn_decode:   out[r] = softmax(scale · q[r] · Kᵀ) · V for rows of one query, all keys in pages
// attn_combine:  out[r] for contexts of several splits, from what attn_decode left of each split
//
// q, out: bf16 `[_, Hq · D]`, row strides of their own; out may be q. Query head h reads key-value
// head h / (Hq / Hkv). Row r takes row q_row of q and out and sees positions 0..context_len of
// its block table, its own among them; a row with context_len 0 does not count.
// In the near form a row sees at most `window` positions before its own, and cap > 0 bounds scores to
// cap · tanh(scale · q · k / cap).
// Pages `[block][kv_head][block_size][D]`. D is a multiple of 8; kernels are compiled for
// 32, 64, 128, and in the near form 256, and the next larger one pads D with zeros. Strides are
// multiples of 8 elements, block_size is a power of two from 16 on, scale > 0.
//
// A split is 256 keys at an absolute multiple of 256. A context of one split is written to `out`
// at once; of a longer one, each split leaves (maximum, sum, values) in `partial`, which
// attn_combine merges in ascending order. A context longer than the launch's splits turns its row
// into NaN. So a row's bits depend on its own K and V alone (as long as those are finite).
// Splits that end before the window are skipped.
// partial, f32: values `[rows_max][Hq][splits][D]`, then `[rows_max][Hq][splits]` pairs of maximum
// and sum.
//
// Launch: attn_decode: rows × (Hkv · ⌈G / 16⌉) × splits blocks of 128 threads; dynamic shared
//   memory 4 warps × 2 stages × 2 × 16 rows of D' + 8 elements: 69,632 bytes at most, and 135,168
//   bytes for D' = 256.
//   attn_combine, if splits > 1: rows × Hq blocks of 128 threads, or 256 for D > 128.
// Bound: 4 · Hkv · D · Σ(context) bytes; for partial, 8 · Hq · (D + 2) a split, mostly in L2.
//
//   keys     those of split s from 256 s on, in steps of 64: of each step, warp w has the 16 keys
//            from 16 w on, which lie in one page
//   early    all keys but the row's own were written by earlier steps, so a warp fetches its first
//            16 before the kernel waits for its predecessor
//   warp     fetch K(j+1), V(j+1) ─ K(j) there ─ scores ─ V(j) there ─ softmax, values. Each warp
//            has its own buffers, so warps do not wait for each other until the end
//   rows     the G query heads are the 16 rows of m16n8k16, zeros beyond G; more than 16 take
//            another block
//   end      the warps' (maximum, sum, values) are merged in order of warps in shared memory
//
// Tried on an H200: 396 blocks that take splits in turn and fetch the next one's first keys while
// they merge. 64 rows of 512 keys 2.74 to 2.82 TB/s, 4 rows 1.00 to 0.88, a token of 64 rows as
// before.
#pragma once

#include "prelude/attention.cuh"

namespace prelude {

struct DecodeRow {
    u32 q_row;
    u32 context_len;
    u32 block_first;  // position p is in block tables[block_first + p / block_size]
    u32 reserved;
};
PRELUDE_PARAMS(DecodeRow, 16, q_row, context_len, block_first, reserved);

// One piece of work of attn_decode_shared: one split of `count` rows from row `first` on.
struct DecodeItem {
    u32 first;
    u32 count;  // 0: nothing to do
    u32 split;
    u32 reserved;
};
PRELUDE_PARAMS(DecodeItem, 16, first, count, split, reserved);

struct AttnDecodeParams {
    Global<const bf16> q;
    Global<bf16> out;
    Global<const bf16> k_pages;
    Global<const bf16> v_pages;
    Global<const i32> tables;
    Global<const DecodeRow> rows;
    Global<float> partial;   // neither read nor written if splits is 1
    Global<const u32> live;  // rows that count, or null for all
    Global<const DecodeItem> items;  // for attn_decode_shared alone: one for each block_idx().x
    u32 rows_max;
    u32 splits;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 q_stride;
    u32 out_stride;
    u32 block_size;
    float scale;
    u32 window;  // positions that a row sees before its own; outside the near form, all
    float cap;   // 0: scores are not bounded, as outside the near form
    u32 items_max;
};
PRELUDE_PARAMS(AttnDecodeParams, 120, q, out, k_pages, v_pages, tables, rows, partial, live, items,
               rows_max, splits, heads, kv_heads, head_dim, q_stride, out_stride, block_size, scale,
               window, cap, items_max);

namespace decode {

constexpr u32 SPLIT = 256;  // keys of a split
constexpr u32 KEYS = 16;    // keys that a warp multiplies at a time
constexpr u32 WARPS = 4;
constexpr u32 HEADS = 16;   // query heads of a block

// Returns row `row`, or one with context_len 0 if only rows before it count.
PRELUDE_DEVICE DecodeRow row_at(const AttnDecodeParams& p, u32 row) {
    if (row >= live_rows(p.live, p.rows_max)) return {};
    return load_ro(p.rows + row);
}

// Returns the first position that a row sees.
PRELUDE_DEVICE u32 begin_of(const AttnDecodeParams& p, const DecodeRow& row) {
    return row.context_len == 0 ? 0 : attention::first_seen(row.context_len - 1, p.window);
}

// Where the values of one split of one head lie in `partial`, and below its maximum and sum.
PRELUDE_DEVICE Global<float> values_at(const AttnDecodeParams& p, u32 row, u32 head, u32 split) {
    return p.partial + ((u64(row) * p.heads + head) * p.splits + split) * p.head_dim;
}
PRELUDE_DEVICE Global<Vec<float, 2>> pair_at(const AttnDecodeParams& p, u32 row, u32 head, u32 split) {
    u64 values = u64(p.rows_max) * p.heads * p.splits * p.head_dim;
    u64 index = (u64(row) * p.heads + head) * p.splits + split;
    return as<Vec<float, 2>>(p.partial + (values + 2 * index));
}

// Loads the lane's two rows of the `heads` query rows at `from` as the first operand of m16n8k16, with
// zeros beyond `heads` and head_dim.
template <u32 Dim>
PRELUDE_DEVICE void load_query(u32 (&q)[Dim / 16][4], Global<const bf16> from, u32 heads, u32 head_dim) {
    u32 lane = lane_id();
    PRELUDE_UNROLL
    for (u32 d = 0; d < Dim / 16; d++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) {
            u32 row = lane / 4 + e % 2 * 8, column = 16 * d + lane % 4 * 2 + e / 2 * 8;
            bool valid = row < heads && column < head_dim;
            q[d][e] = valid ? load(as<const u32>(from + (row * head_dim + column))) : 0;
        }
    }
}

// Starts one warp's copy of 16 rows of K or V, of which `keys` are before the context's end; the others
// and columns beyond head_dim become zeros.
template <u32 Dim>
PRELUDE_DEVICE void fetch(Shared<bf16> to, Global<const bf16> from, u32 keys, u32 head_dim) {
    constexpr u32 CHUNKS = Dim / 8;
    u32 column = lane_id() % CHUNKS * 8;
    PRELUDE_UNROLL
    for (u32 i = 0; i < KEYS; i += WARP / CHUNKS) {
        u32 row = lane_id() / CHUNKS + i;
        bool valid = row < keys && column < head_dim;
        cp_async_16(to + (row * attention::PITCH<Dim> + column),
                    from + (valid ? row * head_dim + column : 0), valid);
    }
    cp_async_commit();
}

// Copies the keys of a row up to position `end` to shared memory.
template <u32 Dim>
struct Source {
    const AttnDecodeParams& p;
    u32 block_first;
    u32 kv_head;
    u32 end;
    u32 shift;  // log2 of block_size

    // Starts copying K and V of 16 keys, which lie in one block, as two groups of copies. The groups
    // are empty beyond the end, so that the number of groups under way is always the same.
    PRELUDE_DEVICE void fetch_both(Shared<bf16> to, u32 from) const {
        if (from >= end) {
            cp_async_commit();
            cp_async_commit();
            return;
        }
        u64 block = u32(load_ro(p.tables + (block_first + (from >> shift))));
        u64 at = ((block * p.kv_heads + kv_head) * p.block_size + from % p.block_size) * p.head_dim;
        fetch<Dim>(to, p.k_pages + at, end - from, p.head_dim);
        fetch<Dim>(to + KEYS * attention::PITCH<Dim>, p.v_pages + at, end - from, p.head_dim);
    }
};

// Each warp's results for `N` rows in shared memory: [warp][row][Dim] values, then [warp][row] pairs
// of maximum and sum.
template <u32 Dim, u32 N>
struct Left {
    Shared<float> values;
    Shared<Vec<float, 2>> pairs;

    PRELUDE_DEVICE Left()
        : values(dynamic_shared<float>()), pairs(as<Vec<float, 2>>(values + WARPS * N * Dim)) {}

    // Stores the warp's results for 16 rows, from row `first` on.
    PRELUDE_DEVICE void put(const attention::Rows<Dim>& state, u32 first) const {
        u32 lane = lane_id();
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            u32 row = warp_id() * N + first + lane / 4 + 8 * half;
            float sum = attention::row_sum(state.sum[half]);
            if (lane % 4 == 0) store(pairs + row, Vec<float, 2>{{state.max[half], sum}});
            PRELUDE_UNROLL
            for (u32 i = 0; i < Dim / 8; i++) {
                Vec<float, 2> two{{state.values[i][2 * half], state.values[i][2 * half + 1]}};
                store(as<Vec<float, 2>>(values + (row * Dim + 8 * i + lane % 4 * 2)), two);
            }
        }
    }
};

// The results of all warps for one row: maximum, sum, and 8 of the values.
struct Merged {
    float max;
    float sum;
    float values[8];
};

template <u32 Dim, u32 N>
PRELUDE_DEVICE Merged merge(const Left<Dim, N>& left, u32 row, u32 column, float factor) {
    Merged merged{NEG_INFINITY, 0.0f, {}};
    for (u32 w = 0; w < WARPS; w++) {
        float other = load(left.pairs + (w * N + row))[0];
        merged.max = other > merged.max ? other : merged.max;
    }
    for (u32 w = 0; w < WARPS; w++) {
        Vec<float, 2> pair = load(left.pairs + (w * N + row));
        float weight = exp2_fast(mul_rn(add_rn(pair[0], -merged.max), factor));
        merged.sum = add_rn(merged.sum, mul_rn(pair[1], weight));
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            f32x4 x = load(as<f32x4>(left.values + ((w * N + row) * Dim + column + 4 * half)));
            PRELUDE_UNROLL
            for (u32 e = 0; e < 4; e++) {
                float& value = merged.values[4 * half + e];
                value = add_rn(value, mul_rn(x[e], weight));
            }
        }
    }
    return merged;
}

// Writes 8 merged values of one head of a row: to `out` if the row's context is one split, else to
// `partial`.
PRELUDE_DEVICE void write(const AttnDecodeParams& p, const DecodeRow& row, u32 index, u32 head,
                          u32 split, u32 column, const Merged& merged) {
    if (row.context_len <= SPLIT) {
        bf16x8 y;
        for (u32 e = 0; e < 8; e++) y[e] = to_bf16(div_rn(merged.values[e], merged.sum));
        u64 to = u64(row.q_row) * p.out_stride + head * p.head_dim + column;
        store(as<bf16x8>(p.out + to), y);
        return;
    }
    Global<float> to = values_at(p, index, head, split) + column;
    const float(&x)[8] = merged.values;
    store(as<f32x4>(to), f32x4{{x[0], x[1], x[2], x[3]}});
    store(as<f32x4>(to + 4), f32x4{{x[4], x[5], x[6], x[7]}});
    if (column == 0) {
        store(pair_at(p, index, head, split), Vec<float, 2>{{merged.max, merged.sum}});
    }
}

}  // namespace decode

template <u32 Dim, bool Near = false>
PRELUDE_DEVICE void attn_decode(const AttnDecodeParams& p) {
    using namespace attention;
    using namespace decode;
    u32 index = block_idx().x, split = block_idx().z;
    DecodeRow row = row_at(p, index);
    u32 splits = div_up(row.context_len, SPLIT);
    u32 begin = 0;
    if constexpr (Near) begin = begin_of(p, row);
    if (split >= splits || (split + 1) * SPLIT <= begin) {
        dep_wait();
        return;
    }
    u32 group = p.heads / p.kv_heads, slices = div_up(group, HEADS);
    u32 kv_head = block_idx().y / slices, first_head = block_idx().y % slices * HEADS;
    u32 heads = min_u32(group - first_head, HEADS);
    first_head += kv_head * group;
    Global<bf16> out = p.out + (u64(row.q_row) * p.out_stride + first_head * p.head_dim);
    if (splits > p.splits) {
        // The launch has too few splits for this context: the row becomes NaN.
        dep_wait();
        if (split != begin / SPLIT) return;
        for (u32 i = thread_idx().x; i < heads * p.head_dim; i += block_dim().x) {
            store(out + i, bf16{0x7fff});
        }
        return;
    }
    u32 warp = warp_id();
    constexpr u32 SIDE = KEYS * PITCH<Dim>;
    Shared<bf16> stages = dynamic_shared<bf16>() + warp * (4 * SIDE);  // K, V, K, V
    float factor = mul_rn(p.scale, LOG2_E);
    if constexpr (Near) factor = p.cap > 0.0f ? LOG2_E : factor;
    Rows<Dim> states[1];
    Rows<Dim>& state = states[0];
    state.clear();

    u32 end = min_u32(row.context_len, (split + 1) * SPLIT);
    Source<Dim> source{p, row.block_first, kv_head, end, lowest_one(p.block_size)};
    u32 key = split * SPLIT + warp * KEYS;
    bool is_early = key + KEYS < row.context_len;
    if (is_early) source.fetch_both(stages, key);
    dep_wait();
    if (!is_early) source.fetch_both(stages, key);
    u32 query[Dim / 16][4];
    load_query<Dim>(query, p.q + (u64(row.q_row) * p.q_stride + first_head * p.head_dim), heads,
                    p.head_dim);
    u32 stage = 0;
    while (key < end) {
        Shared<bf16> k = stages + stage * (2 * SIDE), v = k + SIDE;
        stage ^= 1;
        sync_warp();  // No lane reads the other stage any more.
        source.fetch_both(stages + stage * (2 * SIDE), key + WARPS * KEYS);
        cp_async_wait<3>();
        sync_warp();  // K is there.
        float scores[1][KEYS / 8][4];
        float(&s)[KEYS / 8][4] = scores[0];
        score<Dim, KEYS>(s, query, k);
        if constexpr (Near) {
            if (p.cap > 0.0f) bound(s, p.scale, p.cap);
            if (key < begin) mask_before(s, key, begin, begin);
        }
        if (key + KEYS > end) mask(s, key, end, end);
        weigh<Near>(state, s, factor);
        cp_async_wait<2>();
        sync_warp();  // V is there.
        add_values<Dim, KEYS>(states, scores, v);
        key += WARPS * KEYS;
    }
    cp_async_wait<0>();

    Left<Dim, HEADS> left;
    sync_block();  // No warp reads K and V any more.
    left.put(state, 0);
    sync_block();
    dep_launch();
    u32 chunks = p.head_dim / 8;
    for (u32 i = thread_idx().x; i < heads * chunks; i += block_dim().x) {
        u32 head = i / chunks, column = i % chunks * 8;
        Merged merged = merge(left, head, column, factor);
        write(p, row, index, first_head + head, split, column, merged);
    }
}

// Merges the splits of one head of one row; each thread computes one element.
PRELUDE_DEVICE void attn_combine(const AttnDecodeParams& p) {
    using namespace decode;
    u32 index = block_idx().x, head = block_idx().y, column = thread_idx().x;
    DecodeRow row = row_at(p, index);
    u32 splits = div_up(row.context_len, SPLIT);
    dep_wait();
    if (splits < 2 || splits > p.splits || column >= p.head_dim) return;
    float factor = p.cap > 0.0f ? attention::LOG2_E : mul_rn(p.scale, attention::LOG2_E);
    u32 first = begin_of(p, row) / SPLIT;
    float max = NEG_INFINITY;
    for (u32 split = first; split < splits; split++) {
        float other = load(pair_at(p, index, head, split))[0];
        max = other > max ? other : max;
    }
    float sum = 0.0f, value = 0.0f;
    for (u32 split = first; split < splits; split++) {
        Vec<float, 2> pair = load(pair_at(p, index, head, split));
        float weight = exp2_fast(mul_rn(add_rn(pair[0], -max), factor));
        sum = add_rn(sum, mul_rn(pair[1], weight));
        float x = load(values_at(p, index, head, split) + column);
        value = add_rn(value, mul_rn(x, weight));
    }
    u64 to = u64(row.q_row) * p.out_stride + head * p.head_dim + column;
    store(p.out + to, to_bf16(div_rn(value, sum)));
    dep_launch();
}

}  // namespace prelude
