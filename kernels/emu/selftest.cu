// Kernels that test the emulation itself: what each operation does, and faults made on purpose.
#include "prelude/dev.h"

namespace prelude {

// One parameter struct for all.
struct SelftestParams {
    Global<const u32> in;
    Global<u32> out;
    u32 mode;
    u32 count;
};
PRELUDE_PARAMS(SelftestParams, 24, in, out, mode, count);

PRELUDE_DEVICE u32 linear_thread() {
    return (thread_idx().z * block_dim().y + thread_idx().y) * block_dim().x + thread_idx().x;
}

}  // namespace prelude

using namespace prelude;

// Every thread of a 3-D grid of 3-D blocks writes its own place's number.
PRELUDE_KERNEL(emu_indices, SelftestParams, 1024) {
    dep_wait();
    Index3 b = block_idx(), g = grid_dim(), d = block_dim();
    u32 block = (b.z * g.y + b.y) * g.x + b.x;
    u32 at = block * d.x * d.y * d.z + linear_thread();
    store(p.out + at, at + 1000 * lane_id() + 100000 * warp_id());
}

// out[mode · 32 + lane] of one warp's exchanges.
PRELUDE_KERNEL(emu_warp, SelftestParams, 32) {
    dep_wait();
    u32 x = load(p.in + lane_id());
    u32 results[] = {shuffle(x, 5u),           shuffle_xor(x, 3),
                     shuffle_up(x, 2),         shuffle_down(x, 7),
                     ballot(x % 3 == 0),       u32(any(lane_id() == 9)),
                     u32(all(lane_id() < 32)), u32(all(lane_id() != 9))};
    for (u32 i = 0; i < 8; i++) store(p.out + (i * 32 + lane_id()), results[i]);
    // Halves that go different ways, each with its own mask.
    u32 half = 0;
    if (lane_id() < 16) {
        half = shuffle_xor(x, 1, 0x0000ffffu);
        half += ballot(true, 0x0000ffffu);
    } else {
        half = ballot(true, 0xffff0000u);
    }
    store(p.out + (256 + lane_id()), half);
}

// ldmatrix: shared row r of 32 rows holds in[r · 4 ..], 16 bytes; lane l names row l.
PRELUDE_KERNEL(emu_ldmatrix, SelftestParams, 32) {
    dep_wait();
    PRELUDE_SHARED(u32x4, rows, 32);
    store(rows + lane_id(), load(as<const u32x4>(p.in + 4 * lane_id())));
    sync_warp();
    Shared<const bf16> row = as<const bf16>(rows + lane_id());
    u32 r[4] = {0, 0, 0, 0};
    u32(&two)[2] = reinterpret_cast<u32(&)[2]>(r);
    u32(&one)[1] = reinterpret_cast<u32(&)[1]>(r);
    if (p.mode == 0) ldmatrix_x4(r, row);
    if (p.mode == 1) ldmatrix_x4_trans(r, row);
    if (p.mode == 2) ldmatrix_x2(two, row);
    if (p.mode == 3) ldmatrix_x2_trans(two, row);
    if (p.mode == 4) ldmatrix_x1(one, row);
    if (p.mode == 5) ldmatrix_x1_trans(one, row);
    for (u32 i = 0; i < 4; i++) store(p.out + (4 * lane_id() + i), r[i]);
}

// mma: lane l's registers are in[10 l ..]: a[4], b[2], c[4]; out[4 l ..] is the new c.
PRELUDE_KERNEL(emu_mma, SelftestParams, 32) {
    dep_wait();
    u32 a[4], b[2];
    float c[4];
    Global<const u32> in = p.in + 10 * lane_id();
    for (u32 i = 0; i < 4; i++) a[i] = load(in + i);
    for (u32 i = 0; i < 2; i++) b[i] = load(in + (4 + i));
    for (u32 i = 0; i < 4; i++) c[i] = bit_cast<float>(load(in + (6 + i)));
    if (p.mode == 0) mma_m16n8k16(c, a, b[0], b[1]);
    if (p.mode == 1) mma_m16n8k32(c, a, b[0], b[1]);
    if (p.mode == 2) mma_m16n8k16_f16(c, a, b[0], b[1]);
    for (u32 i = 0; i < 4; i++) store(p.out + (4 * lane_id() + i), bit_cast<u32>(c[i]));
}

// Conversions: out[i] from in[i], by mode.
PRELUDE_KERNEL(emu_convert, SelftestParams, 256) {
    dep_wait();
    u32 i = block_idx().x * block_dim().x + thread_idx().x;
    if (i >= p.count) return;
    u32 x = load(p.in + i);
    u32 y = 0;
    if (p.mode == 0) y = to_bf16(bit_cast<float>(x)).bits;
    if (p.mode == 1) y = to_e4m3(bit_cast<float>(x)).bits;
    if (p.mode == 2) y = bit_cast<u32>(to_f32(e4m3{u8(x)}));
    if (p.mode == 3) y = bit_cast<u32>(exp_exact(bit_cast<float>(x)));
    if (p.mode == 4) y = pack_e4m3(bit_cast<float>(x), bit_cast<float>(load(p.in + i / 2)));
    store(p.out + i, y);
}

