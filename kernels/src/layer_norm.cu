#include "prelude/layer_norm.cuh"

PRELUDE_KERNEL(prelude_layer_norm, prelude::LayerNormParams, 1024) { prelude::layer_norm(p); }
