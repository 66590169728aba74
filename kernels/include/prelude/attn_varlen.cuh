// attn_varlen: out[t] = softmax(scale · q[t] · Kᵀ) · V for queries of prompts, grouped heads
//
// q, out: bf16 `[rows, Hq · D]`, row strides of their own; out may be q. Query head h reads
// key-value head h / G, G = Hq / Hkv ≤ 64. A query sees the keys at positions 0..=its own.
// - A tile is a run of `rows` ≤ 64 M / G queries of one segment: rows q_row.. of q and out, at
//   positions q_pos... With their G heads they fill up to 64 M rows of the block. M is 1 for
//   launches of few tiles, else 2: each part of K and V that a warp reads serves twice the rows.
// - A segment is span_count spans (attention.cuh), which cover positions 0..end in order.
//   Empty ones are allowed.
// - Pages are `[block][kv_head][block_size][D]`. The step's K and V are `[_, Hkv · D]` with one row
//   stride; in a step of one chunk they are views into the fused qkv.
// - In the near form a query sees at most `window` positions before its own, and cap > 0 bounds
//   scores to cap · tanh(scale · q · k / cap).
// - In the whole form a query sees its whole segment, which is one span, up to `window` positions
//   on either side. The biased form sees the same keys and adds to scale · q · k
//   bias[h · (2 R + 1) + clamp(key - query, -R, R) + R], R = bias_reach.
// D is a multiple of 8; kernels are compiled for 32, 64, 128, and in the near form 256, and the next
// larger one pads D with zeros in shared memory. Strides are multiples of 8 elements, block_size is a
// power of two, scale > 0.
//
// Tiles of 64 keys begin at absolute multiples of 64, whatever the spans are, so that a row's
// bits are the same cached or not, chunked or not, in a tree or flat, alone or in any batch.
// That holds as long as K and V are finite: a masked key has the weight 0, and 0 · inf is NaN.
//
// Launch: tiles × Hkv blocks of 128 threads; dynamic shared memory (M + 2) × 64 rows of D' + 8
// elements, D' = 32, 64 or 128: 52,224 or 69,632 bytes at most, and 101,376 bytes for 256. Unused
// tiles have segment NONE.
// Bound: 4 · D · Hq · Σ(visible keys) FLOPs.
//
//   shared   Q | K | V; the places of the keys of two tiles, and the cursors that found them
//   warp w   16 M rows from 16 M w on: scores and values in registers, q too if M is 1
//   tile k   K(k) there ─ fetch V(k) ─ scores ─ V(k) there ─ fetch K(k+1) ─ softmax, values
//
// So K is copied while V is used, and V while K is used. The places of tile k + 1 are looked
// up while tile k is worked on: 64 threads find a key's span and block each.
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
    Global<const bf16> bias;  // read by the biased form alone, as is bias_reach
    u32 tiles_max;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 q_stride;
    u32 out_stride;
    u32 step_stride;
    u32 block_size;
    float scale;
    u32 tile_rows;  // 64 M
    u32 window;     // read by the near, whole and biased forms
    float cap;      // read by the near form alone; 0: scores are not bounded
    u32 bias_reach;
    u32 reserved;
};
PRELUDE_PARAMS(AttnVarlenParams, 152, q, out, k_step, v_step, k_pages, v_pages, tables, segments,
               spans, tiles, live, bias, tiles_max, heads, kv_heads, head_dim, q_stride, out_stride,
               step_stride, block_size, scale, tile_rows, window, cap, bias_reach, reserved);

// The keys that a query sees, and the change that is made to its scores.
enum class Sees { Before, Near, Whole, Biased };

namespace varlen {

constexpr u32 NO_SEGMENT = 0xffffffffu;
constexpr u32 KEYS = 64;  // keys of a tile
constexpr u32 THREADS = 128;

// Where a key lies: elements from the start of the pages, or of the step's K and V if IN_STEP.
using Place = u64;
using Rest = Vec<u32, 2>;
constexpr Place NOWHERE = ~0ull, IN_STEP = 1ull << 63;

// The span in which a thread looks for its key of the next tile; the thread walks the segment's spans
// in order of position. It lies in shared memory, since rows need all registers.
struct Cursor {
    Shared<Span> span;
    Shared<Rest> rest;  // the index of the next span, and how many spans are left

