// sm90_attn: attn_varlen for Hopper, by tensor copies (TMA) and products of warpgroups (wgmma)
//
// Computes what attn_varlen.cuh computes, from the same tiles, segments, spans and pages, for head_dim
// 64 and 128 and tiles of 128 rows; without windows, caps, biases and whole segments.
//
// - K and V come by tensor copies. A tile of keys is one box if its keys follow one another in the step;
//   if not, 16 keys are one box if they follow one another in the step or in a page; if not, each key is
//   a box. Keys beyond the tile's last query are boxes outside of the matrix, so zeros.
// - The maps k[i] and v[i]: i = 0, 1 and 4 are for the step's K and V, `[step_rows, Hkv · D]`, in boxes
//   of 16 rows, of one and of 128; 2 and 3 are for pages, `[blocks · Hkv · block_size, D]`, in boxes of
//   16 rows and of one. Every box has 64 columns.
// - Boxes of one row rely on the 128-byte swizzle going by addresses in shared memory, as the CUDA
//   programming guide says for places that are no multiples of 1024 bytes.
//
// Tiles of 128 keys begin at absolute multiples of 128, whatever the spans are, so that a row's bits
// are the same cached or not, chunked or not, in a tree or flat, alone or in any batch, as those of
// attn_varlen are. The bits differ from those of attn_varlen, so the GPU alone decides between the two
// kernels, and never a length.
//
// Launch: any number of blocks of 384 threads, of which a multiprocessor holds one; dynamic shared
// memory 6 · 128 rows of D elements, and 64 bytes: 196,672 or 98,368. For sm_90a alone.
// - An item is a tile for one key-value head. Blocks take them in turns, every other turn backwards, so
//   tiles are best sorted by their last position, the latest first: then all blocks see about as many
//   keys, and long items do not come last.
// - Unused tiles have segment NONE.
// Bound: 4 · D · Hq · Σ(visible keys) FLOPs.
//
//   shared        Q of two items | two stages of K | two stages of V | barriers
//   warpgroup 2   one warp copies K(i) and V(i) as stages become free, of one item after the other
//   warpgroups    64 rows each: scores and values in registers
//   0 and 1       K(i) there ─ scores(i) ─ V(i-1) there ─ values(i-1) under way ─ softmax(i)
//
// So the softmax of a tile runs beside the product of the previous tile's weights and values, and both
// warpgroups, which begin their products in turns, run beside each other (Shah et al., FlashAttention-3,
// 2024, §3.1 and §3.2). Tiles are counted across items: an item's first scores are computed beside the
// previous item's last values, K and V of the next item are copied ahead, and Q is copied one item
// ahead.
//
// On an H200 (2026-11-28) an earlier form, with one block for each item and so nothing beside an item's
// beginning and end, reached 230 TFLOP/s for 16 prompts of 512 tokens, 472 for 2 of 4,096 and 514 for
// one of 32,768, with 32 heads of 128 over 8 (attn_varlen: 197, 311 and 333). The present form was not
// measured.
// Narrower products for a last tile of few keys were tried: with a choice between two forms nvcc 13.0
// waits behind every product.
#pragma once

#include "prelude/attn_varlen.cuh"
#include "prelude/hopper.h"

namespace prelude {

struct Sm90AttnParams {
    TensorMap k[5];
    TensorMap v[5];
    Global<const bf16> q;
    Global<bf16> out;
    Global<const i32> tables;
    Global<const Segment> segments;
    Global<const Span> spans;
    Global<const Tile> tiles;
    Global<const u32> live;  // tiles that count, or null for all
    u32 tiles_max;
    u32 heads;
    u32 kv_heads;
    u32 q_stride;
    u32 out_stride;
    u32 step_rows;
    u32 block_size;
    float scale;
    u32 reserved[10];
};
PRELUDE_PARAMS(Sm90AttnParams, 1408, k, v, q, out, tables, segments, spans, tiles, live, tiles_max,
               heads, kv_heads, q_stride, out_stride, step_rows, block_size, scale, reserved);

namespace sm90 {

constexpr u32 KEYS = 128, ROWS = 128;  // of a tile: keys, and rows of queries
constexpr u32 STAGES = 2;
constexpr u32 BOX = 16;        // keys of a copy
constexpr u32 COLUMNS = 64;    // columns of a copy: a row of 128 bytes
constexpr u32 CONSUMERS = 8;   // warps that compute
constexpr u32 PRODUCER = 8;    // the warp that copies
constexpr u32 TURN = 1;        // the named barrier of warpgroup 0's turn; 2 is of warpgroup 1's
// Registers of a thread. A multiprocessor has 65,536: 40 · 128 + 232 · 256 = 64,512 = 168 · 384.
constexpr u32 PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

// Where things lie in shared memory. A matrix is Dim / 64 halves of 128 rows of 64 columns.
template <u32 Dim>
struct Room {
    static constexpr u32 HALVES = Dim / COLUMNS, HALF = KEYS * COLUMNS, MATRIX = KEYS * Dim;

