// sm90_gemm:           y[m, n]  = x[m, k] · w[n, k]ᵀ
// sm90_gemm_add:       y[m, n] += the same, rounded once
// sm90_gemm_silu_mul:  y[m, n]  = silu(x · w[0..n]ᵀ) · (x · w[n..2n]ᵀ)
//
// For Hopper, by tensor copies (TMA) and products of warpgroups (wgmma). All is bf16, sums are f32.
// n and k are multiples of 8, m is any. x and w are boxes of 128 rows and 64 columns, of `[m, k]` and
// of `[n, k]` or `[2n, k]`; rows of y begin at multiples of 16 bytes. `live`, if given, is the number of
// rows that count.
//
// Every element is summed with k ascending in steps of 16 by the same instruction, wherever its tile
// lies: its bits depend on its row of x and its row of w alone. They are not those of gemm_mma. The
// gated form rounds both sums to bf16 and goes on as silu_mul does: it has the bits of that kernel
// behind sm90_gemm.
//
// Launch: a block a multiprocessor, or a tile if these are fewer; 384 threads; dynamic shared memory of
// four stages of 48 KB, of 4 KB for each of 8 warps, and of 64 bytes: 229,440. For sm_90a alone.
// Bound: 2 · m · n · k FLOPs, twice as many of the gated form.
//
//   tile          128 rows of x by 256 of w, which of the gated form are 128 gates and what belongs to them
//   block         tiles in turn: block_idx, block_idx + grid_dim, …
//   warpgroup 2   one thread copies slabs of 64 elements of k as stages become free, also those of the
//                 next tile while this one is stored
//   warpgroups    64 rows each, sums of 64 × 256 in registers. A slab's products are under way while those
//   0 and 1       before it end, whose stage is free then
//
// Tiles follow each other in groups of 16 rows of tiles, column by column: 132 blocks read some 2,048
// rows of x and as many of w at a time, mostly from the L2 cache.
//
// Right by emulation; it has never run on a GPU, and nothing is tuned.
#pragma once

#include "prelude/hopper.h"
#include "prelude/silu_mul.cuh"

namespace prelude {

struct Sm90GemmParams {
    TensorMap x;
    TensorMap w;
    Global<bf16> y;
    Global<const u32> live;  // rows that count, or null for all
    u32 m;
    u32 n;
    u32 k;
    u32 y_stride;
    u32 reserved[24];
};
PRELUDE_PARAMS(Sm90GemmParams, 384, x, w, y, live, m, n, k, y_stride, reserved);

enum class Sm90Output { Write, Add, SiluMul };

namespace sm90_product {

constexpr u32 ROWS = 128, COLUMNS = 256;  // of a tile of sums
constexpr u32 SLAB = 64;                  // elements of k of a stage: a row of 128 bytes
constexpr u32 STAGES = 4;
constexpr u32 BOX = 128;                  // rows of a copy
constexpr u32 GROUP = 16;                 // rows of tiles that follow one another
constexpr u32 CONSUMERS = 8;              // warps
constexpr u32 PRODUCER = 8;               // the warp that copies
// Of 65,536 registers: 40 · 128 + 232 · 256 = 64,512, as 168 · 384.
constexpr u32 PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

constexpr u32 STAGE = (ROWS + COLUMNS) * SLAB;  // elements
// What a warp stores at once: 16 rows of 128 columns.
constexpr u32 STORED = 128, CHUNKS = STORED / 8, TURNS = 16 * CHUNKS / WARP;

// Places in shared memory.
struct Room {
    PRELUDE_DEVICE Shared<bf16> x(u32 stage) const { return dynamic_shared<bf16>() + stage * STAGE; }
    PRELUDE_DEVICE Shared<bf16> w(u32 stage) const { return x(stage) + ROWS * SLAB; }
    PRELUDE_DEVICE Shared<bf16> stored() const { return x(STAGES); }
    PRELUDE_DEVICE Shared<u64> barriers() const {
        return as<u64>(stored() + CONSUMERS * 16 * STORED);
    }
    // A stage's bytes are there; its consumers are done with it.
    PRELUDE_DEVICE Shared<u64> full(u32 stage) const { return barriers() + stage; }
    PRELUDE_DEVICE Shared<u64> free(u32 stage) const { return barriers() + (STAGES + stage); }

