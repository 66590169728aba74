// sm90_gemm:           y[m, n]  = x[m, k] · w[n, k]ᵀ
// sm90_gemm_add:       y[m, n] += x[m, k] · w[n, k]ᵀ, rounded once
// sm90_gemm_silu_mul:  y[m, n]  = silu(x · w[0..n]ᵀ) · (x · w[n..2n]ᵀ)
//
// For Hopper, by tensor copies (TMA) and products of warpgroups (wgmma). All is bf16, sums are f32.
// n and k are multiples of 8, m is any. x and w are boxes of 128 rows and 64 columns, of `[m, k]` and
// of `[n, k]` or `[2n, k]`; rows of y begin at multiples of 16 bytes. `live`, if given, is the number of
// rows that count.
//
// Every element is summed with k ascending in steps of 16 by the same instruction, wherever its tile
// lies: its bits depend on its row of x and its row of w alone. The bits differ from those of gemm_mma.
// The gated form rounds both sums to bf16 and goes on as silu_mul does: it has the bits of sm90_gemm
// followed by silu_mul.
//
// Launch: a block a multiprocessor, or a tile if these are fewer; 384 threads. Dynamic shared memory is
// stages of 48 KB, 32 or 64 KB for what is stored, and 128 bytes: 229,504, or 213,120 where tiles are
// stored apart. For sm_90a alone.
// Bound: 2 · m · n · k FLOPs; 4 · m · n · k for the gated form.
//
//   tile          128 rows of x by 256 of w; in the gated form 128 gate rows and their 128 up rows
//   block         tiles in turn: block_idx, block_idx + grid_dim, …
//   warpgroup 2   one thread copies slabs of 64 elements of k as stages become free, also those of the
//                 next tile while this one is stored
//   warpgroups    64 rows each, sums of 64 × 256 in registers. A slab's products begin before those of
//   0 and 1       the previous slab end; the previous slab's stage is free when they have ended
//   storing       each warp stores its own 16 rows; or tiles are stored apart, by three warps of
//                 warpgroup 2, which compute gates too, while the next tile is multiplied. That leaves
//                 room for three stages and not four. Both ways give the same bits
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
constexpr u32 BOX = 128;                  // rows of a copy
constexpr u32 GROUP = 16;                 // rows of tiles that blocks go through together
constexpr u32 CONSUMERS = 8;              // warps that multiply
constexpr u32 PRODUCER = 8;               // the warp that copies
constexpr u32 STORERS = 3;                // the warps after it, which store where tiles are stored apart
constexpr u32 STAGE = (ROWS + COLUMNS) * SLAB;  // elements of a stage
// Registers of a thread. A multiprocessor has 65,536: 56 · 128 + 224 · 256 = 64,512 = 168 · 384.
constexpr u32 PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 224;

// The columns that a warp stores at once by itself, their 16-byte chunks in a row, and the chunks of
// each lane in 16 rows.
constexpr u32 STORED = 128, CHUNKS = STORED / 8, TURNS = 16 * CHUNKS / WARP;

// Where things lie in shared memory.
template <bool Apart>
struct Room {
    static constexpr u32 STAGES = Apart ? 3 : 4;
    static constexpr u32 KEPT = Apart ? COLUMNS : STORED;  // columns of a row that is to be stored

    PRELUDE_DEVICE Shared<bf16> x(u32 stage) const { return dynamic_shared<bf16>() + stage * STAGE; }
    PRELUDE_DEVICE Shared<bf16> w(u32 stage) const { return x(stage) + ROWS * SLAB; }
    PRELUDE_DEVICE Shared<bf16> kept() const { return x(STAGES); }
    PRELUDE_DEVICE Shared<u64> barriers() const { return as<u64>(kept() + ROWS * KEPT); }
    // Barriers: the bytes of a stage have arrived; its consumers do not need them any more.
    PRELUDE_DEVICE Shared<u64> full(u32 stage) const { return barriers() + stage; }
    PRELUDE_DEVICE Shared<u64> free(u32 stage) const { return barriers() + (STAGES + stage); }
    // Barriers: a warpgroup has put its rows of a tile into `kept`; those rows are stored.
    PRELUDE_DEVICE Shared<u64> put(u32 warpgroup) const {
        return barriers() + (2 * STAGES + warpgroup);
    }
    PRELUDE_DEVICE Shared<u64> taken(u32 warpgroup) const {
        return barriers() + (2 * STAGES + 2 + warpgroup);
    }

