// prompt_logprobs: what given tokens score in given rows of logits, and the likeliest tokens.
//
//   lse      = ln Σ e^logit                    f32, summed as the CPU executor does
//   lp[i]    = logit[target[i]] - lse          computed in f64
//   rank[i]  = 1 + #{logit > logit[target[i]]}
//   top      the top_n ids with the largest logits, best first, ties by smaller id, and their lp
//
// Targets are device memory, so that tokens sampled in the same step can be scored. A row whose
// logits are not all finite gets NaN everywhere, rank 0 and ids -1.
//
// Launch: a block of 1,024 threads a row. Bound: 4 · vocab bytes a row and pass.
#pragma once

#include "prelude/select.cuh"

namespace prelude {

constexpr u32 TOP_MAX = 64;

struct LogprobRow {
    Global<const float> logits;
    u32 target_first, target_count;  // of target, lp and rank
    u32 top_first, top_n;            // of top_id and top_lp; at most TOP_MAX, or vocab if smaller
};
PRELUDE_PARAMS(LogprobRow, 24, logits, target_first, target_count, top_first, top_n);

struct LogprobsParams {
    Global<const LogprobRow> row;
    Global<const i32> target;
    Global<float> lp;
    Global<u32> rank;
    Global<i32> top_id;
    Global<float> top_lp;
    Global<float> lse;       // [rows]
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 vocab;
};
PRELUDE_PARAMS(LogprobsParams, 72, row, target, lp, rank, top_id, top_lp, lse, live, rows, vocab);

// Returns Σ e^(logit - max): summed in f32 within runs of 1,024 ids, by 16 lanes whose sums are added,
// and in f64 across runs, in order. 64 groups of 16 threads take one run each.
PRELUDE_DEVICE double sum_exp(Global<const float> logits, u32 vocab, float max,
                              Shared<double> runs) {
    u32 group = thread_idx().x / 16, lane = thread_idx().x % 16;
    double sum = 0.0;
    for (u32 first = 0; first < vocab; first += 64 * 1024) {
        u32 start = first + group * 1024;
        float part = 0.0f;
        u32 end = min_u32(start + 1024, vocab);
        for (u32 id = start + lane; id < end; id += 16) {
            part = add_rn(part, exp_exact(add_rn(load(logits + id), -max)));
        }
        for (u32 half = 8; half > 0; half /= 2) part = add_rn(part, shuffle_xor(part, half));
        sync_block();
        if (lane == 0) store(runs + group, double(part));
        sync_block();
        for (u32 g = 0; g < 64 && first + g * 1024 < vocab; g++) sum = add_rn(sum, load(runs + g));
    }
    return sum;
}

PRELUDE_DEVICE void logprobs(const LogprobsParams& p) {
    PRELUDE_SELECT_SCRATCH(scratch);
    PRELUDE_SHARED(double, runs, 64);
    PRELUDE_SHARED(u64, top, TOP_MAX);
    PRELUDE_SHARED(u32, found, 1);
    dep_wait();
    u32 row = block_idx().x, t = thread_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const LogprobRow> at = p.row + row;
    Global<const float> logits{reinterpret_cast<const float*>(load(as<const u64>(at)))};
    Global<const u32> word = as<const u32>(at) + 2;
    u32 target_first = load(word), target_count = load(word + 1);
    u32 top_first = load(word + 2), top_n = min_u32(load(word + 3), min_u32(TOP_MAX, p.vocab));

    u64 best = 0, bad = 0;
    for (u32 id = t; id < p.vocab; id += SELECT_THREADS) {
        float x = load(logits + id);
        if (!is_finite(x)) bad = 1;
        u64 key = key_of(x);
        if (key > best) best = key;
    }
    best = block_max(best, scratch);
    bad = block_max(bad, scratch);
    float nan = bit_cast<float>(0x7fc00000u);
    if (bad != 0) {
        if (t == 0) store(p.lse + row, nan);
        for (u32 i = t; i < target_count; i += SELECT_THREADS) {
            store(p.lp + (target_first + i), nan);
            store(p.rank + (target_first + i), 0u);
        }
        for (u32 i = t; i < top_n; i += SELECT_THREADS) {
            store(p.top_id + (top_first + i), -1);
            store(p.top_lp + (top_first + i), nan);
        }
        return;
    }
    float max = logit_of(u32(best));
    double lse = add_rn(double(max), log_f64(sum_exp(logits, p.vocab, max, runs)));
    auto lp_of = [&](float logit) { return float(add_rn(double(logit), -lse)); };
    if (t == 0) store(p.lse + row, float(lse));

    for (u32 i = 0; i < target_count; i++) {
        i32 target = load(p.target + (target_first + i));
        bool there = target >= 0 && u32(target) < p.vocab;
        float logit = there ? load(logits + u32(target)) : 0.0f;
        u64 above = 0;
        for (u32 id = t; id < p.vocab; id += SELECT_THREADS) above += load(logits + id) > logit;
        u64 all;
        block_prefix(above, scratch, all);
        if (t == 0) {
            store(p.lp + (target_first + i), there ? lp_of(logit) : nan);
            store(p.rank + (target_first + i), there ? u32(all) + 1 : 0u);
        }
    }

    if (top_n > 0) {
        auto one = [](float) -> u64 { return 1; };
        Cut cut = select_cut(logits, p.vocab, top_n, scratch, one);
        u32 ties = top_n - u32(cut.before);
        Run run = run_of_thread(p.vocab);
        u64 own = 0, all;
        for (u32 id = run.first; id < run.end; id++) own += key_of(load(logits + id)) == cut.key;
        u64 tie = block_prefix(own, scratch, all);
        if (t == 0) store(found, 0u);
        sync_block();
        for (u32 id = run.first; id < run.end; id++) {
            u32 key = key_of(load(logits + id));
            bool in = key > cut.key || (key == cut.key && tie < ties);
            tie += key == cut.key;
            if (in) store(top + atomic_add(found, 1u), u64(key) << 32 | ~id);
        }
        sync_block();
        // The candidates came in any order; each counts those that are before it.
        if (t < top_n) {
            u64 own_key = load(top + t);
            u32 place = 0;
            for (u32 i = 0; i < top_n; i++) place += load(top + i) > own_key;
            u32 id = ~u32(own_key);
            store(p.top_id + (top_first + place), i32(id));
            store(p.top_lp + (top_first + place), lp_of(load(logits + id)));
        }
    }
    dep_launch();
}

}  // namespace prelude