    // 8 elements of the warp's own 16 rows. A 16-byte column lies where its bits and those of the row
    // are exclusive or: 8 rows are on different banks, and so are 8 columns.
    PRELUDE_DEVICE Shared<bf16> chunk(u32 row, u32 chunk) const {
        return stored() + (16 * warp_id() + row) * STORED + 8 * (chunk ^ row % 8);
    }
};

// The tiles of y.
template <Sm90Output Output>
struct Tiles {
    // Columns of y of a tile.
    static constexpr u32 WIDTH = Output == Sm90Output::SiluMul ? COLUMNS / 2 : COLUMNS;
    u32 down, across;

    PRELUDE_DEVICE Tiles(const Sm90GemmParams& p, u32 rows)
        : down(div_up(rows, ROWS)), across(div_up(p.n, WIDTH)) {}
    PRELUDE_DEVICE u32 count() const { return down * across; }
    // First row and column of a tile, in the order in which blocks take them.
    PRELUDE_DEVICE void at(u32 index, u32& row, u32& column) const {
        u32 first = index / (GROUP * across) * GROUP;
        u32 height = min_u32(GROUP, down - first);
        index -= first * across;
        row = (first + index % height) * ROWS;
        column = index / height * WIDTH;
    }
};

// Copies the slabs of all tiles of the block, stage after stage. For one thread.
template <Sm90Output Output>
PRELUDE_DEVICE void produce(const Sm90GemmParams& p, const Tiles<Output>& tiles) {
    Room room;
    u32 step = 0;  // slabs so far, of all tiles
    for (u32 i = block_idx().x; i < tiles.count(); i += grid_dim().x) {
        u32 row, column;
        tiles.at(i, row, column);
        u32 beside = Output == Sm90Output::SiluMul ? p.n + column : column + BOX;
        for (u32 k = 0; k < p.k; k += SLAB, step++) {
            u32 stage = step % STAGES, parity = step / STAGES % 2;
            mbarrier_wait(room.free(stage), parity ^ 1);
            mbarrier_arrive_expect(room.full(stage), STAGE * 2);
            tensor_copy(room.x(stage), p.x, row, k, room.full(stage));
            tensor_copy(room.w(stage), p.w, column, k, room.full(stage));
            tensor_copy(room.w(stage) + BOX * SLAB, p.w, beside, k, room.full(stage));
        }
    }
}

// Begins to multiply the warpgroup's 64 rows of x by 256 of w, of one slab.
PRELUDE_DEVICE void begin_products(float (&d)[COLUMNS / 8][4], Shared<const bf16> x,
                                   Shared<const bf16> w, bool adds) {
    // Rows of 128 bytes, 8 of which are 1024.
    u64 left = operand(x, 0, 1024), right = operand(w, 0, 1024);
    pin(d);
    wgmma_fence();
    PRELUDE_UNROLL
    for (u32 k = 0; k < SLAB; k += 16) {
        wgmma(d, operand_behind(left, 2 * k), operand_behind(right, 2 * k), adds || k > 0);
    }
    wgmma_commit();
}

// What the warp adds to: 16 rows of y, 256 columns.
struct Before {
    u32x4 chunks[2][TURNS];
};

// The two bf16 of a register.
PRELUDE_DEVICE float low_half(u32 pair) { return bit_cast<float>(pair << 16); }
PRELUDE_DEVICE float high_half(u32 pair) { return bit_cast<float>(pair & 0xffff0000u); }

// Two neighbours of the output, of sums d[i] and those of the other half of the tile.
template <Sm90Output Output>
PRELUDE_DEVICE u32 output(float low, float high, float beside_low, float beside_high) {
    u32 own = round_pair(low, high);
    if constexpr (Output == Sm90Output::SiluMul) {
        u32 up = round_pair(beside_low, beside_high);
        u32 s = round_pair(silu(low_half(own)), silu(high_half(own)));
        return round_pair(mul_rn(low_half(s), low_half(up)), mul_rn(high_half(s), high_half(up)));
    }
    return own;
}

// A warp's 16 rows of a tile, from its sums.
template <Sm90Output Output>
struct Part {
    static constexpr u32 HALVES = Tiles<Output>::WIDTH / STORED;
    const Sm90GemmParams& p;
    u32 rows;           // of y that count
    u32 row, column;    // the first

    // Calls `f(turn, row, chunk, place in y)` for the lane's chunks of a half that are there.
    template <class F>
    PRELUDE_DEVICE void each(u32 half, F f) const {
        PRELUDE_UNROLL
        for (u32 turn = 0; turn < TURNS; turn++) {
            u32 i = turn * WARP + lane_id(), r = i / CHUNKS, chunk = i % CHUNKS;
            u32 to = column + half * STORED + 8 * chunk;
            if (row + r < rows && to < p.n) f(turn, r, chunk, p.y + (u64(row + r) * p.y_stride + to));
        }
    }

