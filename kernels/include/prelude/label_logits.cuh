// label_logits: label scores that are normalised over the whole vocabulary, without ever writing
// the logits [rows, vocab].
//
//   logit[r, v] = hidden[r] · table[v]         bf16 products on tensor cores, f32 sums
//   out[i]      = logit[pair_row[i], pair_id[i]] at pair_out[i], for the wanted pairs
//   lse[r]      = ln Σ_v e^logit[r, v]
//
// A cap above 0 bounds the logits: soft_cap.
//
// Each block owns a slab of 256 vocabulary rows and up to 64 hidden rows: it leaves the maximum
// and Σ e^(logit - max) of each row; label_merge joins the slabs in f64, in a fixed order. Logits
// stay in f32. width a multiple of 8, columns beyond it count as 0; pairs are sorted by id.
//
//   slab (m side)     256 rows × 64 columns a stage, 8 warps × 2 tiles of 16
//   hidden (n side)    64 rows × 64 columns a stage, 8 tiles of 8
//
// Two stages of cp.async. Shared rows are 72 elements apart, so that the 8 rows an ldmatrix reads
// lie in different banks.
//
// Launch: ⌈vocab / 256⌉ × ⌈rows / 64⌉ blocks of 256 threads, 92,160 bytes of dynamic shared
// memory; merge: a block of 256 threads a row. Bound: 2 · vocab · width bytes for rows ≤ 64.
#pragma once

#include "prelude/dev.h"

