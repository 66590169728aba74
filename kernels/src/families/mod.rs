//! Parameters and launch shape of each family. What a kernel computes, and what its arguments
//! must satisfy, is said in `include/prelude/<family>.cuh`.

mod activate;
mod attn_decode;
mod attn_varlen;
mod cap_logits;
mod dots;
mod experts;
mod gemm_experts;
mod gemm_fp8;
mod gemm_fp8_block;
mod gemm_mma;
mod label_logits;
mod layer_norm;
mod logprobs;
mod pool;
mod qk_norm_rope_store;
mod quant_fp8_group;
mod quant_fp8_row;
mod rms_norm;
mod rows;
mod sample;
mod silu_mul;
mod sm90_attn;
mod sm90_gemm;

pub use activate::{ActivateParams, Function};
pub use attn_decode::{AttnDecodeParams, DecodeItem, DecodeRow};
pub use attn_varlen::{AttnVarlenParams, NO_WINDOW, Segment, Span, Tile};
pub use cap_logits::CapLogitsParams;
pub use dots::{ClassifyParams, LabelDotsParams};
pub use experts::{
    EXPERTS_MAX, EXPERTS_PER_TOKEN_MAX, ExpertsOrderParams, ExpertsRouteParams, ExpertsSumParams,
    expert_tiles,
};
pub use gemm_experts::{ExpertFactors, ExpertsGemmParams};
pub use gemm_fp8::GemmFp8Params;
pub use gemm_fp8_block::{FP8_BLOCK, FP8_FEW, FP8_FOUR};
pub use gemm_mma::{GemmOutput, GemmParams, GemmTile};
pub use label_logits::{LabelLogitsParams, LabelMergeParams};
pub use layer_norm::LayerNormParams;
pub use logprobs::{LogprobRow, LogprobsParams};
pub use pool::{MeanRow, PoolParams, PoolRow, SegmentMeansParams};
pub use qk_norm_rope_store::QkNormRopeStoreParams;
pub use quant_fp8_row::{QuantFp8RowParams, RmsNormFp8RowParams};
pub use rms_norm::{RmsNormForm, RmsNormParams};
pub use rows::{EmbedParams, EmbedSumParams, GatherRowsParams};
pub use sample::{AdjustParams, AdjustRow, ArgmaxParams, SampleParams, SampleRow, SampleStatus};
pub use silu_mul::{Gate, SiluMulParams};
pub use sm90_attn::Sm90AttnParams;
pub use sm90_gemm::{Sm90GemmParams, Sm90Output};