    PRELUDE_DEVICE void load_before(Before& before) const {
        PRELUDE_UNROLL
        for (u32 half = 0; half < HALVES; half++) {
            each(half, [&](u32 turn, u32, u32, Global<bf16> from) {
                before.chunks[half][turn] = load(as<u32x4>(from));
            });
        }
    }

    // Stores through shared memory, so that stores are of 16 bytes.
    PRELUDE_DEVICE void put(const float (&d)[COLUMNS / 8][4], const Before& before) const {
        constexpr bool ADDS = Output == Sm90Output::Add;
        Room room;
        u32 lane = lane_id();
        PRELUDE_UNROLL
        for (u32 half = 0; half < HALVES; half++) {
            if (ADDS) {
                each(half, [&](u32 turn, u32 r, u32 chunk, Global<bf16>) {
                    store(as<u32x4>(room.chunk(r, chunk)), before.chunks[half][turn]);
                });
                sync_warp();
            }
            PRELUDE_UNROLL
            for (u32 i = 0; i < CHUNKS; i++) {
                PRELUDE_UNROLL
                for (u32 e = 0; e < 4; e += 2) {
                    Shared<bf16> at = room.chunk(lane / 4 + 4 * e, i) + lane % 4 * 2;
                    const float(&own)[4] = d[half * CHUNKS + i];
                    const float(&beside)[4] = d[(half * CHUNKS + i + COLUMNS / 16) % (COLUMNS / 8)];
                    float low = own[e], high = own[e + 1];
                    if (ADDS) {
                        bf16x2 there = load(as<bf16x2>(at));
                        low = add_rn(low, to_f32(there[0]));
                        high = add_rn(high, to_f32(there[1]));
                    }
                    store(as<u32>(at), output<Output>(low, high, beside[e], beside[e + 1]));
                }
            }
            sync_warp();
            each(half, [&](u32, u32 r, u32 chunk, Global<bf16> to) {
                store(as<u32x4>(to), load(as<u32x4>(room.chunk(r, chunk))));
            });
            sync_warp();
        }
    }
};

// Computes the warpgroup's 64 rows of all tiles of the block.
template <Sm90Output Output>
PRELUDE_DEVICE void consume(const Sm90GemmParams& p, const Tiles<Output>& tiles, u32 rows) {
    Room room;
    u32 step = 0;  // slabs so far, of all tiles
    float d[COLUMNS / 8][4];
    PRELUDE_UNROLL
    for (u32 i = 0; i < COLUMNS / 8; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) d[i][e] = 0.0f;
    }
    auto begin = [&](bool adds) {
        u32 stage = step % STAGES;
        mbarrier_wait(room.full(stage), step / STAGES % 2);
        begin_products(d, room.x(stage) + warp_id() / 4 * (64 * SLAB), room.w(stage), adds);
        step++;
    };
    // All but the newest `under_way` slabs are multiplied.
    auto release = [&](u32 under_way) {
        if (lane_id() == 0) mbarrier_arrive(room.free((step - 1 - under_way) % STAGES));
    };
    for (u32 i = block_idx().x; i < tiles.count(); i += grid_dim().x) {
        Part<Output> part{p, rows, 0, 0};
        tiles.at(i, part.row, part.column);
        part.row += 16 * warp_id();
        begin(false);
        for (u32 k = SLAB; k < p.k; k += SLAB) {
            begin(true);
            wgmma_wait<1>(d);
            release(1);
        }
        Before before{};
        if (Output == Sm90Output::Add) part.load_before(before);
        wgmma_wait<0>(d);
        release(0);
        if (i + grid_dim().x >= tiles.count()) dep_launch();
        part.put(d, before);
    }
}

}  // namespace sm90_product

template <Sm90Output Output>
PRELUDE_DEVICE void sm90_gemm(const Sm90GemmParams& p) {
    using namespace sm90_product;
    if (thread_idx().x == 0) {
        Room room;
        for (u32 stage = 0; stage < STAGES; stage++) {
            mbarrier_init(room.full(stage), 1);
            mbarrier_init(room.free(stage), CONSUMERS);
        }
        mbarrier_init_fence();
    }
    sync_block();
    dep_wait();
    u32 rows = live_rows(p.live, p.m);
    Tiles<Output> tiles(p, rows);
    if (warp_id() >= CONSUMERS) {
        give_registers<PRODUCER_REGISTERS>();
        if (warp_id() == PRODUCER && lane_id() == 0) produce(p, tiles);
        return;
    }
    take_registers<CONSUMER_REGISTERS>();
    consume(p, tiles, rows);
}

}  // namespace prelude
