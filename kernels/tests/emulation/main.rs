//! Kernels against references in f64, run by the emulation under several schedules.
//!
//! One module a family; `harness` and `lanes` test the emulation itself. Where there is no g++
//! every test says SKIP.
#![expect(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests say what they skip and which schedule failed"
)]

mod activate;
mod attention;
mod attn_decode;
mod attn_decode_shared;
mod attn_varlen;
mod attn_whole;
mod cap_logits;
mod decode_step;
mod dots;
mod experts;
mod fp8_scales;
mod gemm_experts;
mod gemm_fp8;
mod gemm_fp8_block;
mod gemm_mma;
mod harness;
mod hopper;
mod label_logits;
mod lanes;
mod layer_norm;
mod layout;
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
mod support;
