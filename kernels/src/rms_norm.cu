#include "prelude/rms_norm.cuh"

PRELUDE_KERNEL(prelude_rms_norm, prelude::RmsNormParams, 1024) { prelude::rms_norm<false>(p); }
PRELUDE_KERNEL(prelude_add_rms_norm, prelude::RmsNormParams, 1024) { prelude::rms_norm<true>(p); }
PRELUDE_KERNEL(prelude_rms_norm_add, prelude::RmsNormParams, 1024) { prelude::rms_norm_add(p); }
