#include "prelude/attn_varlen.cuh"

// As attn_varlen.cu, for queries that see whole segments. A file of its own: no model needs both.
PRELUDE_KERNEL(prelude_attn_whole_32, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<32, 1, prelude::Sees::Whole>(p);
}
PRELUDE_KERNEL(prelude_attn_whole_64, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<64, 1, prelude::Sees::Whole>(p);
}
PRELUDE_KERNEL(prelude_attn_whole_128, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<128, 1, prelude::Sees::Whole>(p);
}
PRELUDE_KERNEL(prelude_attn_whole_256, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<256, 1, prelude::Sees::Whole>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_attn_whole_wide_32, prelude::AttnVarlenParams, 128, 2) {
    prelude::attn_varlen<32, 2, prelude::Sees::Whole>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_attn_whole_wide_64, prelude::AttnVarlenParams, 128, 2) {
    prelude::attn_varlen<64, 2, prelude::Sees::Whole>(p);
}
PRELUDE_KERNEL(prelude_attn_biased_32, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<32, 1, prelude::Sees::Biased>(p);
}
PRELUDE_KERNEL(prelude_attn_biased_64, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<64, 1, prelude::Sees::Biased>(p);
}
PRELUDE_KERNEL(prelude_attn_biased_128, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<128, 1, prelude::Sees::Biased>(p);
}
