#include "prelude/gemm_fp8_block.cuh"

// The tiles: mirrored by src/families/gemm_fp8_block.rs.
using Tile128x128 = prelude::gemm::Tile<128, 128, 64, 32, 64, 3>;
using Tile64x64 = prelude::gemm::Tile<64, 64, 32, 32, 64, 5>;

PRELUDE_KERNEL(prelude_gemm_fp8_block_128x128, prelude::GemmFp8Params, 256) {
    prelude::gemm_fp8_block<Tile128x128, prelude::GemmOutput::Write>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_block_64x64, prelude::GemmFp8Params, 128) {
    prelude::gemm_fp8_block<Tile64x64, prelude::GemmOutput::Write>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_block_add_128x128, prelude::GemmFp8Params, 256) {
    prelude::gemm_fp8_block<Tile128x128, prelude::GemmOutput::Add>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_block_add_64x64, prelude::GemmFp8Params, 128) {
    prelude::gemm_fp8_block<Tile64x64, prelude::GemmOutput::Add>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_block_few_8, prelude::GemmFp8Params, 256) {
    prelude::gemm_fp8_block_few<prelude::GemmOutput::Write, 1>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_block_few_16, prelude::GemmFp8Params, 256) {
    prelude::gemm_fp8_block_few<prelude::GemmOutput::Write, 2>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_block_few_add_8, prelude::GemmFp8Params, 256) {
    prelude::gemm_fp8_block_few<prelude::GemmOutput::Add, 1>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_block_few_add_16, prelude::GemmFp8Params, 256) {
    prelude::gemm_fp8_block_few<prelude::GemmOutput::Add, 2>(p);
}
