#include "prelude/silu_mul.cuh"

PRELUDE_KERNEL(prelude_silu_mul, prelude::SiluMulParams, 256) { prelude::silu_mul(p); }