namespace prelude {

constexpr u32 SLAB = 256, LOGIT_ROWS = 64, LOGIT_K = 64;
constexpr u32 LOGIT_PITCH = LOGIT_K + 8;  // elements
constexpr u32 LOGIT_STAGE = (SLAB + LOGIT_ROWS) * LOGIT_PITCH;
constexpr u32 LOGIT_SHARED = 2 * LOGIT_STAGE * 2;  // bytes
static_assert(LOGIT_SHARED == 92160, "as kernels/src/families/label_logits.rs asks for");
static_assert(LOGIT_ROWS * SLAB * 4 <= LOGIT_SHARED, "the logits take the stages' place");

struct LabelLogitsParams {
    Global<const u32> index;  // hidden row of each row
    Global<const bf16> hidden;
    Global<const bf16> table;
    Global<const u32> pair_row;
    Global<const u32> pair_id;   // ascending
    Global<const u32> pair_out;  // index in out
    Global<float> out;
    Global<float> partial;  // [slabs, rows, 2]: maximum, sum
    Global<const u32> live;  // rows that count, or null for all
    u32 rows;
    u32 pairs;
    u32 width;
    u32 vocab;
    u32 hidden_stride;
    float cap;  // 0: not bounded
};
PRELUDE_PARAMS(LabelLogitsParams, 96, index, hidden, table, pair_row, pair_id, pair_out, out,
               partial, live, rows, pairs, width, vocab, hidden_stride, cap);

struct LabelMergeParams {
    Global<const float> partial;  // [slabs, rows, 2]
    Global<float> lse;            // [rows]
    Global<const u32> live;       // rows that count, or null for all
    u32 rows;
    u32 slabs;
};
PRELUDE_PARAMS(LabelMergeParams, 32, partial, lse, live, rows, slabs);

// Starts copying columns k .. k + 64 of the slab and of the hidden rows.
PRELUDE_DEVICE void label_stage(const LabelLogitsParams& p, Shared<bf16> stage, u32 first_id,
                                u32 first_row, u32 rows, u32 k) {
    for (u32 i = thread_idx().x; i < (SLAB + LOGIT_ROWS) * (LOGIT_K / 8); i += 256) {
        u32 row = i / (LOGIT_K / 8), column = i % (LOGIT_K / 8) * 8;
        bool there = k + column < p.width;
        Global<const bf16> from = p.table;
        if (row < SLAB) {
            there = there && first_id + row < p.vocab;
            if (there) from = p.table + (u64(first_id + row) * p.width + k + column);
        } else {
            u32 r = first_row + row - SLAB;
            there = there && r < rows;
            if (there) from = p.hidden + (u64(load(p.index + r)) * p.hidden_stride + k + column);
        }
        cp_async_16(stage + (row * LOGIT_PITCH + column), from, there);
    }
    cp_async_commit();
}

// Returns the first pair whose id is at least `id`.
PRELUDE_DEVICE u32 first_pair(const LabelLogitsParams& p, u32 id) {
    u32 low = 0, high = p.pairs;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (load(p.pair_id + middle) < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

PRELUDE_DEVICE void label_logits(const LabelLogitsParams& p) {
    Shared<bf16> stages = dynamic_shared<bf16>();
    dep_wait();
    u32 first_id = block_idx().x * SLAB, first_row = block_idx().y * LOGIT_ROWS;
    u32 rows = live_rows(p.live, p.rows);
    if (first_row >= rows) return;
    u32 lane = lane_id(), warp = warp_id();
    float sum[2][8][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[m][n][e] = 0.0f;
    u32 steps = div_up(p.width, LOGIT_K);
    label_stage(p, stages, first_id, first_row, rows, 0);
    for (u32 step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            label_stage(p, stages + (step + 1) % 2 * LOGIT_STAGE, first_id, first_row, rows,
                        (step + 1) * LOGIT_K);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        sync_block();
        Shared<bf16> slab = stages + step % 2 * LOGIT_STAGE;
        Shared<bf16> hidden = slab + SLAB * LOGIT_PITCH;
#pragma unroll
        for (u32 k = 0; k < LOGIT_K; k += 16) {
            u32 a[2][4];
#pragma unroll
            for (u32 m = 0; m < 2; m++) {
                u32 row = warp * 32 + m * 16 + lane % 16;
                ldmatrix_x4(a[m], slab + (row * LOGIT_PITCH + k + lane / 16 * 8));
            }
#pragma unroll
            for (u32 n = 0; n < 8; n += 2) {
                u32 b[4];
                u32 row = n * 8 + lane % 8 + lane / 16 * 8;
                ldmatrix_x4(b, hidden + (row * LOGIT_PITCH + k + lane / 8 % 2 * 8));
#pragma unroll
                for (u32 m = 0; m < 2; m++) {
                    mma_m16n8k16(sum[m][n], a[m], b[0], b[1]);
                    mma_m16n8k16(sum[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
        // The next round refills what this one has read; the last one makes room for logits.
        sync_block();
    }
    // logits[row][id] lies where the stages lay.
    Shared<float> logits = as<float>(stages);
#pragma unroll
    for (u32 m = 0; m < 2; m++)
#pragma unroll
        for (u32 n = 0; n < 8; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                u32 id = warp * 32 + m * 16 + lane / 4 + e / 2 * 8;
                u32 row = n * 8 + 2 * (lane % 4) + e % 2;
                float logit = sum[m][n][e];
                store(logits + (row * SLAB + id), p.cap > 0.0f ? soft_cap(logit, p.cap) : logit);
            }
    sync_block();
    u32 here = min_u32(LOGIT_ROWS, rows - first_row);
    u32 ids = min_u32(SLAB, p.vocab - first_id);
    for (u32 row = warp; row < here; row += 8) {
        float most = NEG_INFINITY;
        for (u32 id = lane; id < ids; id += WARP) {
            float x = load(logits + (row * SLAB + id));
            // A NaN must not vanish: it becomes the maximum, and stays it.
            most = x > most || x != x ? x : most;
        }
        most = warp_max_nan(most);
        float total = 0.0f;
        for (u32 id = lane; id < ids; id += WARP) {
            float x = load(logits + (row * SLAB + id));
            total = add_rn(total, exp_exact(add_rn(x, -most)));
        }
        total = warp_sum(total);
        u64 at = (u64(block_idx().x) * p.rows + first_row + row) * 2;
        if (lane == 0) store(p.partial + at, most);
        if (lane == 1) store(p.partial + (at + 1), total);
    }
    u32 end = first_pair(p, first_id + ids);
    for (u32 i = first_pair(p, first_id) + thread_idx().x; i < end; i += 256) {
        u32 row = load(p.pair_row + i);
        if (row < first_row || row >= first_row + here) continue;
        u32 id = load(p.pair_id + i) - first_id;
        store(p.out + load(p.pair_out + i), load(logits + ((row - first_row) * SLAB + id)));
    }
    dep_launch();
}

PRELUDE_DEVICE void label_merge(const LabelMergeParams& p) {
    PRELUDE_SHARED(float, most_of, 256);
    PRELUDE_SHARED(double, sums, 256);
    dep_wait();
    u32 row = block_idx().x, t = thread_idx().x;
    if (row >= live_rows(p.live, p.rows)) return;
    float most = NEG_INFINITY;
    for (u32 slab = t; slab < p.slabs; slab += 256) {
        float x = load(p.partial + (u64(slab) * p.rows + row) * 2);
        most = x > most || x != x ? x : most;
    }
    store(most_of + t, most);
    for (u32 half = 128; half > 0; half /= 2) {
        sync_block();
        if (t < half) {
            float a = load(most_of + t), b = load(most_of + (t + half));
            store(most_of + t, b > a || b != b ? b : a);
        }
    }
    sync_block();
    most = load(most_of + 0);
    double total = 0.0;
    for (u32 slab = t; slab < p.slabs; slab += 256) {
        u64 at = (u64(slab) * p.rows + row) * 2;
        float scale = exp_exact(add_rn(load(p.partial + at), -most));
        total = add_rn(total, mul_rn(double(scale), double(load(p.partial + (at + 1)))));
    }
    store(sums + t, total);
    for (u32 half = 128; half > 0; half /= 2) {
        sync_block();
        if (t < half) store(sums + t, add_rn(load(sums + t), load(sums + (t + half))));
    }
    sync_block();
    if (t == 0) store(p.lse + row, float(add_rn(double(most), log_f64(load(sums + 0)))));
    dep_launch();
}

}  // namespace prelude
