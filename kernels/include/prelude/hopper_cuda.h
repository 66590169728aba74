// The CUDA backend of hopper.h: inline PTX for sm_90a. emu/emulated_hopper.h has the checked twins.
#pragma once

namespace prelude {

PRELUDE_DEVICE u32 shared_place(Shared<const bf16> p) { return shared_address(p.at); }

// ---- barriers with phases ----

// Begins phase 0 of a barrier that `arrivals` arrivals end. One thread calls this and then
// mbarrier_init_fence(); other threads use the barrier after sync_block().
PRELUDE_DEVICE void mbarrier_init(Shared<u64> b, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b.at)), "r"(arrivals)
                 : "memory");
}
PRELUDE_DEVICE void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
PRELUDE_DEVICE void mbarrier_arrive(Shared<u64> b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b.at)) : "memory");
}
// Arrives, and lets the phase end only when so many bytes were copied too.
PRELUDE_DEVICE void mbarrier_arrive_expect(Shared<u64> b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(b.at)),
                 "r"(bytes)
                 : "memory");
}
// Waits until the last phase of this parity has ended: at first, phase 0 for parity 0; parity 1 is
// over at once. What others did before they arrived, and what was copied, is seen then.
PRELUDE_DEVICE void mbarrier_wait(Shared<u64> b, u32 parity) {
    u32 over;
    do {
        asm volatile(
            "{\n.reg .pred over;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
            "selp.u32 %0, 1, 0, over;\n}"
            : "=r"(over)
            : "r"(shared_address(b.at)), "r"(parity)
            : "memory");
    } while (over == 0);
}

// ---- copies ----

// Copies the map's box at (row, column) of its matrix, rows 128 bytes apart from `to`, which is a
// multiple of 128 bytes; the swizzle goes by addresses, so boxes of few rows fit each other. All bytes
// of the box are counted at `b`.
PRELUDE_DEVICE void tensor_copy(Shared<bf16> to, const TensorMap& map, u32 row, u32 column,
                                Shared<u64> b) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to.at)),
        "l"(&map), "r"(shared_address(b.at)), "r"(column), "r"(row)
        : "memory");
}
PRELUDE_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers ----

// Returns what pack_bf16() returns, by one instruction. For pack_bf16() the compiler emits two slow
// instructions where the two halves are used apart.
PRELUDE_DEVICE u32 round_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Lowers, or raises, the registers of each thread of a warpgroup to N; take_registers() waits for those
// that other warpgroups give back. All warps of the warpgroup call this. The kernel's bound on threads
// says how many registers a thread has at first.
template <u32 N>
PRELUDE_DEVICE void give_registers() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "as setmaxnreg takes them");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <u32 N>
PRELUDE_DEVICE void take_registers() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "as setmaxnreg takes them");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- products of warpgroups ----

// Keeps the compiler from moving values out of or into these registers across this call.
template <u32 N>
PRELUDE_DEVICE void pin(float (&d)[N][4]) {
    PRELUDE_UNROLL
    for (u32 i = 0; i < N; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) asm volatile("" : "+f"(d[i][e])::"memory");
    }
}
template <u32 N>
PRELUDE_DEVICE void pin(u32 (&a)[N][4]) {
    PRELUDE_UNROLL
    for (u32 i = 0; i < N; i++) {
        PRELUDE_UNROLL
        for (u32 e = 0; e < 4; e++) asm volatile("" : "+r"(a[i][e])::"memory");
    }
}

// Makes what threads wrote to the registers visible to the products that follow. Called before the first
// product of a group.
PRELUDE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
PRELUDE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the warp's `Groups` latest groups are under way, none of which writes `d`.
template <u32 Groups, u32 N>
PRELUDE_DEVICE void wgmma_wait(float (&d)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
    pin(d);
}

#define PRELUDE_SUMS_4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define PRELUDE_SUMS_16(d, i)                                                         \
    PRELUDE_SUMS_4(d, i), PRELUDE_SUMS_4(d, (i) + 1), PRELUDE_SUMS_4(d, (i) + 2), \
        PRELUDE_SUMS_4(d, (i) + 3)

// d[64×N] = a[64×16] · b[16×N], added to d if `adds`; N is 8 times d's length. bf16 with f32 sums.
// Warp w of the warpgroup has rows 16 w.., as mma_m16n8k16 has them: d[i] is columns 8 i... Here both
// operands are rows of k in shared memory.
PRELUDE_DEVICE void wgmma(float (&d)[16][4], u64 a, u64 b, bool adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, adds, 1, 1, 0, 0;\n}"
        : PRELUDE_SUMS_16(d, 0),
          PRELUDE_SUMS_16(d, 4),
          PRELUDE_SUMS_16(d, 8),
          PRELUDE_SUMS_16(d, 12)
        : "l"(a), "l"(b), "r"(u32(adds)));
}
PRELUDE_DEVICE void wgmma(float (&d)[32][4], u64 a, u64 b, bool adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, adds, 1, 1, 0, 0;\n}"
        : PRELUDE_SUMS_16(d, 0),
          PRELUDE_SUMS_16(d, 4),
          PRELUDE_SUMS_16(d, 8),
          PRELUDE_SUMS_16(d, 12),
          PRELUDE_SUMS_16(d, 16),
          PRELUDE_SUMS_16(d, 20),
          PRELUDE_SUMS_16(d, 24),
          PRELUDE_SUMS_16(d, 28)
        : "l"(a), "l"(b), "r"(u32(adds)));
}
// The same, added, of `a` in registers, as mma_m16n8k16 takes it, and of a `b` of rows of n.
PRELUDE_DEVICE void wgmma_registers(float (&d)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, adds, 1, 1, 1;\n}"
        : PRELUDE_SUMS_16(d, 0),
          PRELUDE_SUMS_16(d, 4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1u));
}
PRELUDE_DEVICE void wgmma_registers(float (&d)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, adds, 1, 1, 1;\n}"
        : PRELUDE_SUMS_16(d, 0),
          PRELUDE_SUMS_16(d, 4),
          PRELUDE_SUMS_16(d, 8),
          PRELUDE_SUMS_16(d, 12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1u));
}

#undef PRELUDE_SUMS_16
#undef PRELUDE_SUMS_4

}  // namespace prelude
