// Reading one row of f32 logits with a block of 1,024 threads: keys, prefix sums, radix select.
//
// Keys order logits as integers: larger logit, larger key, and -0 equal to 0. Nothing here sorts
// and no sum depends on an order: counts and weights are integers.
//
// A thread owns a contiguous run of ids, so that prefix sums over threads are in order of id.
#pragma once

#include "prelude/dev.h"

namespace prelude {

constexpr u32 SELECT_THREADS = 1024;
constexpr u32 BINS = 2048;

PRELUDE_DEVICE u32 key_of(float logit) {
    u32 bits = bit_cast<u32>(add_rn(logit, 0.0f));  // -0 becomes 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
PRELUDE_DEVICE float logit_of(u32 key) {
    return bit_cast<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
PRELUDE_DEVICE bool is_finite(float x) {
    return (bit_cast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// The shared memory of the block.
struct SelectScratch {
    Shared<u64> bins;     // BINS
    Shared<u64> threads;  // SELECT_THREADS
    Shared<u64> results;  // 4
};
#define PRELUDE_SELECT_SCRATCH(name)                                    \
    PRELUDE_SHARED(::prelude::u64, name##_bins, ::prelude::BINS);       \
    PRELUDE_SHARED(::prelude::u64, name##_threads, ::prelude::SELECT_THREADS); \
    PRELUDE_SHARED(::prelude::u64, name##_results, 4);                  \
    ::prelude::SelectScratch name { name##_bins, name##_threads, name##_results }

// The ids that this thread owns: [first, end).
struct Run {
    u32 first, end;
};
PRELUDE_DEVICE Run run_of_thread(u32 vocab) {
    u32 each = div_up(vocab, SELECT_THREADS);
    u32 first = min_u32(thread_idx().x * each, vocab);
    return {first, min_u32(first + each, vocab)};
}

// Returns the sum of x over the threads before this one; the sum over all goes to `total`. The sums are
// of integers, so their order does not matter. All threads call this: there are barriers inside.
PRELUDE_DEVICE u64 block_prefix(u64 x, const SelectScratch& s, u64& total) {
    u32 lane = lane_id(), warp = warp_id();
    u64 inclusive = x;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        u64 before = shuffle_up_u64(inclusive, distance);
        if (lane >= distance) inclusive += before;
    }
    sync_block();  // threads may still read the last result
    if (lane == WARP - 1) store(s.threads + warp, inclusive);
    sync_block();
    // Every warp adds up the sums of all warps, one in each lane.
    u64 sum = lane < block_dim().x / WARP ? load(s.threads + lane) : 0;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        u64 before = shuffle_up_u64(sum, distance);
        if (lane >= distance) sum += before;
    }
    total = shuffle_u64(sum, WARP - 1);
    u64 before = shuffle_u64(sum, warp == 0 ? 0 : warp - 1);
    if (warp == 0) before = 0;
    return before + inclusive - x;
}

// Returns the largest x of all threads.
PRELUDE_DEVICE u64 block_max(u64 x, const SelectScratch& s) {
    sync_block();
    store(s.threads + thread_idx().x, x);
    for (u32 half = SELECT_THREADS / 2; half > 0; half /= 2) {
        sync_block();
        if (thread_idx().x < half) {
            u64 other = load(s.threads + (thread_idx().x + half));
            u64 own = load(s.threads + thread_idx().x);
            if (other > own) store(s.threads + thread_idx().x, other);
        }
    }
    sync_block();
    return load(s.threads + 0);
}

// Where a running total over keys, from the largest down, reaches a target.
struct Cut {
    u32 key;     // at this key
    u64 before;  // total of all larger keys
    u64 at;      // total of this key
};

// Returns the cut for `target` (at least 1, at most the total), where an id with logit x adds amount(x),
// 0 to leave it out. Three passes over the row: the key's upper 11 bits, the next 11, the last 10.
template <class Amount>
PRELUDE_DEVICE Cut select_cut(Global<const float> logits, u32 vocab, u64 target,
                              const SelectScratch& s, Amount amount) {
    u32 t = thread_idx().x;
    u32 prefix = 0;
    u64 before = 0, at = 0;
    for (u32 pass = 0; pass < 3; pass++) {
        u32 shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        u32 width = pass == 2 ? 10 : 11;
        sync_block();
        for (u32 i = t; i < BINS; i += SELECT_THREADS) store(s.bins + i, u64(0));
        sync_block();
        for (u32 id = t; id < vocab; id += SELECT_THREADS) {
            float logit = load(logits + id);
            u32 key = key_of(logit);
            if (pass > 0 && key >> (shift + width) != prefix) continue;
            u64 x = amount(logit);
            if (x > 0) atomic_add(s.bins + (key >> shift & ((1u << width) - 1)), x);
        }
        sync_block();
        // One warp looks for the bin; its lane l owns 64 bins, the largest first.
        if (t < WARP) {
            u64 own = 0;
            for (u32 i = 0; i < BINS / WARP; i++) own += load(s.bins + (BINS - 1 - t * 64 - i));
            u64 inclusive = own;
            for (u32 distance = 1; distance < WARP; distance *= 2) {
                u64 up = shuffle_up_u64(inclusive, distance);
                if (t >= distance) inclusive += up;
            }
            u64 running = before + inclusive - own;
            if (running < target && target <= running + own) {
                for (u32 i = 0; i < BINS / WARP; i++) {
                    u32 bin = BINS - 1 - t * 64 - i;
                    u64 here = load(s.bins + bin);
                    if (target <= running + here) {
                        store(s.results + 0, u64(bin));
                        store(s.results + 1, running);
                        store(s.results + 2, here);
                        break;
                    }
                    running += here;
                }
            }
        }
        sync_block();
        prefix = prefix << width | u32(load(s.results + 0));
        before = load(s.results + 1);
        at = load(s.results + 2);
    }
    sync_block();
    return {prefix, before, at};
}

}  // namespace prelude
