#include "prelude/gemm_experts.cuh"

PRELUDE_KERNEL(prelude_gemm_experts_up, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<true>(p);
}
PRELUDE_KERNEL(prelude_gemm_experts_down, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<false>(p);
}
