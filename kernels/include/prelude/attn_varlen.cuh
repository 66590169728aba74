// attn_varlen: out[t] = softmax(scale · q[t] · Kᵀ) · V for queries of prompts, grouped heads
//
// q, out: bf16 `[rows, Hq · D]`, row strides of their own; out may be q. Query head h reads
// key-value head h / G, G = Hq / Hkv ≤ 64. A query sees the keys at positions 0..=its own.
// - A tile is a run of `rows` ≤ 64 / G queries of one segment: rows q_row.. of q and out, at
//   positions q_pos... With their G heads they fill up to 64 rows of the block.
// - A segment is span_count spans (attention.cuh), which cover positions 0..end in order.
//   Empty ones are allowed.
// - Pages `[block][kv_head][block_size][D]`; step K/V `[_, Hkv · D]` with one row stride: for a
//   step of one chunk a view into its fused qkv.
// D is a multiple of 8; the kernel for the next of 32, 64, 128 pads it with zeros in shared
// memory. Strides are multiples of 8 elements, block_size a power of two, scale > 0.
//
// Tiles of 64 keys begin at absolute multiples of 64, whatever the spans are, so that a row's
// bits are the same cached or not, chunked or not, in a tree or flat, alone or in any batch.
// That holds as long as K and V are finite: a masked key has the weight 0, and 0 · inf is NaN.
//
// Launch: tiles × Hkv blocks of 128 threads; dynamic shared memory 3 × 64 rows of D' + 8
// elements, D' = 32, 64 or 128: 52,224 bytes at most. Unused tiles have segment NONE.
// Bound: 4 · D · Hq · Σ(visible keys) FLOPs.
//
//   shared   Q | K | V, then the places of the keys of two tiles
//   warp w   rows 16w.. of the 64, in registers: q, scores, values
//   tile k   K(k) there ─ fetch V(k) ─ scores ─ V(k) there ─ fetch K(k+1) ─ softmax, values
//
// So each copy is under way while the other operand is used. The places of tile k + 1 are looked
// up while tile k is worked on: 64 threads find a key's span and block each.
// Not tuned: 128 rows and 8 warps, two stages of K and V. Not yet run on a GPU.
#pragma once

#include "prelude/attention.cuh"

namespace prelude {

struct Segment {
    u32 span_first;
    u32 span_count;
};
PRELUDE_PARAMS(Segment, 8, span_first, span_count);
PRELUDE_PARAMS(Span, 16, kv_start, len, at, kind);

struct Tile {
    u32 segment;
    u32 q_row;
    u32 q_pos;
    u32 rows;
};
PRELUDE_PARAMS(Tile, 16, segment, q_row, q_pos, rows);

struct AttnVarlenParams {
    Global<const bf16> q;
    Global<bf16> out;
    Global<const bf16> k_step;
    Global<const bf16> v_step;
    Global<const bf16> k_pages;
    Global<const bf16> v_pages;
    Global<const i32> tables;
    Global<const Segment> segments;
    Global<const Span> spans;
    Global<const Tile> tiles;
    Global<const u32> live;  // tiles that count, or null for all
    u32 tiles_max;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 q_stride;
    u32 out_stride;
    u32 step_stride;
    u32 block_size;
    float scale;
    u32 reserved;
};
PRELUDE_PARAMS(AttnVarlenParams, 128, q, out, k_step, v_step, k_pages, v_pages, tables, segments,
               spans, tiles, live, tiles_max, heads, kv_heads, head_dim, q_stride, out_stride,
               step_stride, block_size, scale, reserved);

namespace varlen {

constexpr u32 NO_SEGMENT = 0xffffffffu;
constexpr u32 QUERIES = 64;  // rows of q a block
constexpr u32 KEYS = 64;     // a tile
constexpr u32 THREADS = 128;

// Where a key lies: elements from the start of the pages, or of the step's K and V if IN_STEP.
using Place = u64;
constexpr Place NOWHERE = ~0ull, IN_STEP = 1ull << 63;

// Walks a segment's spans in order of position, for one key of each tile.
struct Cursor {
    Global<const Span> next;
    u32 left;  // spans not looked at
    Span span;

    PRELUDE_DEVICE Cursor(const AttnVarlenParams& p, const Segment& segment)
        : next(p.spans + segment.span_first), left(segment.span_count), span{} {}

