// sm90_attn: attn_varlen for Hopper, by tensor copies (TMA) and products of warpgroups (wgmma)
//
// The same function of the same tiles, segments, spans and pages as attn_varlen.cuh, for head_dim 64
// and 128 and tiles of 128 rows; without windows, caps, biases and whole segments.
//
// - K and V come by tensor copies: per 16 keys one box where these follow each other in the step or in
//   a page, else one for each key. Keys beyond the tile's last query are boxes outside of the matrix,
//   so zeros. k[i] and v[i]: i = 0 and 1 for the step's K and V, `[step_rows, Hkv · D]`, in boxes of 16
//   rows and of one; 2 and 3 for pages, `[blocks · Hkv · block_size, D]`, likewise; 64 columns each.
// - Boxes of one row rely on the 128-byte swizzle going by addresses in shared memory, as the CUDA
//   programming guide says for places that are no multiples of 1024 bytes.
//
// Tiles of 128 keys begin at absolute multiples of 128, whatever the spans are, so that a row's bits
// are the same cached or not, chunked or not, in a tree or flat, alone or in any batch, as those of
// attn_varlen are; they are not the bits of attn_varlen. It is chosen by GPU and never by length.
//
// Launch: tiles × Hkv blocks of 384 threads; dynamic shared memory 5 · 128 rows of D elements, and 64
// bytes: 163,904 or 81,984. Unused tiles have segment NONE. For sm_90a alone.
// Bound: 4 · D · Hq · Σ(visible keys) FLOPs.
//
//   shared        Q | two stages of K | two of V | barriers
//   warpgroup 2   one warp copies K(i) and V(i) as stages become free
//   warpgroups    64 rows each: scores and values in registers
//   0 and 1       K(i) there ─ scores(i) ─ V(i-1) there ─ values(i-1) under way ─ softmax(i)
//
// So the softmax of a tile runs beside the product of the tile before with its values, and both
// warpgroups beside each other (Shah et al., FlashAttention-3, 2024, §3.1 and §3.2).
//
// Right by emulation; it has never run on a GPU, and nothing is tuned.
#pragma once

#include "prelude/attn_varlen.cuh"
#include "prelude/hopper.h"

namespace prelude {

struct Sm90AttnParams {
    TensorMap k[4];
    TensorMap v[4];
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
PRELUDE_PARAMS(Sm90AttnParams, 1152, k, v, q, out, tables, segments, spans, tiles, live, tiles_max,
               heads, kv_heads, q_stride, out_stride, step_rows, block_size, scale, reserved);

namespace sm90 {

constexpr u32 KEYS = 128, ROWS = 128;  // of a tile
constexpr u32 STAGES = 2;
constexpr u32 BOX = 16;        // keys of a copy
constexpr u32 COLUMNS = 64;    // of a copy: a row of 128 bytes
constexpr u32 CONSUMERS = 8;   // warps
constexpr u32 PRODUCER = 8;    // the warp that copies
// Of 65,536 registers: 40 · 128 + 232 · 256 = 64,512, as 168 · 384.
constexpr u32 PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

// Places in shared memory. A matrix is Dim / 64 halves of 128 rows of 64 columns.
template <u32 Dim>
struct Room {
    static constexpr u32 HALVES = Dim / COLUMNS, HALF = KEYS * COLUMNS, MATRIX = KEYS * Dim;

    PRELUDE_DEVICE Shared<bf16> q() const { return dynamic_shared<bf16>(); }
    PRELUDE_DEVICE Shared<bf16> k(u32 stage) const { return q() + (1 + stage) * MATRIX; }
    PRELUDE_DEVICE Shared<bf16> v(u32 stage) const { return q() + (1 + STAGES + stage) * MATRIX; }
    PRELUDE_DEVICE Shared<u64> barriers() const { return as<u64>(q() + (1 + 2 * STAGES) * MATRIX); }
    // A stage's bytes are there; its consumers are done with it.
    PRELUDE_DEVICE Shared<u64> k_full(u32 stage) const { return barriers() + stage; }
    PRELUDE_DEVICE Shared<u64> k_free(u32 stage) const { return barriers() + (STAGES + stage); }
    PRELUDE_DEVICE Shared<u64> v_full(u32 stage) const { return barriers() + (2 * STAGES + stage); }
    PRELUDE_DEVICE Shared<u64> v_free(u32 stage) const { return barriers() + (3 * STAGES + stage); }

    // 8 elements of a row of q, at a multiple of 8.
    PRELUDE_DEVICE Shared<bf16> q_chunk(u32 row, u32 column) const {
        u32 bytes = swizzled(row * 128 + column % COLUMNS * 2);
        return q() + (column / COLUMNS * HALF + bytes / 2);
    }
};

// Where a lane has got to among the segment's spans, which it walks in order of position.
struct Walk {
    Span span;
    u32 next, left;  // index of the next span, and how many are not looked at

    PRELUDE_DEVICE explicit Walk(const Segment& segment)
        : span{}, next(segment.span_first), left(segment.span_count) {}

    // Goes to the span of a position; false if there is none.
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

