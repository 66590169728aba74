#include "prelude/logprobs.cuh"

PRELUDE_KERNEL_BLOCKS(prelude_logprobs, prelude::LogprobsParams, 1024, 1) { prelude::logprobs(p); }
