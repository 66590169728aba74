// The device header of kernels for Hopper alone (sm_90a): what dev.h has, and copies, barriers and
// products that run beside the threads. nvcc and NVRTC get inline PTX (hopper_cuda.h), a host
// compiler checked functions (emu/emulated_hopper.h).
//
// - A barrier with phases counts arrivals and bytes. A phase ends when both are complete; phase 0 is
//   under way at first. A thread waits for the end of a phase by its parity.
// - A tensor copy moves a box of a matrix in device memory to shared memory and counts its bytes at
//   a barrier. What lies outside of the matrix is 0, and is counted too.
// - wgmma multiplies with all four warps of a warpgroup. It reads shared memory through descriptors,
//   and its registers belong to it until it was waited for.
//
// Copies and products go past the threads' own path to shared memory: what threads have written
// there is seen by them after fence_async() in the writing thread and a barrier.
#pragma once

#include "prelude/dev.h"

namespace prelude {

// A matrix of bf16 in device memory and the box that copies move, as the driver encodes them
// (cuTensorMapEncodeTiled): 128-byte swizzle, so boxes of at most 64 columns. Read where it lies, in
// the kernel's parameters.
struct alignas(128) TensorMap {
    u64 words[16];
};

// Byte `offset` from a multiple of 1024 in shared memory, in rows of 128 bytes, as the 128-byte
// swizzle moves it: 16-byte chunk c of row r is at chunk c ^ (r mod 8).
PRELUDE_DEVICE u32 swizzled(u32 offset) { return offset ^ (offset >> 3 & 0x70); }

}  // namespace prelude

#if PRELUDE_CUDA
#include "prelude/hopper_cuda.h"
#else
#include "emulated_hopper.h"
#endif

namespace prelude {

// Describes an operand of wgmma in shared memory under the 128-byte swizzle, for 16 values of k; the
// matrix begins at a multiple of 1024 bytes.
// - Rows of k (K-major): row r, of 64 values of k, is at 128 · (r mod 8) + stride · (r / 8) bytes;
//   the next 16 values of k begin 32 bytes further. `leading` has no meaning.
// - Rows of n (transposed, MN-major): value k of 64 columns is at 128 · (k mod 8) + stride · (k / 8)
//   bytes; the next 64 columns begin `leading` bytes further.
PRELUDE_DEVICE u64 operand(Shared<const bf16> at, u32 leading, u32 stride) {
    return u64((shared_place(at) & 0x3ffff) >> 4) | u64(leading >> 4) << 16 |
           u64(stride >> 4) << 32 | 1ull << 62;
}

// Describes the operand that lies `bytes` after another.
PRELUDE_DEVICE u64 operand_behind(u64 operand, u32 bytes) { return operand + (bytes >> 4); }

}  // namespace prelude
