#include "prelude/sample.cuh"

PRELUDE_KERNEL_BLOCKS(prelude_argmax, prelude::ArgmaxParams, 1024, 1) { prelude::argmax(p); }
PRELUDE_KERNEL_BLOCKS(prelude_adjust_logits, prelude::AdjustParams, 1024, 1) { prelude::adjust(p); }
PRELUDE_KERNEL_BLOCKS(prelude_sample, prelude::SampleParams, 1024, 1) { prelude::sample(p); }