    // Returns where 8 elements of a row lie. The 16-byte column c lies at place c xor the row's low 3
    // bits: 8 rows are on different banks, and so are 8 columns.
    PRELUDE_DEVICE Shared<bf16> chunk(u32 row, u32 chunk) const {
        return kept() + row * KEPT + 8 * (chunk ^ row % 8);
    }
};

// The tiles of y.
template <Sm90Output Output>
struct Tiles {
    // Columns of y that a tile has.
    static constexpr u32 WIDTH = Output == Sm90Output::SiluMul ? COLUMNS / 2 : COLUMNS;
    u32 rows, down, across;

    PRELUDE_DEVICE Tiles(const Sm90GemmParams& p, u32 rows)
        : rows(rows), down(div_up(rows, ROWS)), across(div_up(p.n, WIDTH)) {}
    PRELUDE_DEVICE u32 count() const { return down * across; }
    // Finds the first row and column of tile `index`, in the order in which blocks take tiles.
    PRELUDE_DEVICE void at(u32 index, u32& row, u32& column) const {
        u32 first = index / (GROUP * across) * GROUP;
        u32 height = min_u32(GROUP, down - first);
        index -= first * across;
        row = (first + index % height) * ROWS;
        column = index / height * WIDTH;
    }
};

// Copies the slabs of all tiles of the block, stage after stage. One thread calls this.
template <Sm90Output Output, bool Apart>
PRELUDE_DEVICE void produce(const Sm90GemmParams& p, const Tiles<Output>& tiles) {
    Room<Apart> room;
    u32 step = 0;  // slabs so far, of all tiles
    for (u32 i = block_idx().x; i < tiles.count(); i += grid_dim().x) {
        u32 row, column;
        tiles.at(i, row, column);
        u32 beside = Output == Sm90Output::SiluMul ? p.n + column : column + BOX;
        for (u32 k = 0; k < p.k; k += SLAB, step++) {
            u32 stage = step % room.STAGES, parity = step / room.STAGES % 2;
            mbarrier_wait(room.free(stage), parity ^ 1);
            mbarrier_arrive_expect(room.full(stage), STAGE * 2);
            tensor_copy(room.x(stage), p.x, row, k, room.full(stage));
            tensor_copy(room.w(stage), p.w, column, k, room.full(stage));
            tensor_copy(room.w(stage) + BOX * SLAB, p.w, beside, k, room.full(stage));
        }
    }
}

// Begins to multiply the warpgroup's 64 rows of x by the 256 rows of w, for one slab.
PRELUDE_DEVICE void begin_products(float (&d)[COLUMNS / 8][4], Shared<const bf16> x,
                                   Shared<const bf16> w, bool adds) {
    // Rows have 128 bytes, and 8 rows have 1024.
    u64 left = operand(x, 0, 1024), right = operand(w, 0, 1024);
    pin(d);
    wgmma_fence();
    PRELUDE_UNROLL
    for (u32 k = 0; k < SLAB; k += 16) {
        wgmma(d, operand_behind(left, 2 * k), operand_behind(right, 2 * k), adds || k > 0);
    }
    wgmma_commit();
}

// Return one of the two bf16 of a register as f32.
PRELUDE_DEVICE float low_half(u32 pair) { return bit_cast<float>(pair << 16); }
PRELUDE_DEVICE float high_half(u32 pair) { return bit_cast<float>(pair & 0xffff0000u); }

// Returns silu(gate) · up of two neighbours, rounded as silu_mul rounds it.
PRELUDE_DEVICE u32 gated(u32 gate, u32 up) {
    u32 s = round_pair(silu(low_half(gate)), silu(high_half(gate)));
    return round_pair(mul_rn(low_half(s), low_half(up)), mul_rn(high_half(s), high_half(up)));
}

