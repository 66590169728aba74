#include "prelude/sm90_gemm.cuh"

#define SM90_GEMM(Output, Apart) prelude::sm90_gemm<prelude::Sm90Output::Output, Apart>(p)

PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm, prelude::Sm90GemmParams, 384, 1) { SM90_GEMM(Write, false); }
PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm_add, prelude::Sm90GemmParams, 384, 1) {
    SM90_GEMM(Add, false);
}
PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm_silu_mul, prelude::Sm90GemmParams, 384, 1) {
    SM90_GEMM(SiluMul, false);
}

// Tiles are stored by warps that do nothing else.
PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm_apart, prelude::Sm90GemmParams, 384, 1) {
    SM90_GEMM(Write, true);
}
PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm_apart_add, prelude::Sm90GemmParams, 384, 1) {
    SM90_GEMM(Add, true);
}
PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm_apart_silu_mul, prelude::Sm90GemmParams, 384, 1) {
    SM90_GEMM(SiluMul, true);
}