    // Q of the item with this number, which is copied while the previous item is computed.
    PRELUDE_DEVICE Shared<bf16> q(u32 item) const { return matrix(item % 2); }
    PRELUDE_DEVICE Shared<bf16> k(u32 stage) const { return matrix(2 + stage); }
    PRELUDE_DEVICE Shared<bf16> v(u32 stage) const { return matrix(2 + STAGES + stage); }
    PRELUDE_DEVICE Shared<u64> barriers() const { return as<u64>(matrix(2 + 2 * STAGES)); }
    // Barriers: the bytes of a stage have arrived; its consumers do not need them any more.
    PRELUDE_DEVICE Shared<u64> k_full(u32 stage) const { return barriers() + stage; }
    PRELUDE_DEVICE Shared<u64> k_free(u32 stage) const { return barriers() + (STAGES + stage); }
    PRELUDE_DEVICE Shared<u64> v_full(u32 stage) const { return barriers() + (2 * STAGES + stage); }
    PRELUDE_DEVICE Shared<u64> v_free(u32 stage) const { return barriers() + (3 * STAGES + stage); }

    PRELUDE_DEVICE Shared<bf16> matrix(u32 i) const { return dynamic_shared<bf16>() + i * MATRIX; }
    // Returns where 8 elements of a row lie in a matrix; `column` is a multiple of 8.
    PRELUDE_DEVICE u32 chunk(u32 row, u32 column) const {
        u32 bytes = swizzled(row * 128 + column % COLUMNS * 2);
        return column / COLUMNS * HALF + bytes / 2;
    }
};

// A tile for one key-value head.
struct Item {
    Tile tile;
    u32 kv_head;

    PRELUDE_DEVICE bool is_there() const { return tile.segment != varlen::NO_SEGMENT; }
    // The position after the last key that any row sees, and the number of tiles of keys up to there.
    PRELUDE_DEVICE u32 end() const { return tile.q_pos + tile.rows; }
    PRELUDE_DEVICE u32 key_tiles() const { return div_up(end(), KEYS); }
};

// The block's items, one after the other. Every warp walks them by itself.
struct Items {
    u32 count;  // of all blocks
    u32 turn;

    PRELUDE_DEVICE explicit Items(const Sm90AttnParams& p)
        : count(live_rows(p.live, p.tiles_max) * p.kv_heads), turn(0) {}

    // Returns the next item; after the last one, an item whose is_there() is false.
    PRELUDE_DEVICE Item next(const Sm90AttnParams& p) {
        u32 blocks = grid_dim().x, own = block_idx().x;
        while (turn * blocks < count) {
            u32 at = turn * blocks + (turn % 2 == 0 ? own : blocks - 1 - own);
            turn++;
            if (at >= count) continue;
            Tile tile = load_ro(p.tiles + at / p.kv_heads);
            if (tile.segment != varlen::NO_SEGMENT) return {tile, at % p.kv_heads};
        }
        return {Tile{varlen::NO_SEGMENT, 0, 0, 0}, 0};
    }
};

// The query heads of a key-value head. Row r of an item is query r / G of its tile, head r % G.
struct Group {
    u32 size;
    u32 inverse;  // 2^16 / G, rounded up: exact for the 128 rows

    PRELUDE_DEVICE explicit Group(const Sm90AttnParams& p)
        : size(p.heads / p.kv_heads), inverse(div_up(1u << 16, size)) {}

    PRELUDE_DEVICE u32 query(u32 row) const { return row * inverse >> 16; }
    PRELUDE_DEVICE u32 head(const Item& item, u32 row) const {
        return item.kv_head * size + (row - query(row) * size);
    }
    PRELUDE_DEVICE bool has(const Item& item, u32 row) const { return row < item.tile.rows * size; }
    // The position after the last one that a row sees. Rows beyond the tile see what its last query
    // sees; they are not stored.
    PRELUDE_DEVICE u32 visible(const Item& item, u32 row) const {
        return item.tile.q_pos + min_u32(query(row), item.tile.rows - 1) + 1;
    }
};

// The span in which a lane looks for its next key; the lane walks the segment's spans in order of
// position.
struct Walk {
    Span span;
    u32 next, left;  // the index of the next span, and how many spans are left
    u32 kv_head;

