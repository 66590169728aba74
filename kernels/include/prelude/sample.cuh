// From logits to tokens, exactly as the CPU executor defines it (prelude-exec-cpu,
// heads/sample.rs): the same weights, the same ties, the same draws.
//
// adjust: steps 1 to 4, for rows that need them, into a copy of the row
//   1. repetition penalty of every id seen     3. logit_bias, entry by entry
//   2. frequency and presence of ids in output 4. ids that are not allowed, and stop ids, to -∞
// sample: steps 5 to 9
//   5. temperature 0: the largest logit, ties to the smaller id. Else id i weighs
//      w = floor(2^40 · e^((logit - max) / temperature)), an integer
//   6. top-k   7. top-p   8. min-p   9. draws by Philox4x32-10 over running sums in order of id
// argmax: step 5 at temperature 0, for rows that are all greedy
//
// No sort: what top-k and top-p keep is a head of the order (larger logit, then smaller id), so
// it is a key and a number of ids at that key, found by radix select.
//
// logits f32 [vocab] a row, anywhere; ids i32. status: 0, or 1 for numbers that are not finite,
// or 2 if no token is allowed: the row's ids are -1 then.
//
// Launch: a block of 1,024 threads a row; adjust with ⌈vocab / 32⌉ words of dynamic shared
// memory. Bound: 4 · vocab bytes a row and pass.
#pragma once

#include "prelude/select.cuh"

