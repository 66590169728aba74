// The CUDA backend of dev.h: intrinsics and inline PTX, for nvcc and NVRTC. What a function
// means is told here; emu/emulated.h has the checked twins.
#pragma once

#define PRELUDE_KERNEL(name, Params, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Params p)
// PRELUDE_KERNEL with the number of blocks that a multiprocessor should hold: with 1, threads of a block
// of 1,024 may have 64 registers each, where the compiler by itself may aim at 32 and spill.
#define PRELUDE_KERNEL_BLOCKS(name, Params, threads, blocks)            \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name( \
        const __grid_constant__ Params p)
// Sizes are asserted here; names and offsets are exported by the emulation build.
#define PRELUDE_PARAMS(Params, bytes, ...) \
    static_assert(sizeof(Params) == (bytes), #Params " is mirrored in kernels/src/params.rs")
// `count` values of type T at the same place for all threads of the block.
#define PRELUDE_SHARED(T, name, count)   \
    __shared__ T name##_storage[count]; \
    ::prelude::Shared<T> name { name##_storage }

namespace prelude {

PRELUDE_DEVICE Index3 thread_idx() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
PRELUDE_DEVICE Index3 block_idx() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
PRELUDE_DEVICE Index3 block_dim() { return {blockDim.x, blockDim.y, blockDim.z}; }
PRELUDE_DEVICE Index3 grid_dim() { return {gridDim.x, gridDim.y, gridDim.z}; }
PRELUDE_DEVICE u32 lane_id() { return threadIdx.x % 32; }
PRELUDE_DEVICE u32 warp_id() { return threadIdx.x / 32; }

// ---- memory ----

PRELUDE_DEVICE u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

template <int Bytes>
struct Word;
template <>
struct Word<1> {
    using type = unsigned char;
};
template <>
struct Word<2> {
    using type = unsigned short;
};
template <>
struct Word<4> {
    using type = unsigned int;
};
template <>
struct Word<8> {
    using type = uint2;
};
template <>
struct Word<16> {
    using type = uint4;
};

// Reads, and below writes, sizeof(T) bytes in one access.
template <class T>
PRELUDE_DEVICE plain<T> load_word(const T* p) {
    using W = typename Word<sizeof(T)>::type;
    W word = *reinterpret_cast<const W*>(p);
    return bit_cast<plain<T>>(word);
}
template <class T>
PRELUDE_DEVICE void store_word(T* p, T value) {
    using W = typename Word<sizeof(T)>::type;
    *reinterpret_cast<W*>(p) = bit_cast<W>(value);
}

template <class T>
PRELUDE_DEVICE plain<T> load(Global<T> p) {
    return load_word(p.at);
}
// Loads through the read-only cache: only for memory that no thread writes during the launch.
template <class T>
PRELUDE_DEVICE plain<T> load_ro(Global<T> p) {
    using W = typename Word<sizeof(T)>::type;
    W word = __ldg(reinterpret_cast<const W*>(p.at));
    return bit_cast<plain<T>>(word);
}
template <class T>
PRELUDE_DEVICE plain<T> load(Shared<T> p) {
    return load_word(p.at);
}
// 16 bytes are stored by an explicit instruction, since the compiler at times splits a vector that was
// put together from halves.
template <class T>
PRELUDE_DEVICE void store(Global<T> p, plain<T> value) {
    if constexpr (sizeof(T) == 16) {
        uint4 word = bit_cast<uint4>(value);
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p.at)),
                     "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
                     : "memory");
    } else {
        store_word(p.at, value);
    }
}
template <class T>
PRELUDE_DEVICE void store(Shared<T> p, plain<T> value) {
    if constexpr (sizeof(T) == 16) {
        uint4 word = bit_cast<uint4>(value);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(p.at)),
                     "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
                     : "memory");
    } else {
        store_word(p.at, value);
    }
}

template <class T>
PRELUDE_DEVICE Shared<T> dynamic_shared() {
    extern __shared__ __align__(1024) unsigned char prelude_dynamic_shared[];
    return {reinterpret_cast<T*>(prelude_dynamic_shared)};
}

