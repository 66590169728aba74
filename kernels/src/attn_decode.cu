#include "prelude/attn_decode_shared.cuh"

PRELUDE_KERNEL(prelude_attn_decode_32, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<32>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_64, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<64>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_128, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<128>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_near_32, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<32, true>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_near_64, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<64, true>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_near_128, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode<128, true>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_near_256, prelude::AttnDecodeParams, 128) {
    // Empty where it could not be launched: there it would also spill.
    if constexpr (PRELUDE_LARGE_SHARED) prelude::attn_decode<256, true>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_shared_32, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode_shared<32>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_shared_64, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode_shared<64>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_shared_128, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode_shared<128>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_shared_near_32, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode_shared<32, true>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_shared_near_64, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode_shared<64, true>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_shared_near_128, prelude::AttnDecodeParams, 128) {
    prelude::attn_decode_shared<128, true>(p);
}
PRELUDE_KERNEL(prelude_attn_decode_shared_near_256, prelude::AttnDecodeParams, 128) {
    // As prelude_attn_decode_near_256.
    if constexpr (PRELUDE_LARGE_SHARED) prelude::attn_decode_shared<256, true>(p);
}
PRELUDE_KERNEL(prelude_attn_combine, prelude::AttnDecodeParams, 256) { prelude::attn_combine(p); }
