#include "prelude/attn_varlen.cuh"

PRELUDE_KERNEL(prelude_attn_varlen_32, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<32>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_64, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<64>(p);
}
PRELUDE_KERNEL(prelude_attn_varlen_128, prelude::AttnVarlenParams, 128) {
    prelude::attn_varlen<128>(p);
}
