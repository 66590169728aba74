//! Parameters and launch shape of each family. What a kernel computes, and what its arguments
//! must satisfy, is said in `include/prelude/<family>.cuh`.

mod attn_decode;
mod attn_varlen;
mod gemm_mma;
mod qk_norm_rope_store;
mod rms_norm;
mod rows;
mod silu_mul;

pub use attn_decode::{AttnDecodeParams, DecodeRow};
pub use attn_varlen::{AttnVarlenParams, Segment, Span, Tile};
pub use gemm_mma::{GemmOutput, GemmParams};
pub use qk_norm_rope_store::QkNormRopeStoreParams;
pub use rms_norm::RmsNormParams;
pub use rows::{EmbedParams, GatherRowsParams};
pub use silu_mul::SiluMulParams;