// What y holds before a warp adds to it: 16 rows of 256 columns.
struct Before {
    u32x4 chunks[COLUMNS / STORED][TURNS];
};

// A warp's 16 rows of a tile.
template <Sm90Output Output, bool Apart>
struct Part {
    static constexpr bool ADDS = Output == Sm90Output::Add;
    const Sm90GemmParams& p;
    u32 rows;         // rows of y that count
    u32 row, column;  // of the warp's first element in y

    // Returns where a chunk of the warp's rows lies in shared memory. The two halves of a tile share one
    // place unless tiles are stored apart, since the warp then stores one half after the other.
    static PRELUDE_DEVICE Shared<bf16> place(u32 row, u32 half, u32 chunk) {
        return Room<Apart>().chunk(16 * warp_id() + row, (Apart ? half * CHUNKS : 0) + chunk);
    }

    // Calls `f(turn, row, chunk, place in y)` for each chunk of the lane in a half that lies within y.
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
        for (u32 half = 0; half < COLUMNS / STORED; half++) {
            each(half, [&](u32 turn, u32, u32, Global<bf16> from) {
                before.chunks[half][turn] = load(as<u32x4>(from));
            });
        }
    }

    // Puts 128 columns into shared memory: the sums from d[half · 16] on, rounded; in the gated form,
    // if the warp stores the tile itself, silu(gate) · up of the sums.
    PRELUDE_DEVICE void put(u32 half, const float (&d)[COLUMNS / 8][4], const Before& before) const {
        constexpr bool GATES = Output == Sm90Output::SiluMul && !Apart;
        u32 lane = lane_id();
        if (ADDS) {
            each(half, [&](u32 turn, u32 r, u32 chunk, Global<bf16>) {
                store(as<u32x4>(place(r, half, chunk)), before.chunks[half][turn]);
            });
            sync_warp();
        }
        PRELUDE_UNROLL
        for (u32 i = 0; i < CHUNKS; i++) {
            PRELUDE_UNROLL
            for (u32 e = 0; e < 4; e += 2) {
                Shared<bf16> at = place(lane / 4 + 4 * e, half, i) + lane % 4 * 2;
                const float(&sums)[4] = d[half * CHUNKS + i];
                float low = sums[e], high = sums[e + 1];
                if (ADDS) {
                    u32 there = load(as<u32>(at));
                    low = add_rn(low, low_half(there));
                    high = add_rn(high, high_half(there));
                }
                u32 pair = round_pair(low, high);
                if constexpr (GATES) {
                    const float(&up)[4] = d[CHUNKS + i];
                    pair = gated(pair, round_pair(up[e], up[e + 1]));
                }
                store(as<u32>(at), pair);
            }
        }
        sync_warp();
    }

    // Stores the tile through shared memory, so that stores are of 16 bytes.
    PRELUDE_DEVICE void store_all(const float (&d)[COLUMNS / 8][4], const Before& before) const {
        PRELUDE_UNROLL
        for (u32 half = 0; half < Tiles<Output>::WIDTH / STORED; half++) {
            put(half, d, before);
            each(half, [&](u32, u32 r, u32 chunk, Global<bf16> to) {
                store(as<u32x4>(to), load(as<u32x4>(place(r, half, chunk))));
            });
            sync_warp();
        }
    }
};

// Stores what warpgroups have put into `kept`, for all tiles of the block. The storing warps call this.
template <Sm90Output Output>
PRELUDE_DEVICE void store_apart(const Sm90GemmParams& p, const Tiles<Output>& tiles) {
    constexpr u32 ACROSS = Tiles<Output>::WIDTH / 8;  // chunks of a row of y
    Room<true> room;
    u32 thread = thread_idx().x - (PRODUCER + 1) * WARP, parity = 0;
    for (u32 i = block_idx().x; i < tiles.count(); i += grid_dim().x, parity ^= 1) {
        u32 row, column;
        tiles.at(i, row, column);
        for (u32 warpgroup = 0; warpgroup < 2; warpgroup++) {
            mbarrier_wait(room.put(warpgroup), parity);
            for (u32 j = thread; j < 64 * ACROSS; j += STORERS * WARP) {
                u32 r = 64 * warpgroup + j / ACROSS, chunk = j % ACROSS, to = column + 8 * chunk;
                if (row + r >= tiles.rows || to >= p.n) continue;
                u32x4 chunks = load(as<u32x4>(room.chunk(r, chunk)));
                if (Output == Sm90Output::SiluMul) {
                    u32x4 up = load(as<u32x4>(room.chunk(r, ACROSS + chunk)));
                    for (int e = 0; e < 4; e++) chunks[e] = gated(chunks[e], up[e]);
                }
                store(as<u32x4>(p.y + (u64(row + r) * p.y_stride + to)), chunks);
            }
            sync_warp();
            if (lane_id() == 0) mbarrier_arrive(room.taken(warpgroup));
        }
    }
}