    PRELUDE_DEVICE Walk(const Segment& segment, u32 kv_head)
        : span{}, next(segment.span_first), left(segment.span_count), kv_head(kv_head) {}

    // Moves to the span that has a position; false if there is none.
    PRELUDE_DEVICE bool to(const Sm90AttnParams& p, u32 position) {
        while (position - span.kv_start >= span.len) {
            if (left == 0) return false;
            span = load_ro(p.spans + next);
            next++;
            left--;
        }
        return true;
    }

    PRELUDE_DEVICE bool is_page() const { return span.kind != SPAN_STEP; }
    // True if the present span has all keys from `key` up to `end`.
    PRELUDE_DEVICE bool has(u32 key, u32 end) const {
        return span.kv_start <= key && end <= span.kv_start + span.len;
    }

    // Returns the row, in the step or in the pages, of a position of the present span.
    PRELUDE_DEVICE u32 row(const Sm90AttnParams& p, u32 position) const {
        if (!is_page()) return span.at + (position - span.kv_start);
        u32 block = u32(load_ro(p.tables + (span.at + (position >> lowest_one(p.block_size)))));
        u32 offset = position & (p.block_size - 1);
        return (block * p.kv_heads + kv_head) * p.block_size + offset;
    }
};

// Copies a tile of keys from `key` on. Each lane copies half of 16 keys, in one half of the columns,
// where keys are copied one by one; where they are not, one lane copies for several.
template <u32 Dim>
PRELUDE_DEVICE void copy_keys(const Sm90AttnParams& p, const TensorMap (&maps)[5], Shared<bf16> to,
                              Shared<u64> full, Walk& walk, u32 key, u32 end) {
    u32 half = lane_id() % 2, part = lane_id() / 2 % 2, first = lane_id() / 4 * BOX;
    if (half >= Room<Dim>::HALVES) return;
    to = to + (half * Room<Dim>::HALF + first * COLUMNS);
    u32 column = half * COLUMNS, step_column = walk.kv_head * Dim + column;
    u32 position = key + first;
    if (position >= end || !walk.to(p, position)) {
        if (part == 0) tensor_copy(to, maps[0], p.step_rows, step_column, full);
        return;
    }
    bool is_page = walk.is_page();
    // All lanes find the same here.
    if (!is_page && key + KEYS <= end && walk.has(key, key + KEYS)) {
        if (first + part == 0) tensor_copy(to, maps[4], walk.row(p, key), step_column, full);
        return;
    }
    bool fits = !is_page || p.block_size >= BOX;
    if (fits && position + BOX <= end && walk.has(position, position + BOX)) {
        if (part > 0) return;
        const TensorMap& map = maps[is_page ? 2 : 0];
        tensor_copy(to, map, walk.row(p, position), is_page ? column : step_column, full);
        return;
    }
    for (u32 i = part; i < BOX; i += 2) {
        bool there = position + i < end && walk.to(p, position + i);
        is_page = there && walk.is_page();
        u32 row = there ? walk.row(p, position + i) : p.step_rows;
        const TensorMap& map = maps[is_page ? 3 : 1];
        tensor_copy(to + i * COLUMNS, map, row, is_page ? column : step_column, full);
    }
}

// Copies K and V of all items' tiles of keys, stage after stage. One warp calls this.
template <u32 Dim>
PRELUDE_DEVICE void produce(const Sm90AttnParams& p, Items items, Item item) {
    constexpr u32 BYTES = Room<Dim>::MATRIX * 2;
    Room<Dim> room;
    // Only lane 0 waits, and the others follow it: a lane with nothing to copy must not fall phases
    // behind.
    auto begin = [&](Shared<u64> free, Shared<u64> full, u32 parity) {
        if (lane_id() == 0) {
            mbarrier_wait(free, parity ^ 1);
            mbarrier_arrive_expect(full, BYTES);
        }
        sync_warp();
    };
    u32 i = 0;  // tiles of keys so far
    while (item.is_there()) {
        Walk walk(load_ro(p.segments + item.tile.segment), item.kv_head);
        u32 end = item.end();
        for (u32 key = 0; key < end; key += KEYS, i++) {
            u32 stage = i % STAGES, parity = i / STAGES % 2;
            Walk of_keys = walk;
            begin(room.k_free(stage), room.k_full(stage), parity);
            copy_keys<Dim>(p, p.k, room.k(stage), room.k_full(stage), of_keys, key, end);
            begin(room.v_free(stage), room.v_full(stage), parity);
            copy_keys<Dim>(p, p.v, room.v(stage), room.v_full(stage), walk, key, end);
        }
        item = items.next(p);
    }
}

// The state of the softmax that lane l holds: its part of rows l/4 and l/4 + 8 of the warp's 16.
struct Softmax {
    float max[2];
    float sum[2];   // over the lane's own columns
    float keep[2];  // the factor of the sums and values so far

