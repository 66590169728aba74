// Products of one hidden state with one row of weights, in f32 throughout.
//
// classify:    out[r · labels + l] = hidden[index[r]] · score[l] (+ bias[l])
// label_dots:  out[i] = hidden[pair[i].row] · table[pair[i].id]: label scores that are normalised
//              over the labels alone, so that nothing else of the vocabulary is read
//
// A cap above 0 bounds the products of label_dots: soft_cap.
// hidden bf16 [_, width], weights bf16 [_, width]; width a multiple of 8. One warp
// computes one product: each lane sums every 32nd vector of 8 elements in order, then the lanes' sums
// are added.
//
// Launch: 256 threads: ⌈products / 8⌉ blocks. Bound: 2 · labels · width bytes.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct ClassifyParams {
    Global<const i32> index;
    Global<const bf16> hidden;
    Global<const bf16> score;
    Global<const bf16> bias;  // [labels], or null
    Global<float> out;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 labels;
    u32 width;
    u32 hidden_stride;
};
PRELUDE_PARAMS(ClassifyParams, 64, index, hidden, score, bias, out, live, rows, labels, width,
               hidden_stride);

struct LabelDotsParams {
    Global<const u32> row;  // row of hidden, for each product
    Global<const u32> id;   // row of the table, for each product
    Global<const bf16> hidden;
    Global<const bf16> table;
    Global<float> out;
    Global<const u32> live;  // products that count, or null for all
    u32 products;
    u32 width;
    u32 hidden_stride;
    float cap;  // 0: not bounded
};
PRELUDE_PARAMS(LabelDotsParams, 64, row, id, hidden, table, out, live, products, width,
               hidden_stride, cap);

PRELUDE_DEVICE float warp_dot(Global<const bf16> x, Global<const bf16> w, u32 width) {
    float sum = 0.0f;
    for (u32 i = 8 * lane_id(); i < width; i += 8 * WARP) {
        bf16x8 a = load(as<const bf16x8>(x + i)), b = load_ro(as<const bf16x8>(w + i));
        for (int j = 0; j < 8; j++) sum = fma(to_f32(a[j]), to_f32(b[j]), sum);
    }
    return warp_sum(sum);
}

PRELUDE_DEVICE void classify(const ClassifyParams& p) {
    dep_wait();
    u64 i = u64(block_idx().x) * (block_dim().x / WARP) + warp_id();
    u64 row = i / p.labels;
    if (row >= live_rows(p.live, p.rows)) return;
    u64 state = u64(load(p.index + row)) * p.hidden_stride;
    float sum = warp_dot(p.hidden + state, p.score + (i % p.labels) * p.width, p.width);
    if (p.bias) sum = add_rn(sum, to_f32(load_ro(p.bias + i % p.labels)));
    if (lane_id() == 0) store(p.out + i, sum);
    dep_launch();
}

PRELUDE_DEVICE void label_dots(const LabelDotsParams& p) {
    dep_wait();
    u64 i = u64(block_idx().x) * (block_dim().x / WARP) + warp_id();
    if (i >= live_rows(p.live, p.products)) return;
    u64 state = u64(load(p.row + i)) * p.hidden_stride;
    u64 label = u64(load(p.id + i)) * p.width;
    float sum = warp_dot(p.hidden + state, p.table + label, p.width);
    if (p.cap > 0.0f) sum = soft_cap(sum, p.cap);
    if (lane_id() == 0) store(p.out + i, sum);
    dep_launch();
}

}  // namespace prelude