// Integer atomics; they return the value before.
PRELUDE_DEVICE u32 atomic_add(Shared<u32> p, u32 x) { return atomicAdd(p.at, x); }
PRELUDE_DEVICE u32 atomic_add(Global<u32> p, u32 x) { return atomicAdd(p.at, x); }
PRELUDE_DEVICE u64 atomic_add(Shared<u64> p, u64 x) { return atomicAdd(p.at, x); }
PRELUDE_DEVICE u64 atomic_add(Global<u64> p, u64 x) { return atomicAdd(p.at, x); }
PRELUDE_DEVICE u32 atomic_max(Shared<u32> p, u32 x) { return atomicMax(p.at, x); }
PRELUDE_DEVICE u32 atomic_max(Global<u32> p, u32 x) { return atomicMax(p.at, x); }
PRELUDE_DEVICE u32 atomic_min(Shared<u32> p, u32 x) { return atomicMin(p.at, x); }
PRELUDE_DEVICE u32 atomic_min(Global<u32> p, u32 x) { return atomicMin(p.at, x); }
PRELUDE_DEVICE u32 atomic_or(Shared<u32> p, u32 x) { return atomicOr(p.at, x); }

// ---- threads ----

PRELUDE_DEVICE void sync_block() { __syncthreads(); }
PRELUDE_DEVICE void sync_warp(u32 mask = 0xffffffffu) { __syncwarp(mask); }
// Barrier `id` (1 to 15) for `threads` threads, a multiple of 32: all wait, or some only arrive.
PRELUDE_DEVICE void sync_named(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
PRELUDE_DEVICE void arrive_named(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Shuffles exchange registers and order no memory. T has 4 bytes.
template <class T>
PRELUDE_DEVICE T shuffle(T x, u32 source, u32 mask = 0xffffffffu) {
    return bit_cast<T>(__shfl_sync(mask, bit_cast<u32>(x), source));
}
template <class T>
PRELUDE_DEVICE T shuffle_xor(T x, u32 distance, u32 mask = 0xffffffffu) {
    return bit_cast<T>(__shfl_xor_sync(mask, bit_cast<u32>(x), distance));
}
template <class T>
PRELUDE_DEVICE T shuffle_up(T x, u32 distance, u32 mask = 0xffffffffu) {
    return bit_cast<T>(__shfl_up_sync(mask, bit_cast<u32>(x), distance));
}
template <class T>
PRELUDE_DEVICE T shuffle_down(T x, u32 distance, u32 mask = 0xffffffffu) {
    return bit_cast<T>(__shfl_down_sync(mask, bit_cast<u32>(x), distance));
}
PRELUDE_DEVICE u32 ballot(bool x, u32 mask = 0xffffffffu) { return __ballot_sync(mask, x); }
PRELUDE_DEVICE bool any(bool x, u32 mask = 0xffffffffu) { return __any_sync(mask, x); }
PRELUDE_DEVICE bool all(bool x, u32 mask = 0xffffffffu) { return __all_sync(mask, x); }

// ---- arithmetic ----

PRELUDE_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
PRELUDE_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
PRELUDE_DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
PRELUDE_DEVICE float sqrt_rn(float x) { return __fsqrt_rn(x); }
PRELUDE_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
PRELUDE_DEVICE double add_rn(double a, double b) { return __dadd_rn(a, b); }
PRELUDE_DEVICE double mul_rn(double a, double b) { return __dmul_rn(a, b); }
PRELUDE_DEVICE double div_rn(double a, double b) { return __ddiv_rn(a, b); }
PRELUDE_DEVICE double sqrt_rn(double x) { return __dsqrt_rn(x); }
PRELUDE_DEVICE double ceil_f64(double x) { return ::ceil(x); }
PRELUDE_DEVICE double log_f64(double x) { return ::log(x); }
// Within 2 units in the last place, subnormal results flushed to 0; exact in emulation.
PRELUDE_DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Quotient within 2 units in the last place for divisors up to 2^126; exact in emulation.
PRELUDE_DEVICE float div_fast(float a, float b) { return __fdividef(a, b); }
PRELUDE_DEVICE u64 mul_high(u64 a, u64 b) { return __umul64hi(a, b); }
PRELUDE_DEVICE u32 mul_high(u32 a, u32 b) { return __umulhi(a, b); }
PRELUDE_DEVICE u32 count_ones(u32 x) { return __popc(x); }
// Position of the lowest set bit of x > 0.
PRELUDE_DEVICE u32 lowest_one(u32 x) { return __ffs(x) - 1; }

PRELUDE_DEVICE bf16 to_bf16(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return {bits};
}

// Nearest e4m3 of two numbers, ties to even, larger magnitudes to 448; NaN is 0x7f. The first is the
// low byte. Where there is no such instruction, maths.h has it in several.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define PRELUDE_ROUNDS_E4M3 1
PRELUDE_DEVICE u16 round_e4m3(float low, float high) {
    u16 bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
}
#endif

// ---- tensor cores ----

// 8×8 matrices of bf16 from shared memory: lane 8i + r names row r of matrix i; lane l receives
// elements (l/4, 2(l%4)) and the next, transposed (2(l%4), l/4) and the one below.
PRELUDE_DEVICE void ldmatrix_x4(u32 (&r)[4], Shared<const bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row.at))
                 : "memory");
}
PRELUDE_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], Shared<const bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row.at))
                 : "memory");
}
PRELUDE_DEVICE void ldmatrix_x2(u32 (&r)[2], Shared<const bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row.at))
                 : "memory");
}
PRELUDE_DEVICE void ldmatrix_x2_trans(u32 (&r)[2], Shared<const bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row.at))
                 : "memory");
}
PRELUDE_DEVICE void ldmatrix_x1(u32 (&r)[1], Shared<const bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(shared_address(row.at))
                 : "memory");
}
PRELUDE_DEVICE void ldmatrix_x1_trans(u32 (&r)[1], Shared<const bf16> row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(shared_address(row.at))
                 : "memory");
}

