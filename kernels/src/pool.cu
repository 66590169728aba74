#include "prelude/pool.cuh"

PRELUDE_KERNEL(prelude_pool, prelude::PoolParams, 256) { prelude::pool<false>(p); }
PRELUDE_KERNEL(prelude_pool_bf16, prelude::PoolParams, 256) { prelude::pool<true>(p); }
PRELUDE_KERNEL(prelude_segment_means, prelude::SegmentMeansParams, 256) {
    prelude::segment_means(p);
}
