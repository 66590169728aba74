#include "prelude/sm90_gemm.cuh"

PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm, prelude::Sm90GemmParams, 384, 1) {
    prelude::sm90_gemm<prelude::Sm90Output::Write>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm_add, prelude::Sm90GemmParams, 384, 1) {
    prelude::sm90_gemm<prelude::Sm90Output::Add>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_sm90_gemm_silu_mul, prelude::Sm90GemmParams, 384, 1) {
    prelude::sm90_gemm<prelude::Sm90Output::SiluMul>(p);
}
