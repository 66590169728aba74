// The host backend of hopper.h, as emulated.h is the host backend of dev.h.
#pragma once

#include "async.h"

namespace prelude {

inline u32 shared_place(Shared<const bf16> p, PRELUDE_SITE) {
    return running->shared_offset(p.at, 16, PRELUDE_HERE);
}

// ---- barriers with phases ----

inline u32 barrier_at(Shared<u64> b, emu::Site site) {
    return running->shared_offset(b.at, sizeof(u64), site);
}
inline void mbarrier_init(Shared<u64> b, u32 arrivals, PRELUDE_SITE) {
    running->async->init(barrier_at(b, PRELUDE_HERE), arrivals, PRELUDE_HERE);
}
inline void mbarrier_init_fence() { running->async->fence_init(); }
inline void mbarrier_arrive(Shared<u64> b, PRELUDE_SITE) {
    running->async->arrive(barrier_at(b, PRELUDE_HERE), 0, PRELUDE_HERE);
}
inline void mbarrier_arrive_expect(Shared<u64> b, u32 bytes, PRELUDE_SITE) {
    running->async->arrive(barrier_at(b, PRELUDE_HERE), bytes, PRELUDE_HERE);
}
inline void mbarrier_wait(Shared<u64> b, u32 parity, PRELUDE_SITE) {
    running->async->wait(barrier_at(b, PRELUDE_HERE), parity, PRELUDE_HERE);
}

// ---- copies ----

inline void tensor_copy(Shared<bf16> to, const TensorMap& map, u32 row, u32 column, Shared<u64> b,
                        PRELUDE_SITE) {
    u32 offset = running->shared_offset(to.at, 16, PRELUDE_HERE);
    running->async->copy(offset, &map, row, column, barrier_at(b, PRELUDE_HERE), PRELUDE_HERE);
}
inline void fence_async() { running->async->fence(); }

// ---- registers ----

inline u32 round_pair(float low, float high) { return pack_bf16(low, high); }

template <u32 N>
void give_registers() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "as setmaxnreg takes them");
}
template <u32 N>
void take_registers() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "as setmaxnreg takes them");
}

// ---- products of warpgroups ----

template <class T, u32 N>
void pin(T (&)[N][4]) {}

inline void wgmma_fence(PRELUDE_SITE) {
    running->gather(~0u, nullptr, "wgmma_fence", emu::complete_product_fence, PRELUDE_HERE);
}
inline void wgmma_commit(PRELUDE_SITE) {
    running->gather(~0u, nullptr, "wgmma_commit", emu::complete_product_commit, PRELUDE_HERE);
}
template <u32 Groups, u32 N>
void wgmma_wait(float (&)[N][4], PRELUDE_SITE) {
    emu::ProductWaitSlot slot{Groups};
    running->gather(~0u, &slot, "wgmma_wait", emu::complete_product_wait, PRELUDE_HERE);
}
template <u32 N>
void wgmma(float (&d)[N][4], u64 a, u64 b, bool adds, PRELUDE_SITE) {
    static_assert(N == 16 || N == 32, "as hopper_cuda.h has it");
    emu::ProductSlot slot{a, b, 8 * N, false, adds, &d[0][0], nullptr, PRELUDE_HERE};
    running->gather(~0u, &slot, "wgmma", emu::complete_product, PRELUDE_HERE);
}
template <u32 N>
void wgmma_registers(float (&d)[N][4], const u32 (&a)[4], u64 b, PRELUDE_SITE) {
    emu::ProductSlot slot{0, b, 8 * N, true, true, &d[0][0], a, PRELUDE_HERE};
    running->gather(~0u, &slot, "wgmma_registers", emu::complete_product, PRELUDE_HERE);
}

}  // namespace prelude
