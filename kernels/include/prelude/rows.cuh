// Copies of rows, exact but for a scale, and sums of rows.
//
// embed:        h[t] = scale · E[id[t]]   id `i32 [rows]`, E `[vocab, width]`, h `[rows, width]`;
//               rounded once, and not at all with a scale of 1
// gather_rows:  y[r] = x[index[r] - first]    index `i32 [rows]`, x `[x_rows, width]`,
//               y `[rows, width]`
// embed_sum:    h[t] = words[id[t] % W] + types[id[t] / W] + positions[position[t]]; without words
//               the sum begins with h[t]
//               W rows of words, all tables `[_, width]`; in f32 in this order, rounded once;
//               without types, ids are below W
//
// A negative id -(r+1) of embed means "row r of the ids sampled by the previous step" (depth 2). An
// id, index or position out of range fills its row with NaN, so that the row fails and no other: host
// code has checked the ids it knows. Where x is a part of what indices name, a row whose index is
// elsewhere stays as it is: another launch fills it. width and strides are multiples of 8 elements.
//
// Launch: 256 threads, a warp a row: ⌈rows / 8⌉ blocks. Bound: 4 · rows · width bytes.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct EmbedParams {
    Global<const i32> ids;
    Global<const i32> sampled;  // null if no id is negative
    Global<const bf16> table;
    Global<bf16> h;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 vocab;
    u32 sampled_rows;
    u32 h_stride;
    float scale;
};
PRELUDE_PARAMS(EmbedParams, 64, ids, sampled, table, h, live, rows, width, vocab, sampled_rows,
               h_stride, scale);

struct GatherRowsParams {
    Global<const i32> index;
    Global<const bf16> x;
    Global<bf16> y;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 x_rows;
    u32 x_stride;
    u32 y_stride;
    u32 first;    // index of the first row of x
    u32 is_part;  // 1 if indices may name rows that x does not hold
    u32 reserved;
};
PRELUDE_PARAMS(GatherRowsParams, 64, index, x, y, live, rows, width, x_rows, x_stride, y_stride,
               first, is_part, reserved);

struct EmbedSumParams {
    Global<const i32> ids;
    Global<const i32> positions;       // not read without a table of positions
    Global<const bf16> words;
    Global<const bf16> position_table;  // or null
    Global<const bf16> types;           // or null
    Global<bf16> h;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 num_words;
    u32 num_positions;
    u32 num_types;
    u32 h_stride;
};
PRELUDE_PARAMS(EmbedSumParams, 80, ids, positions, words, position_table, types, h, live, rows,
               width, num_words, num_positions, num_types, h_stride);

PRELUDE_DEVICE u32 row_of_warp() { return block_idx().x * (block_dim().x / WARP) + warp_id(); }

// Copies one row by one warp; fills the row with NaN if there is nothing to copy.
PRELUDE_DEVICE void copy_row(Global<const bf16> from, bool there, Global<bf16> to, u32 width) {
    for (u32 i = 8 * lane_id(); i < width; i += 8 * WARP) {
        u32x4 nan{{0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu}};
        store(as<u32x4>(to + i), there ? load_ro(as<const u32x4>(from + i)) : nan);
    }
}

PRELUDE_DEVICE void embed(const EmbedParams& p) {
    dep_wait();
    u32 row = row_of_warp();
    if (row >= live_rows(p.live, p.rows)) return;
    i32 id = load(p.ids + row);
    bool there = true;
    if (id < 0) {
        u32 source = u32(-(id + 1));
        there = p.sampled && source < p.sampled_rows;
        id = there ? load(p.sampled + source) : 0;
    }
    there = there && id >= 0 && u32(id) < p.vocab;
    Global<bf16> h = p.h + u64(row) * p.h_stride;
    copy_row(p.table + u64(there ? id : 0) * p.width, there, h, p.width);
    if (p.scale != 1.0f) {
        // Each lane reads back what it has just written.
        for (u32 i = 8 * lane_id(); i < p.width; i += 8 * WARP) {
            bf16x8 x = load(as<bf16x8>(h + i));
            for (int j = 0; j < 8; j++) x[j] = to_bf16(mul_rn(p.scale, to_f32(x[j])));
            store(as<bf16x8>(h + i), x);
        }
    }
    dep_launch();
}

PRELUDE_DEVICE void embed_sum(const EmbedSumParams& p) {
    dep_wait();
    u32 row = row_of_warp();
    if (row >= live_rows(p.live, p.rows)) return;
    i32 id = load(p.ids + row);
    u32 type = u32(id) / p.num_words, word = u32(id) % p.num_words;
    bool there = id >= 0 && type < p.num_types;
    u32 position = 0;
    if (p.position_table) {
        // As an unsigned number a negative position is larger than any row.
        position = u32(load(p.positions + row));
        there = there && position < p.num_positions;
    }
    Global<bf16> h = p.h + u64(row) * p.h_stride;
    if (!there) {
        copy_row(p.words, false, h, p.width);
        return;
    }
    Global<const bf16> first = h;
    if (p.words) first = p.words + u64(word) * p.width;
    auto row_of = [&](Global<const bf16> table, u32 at, u32 i) {
        return load_ro(as<const bf16x8>(table + (u64(at) * p.width + i)));
    };
    for (u32 i = 8 * lane_id(); i < p.width; i += 8 * WARP) {
        bf16x8 x = load(as<const bf16x8>(first + i));
        float sum[8];
        for (int j = 0; j < 8; j++) sum[j] = to_f32(x[j]);
        if (p.types) {
            bf16x8 y = row_of(p.types, type, i);
            for (int j = 0; j < 8; j++) sum[j] = add_rn(sum[j], to_f32(y[j]));
        }
        if (p.position_table) {
            bf16x8 y = row_of(p.position_table, position, i);
            for (int j = 0; j < 8; j++) sum[j] = add_rn(sum[j], to_f32(y[j]));
        }
        for (int j = 0; j < 8; j++) x[j] = to_bf16(sum[j]);
        store(as<bf16x8>(h + i), x);
    }
    dep_launch();
}

PRELUDE_DEVICE void gather_rows(const GatherRowsParams& p) {
    dep_wait();
    u32 row = row_of_warp();
    if (row >= live_rows(p.live, p.rows)) return;
    i32 index = load(p.index + row);
    u32 at = u32(index) - p.first;  // an index below the first becomes too large
    bool there = index >= 0 && at < p.x_rows;
    if (!there && p.is_part != 0) return;
    Global<const bf16> from = p.x + u64(there ? at : 0) * p.x_stride;
    copy_row(from, there, p.y + u64(row) * p.y_stride, p.width);
    dep_launch();
}

}  // namespace prelude