// c[16×8] += a[16×16] · b[16×8], bf16 with f32 sums. Lane l, g = l/4, t = l%4:
//   a[0] (g, 2t) a[1] (g+8, 2t) a[2] (g, 2t+8) a[3] (g+8, 2t+8), two columns each
//   b[0] (2t, g) b[1] (2t+8, g), two rows each;   c[0..4] (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
PRELUDE_DEVICE void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// As mma_m16n8k16, but a and b are f16.
PRELUDE_DEVICE void mma_m16n8k16_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c[16×8] += a[16×32] · b[32×8], e4m3 with f32 sums; as above with four values a register:
//   a[0] (g, 4t) a[1] (g+8, 4t) a[2] (g, 4t+16) a[3] (g+8, 4t+16);   b[0] (4t, g) b[1] (4t+16, g)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
PRELUDE_DEVICE void mma_m16n8k32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// ---- asynchronous copies ----

// 16 bytes from global to shared memory; zeros if not `valid` (nothing is read then). They are
// there after cp_async_wait() in the thread that issued them, for others after a barrier too.
template <class T, class U>
PRELUDE_DEVICE void cp_async_16(Shared<T> to, Global<U> from, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to.at)),
                 "l"(__cvta_generic_to_global(from.at)), "r"(valid ? 16 : 0)
                 : "memory");
}
PRELUDE_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Groups` of the thread's latest groups are under way.
template <int Groups>
PRELUDE_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

// ---- programmatic dependent launch ----

// Waits until all earlier kernels of the step have ended. A kernel calls this before it touches what
// another kernel of the step writes; what was there before the step's first kernel (weights, what the
// host sent, keys and values of earlier steps) may be read earlier. Every block calls this, also one
// with nothing to do: a kernel that ended without waiting would let the next kernel pass while the
// previous one still runs.
PRELUDE_DEVICE void dep_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel of the stream start what it does before its own dep_wait(). Kernels call this
// when little is left to do: when all called it at their start, a token of 4 rows of Qwen3-0.6B took
// 1.37 ms on an H200 and not 1.15, since the early blocks hold what the running kernel needs.
PRELUDE_DEVICE void dep_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace prelude
