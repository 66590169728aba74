// The operands that lanes lay out for an operation of the warp.
#pragma once

#include "emu.h"

namespace prelude::emu {

struct MmaSlot {
    float* c;      // 4 numbers
    const u32* a;  // 4 registers
    u32 b[2];
};

struct LdmatrixSlot {
    u32* result;      // `count` registers
    const void* row;  // in shared memory; read of lanes below 8 · count
    u32 count;
    bool transposed;
};

struct ShuffleSlot {
    u32 value;
    u32 source;  // the lane to read, or the reader's own lane if `source` would be outside of the warp
    u32 result;
};

struct VoteSlot {
    bool value;
    u32 result;  // ballot
};

void complete_mma_bf16(Launch&, u32 mask, Warp&);
void complete_mma_f16(Launch&, u32 mask, Warp&);
void complete_mma_e4m3(Launch&, u32 mask, Warp&);
void complete_ldmatrix(Launch&, u32 mask, Warp&);
void complete_shuffle(Launch&, u32 mask, Warp&);
void complete_vote(Launch&, u32 mask, Warp&);
void complete_sync_warp(Launch&, u32 mask, Warp&);

}  // namespace prelude::emu