    PRELUDE_DEVICE Softmax() : max{NEG_INFINITY, NEG_INFINITY}, sum{0.0f, 0.0f}, keep{1.0f, 1.0f} {}

    // Turns scores into weights exp2(factor · (s - maximum)), as attention::weigh does.
    template <u32 N>
    PRELUDE_DEVICE void weigh(float (&s)[N][4], float factor) {
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            float most = max[half];
            PRELUDE_UNROLL
            for (u32 i = 0; i < N; i++) {
                PRELUDE_UNROLL
                for (u32 e = 2 * half; e < 2 * half + 2; e++) most = s[i][e] > most ? s[i][e] : most;
            }
            most = attention::row_max(most);
            float scaled = mul_rn(most, factor);
            keep[half] = exp2_fast(mul_rn(add_rn(max[half], -most), factor));
            max[half] = most;
            float total = mul_rn(sum[half], keep[half]);
            PRELUDE_UNROLL
            for (u32 i = 0; i < N; i++) {
                PRELUDE_UNROLL
                for (u32 e = 2 * half; e < 2 * half + 2; e++) {
                    s[i][e] = exp2_fast(fma(s[i][e], factor, -scaled));
                    total = add_rn(total, s[i][e]);
                }
            }
            sum[half] = total;
        }
    }

    template <u32 N>
    PRELUDE_DEVICE void rescale(float (&o)[N][4]) const {
        PRELUDE_UNROLL
        for (u32 i = 0; i < N; i++) {
            PRELUDE_UNROLL
            for (u32 e = 0; e < 4; e++) o[i][e] = mul_rn(o[i][e], keep[e / 2]);
        }
    }
};

// Begins s = q · kᵀ for the warpgroup's 64 rows and a tile of keys.
template <u32 Dim>
PRELUDE_DEVICE void begin_scores(float (&s)[KEYS / 8][4], Shared<const bf16> q,
                                 Shared<const bf16> k) {
    // Rows have 128 bytes, and 8 rows have 1024.
    u64 left = operand(q, 0, 1024), right = operand(k, 0, 1024);
    pin(s);
    wgmma_fence();
    PRELUDE_UNROLL
    for (u32 d = 0; d < Dim; d += 16) {
        u32 behind = d / COLUMNS * (Room<Dim>::HALF * 2) + d % COLUMNS * 2;
        wgmma(s, operand_behind(left, behind), operand_behind(right, behind), d > 0);
    }
    wgmma_commit();
}

// Begins o += weights · v.
template <u32 Dim>
PRELUDE_DEVICE void begin_values(float (&o)[Dim / 8][4], u32 (&weights)[KEYS / 16][4],
                                 Shared<const bf16> v) {
    u64 right = operand(v, Room<Dim>::HALF * 2, 1024);
    pin(o);
    pin(weights);
    wgmma_fence();
    PRELUDE_UNROLL
    for (u32 j = 0; j < KEYS / 16; j++) {
        wgmma_registers(o, weights[j], operand_behind(right, j * (16 * 128)));
    }
    wgmma_commit();
}

// Rounds weights to bf16 and packs them as wgmma takes them.
PRELUDE_DEVICE void pack(u32 (&weights)[KEYS / 16][4], const float (&s)[KEYS / 8][4]) {
    PRELUDE_UNROLL
    for (u32 j = 0; j < KEYS / 16; j++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) {
            const float(&pair)[4] = s[2 * j + e / 2];
            weights[j][e] = pack_bf16(pair[e % 2 * 2], pair[e % 2 * 2 + 1]);
        }
    }
}

