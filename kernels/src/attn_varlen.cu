#include "prelude/attn_varlen.cuh"

// 128 threads with all of their rows in registers: two blocks a multiprocessor.
PRELUDE_KERNEL(prelude_attn_varlen_32, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<32, 1>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_64, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<64, 1>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_128, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<128, 1>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_attn_varlen_wide_32, prelude::AttnVarlenParams, 128, 2) {
    prelude::attn_varlen<32, 2>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_attn_varlen_wide_64, prelude::AttnVarlenParams, 128, 2) {
    prelude::attn_varlen<64, 2>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_attn_varlen_wide_128, prelude::AttnVarlenParams, 128, 2) {
    prelude::attn_varlen<128, 2>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_near_32, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<32, 1, prelude::Sees::Near>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_near_64, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<64, 1, prelude::Sees::Near>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_near_128, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<128, 1, prelude::Sees::Near>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_near_256, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<256, 1, prelude::Sees::Near>(p);
}
