#include "prelude/gemm_experts.cuh"

PRELUDE_KERNEL(prelude_gemm_experts_up, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<true, prelude::ExpertFactors::Bf16>(p);
}
PRELUDE_KERNEL(prelude_gemm_experts_down, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<false, prelude::ExpertFactors::Bf16>(p);
}
PRELUDE_KERNEL(prelude_gemm_experts_up_fp8, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<true, prelude::ExpertFactors::Fp8Rows>(p);
}
PRELUDE_KERNEL(prelude_gemm_experts_down_fp8, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<false, prelude::ExpertFactors::Fp8Rows>(p);
}
PRELUDE_KERNEL(prelude_gemm_experts_up_fp8_block, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<true, prelude::ExpertFactors::Fp8Blocks>(p);
}
PRELUDE_KERNEL(prelude_gemm_experts_down_fp8_block, prelude::ExpertsGemmParams, 256) {
    prelude::gemm_experts<false, prelude::ExpertFactors::Fp8Blocks>(p);
}
