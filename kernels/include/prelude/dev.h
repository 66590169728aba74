// The device header: the only file a kernel may include, and the only one that knows what it is
// compiled by. nvcc and NVRTC get intrinsics and inline PTX (cuda.h); a host compiler gets the
// emulation (emu/emulated.h), where the same names are checked functions.
//
// Three rules make a kernel testable without a GPU, and the types hold everyone to them:
// - memory is behind Global<T> and Shared<T>, which only load(), store() and the copies open;
// - every special instruction is a function of this header: no raw `asm` in a kernel;
// - floating point is as written: products and sums are not contracted (build with -fmad=false),
//   and fma() is called where one is meant. So host and device round alike.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define PRELUDE_CUDA 1
#define PRELUDE_DEVICE __device__ __forceinline__
// Before a loop over an array that must stay in registers.
#define PRELUDE_UNROLL _Pragma("unroll")
#else
#define PRELUDE_CUDA 0
#define PRELUDE_DEVICE inline
#define PRELUDE_UNROLL
#endif

// NVRTC has no host compiler, and so not its builtins.
#ifdef __CUDACC_RTC__
#define PRELUDE_MEMCPY memcpy
#define PRELUDE_INFINITY __builtin_bit_cast(float, 0x7f800000u)
#else
#define PRELUDE_MEMCPY __builtin_memcpy
#define PRELUDE_INFINITY __builtin_huge_valf()
#endif

// True where a block can have 132 KiB of shared memory. sm_89 and sm_120 have 99 KiB, and refuse to
// launch a kernel that asks for more.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define PRELUDE_LARGE_SHARED 0
#else
#define PRELUDE_LARGE_SHARED 1
#endif

#include "prelude/types.h"

#if PRELUDE_CUDA
#include "prelude/cuda.h"
#else
#include "emulated.h"  // in kernels/emu, which the host build puts on the search path
#endif

#include "prelude/maths.h"
