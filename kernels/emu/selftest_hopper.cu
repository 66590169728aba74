// Kernels that test the emulation of hopper.h: what each operation does, and faults made on purpose.
#include "prelude/hopper.h"

namespace prelude {

struct HopperTestParams {
    TensorMap a;
    TensorMap b;
    Global<const u32> in;
    Global<u32> out;
    u32 mode;
    u32 row;
    u32 column;
    u32 bytes;
    u32 reserved[24];
};
PRELUDE_PARAMS(HopperTestParams, 384, a, b, in, out, mode, row, column, bytes, reserved);

}  // namespace prelude

using namespace prelude;

namespace {

// A place for matrices of up to 40 KB, and a barrier behind it.
constexpr u32 ROOM = 40 << 10;

PRELUDE_DEVICE Shared<u64> barrier_behind(u32 bytes) { return as<u64>(dynamic_shared<u8>() + bytes); }

// Copies a box to shared memory, and waits for it.
PRELUDE_DEVICE void fetch_box(const TensorMap& map, Shared<bf16> to, u32 bytes, u32 row,
                              u32 column, Shared<u64> barrier, u32 parity) {
    sync_block();  // All have seen the end of the phase before.
    if (thread_idx().x == 0) {
        mbarrier_arrive_expect(barrier, bytes);
        tensor_copy(to, map, row, column, barrier);
    }
    mbarrier_wait(barrier, parity);
}

PRELUDE_DEVICE void make_barrier(Shared<u64> barrier, u32 arrivals) {
    if (thread_idx().x == 0) {
        mbarrier_init(barrier, arrivals);
        mbarrier_init_fence();
    }
    sync_block();
}

}  // namespace

// A box at (row, column), to 1024 · 2 + 128 · mode bytes: out is that memory as it lies.
PRELUDE_KERNEL(emu_tensor_copy, HopperTestParams, 128) {
    dep_wait();
    Shared<u64> barrier = barrier_behind(ROOM);
    make_barrier(barrier, 1);
    Shared<u32> words = dynamic_shared<u32>();
    for (u32 i = thread_idx().x; i < 2048; i += 128) store(words + i, 0u);
    fence_async();
    sync_block();
    fetch_box(p.a, as<bf16>(words + (512 + 32 * p.mode)), p.bytes, p.row, p.column, barrier, 0);
    for (u32 i = thread_idx().x; i < 2048; i += 128) store(p.out + i, load(words + i));
}

// out[64 × N], f32: mode 0, N 128, and 3, N 256: a[64 × 64] · b[N × 64]ᵀ; 1 and 2, N 64 and 128: what that gives,
// plus in[64 × 64] · b[64 × N], in of bf16; a and b boxes of 64 columns.
PRELUDE_KERNEL(emu_wgmma, HopperTestParams, 128) {
    dep_wait();
    Shared<u64> barrier = barrier_behind(ROOM);
    make_barrier(barrier, 1);
    Shared<bf16> a = dynamic_shared<bf16>(), b = a + 4096;
    u32 lane = lane_id(), row = 16 * warp_id() + lane / 4, t = lane % 4 * 2;
    auto keep = [&](auto& d) {
        u32 i = 0;
        for (auto& column : d) {
            for (u32 e = 0; e < 4; e++) {
                u32 at = (row + e / 2 * 8) * (8 * (sizeof d / sizeof column)) + 8 * i + t + e % 2;
                store(p.out + at, bit_cast<u32>(column[e]));
            }
            i++;
        }
    };
    // Two of the four steps of k in each of two groups, which are under way together.
    auto of_rows = [&](auto& sums, u32 bytes) {
        fetch_box(p.a, a, 8192, 0, 0, barrier, 0);
        fetch_box(p.b, b, bytes, 0, 0, barrier, 1);
        u64 left = operand(a, 0, 1024), right = operand(b, 0, 1024);
        for (u32 k = 0; k < 4; k++) {
            if (k % 2 == 0) wgmma_fence();
            wgmma(sums, operand_behind(left, 32 * k), operand_behind(right, 32 * k), k > 0);
            if (k % 2 == 1) wgmma_commit();
        }
        wgmma_wait<1>(sums);
        wgmma_wait<0>(sums);
        keep(sums);
    };
    if (p.mode == 3) {
        float wide[32][4] = {};
        of_rows(wide, 32768);
        return;
    }
    float d[16][4] = {};
    if (p.mode == 0) {
        of_rows(d, 16384);
        return;
    }
    u32 registers[4][4];
    for (u32 k = 0; k < 4; k++) {
        for (u32 r = 0; r < 4; r++) {
            u32 at = ((row + r % 2 * 8) * 64 + 16 * k + t + r / 2 * 8) / 2;
            registers[k][r] = load(p.in + at);
        }
    }
    fetch_box(p.b, b, 8192, 0, 0, barrier, 0);
    u64 right = operand(b, 8192, 1024);
    if (p.mode == 1) {
        float narrow[8][4];
        for (auto& column : narrow) {
            for (float& x : column) x = 0.5f;
        }
        wgmma_fence();
        for (u32 k = 0; k < 4; k++) {
            wgmma_registers(narrow, registers[k], operand_behind(right, 2048 * k));
        }
        wgmma_commit();
        wgmma_wait<0>(narrow);
        keep(narrow);
        return;
    }
    fetch_box(p.b, b + 4096, 8192, 0, 64, barrier, 1);
    wgmma_fence();
    for (u32 k = 0; k < 4; k++) wgmma_registers(d, registers[k], operand_behind(right, 2048 * k));
    wgmma_commit();
    wgmma_wait<0>(d);
    keep(d);
}