namespace prelude {

constexpr u32 SAMPLE_NOT_FINITE = 1, SAMPLE_NOTHING_ALLOWED = 2;

// Lists are [first, first + count) of the arrays in the parameters.
struct AdjustRow {
    Global<const float> logits;
    Global<float> out;
    u32 seen_first, seen_count;  // distinct ids
    u32 bias_first, bias_count;
    u32 allowed_first, allowed_count;
    u32 masked_first, masked_count;
    float repetition, frequency, presence;
    u32 allows_all;  // 1 if there is no list of allowed ids
};
PRELUDE_PARAMS(AdjustRow, 64, logits, out, seen_first, seen_count, bias_first, bias_count, allowed_first,
               allowed_count, masked_first, masked_count, repetition, frequency, presence, allows_all);

struct AdjustParams {
    Global<const AdjustRow> row;
    Global<const u32> seen;     // (id, occurrences in the output): pairs
    Global<const u32> bias;     // (id, f32 bits): pairs, in the caller's order
    Global<const u32> allowed;  // ids
    Global<const u32> masked;   // ids
    u32 rows;
    u32 vocab;
};
PRELUDE_PARAMS(AdjustParams, 48, row, seen, bias, allowed, masked, rows, vocab);

struct SampleRow {
    Global<const float> logits;  // to draw from
    Global<const float> raw;     // must be finite; equal to `logits` where nothing was adjusted
    u64 seed;
    u32 output_position;
    u32 choice;
    u32 draws;
    u32 first;  // into ids
    u32 top_k;  // 0: all
    float temperature;
    float top_p;
    float min_p;
};
PRELUDE_PARAMS(SampleRow, 56, logits, raw, seed, output_position, choice, draws, first, top_k, temperature,
               top_p, min_p);

struct SampleParams {
    Global<const SampleRow> row;
    Global<i32> ids;
    Global<u32> status;       // [rows]
    Global<const u32> live;   // rows that count, or null for all
    u32 rows;
    u32 vocab;
};
PRELUDE_PARAMS(SampleParams, 40, row, ids, status, live, rows, vocab);

struct ArgmaxParams {
    Global<const float> logits;  // [rows, vocab]
    Global<i32> ids;             // [rows]
    Global<u32> status;          // [rows]
    Global<const u32> live;      // rows that count, or null for all
    u32 rows;
    u32 vocab;
    u32 logits_stride;
    u32 reserved;
};
PRELUDE_PARAMS(ArgmaxParams, 48, logits, ids, status, live, rows, vocab, logits_stride, reserved);

// Four random words for a key and a counter: Philox4x32-10, Salmon et al., Parallel Random
// Numbers: As Easy as 1, 2, 3 (SC 2011), §3.3.
PRELUDE_DEVICE u64 philox_draw(u64 seed, u32 output_position, u32 choice) {
    u32 key0 = u32(seed), key1 = u32(seed >> 32);
    u32 c0 = output_position, c1 = choice, c2 = 0, c3 = 0;
    for (u32 round = 0; round < 10; round++) {
        if (round > 0) {
            key0 += 0x9e3779b9u;
            key1 += 0xbb67ae85u;
        }
        u64 a = u64(0xd2511f53u) * c0, b = u64(0xcd9e8d57u) * c2;
        c0 = u32(b >> 32) ^ c1 ^ key0;
        c1 = u32(b);
        c2 = u32(a >> 32) ^ c3 ^ key1;
        c3 = u32(a);
    }
    return u64(c1) << 32 | c0;
}

// floor(2^40 · e) of an exponential in [0, 1].
PRELUDE_DEVICE u64 fixed_point(float e) {
    u32 bits = bit_cast<u32>(e);
    i32 shift = i32(bits >> 23) - 150 + 40;
    u64 mantissa = (bits & 0x7fffffu) | 0x800000u;
    if (shift >= 0) return mantissa << shift;
    return shift > -24 ? mantissa >> -shift : 0;
}

// The largest key, the smallest id that has it, and whether all numbers are finite.
struct Largest {
    u32 key, id;
    bool finite;
};
PRELUDE_DEVICE Largest largest(Global<const float> logits, u32 vocab, const SelectScratch& s) {
    u64 best = 0;
    u64 bad = 0;
    for (u32 id = thread_idx().x; id < vocab; id += SELECT_THREADS) {
        float x = load(logits + id);
        if (!is_finite(x)) bad = 1;
        u64 candidate = u64(key_of(x)) << 32 | ~id;
        if (candidate > best) best = candidate;
    }
    best = block_max(best, s);
    bad = block_max(bad, s);
    return {u32(best >> 32), ~u32(best), bad == 0};
}

PRELUDE_DEVICE void argmax(const ArgmaxParams& p) {
    PRELUDE_SELECT_SCRATCH(scratch);
    dep_wait();
    u32 row = block_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Largest best = largest(p.logits + u64(row) * p.logits_stride, p.vocab, scratch);
    if (thread_idx().x == 0) {
        store(p.ids + row, best.finite ? i32(best.id) : -1);
        store(p.status + row, best.finite ? 0u : SAMPLE_NOT_FINITE);
    }
    dep_launch();
}

PRELUDE_DEVICE void adjust(const AdjustParams& p) {
    Shared<u32> allowed = dynamic_shared<u32>();
    dep_wait();
    u32 t = thread_idx().x;
    Global<const AdjustRow> at = p.row + block_idx().x;
    Global<const u32> word = as<const u32>(at) + 4;
    Global<const float> logits{reinterpret_cast<const float*>(load(as<const u64>(at)))};
    Global<float> out{reinterpret_cast<float*>(load(as<const u64>(at) + 1))};
    u32 seen_first = load(word), seen_count = load(word + 1);
    u32 bias_first = load(word + 2), bias_count = load(word + 3);
    u32 allowed_first = load(word + 4), allowed_count = load(word + 5);
    u32 masked_first = load(word + 6), masked_count = load(word + 7);
    float repetition = bit_cast<float>(load(word + 8));
    float frequency = bit_cast<float>(load(word + 9));
    float presence = bit_cast<float>(load(word + 10));
    bool allows_all = load(word + 11) != 0;

    for (u32 id = t; id < p.vocab; id += SELECT_THREADS) store(out + id, load(logits + id));
    for (u32 i = t; i < div_up(p.vocab, 32); i += SELECT_THREADS) store(allowed + i, 0u);
    sync_block();
    for (u32 i = t; i < seen_count; i += SELECT_THREADS) {
        u32 id = load(p.seen + 2 * (seen_first + i));
        u32 occurrences = load(p.seen + (2 * (seen_first + i) + 1));
        float x = load(out + id);
        x = x > 0.0f ? div_rn(x, repetition) : mul_rn(x, repetition);
        if (occurrences > 0) {
            x = add_rn(x, -mul_rn(frequency, float(occurrences)));
            x = add_rn(x, -presence);
        }
        store(out + id, x);
    }
    sync_block();
    // An id may be biased twice: its first entry's thread adds all of them, in order.
    for (u32 i = t; i < bias_count; i += SELECT_THREADS) {
        Global<const u32> entry = p.bias + 2 * bias_first;
        u32 id = load(entry + 2 * i);
        bool is_first = true;
        for (u32 j = 0; j < i && is_first; j++) is_first = load(entry + 2 * j) != id;
        if (!is_first) continue;
        float x = load(out + id);
        for (u32 j = i; j < bias_count; j++) {
            if (load(entry + 2 * j) == id) x = add_rn(x, bit_cast<float>(load(entry + (2 * j + 1))));
        }
        store(out + id, x);
    }
    for (u32 i = t; i < allowed_count; i += SELECT_THREADS) {
        u32 id = load(p.allowed + (allowed_first + i));
        atomic_or(allowed + id / 32, 1u << id % 32);
    }
    sync_block();
    if (!allows_all) {
        for (u32 id = t; id < p.vocab; id += SELECT_THREADS) {
            if (!(load(allowed + id / 32) >> id % 32 & 1)) store(out + id, NEG_INFINITY);
        }
        sync_block();
    }
    for (u32 i = t; i < masked_count; i += SELECT_THREADS) {
        store(out + load(p.masked + (masked_first + i)), NEG_INFINITY);
    }
    dep_launch();
}

// Maps a logit of a row to its weight: step 5 above.
struct Weights {
    float max, temperature;
    PRELUDE_DEVICE u64 operator()(float logit) const {
        return fixed_point(exp_exact(div_rn(add_rn(logit, -max), temperature)));
    }
};

// The ids that top-k and top-p keep: all with a larger key, and the first `ties` ids at the key.
struct Kept {
    u32 key;
    u32 ties;
    u64 weight;  // sum over all ids that are kept
};

PRELUDE_DEVICE Kept keep(Global<const float> logits, u32 vocab, Weights weights, u32 top_k,
                         float top_p, const SelectScratch& s) {
    u64 count = 0, weight = 0;
    for (u32 id = thread_idx().x; id < vocab; id += SELECT_THREADS) {
        u64 w = weights(load(logits + id));
        count += w > 0;
        weight += w;
    }
    u64 candidates, sum;
    block_prefix(count, s, candidates);
    block_prefix(weight, s, sum);
    Kept kept{0, ~0u, sum};
    if (top_k > 0 && top_k < candidates) {
        auto one = [&](float logit) -> u64 { return weights(logit) > 0; };
        Cut cut = select_cut(logits, vocab, top_k, s, one);
        kept.key = cut.key;
        kept.ties = u32(top_k - cut.before);
        // The weight of the ids that are kept: all with larger keys, and `ties` of those at the key.
        u64 above = 0;
        for (u32 id = thread_idx().x; id < vocab; id += SELECT_THREADS) {
            float logit = load(logits + id);
            if (key_of(logit) > cut.key) above += weights(logit);
        }
        block_prefix(above, s, kept.weight);
        kept.weight += kept.ties * weights(logit_of(cut.key));
    }
    if (top_p < 1.0f) {
        double enough = ceil_f64(mul_rn(double(top_p), double(kept.weight)));
        // Rounding may lift `enough` above the sum of weights: then all ids are kept.
        if (enough <= double(kept.weight) && u64(enough) <= kept.weight) {
            u64 target = u64(enough);
            Cut cut = select_cut(logits, vocab, target, s, weights);
            u64 each = weights(logit_of(cut.key));
            kept.key = cut.key;
            kept.ties = u32((target - cut.before + each - 1) / each);
            kept.weight = cut.before + kept.ties * each;
        }
    }
    return kept;
}

PRELUDE_DEVICE void sample(const SampleParams& p) {
    PRELUDE_SELECT_SCRATCH(scratch);
    dep_wait();
    u32 row = block_idx().x, t = thread_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    Global<const SampleRow> at = p.row + row;
    Global<const float> logits{reinterpret_cast<const float*>(load(as<const u64>(at)))};
    Global<const float> raw{reinterpret_cast<const float*>(load(as<const u64>(at) + 1))};
    u64 seed = load(as<const u64>(at) + 2);
    Global<const u32> word = as<const u32>(at) + 6;
    u32 output_position = load(word), choice = load(word + 1), draws = load(word + 2);
    Global<i32> ids = p.ids + load(word + 3);
    u32 top_k = load(word + 4);
    float temperature = bit_cast<float>(load(word + 5));
    float top_p = bit_cast<float>(load(word + 6)), min_p = bit_cast<float>(load(word + 7));

    Largest best = largest(logits, p.vocab, scratch);
    bool finite = best.finite;
    if (raw.at != logits.at) finite = largest(raw, p.vocab, scratch).finite;
    float max = logit_of(best.key);
    u32 status = !finite                ? SAMPLE_NOT_FINITE
                 : max == NEG_INFINITY  ? SAMPLE_NOTHING_ALLOWED
                 : !is_finite(max)      ? SAMPLE_NOT_FINITE
                                        : 0u;
    if (t == 0) store(p.status + row, status);
    if (status != 0 || temperature == 0.0f) {
        i32 id = status != 0 ? -1 : i32(best.id);
        for (u32 i = t; i < draws; i += SELECT_THREADS) store(ids + i, id);
        return;
    }
    Weights weights{max, temperature};
    Kept kept = keep(logits, p.vocab, weights, top_k, top_p, scratch);
    // Ties are counted in order of id: those before this thread's run are known by a prefix sum.
    Run run = run_of_thread(p.vocab);
    u64 ties = 0, ties_before = 0;
    if (kept.ties != ~0u) {
        for (u32 id = run.first; id < run.end; id++) {
            ties += key_of(load(logits + id)) == kept.key;
        }
        u64 all;
        ties_before = block_prefix(ties, scratch, all);
    }
    double least = mul_rn(double(min_p), 0x1p40);
    // Returns the weight of `id`; `tie` is the number of ties before it.
    auto weight_of = [&](u32 id, u64& tie) -> u64 {
        float logit = load(logits + id);
        u32 key = key_of(logit);
        bool in = key > kept.key;
        if (key == kept.key) in = tie++ < kept.ties;
        u64 w = in ? weights(logit) : 0;
        return double(w) >= least ? w : 0;
    };
    u64 own = 0, tie = ties_before;
    for (u32 id = run.first; id < run.end; id++) own += weight_of(id, tie);
    u64 total;
    u64 before = block_prefix(own, scratch, total);
    for (u32 i = 0; i < draws; i++) {
        u64 random = philox_draw(seed, output_position, choice + i);
        u64 point = mul_high(random, total);
        if (point < before || point >= before + own) continue;
        u64 running = before;
        tie = ties_before;
        for (u32 id = run.first; id < run.end; id++) {
            running += weight_of(id, tie);
            if (running > point) {
                store(ids + i, i32(id));
                break;
            }
        }
    }
    dep_launch();
}

}  // namespace prelude