    // The row of a position of the span, in the step or in the pages.
    PRELUDE_DEVICE u32 row(const Sm90AttnParams& p, u32 position) const {
        if (!is_page()) return span.at + (position - span.kv_start);
        u32 block = u32(load_ro(p.tables + (span.at + (position >> lowest_one(p.block_size)))));
        u32 offset = position & (p.block_size - 1);
        return (block * p.kv_heads + block_idx().y) * p.block_size + offset;
    }
};

// Copies the 16 keys from `position` on, of one half of the columns, as the lane's part in it.
template <u32 Dim>
PRELUDE_DEVICE void copy_keys(const Sm90AttnParams& p, const TensorMap (&maps)[4], Shared<bf16> to,
                              Shared<u64> full, Walk& walk, u32 position, u32 end) {
    u32 half = lane_id() % 2, part = lane_id() / 2 % 2;
    if (half >= Room<Dim>::HALVES) return;
    to = to + half * Room<Dim>::HALF;
    u32 column = half * COLUMNS, step_column = block_idx().y * Dim + column;
    if (position >= end || !walk.to(p, position)) {
        if (part == 0) tensor_copy(to, maps[0], p.step_rows, step_column, full);
        return;
    }
    bool is_page = walk.is_page();
    bool fits = !is_page || p.block_size >= BOX;
    if (fits && position + BOX <= min_u32(walk.span.kv_start + walk.span.len, end)) {
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

// Copies K and V of all tiles of keys before `end`, stage after stage. For one warp: four lanes for
// each 16 keys of a tile.
template <u32 Dim>
PRELUDE_DEVICE void produce(const Sm90AttnParams& p, const Segment& segment, u32 end) {
    constexpr u32 BYTES = Room<Dim>::MATRIX * 2;
    Room<Dim> room;
    Walk walk(segment);
    u32 first = lane_id() / 4 * BOX;  // of the tile's keys
    for (u32 key = 0, i = 0; key < end; key += KEYS, i++) {
        u32 stage = i % STAGES, parity = i / STAGES % 2;
        Walk of_keys = walk;
        mbarrier_wait(room.k_free(stage), parity ^ 1);
        if (lane_id() == 0) mbarrier_arrive_expect(room.k_full(stage), BYTES);
        copy_keys<Dim>(p, p.k, room.k(stage) + first * COLUMNS, room.k_full(stage), of_keys,
                       key + first, end);
        mbarrier_wait(room.v_free(stage), parity ^ 1);
        if (lane_id() == 0) mbarrier_arrive_expect(room.v_full(stage), BYTES);
        copy_keys<Dim>(p, p.v, room.v(stage) + first * COLUMNS, room.v_full(stage), walk,
                       key + first, end);
    }
}

// A lane's part of two rows, l/4 and l/4 + 8, of its warp's 16.
struct Softmax {
    float max[2];
    float sum[2];   // of the lane's own columns
    float keep[2];  // what sums so far are scaled by

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
    // Rows of 128 bytes, 8 of which are 1024.
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

// Weights as wgmma takes them.
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

// The position behind the last that a row of the block sees. Rows beyond the tile see what its last
// query sees; they are not stored.
PRELUDE_DEVICE u32 visible(const Tile& tile, u32 group, u32 row) {
    return tile.q_pos + min_u32(row / group, tile.rows - 1) + 1;
}

// Copies the warp's 16 rows of Q; row r of the block is query r / G, head r % G of the group.
template <u32 Dim>
PRELUDE_DEVICE void load_queries(const Sm90AttnParams& p, const Tile& tile, u32 group) {
    constexpr u32 CHUNKS = Dim / 8;
    for (u32 i = lane_id(); i < 16 * CHUNKS; i += 32) {
        u32 row = 16 * warp_id() + i / CHUNKS, column = i % CHUNKS * 8;
        bool valid = row < tile.rows * group;
        u32 head = block_idx().y * group + row % group;
        u64 from = u64(tile.q_row + row / group) * p.q_stride + head * Dim + column;
        cp_async_16(Room<Dim>().q_chunk(row, column), p.q + (valid ? from : 0), valid);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_async();
}

// Stores the warp's 16 rows, through its rows of Q, so that stores are of 16 bytes.
template <u32 Dim>
PRELUDE_DEVICE void store_rows(const Sm90AttnParams& p, const Tile& tile, u32 group,
                               const float (&o)[Dim / 8][4], const Softmax& softmax) {
    constexpr u32 CHUNKS = Dim / 8;
    Room<Dim> room;
    u32 lane = lane_id(), first = 16 * warp_id();
    PRELUDE_UNROLL
    for (u32 half = 0; half < 2; half++) {
        float scale = div_rn(1.0f, attention::row_sum(softmax.sum[half]));
        u32 row = first + lane / 4 + 8 * half;
        PRELUDE_UNROLL
        for (u32 i = 0; i < CHUNKS; i++) {
            float low = mul_rn(o[i][2 * half], scale), high = mul_rn(o[i][2 * half + 1], scale);
            store(as<u32>(room.q_chunk(row, 8 * i) + lane % 4 * 2), pack_bf16(low, high));
        }
    }
    sync_warp();
    for (u32 i = lane; i < 16 * CHUNKS; i += 32) {
        u32 row = first + i / CHUNKS, column = i % CHUNKS * 8;
        if (row >= tile.rows * group) continue;
        u32 head = block_idx().y * group + row % group;
        u64 to = u64(tile.q_row + row / group) * p.out_stride + head * Dim + column;
        store(as<u32x4>(p.out + to), load(as<const u32x4>(room.q_chunk(row, column))));
    }
}

// Computes the warpgroup's 64 rows.
template <u32 Dim>
PRELUDE_DEVICE void consume(const Sm90AttnParams& p, const Tile& tile, u32 group) {
    Room<Dim> room;
    u32 lane = lane_id(), warpgroup = warp_id() / 4, first_row = 64 * warpgroup;
    load_queries<Dim>(p, tile, group);
    sync_named(1 + warpgroup, 128);  // All four warps' rows are there.
    u32 row = 16 * warp_id() + lane / 4;
    u32 end_low = visible(tile, group, row), end_high = visible(tile, group, row + 8);
    u32 end_first = visible(tile, group, first_row);
    u32 end = visible(tile, group, first_row + 63);
    float factor = mul_rn(p.scale, attention::LOG2_E);
    Shared<const bf16> q = room.q() + first_row * COLUMNS;
    float s[KEYS / 8][4], o[Dim / 8][4];
    u32 weights[KEYS / 16][4];
    Softmax softmax;
    PRELUDE_UNROLL
    for (u32 i = 0; i < Dim / 8; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) o[i][e] = 0.0f;
    }
    PRELUDE_UNROLL
    for (u32 i = 0; i < KEYS / 8; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) s[i][e] = 0.0f;
    }
    auto release = [&](Shared<u64> free) {
        if (lane == 0) mbarrier_arrive(free);
    };

    mbarrier_wait(room.k_full(0), 0);
    begin_scores<Dim>(s, q, room.k(0));
    wgmma_wait<0>(s);
    release(room.k_free(0));
    if (KEYS > end_first) attention::mask(s, 0, end_low, end_high);
    softmax.weigh(s, factor);
    pack(weights, s);
    u32 i = 1;
    for (u32 key = KEYS; key < end; key += KEYS, i++) {
        u32 stage = i % STAGES, before = (i - 1) % STAGES;
        mbarrier_wait(room.k_full(stage), i / STAGES % 2);
        begin_scores<Dim>(s, q, room.k(stage));
        mbarrier_wait(room.v_full(before), (i - 1) / STAGES % 2);
        begin_values<Dim>(o, weights, room.v(before));
        wgmma_wait<1>(s);
        release(room.k_free(stage));
        if (key + KEYS > end_first) attention::mask(s, key, end_low, end_high);
        softmax.weigh(s, factor);
        wgmma_wait<0>(o);
        release(room.v_free(before));
        softmax.rescale(o);
        pack(weights, s);
    }
    mbarrier_wait(room.v_full((i - 1) % STAGES), (i - 1) / STAGES % 2);
    begin_values<Dim>(o, weights, room.v((i - 1) % STAGES));
    wgmma_wait<0>(o);
    dep_launch();
    sync_named(1 + warpgroup, 128);  // Nobody reads Q any more.
    store_rows<Dim>(p, tile, group, o, softmax);
}

}  // namespace sm90

template <u32 Dim>
PRELUDE_DEVICE void sm90_attn(const Sm90AttnParams& p) {
    using namespace sm90;
    static_assert(Dim == 64 || Dim == 128, "rows of whole boxes");
    Tile tile{varlen::NO_SEGMENT, 0, 0, 0};
    if (block_idx().x < live_rows(p.live, p.tiles_max)) tile = load_ro(p.tiles + block_idx().x);
    if (tile.segment == varlen::NO_SEGMENT) {
        dep_wait();
        return;
    }
    u32 group = p.heads / p.kv_heads;
    // A warpgroup without rows has nothing to do, nor to free.
    u32 warps = tile.rows * group > 64 ? CONSUMERS : CONSUMERS / 2;
    if (thread_idx().x == 0) {
        Room<Dim> room;
        for (u32 stage = 0; stage < STAGES; stage++) {
            mbarrier_init(room.k_full(stage), 1);
            mbarrier_init(room.v_full(stage), 1);
            mbarrier_init(room.k_free(stage), warps);
            mbarrier_init(room.v_free(stage), warps);
        }
        mbarrier_init_fence();
    }
    sync_block();
    dep_wait();
    if (warp_id() >= CONSUMERS) {
        give_registers<PRODUCER_REGISTERS>();
        if (warp_id() == PRODUCER) {
            produce<Dim>(p, load_ro(p.segments + tile.segment), tile.q_pos + tile.rows);
        }
        return;
    }
    take_registers<CONSUMER_REGISTERS>();
    if (warp_id() < warps) consume<Dim>(p, tile, group);
}

}  // namespace prelude
