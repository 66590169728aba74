#include "prelude/quant_fp8_group.cuh"

PRELUDE_KERNEL(prelude_quant_fp8_group, prelude::QuantFp8RowParams, 1024) {
    prelude::quant_fp8_group(p);
}
PRELUDE_KERNEL(prelude_silu_mul_fp8_group, prelude::QuantFp8RowParams, 512) {
    prelude::silu_mul_fp8_group(p);
}
PRELUDE_KERNEL(prelude_rms_norm_fp8_group, prelude::RmsNormFp8RowParams, 1024) {
    prelude::rms_norm_fp8_group(p);
}
