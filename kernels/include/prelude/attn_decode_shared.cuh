// attn_decode_shared: the result of attn_decode, bit for bit, for rows that see keys in the same pages:
//                     each page is read once for as many rows as fit into a block
//
// Everything is as in attn_decode.cuh, except that `items` lists the work: an item is one split of
// `count` rows from row `first` on, and every split of every row that counts is in one item. Several
// rows of one item have the same blocks for the split's 256 keys, and more keys after them; an item
// has at most as many rows as fit into a block's 16 M rows with G query heads each, where M = 2, or 1
// for D > 128. An item of one row may be any split of the row, also the last.
//
// Launch: items × (Hkv · ⌈G / 16 M⌉) blocks of 128 threads; dynamic shared memory of attn_decode,
//   and 16 M rows of D' + 8 elements: 78,336 bytes at most, and 143,616 bytes for D' = 256. Items
//   with count 0 end at once. Then attn_combine.
// Bound: 4 · Hkv · D bytes for each key of an item; each distinct key is read from memory once, and
//   from the L2 cache after that.
//
//   rows     row r of a block is head r % G of the group, in row r / G of the item. Queries lie in
//            shared memory, since M times 16 rows leave no registers for them
//   keys     as in attn_decode: for each row, a warp's maximum, sum and values, and the merge over
//            all warps, are those of an item with this row alone
#pragma once

#include "prelude/attn_decode.cuh"

namespace prelude {

namespace decode {

// How many times 16 rows a block has: M above.
template <u32 Dim>
constexpr u32 SHARED_TILES = Dim > 128 ? 1 : 2;

}  // namespace decode

template <u32 Dim, bool Near = false>
PRELUDE_DEVICE void attn_decode_shared(const AttnDecodeParams& p) {
    using namespace attention;
    using namespace decode;
    constexpr u32 M = SHARED_TILES<Dim>, N = 16 * M, CHUNKS = Dim / 8;
    DecodeItem item = load_ro(p.items + block_idx().x);
    u32 split = item.split, live = live_rows(p.live, p.rows_max);
    u32 count = item.first < live ? min_u32(item.count, live - item.first) : 0;
    auto row_of = [&](u32 member) { return load_ro(p.rows + (item.first + member)); };
    // The first row, whose block table is read for all rows of the item.
    DecodeRow first{};
    if (count > 0) first = row_of(0);
    u32 end = min_u32(first.context_len, (split + 1) * SPLIT);
    bool sees = split * SPLIT < end;
    if constexpr (Near) {
        bool any = false;
        for (u32 m = 0; m < count; m++) any |= begin_of(p, row_of(m)) < (split + 1) * SPLIT;
        sees = sees && any;
    }
    if (!sees) {
        dep_wait();
        return;
    }
    u32 group = p.heads / p.kv_heads, slices = div_up(group, N);
    u32 kv_head = block_idx().y / slices, first_head = block_idx().y % slices * N;
    u32 heads = min_u32(group - first_head, N);
    first_head += kv_head * group;
    u32 used = min_u32(count * heads, N);
    // The launch has too few splits for a longer context: its row becomes NaN.
    auto fits = [&](const DecodeRow& row) { return div_up(row.context_len, SPLIT) <= p.splits; };
    u32 warp = warp_id(), lane = lane_id(), thread = thread_idx().x;
    constexpr u32 SIDE = KEYS * PITCH<Dim>;
    Shared<bf16> stages = dynamic_shared<bf16>() + warp * (4 * SIDE);  // K, V, K, V
    Shared<bf16> queries = dynamic_shared<bf16>() + WARPS * (4 * SIDE);
    float factor = mul_rn(p.scale, LOG2_E);
    if constexpr (Near) factor = p.cap > 0.0f ? LOG2_E : factor;
    Rows<Dim> states[M];
    PRELUDE_UNROLL
    for (u32 m = 0; m < M; m++) states[m].clear();

    Source<Dim> source{p, first.block_first, kv_head, end, lowest_one(p.block_size)};
    u32 key = split * SPLIT + warp * KEYS;
    // If the item has several rows, each row's own key lies after this split.
    bool is_early = key + KEYS < first.context_len;
    if (is_early) source.fetch_both(stages, key);
    dep_wait();
    if (!is_early) source.fetch_both(stages, key);
    PRELUDE_UNROLL
    for (u32 i = thread; i < N * CHUNKS; i += WARPS * WARP) {
        u32 slot = i / CHUNKS, column = i % CHUNKS * 8;
        bf16x8 x{};
        if (slot < used && column < p.head_dim) {
            DecodeRow row = row_of(slot / heads);
            u64 from = u64(row.q_row) * p.q_stride + (first_head + slot % heads) * p.head_dim;
            // The row may become NaN in the same place while this is read.
            if (fits(row)) x = load(as<const bf16x8>(p.q + (from + column)));
        }
        store(as<bf16x8>(queries + (slot * PITCH<Dim> + column)), x);
    }
    // The first keys that the lane's rows see.
    u32 begins[2 * M] = {};
    if constexpr (Near) {
        PRELUDE_UNROLL
        for (u32 i = 0; i < 2 * M; i++) {
            u32 slot = lane / 4 + 8 * i;
            if (slot < used) begins[i] = begin_of(p, row_of(slot / heads));
        }
    }
    sync_block();  // The queries are there.
    u32 stage = 0;
    while (key < end) {
        Shared<bf16> k = stages + stage * (2 * SIDE), v = k + SIDE;
        stage ^= 1;
        sync_warp();  // No lane reads the other stage any more.
        source.fetch_both(stages + stage * (2 * SIDE), key + WARPS * KEYS);
        cp_async_wait<3>();
        sync_warp();  // K is there.
        float scores[M][KEYS / 8][4];
        score_many<Dim, KEYS>(scores, queries, k);
        PRELUDE_UNROLL
        for (u32 m = 0; m < M; m++) {
            float(&s)[KEYS / 8][4] = scores[m];
            if constexpr (Near) {
                if (p.cap > 0.0f) bound(s, p.scale, p.cap);
                mask_before(s, key, begins[2 * m], begins[2 * m + 1]);
            }
            if (key + KEYS > end) mask(s, key, end, end);
            weigh<Near>(states[m], s, factor);
        }
        cp_async_wait<2>();
        sync_warp();  // V is there.
        add_values<Dim, KEYS>(states, scores, v);
        key += WARPS * KEYS;
    }
    cp_async_wait<0>();

    Left<Dim, N> left;
    sync_block();  // No warp reads K and V any more.
    PRELUDE_UNROLL
    for (u32 m = 0; m < M; m++) left.put(states[m], 16 * m);
    sync_block();
    dep_launch();
    u32 chunks = p.head_dim / 8;
    for (u32 i = thread; i < used * chunks; i += WARPS * WARP) {
        u32 slot = i / chunks, column = i % chunks * 8;
        u32 member = slot / heads, head = first_head + slot % heads;
        DecodeRow row = row_of(member);
        u32 begin = 0;
        if constexpr (Near) begin = begin_of(p, row);
        if (fits(row)) {
            // attn_combine reads no split before the window.
            write(p, row, item.first + member, head, split, column, merge(left, slot, column, factor));
        } else if (split == begin / SPLIT) {
            bf16x8 y;
            for (u32 e = 0; e < 8; e++) y[e] = bf16{0x7fff};
            u64 to = u64(row.q_row) * p.out_stride + head * p.head_dim + column;
            store(as<bf16x8>(p.out + to), y);
        }
    }
}

}  // namespace prelude
