#include "prelude/qk_norm_rope_store.cuh"

PRELUDE_KERNEL(prelude_qk_norm_rope_store, prelude::QkNormRopeStoreParams, 256) {
    prelude::qk_norm_rope_store<16>(p);
}
PRELUDE_KERNEL(prelude_qk_norm_rope_store_wide, prelude::QkNormRopeStoreParams, 256) {
    prelude::qk_norm_rope_store<32>(p);
}