// Computes the warpgroup's 64 rows of all tiles of the block.
template <Sm90Output Output, bool Apart>
PRELUDE_DEVICE void consume(const Sm90GemmParams& p, const Tiles<Output>& tiles) {
    Room<Apart> room;
    u32 step = 0;  // slabs so far, of all tiles
    u32 parity = 0, warpgroup = warp_id() / 4;
    float d[COLUMNS / 8][4];
    PRELUDE_UNROLL
    for (u32 i = 0; i < COLUMNS / 8; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) d[i][e] = 0.0f;
    }
    auto begin = [&](bool adds) {
        u32 stage = step % room.STAGES;
        mbarrier_wait(room.full(stage), step / room.STAGES % 2);
        begin_products(d, room.x(stage) + warpgroup * (64 * SLAB), room.w(stage), adds);
        step++;
    };
    // Frees the stage of the newest slab whose products have ended; `under_way` newer ones have not.
    auto release = [&](u32 under_way) {
        if (lane_id() == 0) mbarrier_arrive(room.free((step - 1 - under_way) % room.STAGES));
    };
    for (u32 i = block_idx().x; i < tiles.count(); i += grid_dim().x, parity ^= 1) {
        Part<Output, Apart> part{p, tiles.rows, 0, 0};
        tiles.at(i, part.row, part.column);
        part.row += 16 * warp_id();
        begin(false);
        for (u32 k = SLAB; k < p.k; k += SLAB) {
            begin(true);
            wgmma_wait<1>(d);
            release(1);
        }
        Before before{};
        if (part.ADDS) part.load_before(before);
        wgmma_wait<0>(d);
        release(0);
        if (i + grid_dim().x >= tiles.count()) dep_launch();
        if constexpr (Apart) {
            mbarrier_wait(room.taken(warpgroup), parity ^ 1);
            PRELUDE_UNROLL
            for (u32 half = 0; half < COLUMNS / STORED; half++) part.put(half, d, before);
            if (lane_id() == 0) mbarrier_arrive(room.put(warpgroup));
        } else {
            part.store_all(d, before);
        }
    }
}

}  // namespace sm90_product

template <Sm90Output Output, bool Apart>
PRELUDE_DEVICE void sm90_gemm(const Sm90GemmParams& p) {
    using namespace sm90_product;
    if (thread_idx().x == 0) {
        Room<Apart> room;
        for (u32 stage = 0; stage < room.STAGES; stage++) {
            mbarrier_init(room.full(stage), 1);
            mbarrier_init(room.free(stage), CONSUMERS);
        }
        for (u32 warpgroup = 0; Apart && warpgroup < 2; warpgroup++) {
            mbarrier_init(room.put(warpgroup), CONSUMERS / 2);
            mbarrier_init(room.taken(warpgroup), STORERS);
        }
        mbarrier_init_fence();
    }
    sync_block();
    dep_wait();
    Tiles<Output> tiles(p, live_rows(p.live, p.m));
    if (warp_id() >= CONSUMERS) {
        give_registers<PRODUCER_REGISTERS>();
        if (warp_id() != PRODUCER) {
            if constexpr (Apart) store_apart(p, tiles);
        } else if (lane_id() == 0) {
            produce<Output, Apart>(p, tiles);
        }
        return;
    }
    take_registers<CONSUMER_REGISTERS>();
    consume<Output, Apart>(p, tiles);
}

}  // namespace prelude
