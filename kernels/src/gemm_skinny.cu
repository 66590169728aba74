#include "prelude/gemm_skinny.cuh"

PRELUDE_KERNEL(prelude_gemm_skinny_8, prelude::GemmParams, 512) {
    prelude::gemm_skinny<prelude::GemmOutput::Write, 1>(p);
}
PRELUDE_KERNEL(prelude_gemm_skinny_16, prelude::GemmParams, 512) {
    prelude::gemm_skinny<prelude::GemmOutput::Write, 2>(p);
}
PRELUDE_KERNEL(prelude_gemm_skinny_add_8, prelude::GemmParams, 512) {
    prelude::gemm_skinny<prelude::GemmOutput::Add, 1>(p);
}
PRELUDE_KERNEL(prelude_gemm_skinny_add_16, prelude::GemmParams, 512) {
    prelude::gemm_skinny<prelude::GemmOutput::Add, 2>(p);
}
PRELUDE_KERNEL(prelude_gemm_skinny_f32_8, prelude::GemmParams, 512) {
    prelude::gemm_skinny<prelude::GemmOutput::F32, 1>(p);
}
PRELUDE_KERNEL(prelude_gemm_skinny_f32_16, prelude::GemmParams, 512) {
    prelude::gemm_skinny<prelude::GemmOutput::F32, 2>(p);
}
