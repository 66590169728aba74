#include "prelude/silu_mul.cuh"

PRELUDE_KERNEL(prelude_silu_mul, prelude::SiluMulParams, 256) {
    prelude::gate_mul<prelude::silu>(p);
}
PRELUDE_KERNEL(prelude_gelu_mul, prelude::SiluMulParams, 256) {
    prelude::gate_mul<prelude::gelu>(p);
}