    PRELUDE_DEVICE void begin(const Segment& segment) {
        store(span, Span{});
        store(rest, Rest{{segment.span_first, segment.span_count}});
    }

    PRELUDE_DEVICE Place find(const AttnVarlenParams& p, u32 kv_head, u32 position) {
        Span at = load(span);
        if (position - at.kv_start >= at.len) {
            Rest left = load(rest);
            do {
                if (left[1] == 0) return NOWHERE;
                at = load_ro(p.spans + left[0]);
                left = {{left[0] + 1, left[1] - 1}};
            } while (position - at.kv_start >= at.len);
            store(span, at);
            store(rest, left);
        }
        if (at.kind == SPAN_STEP) {
            u64 row = at.at + (position - at.kv_start);
            return IN_STEP | (row * p.step_stride + kv_head * p.head_dim);
        }
        u32 shift = lowest_one(p.block_size);
        u64 block = u32(load_ro(p.tables + (at.at + (position >> shift))));
        u32 offset = position & (p.block_size - 1);
        return ((block * p.kv_heads + kv_head) * p.block_size + offset) * p.head_dim;
    }
};

// Starts copying 64 rows of K or V; keys at NOWHERE and columns beyond head_dim become zeros. `flat` is
// the place of the first row if all 64 follow one another in the step, and NOWHERE otherwise.
template <u32 Dim>
PRELUDE_DEVICE void fetch(Shared<bf16> to, Shared<const Place> places, Place flat,
                          Global<const bf16> pages, Global<const bf16> step, u32 step_stride,
                          u32 head_dim) {
    constexpr u32 CHUNKS = Dim / 8;
    u32 column = thread_idx().x % CHUNKS * 8;
    if (flat != NOWHERE) {
        u32 first = thread_idx().x / CHUNKS;
        Global<const bf16> from = step + ((flat & ~IN_STEP) + u64(first) * step_stride + column);
        PRELUDE_UNROLL
        for (u32 i = 0; i < KEYS; i += THREADS / CHUNKS) {
            bool valid = column < head_dim;
            cp_async_16(to + ((first + i) * attention::PITCH<Dim> + column),
                        valid ? from + u64(i) * step_stride : step, valid);
        }
        cp_async_commit();
        return;
    }
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

// Returns the position after the last one that a token of a segment of `length` tokens sees.
PRELUDE_DEVICE u32 end_seen(u32 position, u32 window, u32 length) {
    return length - position > window ? position + window + 1 : length;
}

// Sets s = s · scale + the bias for the distance of each key from the queries of rows `low` and low + 8.
template <u32 Tiles>
PRELUDE_DEVICE void add_bias(float (&s)[Tiles][4], const AttnVarlenParams& p, u32 key, u32 low,
                             u32 position_low, u32 position_high) {
    u32 first = key + lane_id() % 4 * 2, reach = p.bias_reach;
    u32 group = p.heads / p.kv_heads;
    PRELUDE_UNROLL
    for (u32 half = 0; half < 2; half++) {
        u32 head = block_idx().y * group + (low + 8 * half) % group;
        Global<const bf16> bias = p.bias + u64(head) * (2 * reach + 1);
        // The key at position + i - reach adds bias[i], 0 ≤ i ≤ 2 · reach.
        u32 position = half == 0 ? position_low : position_high;
        PRELUDE_UNROLL
        for (u32 i = 0; i < Tiles; i++) {
            PRELUDE_UNROLL
            for (u32 e = 0; e < 2; e++) {
                u32 at = first + 8 * i + e + reach;
                at = min_u32(at > position ? at - position : 0, 2 * reach);
                float& x = s[i][2 * half + e];
                x = fma(x, p.scale, to_f32(load_ro(bias + at)));
            }
        }
    }
}

}  // namespace varlen

template <u32 Dim, u32 M, Sees S = Sees::Before>
PRELUDE_DEVICE void attn_varlen(const AttnVarlenParams& p) {
    using namespace attention;
    using namespace varlen;
    constexpr bool Near = S == Sees::Near, Biased = S == Sees::Biased;
    constexpr bool Whole = S == Sees::Whole || Biased;
    constexpr u32 CHUNKS = Dim / 8, QUERIES = 64 * M;
    // Queries of 256 elements would leave no registers for values.
    constexpr bool HOLDS_QUERY = M == 1 && Dim <= 128;
    PRELUDE_SHARED(Place, places, 2 * KEYS);
    PRELUDE_SHARED(Span, spans, KEYS);
    PRELUDE_SHARED(Rest, rests, KEYS);
    PRELUDE_SHARED(Place, flats, 2);
    Tile tile{NO_SEGMENT, 0, 0, 0};
    if (block_idx().x < live_rows(p.live, p.tiles_max)) tile = load_ro(p.tiles + block_idx().x);
    if (tile.segment == NO_SEGMENT) {
        dep_wait();
        return;
    }
    u32 thread = thread_idx().x, lane = lane_id(), kv_head = block_idx().y;
    u32 group = p.heads / p.kv_heads, rows = tile.rows * group;
    u32 end = tile.q_pos + tile.rows;  // the position after the last key that any row sees
    u32 length = 0;
    if constexpr (Whole) {
        length = load_ro(p.spans + load_ro(p.segments + tile.segment).span_first).len;
        end = end_seen(end - 1, p.window, length);
    }
    Shared<bf16> q = dynamic_shared<bf16>();
    Shared<bf16> k = q + QUERIES * PITCH<Dim>, v = k + KEYS * PITCH<Dim>;

    // Only one thread uses the cursor of a key.
    Cursor cursor{spans + thread % KEYS, rests + thread % KEYS};
    if (thread < KEYS) cursor.begin(load_ro(p.segments + tile.segment));
    auto look_up = [&](u32 first) {
        if (thread >= KEYS) return;
        u32 position = first + thread;
        Place place = position < end ? cursor.find(p, kv_head, position) : NOWHERE;
        store(places + (first % (2 * KEYS) + thread), place);
        if (thread > 0) return;
        Span span = load(cursor.span);
        bool is_flat = span.kind == SPAN_STEP && first + KEYS <= min_u32(span.kv_start + span.len, end);
        store(flats + first / KEYS % 2, is_flat ? place : NOWHERE);
    };
    auto fetch_keys = [&](u32 first) {
        if (first < end) {
            fetch<Dim>(k, places + first % (2 * KEYS), load(flats + first / KEYS % 2), p.k_pages,
                       p.k_step, p.step_stride, p.head_dim);
        }
    };
    // Start at the first tile of which any row sees a key.
    u32 begin = 0;
    if constexpr (Near || Whole) begin = first_seen(tile.q_pos, p.window) / KEYS * KEYS;
    look_up(begin);
    dep_wait();
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
    fetch_keys(begin);
    cp_async_wait<1>();
    sync_block();  // Q is there.
    u32 first_row = warp_id() * (16 * M);
    Shared<bf16> own = q + first_row * PITCH<Dim>;
    u32 query[Dim / 16][4];  // if HOLDS_QUERY
    if constexpr (HOLDS_QUERY) {
        PRELUDE_UNROLL
        for (u32 d = 0; d < Dim / 16; d++) {
            ldmatrix_x4(query[d], own + (lane % 16 * PITCH<Dim> + 16 * d + lane / 16 * 8));
        }
    }
    // The keys that a row sees. Rows beyond the tile see what its last query sees; they are not
    // stored. The tile is read again where it is needed again, since rows need all registers.
    auto position_of = [&](u32 row) {
        Tile t = load_ro(p.tiles + block_idx().x);
        return t.q_pos + min_u32(row / (p.heads / p.kv_heads), t.rows - 1);
    };
    auto visible = [&](u32 row) {
        if constexpr (Whole) {
            return end_seen(position_of(row), p.window, length);
        } else {
            return position_of(row) + 1;
        }
    };
    u32 end_first = visible(first_row), end_last = visible(first_row + 16 * M - 1);
    bool is_used = first_row < rows;
    float factor = mul_rn(p.scale, LOG2_E);
    if constexpr (Near) factor = p.cap > 0.0f ? LOG2_E : factor;
    if constexpr (Biased) factor = LOG2_E;
    // From this key on the warp's rows see all keys before their ends.
    u32 begin_last = 0;
    if constexpr (Whole) begin_last = first_seen(position_of(first_row + 16 * M - 1), p.window);
    Rows<Dim> state[M];
    PRELUDE_UNROLL
    for (u32 m = 0; m < M; m++) state[m].clear();

    for (u32 key = begin; key < end; key += KEYS) {
        cp_async_wait<0>();
        sync_block();  // K is there, and nobody reads V or the other places any more.
        fetch<Dim>(v, places + key % (2 * KEYS), load(flats + key / KEYS % 2), p.v_pages, p.v_step,
                   p.step_stride, p.head_dim);
        look_up(key + KEYS);
        float s[M][KEYS / 8][4];
        bool sees = is_used && key < end_last;
        if (sees) {
            if constexpr (HOLDS_QUERY) {
                score<Dim, KEYS>(s[0], query, k);
            } else {
                score_many<Dim, KEYS>(s, own, k);
            }
            if constexpr (Near) {
                PRELUDE_UNROLL
                for (u32 m = 0; m < M; m++) {
                    if (p.cap > 0.0f) bound(s[m], p.scale, p.cap);
                    u32 low = first_row + 16 * m + lane / 4;
                    mask_before(s[m], key, first_seen(visible(low) - 1, p.window),
                                first_seen(visible(low + 8) - 1, p.window));
                }
            }
            if constexpr (Biased) {
                PRELUDE_UNROLL
                for (u32 m = 0; m < M; m++) {
                    u32 low = first_row + 16 * m + lane / 4;
                    add_bias(s[m], p, key, low, position_of(low), position_of(low + 8));
                }
            }
            if (Whole && key < begin_last) {
                PRELUDE_UNROLL
                for (u32 m = 0; m < M; m++) {
                    u32 low = first_row + 16 * m + lane / 4;
                    mask_before(s[m], key, first_seen(position_of(low), p.window),
                                first_seen(position_of(low + 8), p.window));
                }
            }
            if (key + KEYS > end_first) {
                PRELUDE_UNROLL
                for (u32 m = 0; m < M; m++) {
                    u32 low = first_row + 16 * m + lane / 4;
                    mask(s[m], key, visible(low), visible(low + 8));
                }
            }
        }
        cp_async_wait<0>();
        sync_block();  // V and the next places are there, and nobody reads K any more.
        fetch_keys(key + KEYS);
        if (sees) {
            PRELUDE_UNROLL
            for (u32 m = 0; m < M; m++) weigh<Near || Whole>(state[m], s[m], factor);
            add_values<Dim, KEYS>(state, s, v);
        }
    }
    dep_launch();
    if (!is_used) return;
    // The results go through the warp's own rows of Q, which it does not need any more, so that stores
    // are of 16 bytes.
    sync_warp();
    PRELUDE_UNROLL
    for (u32 m = 0; m < M; m++) {
        PRELUDE_UNROLL
        for (u32 half = 0; half < 2; half++) {
            float scale = div_rn(1.0f, row_sum(state[m].sum[half]));
            u32 low_row = 16 * m + lane / 4 + 8 * half;
            Shared<bf16> row = own + (low_row * PITCH<Dim> + lane % 4 * 2);
            PRELUDE_UNROLL
            for (u32 i = 0; i < CHUNKS; i++) {
                float low = mul_rn(state[m].values[i][2 * half], scale);
                float high = mul_rn(state[m].values[i][2 * half + 1], scale);
                store(as<u32>(row + 8 * i), pack_bf16(low, high));
            }
        }
    }
    sync_warp();
    tile = load_ro(p.tiles + block_idx().x);
    group = p.heads / p.kv_heads;
    for (u32 i = lane; i < 16 * M * CHUNKS; i += WARP) {
        u32 row = first_row + i / CHUNKS, column = i % CHUNKS * 8;
        if (row >= tile.rows * group || column >= p.head_dim) continue;
        u32 head = block_idx().y * group + row % group;
        u64 to = u64(tile.q_row + row / group) * p.out_stride + head * p.head_dim + column;
        store(as<u32x4>(p.out + to), load(as<const u32x4>(q + (row * PITCH<Dim> + column))));
    }
}

}  // namespace prelude
