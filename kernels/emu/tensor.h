// The operands that lanes lay out for an operation of the warp.
#pragma once

#include "emu.h"

namespace prelude::emu {

struct MmaSlot {
    float* c;      // 4
    const u32* a;  // 4
    u32 b[2];
};

struct LdmatrixSlot {
    u32* result;      // `count`
    const void* row;  // in shared memory, of the lanes below 8 · count
    u32 count;
    bool transposed;
};

struct ShuffleSlot {
    u32 value;
    u32 source;  // lane to read, or the own one where that would leave the warp
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
