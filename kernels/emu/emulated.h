// The host backend of dev.h: the names that kernels use, as calls into the emulation. Where
// cuda.h explains what a function means, this file only differs in checking it.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>

#include "emu.h"
#include "tensor.h"

// A kernel is an ordinary function here, found by name through a table.
#define PRELUDE_KERNEL(name, Params, threads)                                                  \
    static void name(const Params& p);                                                         \
    static const ::prelude::emu::RegisterKernel name##_registered{                             \
        {#name, #Params, sizeof(Params), threads,                                              \
         [](const void* params) { name(*static_cast<const Params*>(params)); }}};              \
    static void name(const Params& p)

#define PRELUDE_KERNEL_BLOCKS(name, Params, threads, blocks) PRELUDE_KERNEL(name, Params, threads)

#define PRELUDE_FIELD(Params, field) \
    {#field, static_cast<unsigned>(offsetof(Params, field)), static_cast<unsigned>(sizeof(Params::field))},
#define PRELUDE_EXPAND(x) x
#define PRELUDE_F1(P, f) PRELUDE_FIELD(P, f)
#define PRELUDE_F2(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F1(P, __VA_ARGS__)
#define PRELUDE_F3(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F2(P, __VA_ARGS__)
#define PRELUDE_F4(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F3(P, __VA_ARGS__)
#define PRELUDE_F5(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F4(P, __VA_ARGS__)
#define PRELUDE_F6(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F5(P, __VA_ARGS__)
#define PRELUDE_F7(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F6(P, __VA_ARGS__)
#define PRELUDE_F8(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F7(P, __VA_ARGS__)
#define PRELUDE_F9(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F8(P, __VA_ARGS__)
#define PRELUDE_F10(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F9(P, __VA_ARGS__)
#define PRELUDE_F11(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F10(P, __VA_ARGS__)
#define PRELUDE_F12(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F11(P, __VA_ARGS__)
#define PRELUDE_F13(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F12(P, __VA_ARGS__)
#define PRELUDE_F14(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F13(P, __VA_ARGS__)
#define PRELUDE_F15(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F14(P, __VA_ARGS__)
#define PRELUDE_F16(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F15(P, __VA_ARGS__)
#define PRELUDE_F17(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F16(P, __VA_ARGS__)
#define PRELUDE_F18(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F17(P, __VA_ARGS__)
#define PRELUDE_F19(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F18(P, __VA_ARGS__)
#define PRELUDE_F20(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F19(P, __VA_ARGS__)
#define PRELUDE_F21(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F20(P, __VA_ARGS__)
#define PRELUDE_F22(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F21(P, __VA_ARGS__)
#define PRELUDE_F23(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F22(P, __VA_ARGS__)
#define PRELUDE_F24(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F23(P, __VA_ARGS__)
#define PRELUDE_F25(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F24(P, __VA_ARGS__)
#define PRELUDE_F26(P, f, ...) PRELUDE_FIELD(P, f) PRELUDE_F25(P, __VA_ARGS__)
#define PRELUDE_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, \
                     _18, _19, _20, _21, _22, _23, _24, _25, _26, N, ...)                         \
    PRELUDE_F##N
#define PRELUDE_FIELDS(P, ...)                                                                   \
    PRELUDE_EXPAND(PRELUDE_PICK(__VA_ARGS__, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, \
                                11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)(P, __VA_ARGS__))

