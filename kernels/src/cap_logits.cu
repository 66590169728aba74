#include "prelude/cap_logits.cuh"

PRELUDE_KERNEL(prelude_cap_logits, prelude::CapLogitsParams, 256) { prelude::cap_logits(p); }