    PRELUDE_DEVICE Place find(const AttnVarlenParams& p, u32 kv_head, u32 position) {
        while (position - span.kv_start >= span.len) {
            if (left == 0) return NOWHERE;
            span = load_ro(next);
            next = next + 1;
            left--;
        }
        if (span.kind == SPAN_STEP) {
            u64 row = span.at + (position - span.kv_start);
            return IN_STEP | (row * p.step_stride + kv_head * p.head_dim);
        }
        u32 shift = lowest_one(p.block_size);
        u64 block = u32(load_ro(p.tables + (span.at + (position >> shift))));
        u32 offset = position & (p.block_size - 1);
        return ((block * p.kv_heads + kv_head) * p.block_size + offset) * p.head_dim;
    }
};

// Starts copying 64 rows of K or V; zeros for keys nowhere and for columns beyond head_dim.
template <u32 Dim>
PRELUDE_DEVICE void fetch(Shared<bf16> to, Shared<const Place> places, Global<const bf16> pages,
                          Global<const bf16> step, u32 head_dim) {
    constexpr u32 CHUNKS = Dim / 8;
    u32 column = thread_idx().x % CHUNKS * 8;
    PRELUDE_UNROLL
    for (u32 i = 0; i < KEYS; i += THREADS / CHUNKS) {
        u32 row = thread_idx().x / CHUNKS + i;
        Place place = load(places + row);
        bool valid = place != NOWHERE && column < head_dim;
        Global<const bf16> base = (place & IN_STEP) != 0 ? step : pages;
        u64 offset = valid ? (place & ~IN_STEP) + column : 0;
        cp_async_16(to + (row * attention::PITCH<Dim> + column), base + offset, valid);
    }
    cp_async_commit();
}

}  // namespace varlen

template <u32 Dim>
PRELUDE_DEVICE void attn_varlen(const AttnVarlenParams& p) {
    using namespace attention;
    using namespace varlen;
    constexpr u32 CHUNKS = Dim / 8;
    PRELUDE_SHARED(Place, places, 2 * KEYS);
    dep_wait();
    if (block_idx().x >= live_rows(p.live, p.tiles_max)) return;
    Tile tile = load_ro(p.tiles + block_idx().x);
    if (tile.segment == NO_SEGMENT) return;
    u32 thread = thread_idx().x, lane = lane_id(), kv_head = block_idx().y;
    u32 group = p.heads / p.kv_heads, rows = tile.rows * group;
    u32 end = tile.q_pos + tile.rows;  // of the keys that some row sees
    Shared<bf16> q = dynamic_shared<bf16>();
    Shared<bf16> k = q + QUERIES * PITCH<Dim>, v = k + KEYS * PITCH<Dim>;

    Cursor cursor(p, load_ro(p.segments + tile.segment));
    auto look_up = [&](u32 first) {
        if (thread >= KEYS) return;
        u32 position = first + thread;
        Place place = position < end ? cursor.find(p, kv_head, position) : NOWHERE;
        store(places + (first % (2 * KEYS) + thread), place);
    };
    auto fetch_keys = [&](u32 first) {
        if (first < end) {
            fetch<Dim>(k, places + first % (2 * KEYS), p.k_pages, p.k_step, p.head_dim);
        }
    };
    look_up(0);
    // Row r of the block: query r / G, head r % G of the group.
    for (u32 i = thread; i < QUERIES * CHUNKS; i += THREADS) {
        u32 row = i / CHUNKS, column = i % CHUNKS * 8;
        bool valid = row < rows && column < p.head_dim;
        u32 head = kv_head * group + row % group;
        u64 from = u64(tile.q_row + row / group) * p.q_stride + head * p.head_dim + column;
        cp_async_16(q + (row * PITCH<Dim> + column), p.q + (valid ? from : 0), valid);
    }
    cp_async_commit();
    sync_block();  // The places are there.
    fetch_keys(0);
    cp_async_wait<1>();
    sync_block();  // Q is there.
    u32 first_row = warp_id() * 16;
    u32 query[Dim / 16][4];
    PRELUDE_UNROLL
    for (u32 d = 0; d < Dim / 16; d++) {
        ldmatrix_x4(query[d], q + ((first_row + lane % 16) * PITCH<Dim> + 16 * d + lane / 16 * 8));
    }
    // The keys that the lane's two rows see, and the warp's first and last. Rows beyond the tile
    // see what its last query sees; they are not stored.
    auto visible = [&](u32 row) { return tile.q_pos + min_u32(row / group, tile.rows - 1) + 1; };
    u32 end_low = visible(first_row + lane / 4), end_high = visible(first_row + lane / 4 + 8);
    u32 end_first = visible(first_row), end_last = visible(first_row + 15);
    bool is_used = first_row < rows;
    float factor = mul_rn(p.scale, LOG2_E);
    Rows<Dim> state;
    state.clear();

    for (u32 key = 0; key < end; key += KEYS) {
        cp_async_wait<0>();
        sync_block();  // K is there, and nobody reads V or the other places any more.
        fetch<Dim>(v, places + key % (2 * KEYS), p.v_pages, p.v_step, p.head_dim);
        look_up(key + KEYS);
        float s[KEYS / 8][4];
        bool sees = is_used && key < end_last;
        if (sees) {
            score<Dim, KEYS>(s, query, k);
            if (key + KEYS > end_first) mask(s, key, end_low, end_high);
        }
        cp_async_wait<0>();
        sync_block();  // V and the next places are there, and nobody reads K any more.
        fetch_keys(key + KEYS);
        if (sees) {
            weigh(state, s, factor);
            add_values<Dim, KEYS>(state, s, v);
        }
    }
    dep_launch();
    if (!is_used) return;
    // Through the warp's own rows of Q, which it has read, so that stores are of 16 bytes.
    sync_warp();
    PRELUDE_UNROLL
    for (u32 half = 0; half < 2; half++) {
        float scale = div_rn(1.0f, row_sum(state.sum[half]));
        Shared<bf16> row = q + ((first_row + lane / 4 + 8 * half) * PITCH<Dim> + lane % 4 * 2);
        PRELUDE_UNROLL
        for (u32 i = 0; i < CHUNKS; i++) {
            float low = mul_rn(state.values[i][2 * half], scale);
            float high = mul_rn(state.values[i][2 * half + 1], scale);
            store(as<u32>(row + 8 * i), pack_bf16(low, high));
        }
    }
    sync_warp();
    for (u32 i = lane; i < 16 * CHUNKS; i += WARP) {
        u32 row = first_row + i / CHUNKS, column = i % CHUNKS * 8;
        if (row >= rows || column >= p.head_dim) continue;
        u32 head = kv_head * group + row % group;
        u64 to = u64(tile.q_row + row / group) * p.out_stride + head * p.head_dim + column;
        store(as<u32x4>(p.out + to), load(as<const u32x4>(q + (row * PITCH<Dim> + column))));
    }
}

}  // namespace prelude