// Swaps word i of lane j with word j of lane i, among each four lanes.
PRELUDE_DEVICE void transpose_quads(u32x4& x) {
    u32 lane = lane_id();
    PRELUDE_UNROLL
    for (u32 bit = 1; bit <= 2; bit *= 2) {
        PRELUDE_UNROLL
        for (u32 i = 0; i < 4; i++) {
            if ((i & bit) != 0) continue;
            bool is_high = (lane & bit) != 0;
            u32 other = shuffle_xor(is_high ? x[i] : x[i + bit], bit);
            x[i] = is_high ? other : x[i];
            x[i + bit] = is_high ? x[i + bit] : other;
        }
    }
}

// Begins to copy the warp's 16 rows of an item's Q.
template <u32 Dim>
PRELUDE_DEVICE void begin_queries(const Sm90AttnParams& p, const Group& group, const Item& item,
                                  Shared<bf16> q) {
    constexpr u32 CHUNKS = Dim / 8;
    PRELUDE_UNROLL
    for (u32 i = 0; i < 16 * CHUNKS; i += 32) {
        u32 row = 16 * warp_id() + (i + lane_id()) / CHUNKS, column = lane_id() % CHUNKS * 8;
        bool valid = group.has(item, row);
        u32 head = group.head(item, row);
        u64 from = u64(item.tile.q_row + group.query(row)) * p.q_stride + head * Dim + column;
        cp_async_16(q + Room<Dim>().chunk(row, column), p.q + (valid ? from : 0), valid);
    }
    cp_async_commit();
}

// Stores the warp's 16 rows, divided by their sums.
template <u32 Dim>
PRELUDE_DEVICE void store_rows(const Sm90AttnParams& p, const Group& group, const Item& item,
                               const float (&o)[Dim / 8][4], const float (&sums)[2]) {
    u32 lane = lane_id(), part = lane % 4;
    PRELUDE_UNROLL
    for (u32 half = 0; half < 2; half++) {
        float scale = div_rn(1.0f, attention::row_sum(sums[half]));
        u32 row = 16 * warp_id() + lane / 4 + 8 * half;
        u64 to = u64(item.tile.q_row + group.query(row)) * p.out_stride +
                 group.head(item, row) * Dim + part * 8;
        PRELUDE_UNROLL
        for (u32 i = 0; i < Dim / 8; i += 4) {
            u32x4 chunk;
            PRELUDE_UNROLL
            for (u32 j = 0; j < 4; j++) {
                float low = mul_rn(o[i + j][2 * half], scale);
                float high = mul_rn(o[i + j][2 * half + 1], scale);
                chunk[j] = pack_bf16(low, high);
            }
            transpose_quads(chunk);
            if (group.has(item, row)) store(as<u32x4>(p.out + (to + i * 8)), chunk);
        }
    }
}

