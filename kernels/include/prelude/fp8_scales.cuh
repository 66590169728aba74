// Where scales lie: those of 128 elements of a row, and those of 128 × 128 blocks of a weight. All
// kernels that write or read scales use this order, and so does cuBLASLt (VEC128_32F and
// BLK128x128_32F).
//
// The scales of rows are rows · groups f32. Up to 16 rows lie one row after the other. Of more rows, the
// first 4 · ⌊rows / 4⌋ lie one group after the other, as cuBLASLt reads them, which takes only
// multiples of 4 rows; the rest follows one row after the other.
// The scales of a weight are f32 [⌈n / 128⌉, ⌈k / 512⌉ · 4]: rows of blocks, each padded to a multiple
// of 4.
#pragma once

#include "prelude/dev.h"

namespace prelude::fp8 {

constexpr u32 BLOCK = 128;  // elements of k, and rows of w, that have a scale
constexpr u32 FOUR = 4;     // the multiple to which rows, or blocks of a row, are counted
constexpr u32 FEW = 16;     // the most rows that kernels for few rows take

// Where the scales of a row begin, and the distance from one group's scale to the next group's.
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

// Returns the number of scales from one row of blocks of a weight to the next.
PRELUDE_DEVICE u32 block_stride(u32 blocks) { return div_up(blocks, FOUR) * FOUR; }

}  // namespace prelude::fp8
