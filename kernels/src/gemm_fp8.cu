#include "prelude/gemm_fp8.cuh"

PRELUDE_KERNEL(prelude_gemm_fp8, prelude::GemmFp8Params, 128) {
    prelude::gemm_fp8<prelude::GemmOutput::Write>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_add, prelude::GemmFp8Params, 128) {
    prelude::gemm_fp8<prelude::GemmOutput::Add>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_few_8, prelude::GemmFp8Params, 512) {
    prelude::gemm_fp8_few<prelude::GemmOutput::Write, 1>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_few_16, prelude::GemmFp8Params, 512) {
    prelude::gemm_fp8_few<prelude::GemmOutput::Write, 2>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_few_add_8, prelude::GemmFp8Params, 512) {
    prelude::gemm_fp8_few<prelude::GemmOutput::Add, 1>(p);
}
PRELUDE_KERNEL(prelude_gemm_fp8_few_add_16, prelude::GemmFp8Params, 512) {
    prelude::gemm_fp8_few<prelude::GemmOutput::Add, 2>(p);
}