// Computes the warpgroup's 64 rows of all items. The values of an item's last tile of keys are computed
// beside the next item's first scores.
template <u32 Dim>
PRELUDE_DEVICE void consume(const Sm90AttnParams& p, Items items, Item item) {
    Room<Dim> room;
    Group group(p);
    u32 lane = lane_id(), warpgroup = warp_id() / 4, first_row = 64 * warpgroup;
    u32 row = 16 * warp_id() + lane / 4;
    float factor = mul_rn(p.scale, attention::LOG2_E);
    float s[KEYS / 8][4], o[Dim / 8][4];
    u32 weights[KEYS / 16][4];
    Softmax softmax;
    PRELUDE_UNROLL
    for (u32 i = 0; i < KEYS / 8; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) s[i][e] = 0.0f;
    }
    auto clear_values = [&] {
        PRELUDE_UNROLL
        for (u32 i = 0; i < Dim / 8; i++) {
            PRELUDE_UNROLL
            for (u32 e = 0; e < 4; e++) o[i][e] = 0.0f;
        }
    };
    auto release = [&](Shared<u64> free) {
        if (lane == 0) mbarrier_arrive(free);
    };
    // Warpgroup 0 goes first.
    auto wait_for_turn = [&] { sync_named(TURN + warpgroup, 256); };
    auto end_turn = [&] { arrive_named(TURN + (warpgroup ^ 1), 256); };
    auto has_rows = [&](const Item& item) { return item.is_there() && group.has(item, first_row); };
    u32 number = 0;  // items so far of which the warpgroup has rows
    u32 i = 0;       // tiles of keys so far
    auto queries = [&] { return Shared<const bf16>(room.q(number) + first_row * COLUMNS); };
    auto begin_queries_of = [&](const Item& item, u32 number) {
        if (has_rows(item)) begin_queries<Dim>(p, group, item, room.q(number));
    };
    // Waits for the warp's own rows of Q. After the next wait_for_turn, the other three warps' rows are
    // in shared memory too, and no warp reads Q of the previous item any more.
    auto wait_for_queries = [&] {
        cp_async_wait<0>();
        fence_async();
    };

    // Begins the scores of tile i of keys, in the warpgroup's turn.
    auto begin_scores_of = [&] {
        mbarrier_wait(room.k_full(i % STAGES), i / STAGES % 2);
        wait_for_turn();
        begin_scores<Dim>(s, queries(), room.k(i % STAGES));
    };
    // Begins the values of tile i - 1.
    auto begin_values_before = [&] {
        mbarrier_wait(room.v_full((i - 1) % STAGES), (i - 1) / STAGES % 2);
        begin_values<Dim>(o, weights, room.v((i - 1) % STAGES));
    };
    // Masks and weighs the scores of tile i, whose first key is `key`.
    auto weigh = [&](u32 key) {
        release(room.k_free(i % STAGES));
        if (key + KEYS > group.visible(item, first_row)) {
            attention::mask(s, key, group.visible(item, row), group.visible(item, row + 8));
        }
        softmax.weigh(s, factor);
    };
    auto wait_for_values = [&] {
        wgmma_wait<0>(o);
        release(room.v_free((i - 1) % STAGES));
    };

    if (warpgroup == 1) end_turn();
    begin_queries_of(item, number);
    while (item.is_there()) {
        if (!has_rows(item)) {
            // Frees stages that only the other warpgroup reads. The other warpgroup is ahead by a turn,
            // so it does not need the previous contents of these stages any more.
            for (u32 end = i + item.key_tiles(); i < end; i++) {
                wait_for_turn();
                end_turn();
                release(room.k_free(i % STAGES));
                release(room.v_free(i % STAGES));
            }
            item = items.next(p);
            begin_queries_of(item, number);
            continue;
        }
        wait_for_queries();
        begin_scores_of();
        end_turn();
        Item next = items.next(p);
        begin_queries_of(next, number + 1);
        softmax = Softmax();
        clear_values();
        wgmma_wait<0>(s);
        weigh(0);
        pack(weights, s);
        for (;;) {
            i++;
            for (u32 key = KEYS; key < item.end(); key += KEYS, i++) {
                begin_scores_of();
                begin_values_before();
                end_turn();
                wgmma_wait<1>(s);
                weigh(key);
                wait_for_values();
                softmax.rescale(o);
                pack(weights, s);
            }
            if (!has_rows(next)) break;
            // The first scores of the next item, and the last values of this one.
            Item done = item;
            item = next;
            number++;
            wait_for_queries();
            begin_scores_of();
            begin_values_before();
            end_turn();
            next = items.next(p);
            begin_queries_of(next, number + 1);
            float sums[2] = {softmax.sum[0], softmax.sum[1]};
            softmax = Softmax();
            wgmma_wait<1>(s);
            weigh(0);
            wait_for_values();
            store_rows<Dim>(p, group, done, o, sums);
            clear_values();
            pack(weights, s);
        }
        begin_values_before();
        wait_for_values();
        if (!next.is_there()) dep_launch();
        store_rows<Dim>(p, group, item, o, softmax.sum);
        item = next;
        number++;
    }
}

}  // namespace sm90

template <u32 Dim>
PRELUDE_DEVICE void sm90_attn(const Sm90AttnParams& p) {
    using namespace sm90;
    static_assert(Dim == 64 || Dim == 128, "rows of whole boxes");
    Items items(p);
    Item first = items.next(p);
    if (!first.is_there()) {
        dep_wait();
        return;
    }
    if (thread_idx().x == 0) {
        Room<Dim> room;
        for (u32 stage = 0; stage < STAGES; stage++) {
            mbarrier_init(room.k_full(stage), 1);
            mbarrier_init(room.v_full(stage), 1);
            mbarrier_init(room.k_free(stage), CONSUMERS);
            mbarrier_init(room.v_free(stage), CONSUMERS);
        }
        mbarrier_init_fence();
    }
    sync_block();
    dep_wait();
    if (warp_id() >= CONSUMERS) {
        give_registers<PRODUCER_REGISTERS>();
        if (warp_id() == PRODUCER) produce<Dim>(p, items, first);
        return;
    }
    take_registers<CONSUMER_REGISTERS>();
    consume<Dim>(p, items, first);
}

}  // namespace prelude
