#include "prelude/sm90_attn.cuh"

PRELUDE_KERNEL_BLOCKS(prelude_sm90_attn_64, prelude::Sm90AttnParams, 384, 1) {
    prelude::sm90_attn<64>(p);
}
PRELUDE_KERNEL_BLOCKS(prelude_sm90_attn_128, prelude::Sm90AttnParams, 384, 1) {
    prelude::sm90_attn<128>(p);
}
