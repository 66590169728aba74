// cap_logits:  x = cap · tanh(x / cap), in place      f32 [rows, width]
//
// width and the row stride are multiples of 1 element: rows of logits end where the vocabulary does.
// cap is above 0.
//
// Launch: a block of 256 threads for each 2,048 elements of a row: ⌈width / 2048⌉ × rows blocks.
// Bound: 8 · rows · width bytes.
#pragma once

#include "prelude/dev.h"

namespace prelude {

struct CapLogitsParams {
    Global<float> x;
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 width;
    u32 stride;
    float cap;
};
PRELUDE_PARAMS(CapLogitsParams, 32, x, live, rows, width, stride, cap);

PRELUDE_DEVICE void cap_logits(const CapLogitsParams& p) {
    dep_wait();
    u32 row = block_idx().y;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<float> x = p.x + u64(row) * p.stride;
    u32 end = min_u32(p.width, (block_idx().x + 1) * 2048);
    for (u32 i = block_idx().x * 2048 + thread_idx().x; i < end; i += block_dim().x) {
        store(x + i, soft_cap(load(x + i), p.cap));
    }
    dep_launch();
}

}  // namespace prelude
