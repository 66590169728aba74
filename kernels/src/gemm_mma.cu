#include "prelude/gemm_mma.cuh"

PRELUDE_KERNEL(prelude_gemm_mma, prelude::GemmParams, 256) {
    prelude::gemm_mma<prelude::GemmOutput::Write>(p);
}
PRELUDE_KERNEL(prelude_gemm_mma_add, prelude::GemmParams, 256) {
    prelude::gemm_mma<prelude::GemmOutput::Add>(p);
}
PRELUDE_KERNEL(prelude_gemm_mma_f32, prelude::GemmParams, 256) {
    prelude::gemm_mma<prelude::GemmOutput::F32>(p);
}
