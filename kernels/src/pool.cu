#include "prelude/pool.cuh"

PRELUDE_KERNEL(prelude_pool, prelude::PoolParams, 256) { prelude::pool(p); }