// Registers a parameter struct, so that tests compare its names, offsets and sizes with the Rust mirror.
#define PRELUDE_PARAMS(Params, bytes, ...)                                                       \
    static_assert(sizeof(Params) == (bytes), #Params " is mirrored in kernels/src/params.rs");   \
    static const ::prelude::emu::RegisterParams Params##_registered {                            \
        { #Params, bytes, { PRELUDE_FIELDS(Params, __VA_ARGS__) } }                              \
    }

#define PRELUDE_SHARED(T, name, count)                                                          \
    static const char name##_key = 0;                                                           \
    ::prelude::Shared<T> name {                                                                 \
        static_cast<T*>(::prelude::emu::running->static_shared(&name##_key, sizeof(T) * (count), \
                                                               alignof(T) < 16 ? 16 : alignof(T))) \
    }

// Arguments whose defaults say where the caller is.
#define PRELUDE_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define PRELUDE_HERE (::prelude::emu::Site{file, line})

namespace prelude {

using emu::running;

inline Index3 index3(const emu::Dim3& d) { return {d.x, d.y, d.z}; }
inline Index3 thread_idx() { return index3(running->current->index); }
inline Index3 block_idx() { return index3(running->block_index); }
inline Index3 block_dim() { return index3(running->request.block); }
inline Index3 grid_dim() { return index3(running->request.grid); }
inline u32 lane_id() { return running->current->lane; }
inline u32 warp_id() { return running->current->warp; }

// ---- memory ----

template <class T>
plain<T> load(Global<T> p, PRELUDE_SITE) {
    running->check_global(p.at, sizeof(T), emu::Access::Read, PRELUDE_HERE);
    plain<T> value;
    std::memcpy(&value, p.at, sizeof(T));
    return value;
}
template <class T>
plain<T> load_ro(Global<T> p, PRELUDE_SITE) {
    return load(p, file, line);
}
template <class T>
plain<T> load(Shared<T> p, PRELUDE_SITE) {
    running->check_shared(p.at, sizeof(T), emu::Access::Read, PRELUDE_HERE);
    plain<T> value;
    std::memcpy(&value, p.at, sizeof(T));
    return value;
}
template <class T>
void store(Global<T> p, const plain<T>& value, PRELUDE_SITE) {
    running->check_global(p.at, sizeof(T), emu::Access::Write, PRELUDE_HERE);
    std::memcpy(p.at, &value, sizeof(T));
}
template <class T>
void store(Shared<T> p, const plain<T>& value, PRELUDE_SITE) {
    running->check_shared(p.at, sizeof(T), emu::Access::Write, PRELUDE_HERE);
    std::memcpy(p.at, &value, sizeof(T));
}

template <class T>
Shared<T> dynamic_shared() {
    return {reinterpret_cast<T*>(running->shared)};
}

// Blocks and threads run one at a time, so reading, changing and writing is atomic.
template <class T, class F>
T atomic(Shared<T> p, F change, emu::Site site) {
    running->check_shared(p.at, sizeof(T), emu::Access::Atomic, site);
    T before = *p.at;
    *p.at = change(before);
    return before;
}
template <class T, class F>
T atomic(Global<T> p, F change, emu::Site site) {
    running->check_global(p.at, sizeof(T), emu::Access::Atomic, site);
    T before = *p.at;
    *p.at = change(before);
    return before;
}
template <template <class> class P, class T>
T atomic_add(P<T> p, plain<T> x, PRELUDE_SITE) {
    return atomic(p, [&](T y) { return static_cast<T>(y + x); }, PRELUDE_HERE);
}
template <template <class> class P>
u32 atomic_max(P<u32> p, u32 x, PRELUDE_SITE) {
    return atomic(p, [&](u32 y) { return x > y ? x : y; }, PRELUDE_HERE);
}
template <template <class> class P>
u32 atomic_min(P<u32> p, u32 x, PRELUDE_SITE) {
    return atomic(p, [&](u32 y) { return x < y ? x : y; }, PRELUDE_HERE);
}
inline u32 atomic_or(Shared<u32> p, u32 x, PRELUDE_SITE) {
    return atomic(p, [&](u32 y) { return x | y; }, PRELUDE_HERE);
}

// ---- threads ----

inline void sync_block(PRELUDE_SITE) { running->barrier(0, 0, true, PRELUDE_HERE); }
inline void sync_warp(u32 mask = 0xffffffffu, PRELUDE_SITE) {
    running->gather(mask, nullptr, "sync_warp", emu::complete_sync_warp, PRELUDE_HERE);
}
inline void sync_named(u32 id, u32 threads, PRELUDE_SITE) {
    running->barrier(id, threads, true, PRELUDE_HERE);
}
inline void arrive_named(u32 id, u32 threads, PRELUDE_SITE) {
    running->barrier(id, threads, false, PRELUDE_HERE);
}

template <class T>
T shuffle_from(T x, u32 source, u32 mask, const char* what, emu::Site site) {
    emu::ShuffleSlot slot{bit_cast<u32>(x), source, 0};
    running->gather(mask, &slot, what, emu::complete_shuffle, site);
    return bit_cast<T>(slot.result);
}
template <class T>
T shuffle(T x, u32 source, u32 mask = 0xffffffffu, PRELUDE_SITE) {
    return shuffle_from(x, source % 32, mask, "shuffle", PRELUDE_HERE);
}
template <class T>
T shuffle_xor(T x, u32 distance, u32 mask = 0xffffffffu, PRELUDE_SITE) {
    return shuffle_from(x, (lane_id() ^ distance) % 32, mask, "shuffle_xor", PRELUDE_HERE);
}
template <class T>
T shuffle_up(T x, u32 distance, u32 mask = 0xffffffffu, PRELUDE_SITE) {
    u32 lane = lane_id();
    return shuffle_from(x, distance > lane ? lane : lane - distance, mask, "shuffle_up", PRELUDE_HERE);
}
template <class T>
T shuffle_down(T x, u32 distance, u32 mask = 0xffffffffu, PRELUDE_SITE) {
    u32 lane = lane_id();
    return shuffle_from(x, lane + distance > 31 ? lane : lane + distance, mask, "shuffle_down",
                        PRELUDE_HERE);
}
inline u32 vote(bool x, u32 mask, const char* what, emu::Site site) {
    emu::VoteSlot slot{x, 0};
    running->gather(mask, &slot, what, emu::complete_vote, site);
    return slot.result;
}
inline u32 ballot(bool x, u32 mask = 0xffffffffu, PRELUDE_SITE) {
    return vote(x, mask, "ballot", PRELUDE_HERE);
}
inline bool any(bool x, u32 mask = 0xffffffffu, PRELUDE_SITE) {
    return vote(x, mask, "any", PRELUDE_HERE) != 0;
}
inline bool all(bool x, u32 mask = 0xffffffffu, PRELUDE_SITE) {
    return vote(!x, mask, "all", PRELUDE_HERE) == 0;
}

// ---- arithmetic ----

inline float add_rn(float a, float b) { return a + b; }
inline float mul_rn(float a, float b) { return a * b; }
inline float div_rn(float a, float b) { return a / b; }
inline float sqrt_rn(float x) { return std::sqrt(x); }
inline float fma(float a, float b, float c) { return std::fmaf(a, b, c); }
inline double add_rn(double a, double b) { return a + b; }
inline double mul_rn(double a, double b) { return a * b; }
inline double div_rn(double a, double b) { return a / b; }
inline double sqrt_rn(double x) { return std::sqrt(x); }
inline double ceil_f64(double x) { return std::ceil(x); }
inline double log_f64(double x) { return std::log(x); }
inline float exp2_fast(float x) {
    float y = std::exp2(x);
    return std::fabs(y) < 0x1p-126f ? 0.0f : y;
}
inline float div_fast(float a, float b) { return std::fabs(b) > 0x1p126f ? 0.0f * a : a / b; }
inline u64 mul_high(u64 a, u64 b) {
    return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline u32 mul_high(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }
inline u32 count_ones(u32 x) { return static_cast<u32>(__builtin_popcount(x)); }
inline u32 lowest_one(u32 x) { return static_cast<u32>(__builtin_ctz(x)); }

inline bf16 to_bf16(float x) {
    u32 bits = bit_cast<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// ---- tensor cores ----

inline void ldmatrix(u32* r, u32 count, bool transposed, Shared<const bf16> row, const char* what,
                     emu::Site site) {
    emu::LdmatrixSlot slot{r, row.at, count, transposed};
    if (lane_id() < 8 * count) running->check_shared(row.at, 16, emu::Access::Read, site);
    running->gather(~0u, &slot, what, emu::complete_ldmatrix, site);
}
inline void ldmatrix_x4(u32 (&r)[4], Shared<const bf16> row, PRELUDE_SITE) {
    ldmatrix(r, 4, false, row, "ldmatrix_x4", PRELUDE_HERE);
}
inline void ldmatrix_x4_trans(u32 (&r)[4], Shared<const bf16> row, PRELUDE_SITE) {
    ldmatrix(r, 4, true, row, "ldmatrix_x4_trans", PRELUDE_HERE);
}
inline void ldmatrix_x2(u32 (&r)[2], Shared<const bf16> row, PRELUDE_SITE) {
    ldmatrix(r, 2, false, row, "ldmatrix_x2", PRELUDE_HERE);
}
inline void ldmatrix_x2_trans(u32 (&r)[2], Shared<const bf16> row, PRELUDE_SITE) {
    ldmatrix(r, 2, true, row, "ldmatrix_x2_trans", PRELUDE_HERE);
}
inline void ldmatrix_x1(u32 (&r)[1], Shared<const bf16> row, PRELUDE_SITE) {
    ldmatrix(r, 1, false, row, "ldmatrix_x1", PRELUDE_HERE);
}
inline void ldmatrix_x1_trans(u32 (&r)[1], Shared<const bf16> row, PRELUDE_SITE) {
    ldmatrix(r, 1, true, row, "ldmatrix_x1_trans", PRELUDE_HERE);
}
inline void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, PRELUDE_SITE) {
    emu::MmaSlot slot{c, a, {b0, b1}};
    running->gather(~0u, &slot, "mma_m16n8k16", emu::complete_mma_bf16, PRELUDE_HERE);
}
inline void mma_m16n8k16_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, PRELUDE_SITE) {
    emu::MmaSlot slot{c, a, {b0, b1}};
    running->gather(~0u, &slot, "mma_m16n8k16_f16", emu::complete_mma_f16, PRELUDE_HERE);
}
inline void mma_m16n8k32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, PRELUDE_SITE) {
    emu::MmaSlot slot{c, a, {b0, b1}};
    running->gather(~0u, &slot, "mma_m16n8k32", emu::complete_mma_e4m3, PRELUDE_HERE);
}

// ---- asynchronous copies ----

template <class T, class U>
void cp_async_16(Shared<T> to, Global<U> from, bool valid = true, PRELUDE_SITE) {
    if (valid) running->check_global(from.at, 16, emu::Access::Read, PRELUDE_HERE);
    u32 offset = running->shared_offset(to.at, 16, PRELUDE_HERE);
    running->copy_async(offset, from.at, valid, PRELUDE_HERE);
}
inline void cp_async_commit() { running->commit_copies(); }
template <int Groups>
void cp_async_wait() {
    running->wait_copies(Groups);
}

// ---- programmatic dependent launch: launches run one after another here, but what is touched ahead
// of dep_wait() is held against what launches before wrote ----

inline void dep_wait() { running->dep_wait(); }
inline void dep_launch() {}

}  // namespace prelude
