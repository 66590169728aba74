// Places of the scales of 128 elements of a row, and of blocks of 128 × 128 of a weight: one order for all
// kernels that write or read them, in which cuBLASLt finds its own (VEC128_32F and BLK128x128_32F).
//
// Rows, f32 of rows · groups: few rows, up to 16, one row after the other. Of more, the first
// 4 · ⌊rows / 4⌋ one group after the other, as cuBLASLt reads them, which takes only fours; then the rest
// one row after the other, as if these few rows were all.
// Weights, f32 [⌈n / 128⌉, ⌈k / 512⌉ · 4]: rows of blocks, each filled up to a multiple of 4.
#pragma once

#include "prelude/dev.h"

namespace prelude::fp8 {

constexpr u32 BLOCK = 128;  // elements of k, and rows of w, that have a scale
constexpr u32 FOUR = 4;     // rows, or blocks of a row
constexpr u32 FEW = 16;     // rows that kernels for few take

// Where the scales of a row begin, and how far one group's is from the next one's.
struct RowScales {
    u64 first;
    u32 step;

    PRELUDE_DEVICE RowScales(u32 row, u32 rows, u32 groups) {
        u32 fours = rows > FEW ? rows / FOUR * FOUR : 0;
        first = row < fours ? row : u64(row) * groups;
        step = row < fours ? fours : 1;
    }
    PRELUDE_DEVICE u64 at(u32 group) const { return first + u64(group) * step; }
};

// Scales from one row of blocks of a weight to the next.
PRELUDE_DEVICE u32 block_stride(u32 blocks) { return div_up(blocks, FOUR) * FOUR; }

}  // namespace prelude::fp8