// Turns words around through shared memory, dynamic (mode 0) or static, with a named barrier
// instead of the block's in mode 2, with cp.async in mode 3, with atomics in mode 4.
PRELUDE_KERNEL(emu_reverse, SelftestParams, 128) {
    dep_wait();
    PRELUDE_SHARED(u32, fixed, 128);
    PRELUDE_SHARED(u32, total, 1);
    Shared<u32> words = p.mode == 0 ? dynamic_shared<u32>() : fixed;
    u32 t = thread_idx().x;
    if (p.mode == 3) {
        if (t % 4 == 0) cp_async_16(words + t, p.in + t, t < p.count);
        cp_async_commit();
        cp_async_wait<0>();
    } else {
        store(words + t, load(p.in + t));
    }
    if (p.mode == 2) {
        sync_named(3, 128);
    } else {
        sync_block();
    }
    u32 x = load(words + (127 - t));
    if (p.mode == 4) {
        if (t == 0) store(total, 0u);
        sync_block();
        atomic_add(total, x);
        sync_block();
        x = load(total);
    }
    store(p.out + t, x);
}

// A producer's warp fills, the consumers' warp reads: barrier 1 means full, 2 empty.
PRELUDE_KERNEL(emu_pipeline, SelftestParams, 64) {
    dep_wait();
    PRELUDE_SHARED(u32, words, 32);
    u32 sum = 0;
    for (u32 round = 0; round < 4; round++) {
        if (warp_id() == 0) {
            if (round > 0 && p.mode != 1) sync_named(2, 64);
            store(words + lane_id(), round * 32 + lane_id());
            arrive_named(1, 64);
        } else {
            sync_named(1, 64);
            sum += load(words + (31 - lane_id()));
            if (round < 3 && p.mode != 1) arrive_named(2, 64);
        }
    }
    if (warp_id() == 1) store(p.out + lane_id(), sum);
}

// Faults, by mode. Each must be reported.
PRELUDE_KERNEL(emu_fault, SelftestParams, 128) {
    PRELUDE_SHARED(u32, words, 128);
    u32 t = thread_idx().x;
    if (p.mode < 18) dep_wait();
    switch (p.mode) {
        case 0:  // no barrier between write and read
            store(words + t, t);
            store(p.out + t, load(words + (t + 32) % 128));
            break;
        case 1:  // no barrier between read and refill
            store(words + t, t);
            sync_block();
            store(p.out + t, load(words + (t + 32) % 128));
            store(words + t, t);
            break;
        case 2:  // lanes of a warp without sync_warp
            store(words + t, t);
            store(p.out + t, load(words + (t ^ 1)));
            break;
        case 3:  // read behind the end
            store(p.out + t, load(p.in + (p.count + t)));
            break;
        case 4:  // write behind the end
            store(p.out + (p.count + t), t);
            break;
        case 5:  // misaligned
            store(as<u32x4>(p.out + 1), u32x4{{0, 0, 0, 0}});
            break;
        case 6:  // blocks write the same place
            if (t == 0) store(p.out, block_idx().x);
            break;
        case 7:  // half of the threads wait for the others, which have gone elsewhere
            if (t < 64) {
                sync_block();
            } else {
                sync_named(1, 128);
            }
            break;
        case 8:  // two barriers in two branches of one warp
            if (t % 2 == 0) {
                sync_block();
            } else {
                sync_block();
            }
            break;
        case 9:  // a copy that nobody waited for
            if (t % 4 == 0) cp_async_16(words + t, p.in + t);
            cp_async_commit();
            sync_block();
            store(p.out + t, load(words + t));
            break;
        case 10:  // waited for in its own thread only
            if (t % 4 == 0) cp_async_16(words + t, p.in + t);
            cp_async_commit();
            cp_async_wait<0>();
            store(p.out + t, load(words + t));
            break;
        case 11:  // waited for all but the last group, read the last
            if (t % 4 == 0) cp_async_16(words + t, p.in + t);
            cp_async_commit();
            cp_async_wait<1>();
            sync_block();
            store(p.out + t, load(words + t));
            break;
        case 12:  // lanes of one warp at different operations
            if (t % 2 == 0) {
                ballot(true);
            } else {
                shuffle(t, 0u);
            }
            break;
        case 13:  // past the end of shared memory
            store(words + (128 + t), t);
            break;
        case 14:  // block 1 reads what block 0 writes
            if (block_idx().x == 0) store(p.out + t, t);
            if (block_idx().x == 1) store(p.out + (128 + t), load(p.out + t));
            break;
        case 15:  // a shuffle among lanes of which some have left
            if (t % 32 == 3) return;
            store(p.out + t, shuffle(t, 0u));
            break;
        case 16:  // read of what nobody has written: no fault, but poison
            store(p.out + t, load(words + t));
            break;
        case 17:  // all threads write the same place
            store(words + 0, 7u);
            break;
        case 18:  // read of what the launch before wrote, without waiting for it
            words = words + load(p.in + t) % 2;
            dep_wait();
            break;
        case 19:  // the same by a copy that is waited for later
            if (t % 4 == 0) cp_async_16(words + t, p.in + t);
            cp_async_commit();
            dep_wait();
            cp_async_wait<0>();
            break;
        case 20:  // write of what the launch before may still read
            store(p.out + t, t);
            dep_wait();
            break;
        case 21:  // a block that does not wait
            if (block_idx().x == 0) dep_wait();
            break;
    }
}
