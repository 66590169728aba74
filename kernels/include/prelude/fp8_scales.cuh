// Places of the scales of 128 elements of a row, and of blocks of 128 × 128 of a weight: one order for all
// kernels that write or read them, which is cuBLASLt's own (its modes VEC128_32F and BLK128x128_32F).
//
// Rows, f32 of rows · groups: those of the first 4 · ⌊rows / 4⌋ rows group by group, as cuBLASLt reads
// them and takes only fours; then those of the other rows, row by row. So the scales of the fours, and
// those of the rest, lie as if there were no other rows.
// Weights, f32 [⌈n / 128⌉, ⌈k / 512⌉ · 4]: rows of blocks, each filled up to a multiple of 4.
#pragma once

#include "prelude/dev.h"

namespace prelude::fp8 {

constexpr u32 BLOCK = 128;  // elements of k, and rows of w, that have a scale
constexpr u32 FOUR = 4;     // rows, or blocks of a row

// Where the scales of a row begin, and how far one group's is from the next one's.
struct RowScales {
    u64 first;
    u32 step;

    PRELUDE_DEVICE RowScales(u32 row, u32 rows, u32 groups) {
        u32 fours = rows / FOUR * FOUR;
        first = row < fours ? row : u64(row) * groups;
        step = row < fours ? fours : 1;
    }
    PRELUDE_DEVICE u64 at(u32 group) const { return first + u64(group) * step; }
};

// Scales from one row of blocks of a weight to the next.
PRELUDE_DEVICE u32 block_stride(u32 blocks) { return div_up(blocks, FOUR) * FOUR; }

}  // namespace prelude::fp8
