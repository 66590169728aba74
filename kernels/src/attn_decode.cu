#include "prelude/attn_decode.cuh"

PRELUDE_KERNEL(prelude_attn_decode_32, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<32>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_64, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<64>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_128, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<128>(p);
}
PRELUDE_KERNEL(prelude_attn_combine, prelude::AttnDecodeParams, 128) { prelude::attn_combine(p); }
