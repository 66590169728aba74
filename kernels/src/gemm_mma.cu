#include "prelude/gemm_mma.cuh"

// The tiles, from large to small: mirrored by GemmTile in src/families/gemm_mma.rs.
using Tile128x256 = prelude::gemm::Tile<128, 256, 64, 64, 32, 4>;
using Tile128x64 = prelude::gemm::Tile<128, 64, 64, 32, 64, 4>;
using Tile64x64 = prelude::gemm::Tile<64, 64, 32, 32, 64, 5>;
using Tile32x32 = prelude::gemm::Tile<32, 32, 16, 16, 64, 10>;

#define GEMM_MMA(Shape, Output) prelude::gemm::gemm_mma<Tile##Shape, prelude::GemmOutput::Output>(p)

PRELUDE_KERNEL(prelude_gemm_mma_128x256, prelude::GemmParams, 256) { GEMM_MMA(128x256, Write); }
PRELUDE_KERNEL(prelude_gemm_mma_128x64, prelude::GemmParams, 128) { GEMM_MMA(128x64, Write); }
PRELUDE_KERNEL(prelude_gemm_mma_64x64, prelude::GemmParams, 128) { GEMM_MMA(64x64, Write); }
PRELUDE_KERNEL(prelude_gemm_mma_32x32, prelude::GemmParams, 128) { GEMM_MMA(32x32, Write); }

PRELUDE_KERNEL(prelude_gemm_mma_add_128x256, prelude::GemmParams, 256) { GEMM_MMA(128x256, Add); }
PRELUDE_KERNEL(prelude_gemm_mma_add_128x64, prelude::GemmParams, 128) { GEMM_MMA(128x64, Add); }
PRELUDE_KERNEL(prelude_gemm_mma_add_64x64, prelude::GemmParams, 128) { GEMM_MMA(64x64, Add); }
PRELUDE_KERNEL(prelude_gemm_mma_add_32x32, prelude::GemmParams, 128) { GEMM_MMA(32x32, Add); }

PRELUDE_KERNEL(prelude_gemm_mma_f32_128x256, prelude::GemmParams, 256) { GEMM_MMA(128x256, F32); }
PRELUDE_KERNEL(prelude_gemm_mma_f32_128x64, prelude::GemmParams, 128) { GEMM_MMA(128x64, F32); }
PRELUDE_KERNEL(prelude_gemm_mma_f32_64x64, prelude::GemmParams, 128) { GEMM_MMA(64x64, F32); }
PRELUDE_KERNEL(prelude_gemm_mma_f32_32x32, prelude::GemmParams, 128) { GEMM_MMA(32x32, F32); }
