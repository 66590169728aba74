// ldmatrix and mma.sync. The last lane to arrive computes for all: operands are read where the
// other lanes' registers lie, results are written there.
//
// A product is exact in f32; sums add k = 0, 1, 2, … to the accumulator, one rounding each. The
// hardware's order is not documented, so results agree with it up to rounding, not to the bit.

#include <cstring>

#include "emu.h"
#include "tensor.h"

namespace prelude::emu {

static float bf16_at(u32 word, u32 half) {
    u32 bits = (half == 0 ? word << 16 : word & 0xffff0000u);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static float f16_at(u32 word, u32 half) {
    u32 bits = word >> (16 * half) & 0xffff;
    float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    int exponent = static_cast<int>(bits >> 10 & 0x1f), mantissa = static_cast<int>(bits & 0x3ff);
    if (exponent == 31) return mantissa == 0 ? sign * __builtin_inff() : __builtin_nanf("");
    if (exponent == 0) return sign * __builtin_ldexpf(static_cast<float>(mantissa), -24);
    return sign * __builtin_ldexpf(static_cast<float>(1024 + mantissa), exponent - 25);
}

static float e4m3_at(u32 word, u32 byte) {
    u32 bits = (word >> (8 * byte)) & 0xff;
    float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
    u32 exponent = (bits >> 3) & 0xf, mantissa = bits & 7;
    if (exponent == 15 && mantissa == 7) return __builtin_nanf("");
    if (exponent == 0) return sign * __builtin_ldexpf(static_cast<float>(mantissa), -9);
    return sign * __builtin_ldexpf(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10);
}

// d[16×8] += a[16×K] · b[K×8], both in full.
template <u32 K>
static void multiply(Launch& launch, const float (&a)[16][K], const float (&b)[8][K]) {
    for (u32 lane = 0; lane < WARP_LANES; lane++) {
        auto& slot = *static_cast<MmaSlot*>(launch.slot_of(lane));
        for (u32 e = 0; e < 4; e++) {
            const float* row = a[lane / 4 + 8 * (e / 2)];
            const float* column = b[2 * (lane % 4) + e % 2];
            float sum = slot.c[e];
            for (u32 k = 0; k < K; k++) sum += row[k] * column[k];
            slot.c[e] = sum;
        }
    }
}

// Multiplies operands with two elements in each register; `at` widens an element to f32.
template <class At>
static void multiply_pairs(Launch& launch, At at) {
    float a[16][16], b[8][16];
    for (u32 lane = 0; lane < WARP_LANES; lane++) {
        const auto& slot = *static_cast<MmaSlot*>(launch.slot_of(lane));
        u32 g = lane / 4, t = lane % 4;
        for (u32 r = 0; r < 4; r++) {
            for (u32 h = 0; h < 2; h++) a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + h] = at(slot.a[r], h);
        }
        for (u32 r = 0; r < 2; r++) {
            for (u32 h = 0; h < 2; h++) b[g][2 * t + 8 * r + h] = at(slot.b[r], h);
        }
    }
    multiply(launch, a, b);
}

void complete_mma_bf16(Launch& launch, u32, Warp&) { multiply_pairs(launch, bf16_at); }
void complete_mma_f16(Launch& launch, u32, Warp&) { multiply_pairs(launch, f16_at); }

void complete_mma_e4m3(Launch& launch, u32, Warp&) {
    float a[16][32], b[8][32];
    for (u32 lane = 0; lane < WARP_LANES; lane++) {
        const auto& slot = *static_cast<MmaSlot*>(launch.slot_of(lane));
        u32 g = lane / 4, t = lane % 4;
        for (u32 r = 0; r < 4; r++) {
            for (u32 i = 0; i < 4; i++) a[g + 8 * (r % 2)][4 * t + 16 * (r / 2) + i] = e4m3_at(slot.a[r], i);
        }
        for (u32 r = 0; r < 2; r++) {
            for (u32 i = 0; i < 4; i++) b[g][4 * t + 16 * r + i] = e4m3_at(slot.b[r], i);
        }
    }
    multiply(launch, a, b);
}

void complete_ldmatrix(Launch& launch, u32, Warp&) {
    const auto& any = *static_cast<LdmatrixSlot*>(launch.slot_of(0));
    for (u32 matrix = 0; matrix < any.count; matrix++) {
        u16 rows[8][8];
        for (u32 row = 0; row < 8; row++) {
            const auto& slot = *static_cast<LdmatrixSlot*>(launch.slot_of(8 * matrix + row));
            std::memcpy(rows[row], slot.row, 16);
        }
        for (u32 lane = 0; lane < WARP_LANES; lane++) {
            auto& slot = *static_cast<LdmatrixSlot*>(launch.slot_of(lane));
            u32 g = lane / 4, t = lane % 4;
            u32 low = any.transposed ? rows[2 * t][g] : rows[g][2 * t];
            u32 high = any.transposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
            slot.result[matrix] = low | high << 16;
        }
    }
}

}  // namespace prelude::emu
