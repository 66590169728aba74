#include "prelude/experts.cuh"

PRELUDE_KERNEL(prelude_experts_route, prelude::ExpertsRouteParams, 256) { prelude::experts_route(p); }
PRELUDE_KERNEL(prelude_experts_order, prelude::ExpertsOrderParams, 256) { prelude::experts_order(p); }
PRELUDE_KERNEL(prelude_experts_sum, prelude::ExpertsSumParams, 256) { prelude::experts_sum(p); }