// Faults, by mode. Each must be reported; mode 0 has none, and out[0] is what it read.
PRELUDE_KERNEL(emu_hopper_fault, HopperTestParams, 128) {
    dep_wait();
    Shared<u64> barrier = barrier_behind(ROOM), other = barrier + 1;
    Shared<bf16> a = dynamic_shared<bf16>(), b = a + 4096;
    u32 mode = p.mode, t = thread_idx().x;
    float d[16][4] = {};
    if (t == 0) {
        mbarrier_init(barrier, 1);
        if (mode != 14) mbarrier_init(other, 4);
        if (mode != 4) mbarrier_init_fence();
    }
    if (mode != 5) sync_block();
    if (mode == 3) {  // what threads wrote is multiplied, without fence_async()
        for (u32 i = t; i < 1024; i += 128) store(as<u32x4>(a) + i, u32x4{{0, 0, 0, 0}});
        sync_block();
    }
    if (mode == 13) {  // the same of a copy's place
        store(as<u32>(a) + t, 0u);
        sync_block();
    }
    if (t == 0) {
        u32 bytes = 8192 + 16384;
        if (mode == 6) bytes += 16;  // more bytes than are copied
        mbarrier_arrive_expect(barrier, bytes);
        if (mode == 12) mbarrier_arrive(barrier);  // one arrival more than the phase has
        if (mode != 3) tensor_copy(a, p.a, 0, 0, barrier);
        if (mode == 3) tensor_copy(b + 8192, p.a, 0, 0, barrier);
        tensor_copy(b, p.b, 0, 0, barrier);
    }
    if (mode == 1) {  // a copy that nobody waited for
        store(p.out + t, load(as<u32>(a) + t));
        return;
    }
    if (mode == 2) return;  // the block ends before the copy has
    mbarrier_wait(barrier, mode == 7 ? 1 : 0);  // 7: the parity of the phase before
    if (mode == 14) mbarrier_arrive(other);  // a barrier that was not made
    u64 left = operand(a + (mode == 9 ? 64 : 0), 0, 1024), right = operand(b, 0, 1024);
    if (mode != 8) wgmma_fence();
    wgmma(d, left, right, false);
    if (mode == 15) {  // warps of a warpgroup that multiply different operands
        wgmma(d, operand_behind(left, 32 * (warp_id() % 2)), right, true);
    }
    wgmma_commit();
    if (mode == 10) return;  // the block ends before the product has
    if (mode == 11) store(p.out + t, bit_cast<u32>(d[0][0]));  // a sum is read early: NaN
    if (mode == 16) {  // an operand is overwritten under a product
        if (lane_id() == 0) mbarrier_arrive(other);
        mbarrier_wait(other, 0);
        if (t == 0) {
            mbarrier_arrive_expect(barrier, 16384);
            tensor_copy(b, p.b, 0, 0, barrier);
        }
        mbarrier_wait(barrier, 1);
    }
    wgmma_wait<0>(d);
    if (mode == 17 && t == 0) {  // an operand is overwritten before other warps are done with it
        mbarrier_arrive_expect(barrier, 16384);
        tensor_copy(b, p.b, 0, 0, barrier);
    }
    if (mode == 17) mbarrier_wait(barrier, 1);
    if (mode == 0) {  // rightly
        if (lane_id() == 0) mbarrier_arrive(other);
        mbarrier_wait(other, 0);
        if (t == 0) {
            mbarrier_arrive_expect(barrier, 16384);
            tensor_copy(b, p.b, 0, 0, barrier);
        }
        mbarrier_wait(barrier, 1);
        store(p.out + t, load(as<u32>(b) + t));
    }
}
