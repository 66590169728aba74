//! Kernels: one typed wrapper per family, and what launches them.
//!
//! | file | |
//! | --- | --- |
//! | `elementwise` | `embed`, `gather_rows`, `rms_norm`, `silu_mul` |
//! | `encoder` | `embed_sum`, `layer_norm`, `activate`, `segment_means` |
//! | `rope` | `qk_norm_rope_store` |
//! | `attention` | `attn_varlen`, `attn_whole`, `attn_decode`, `attn_combine` |
//! | `hopper` | `sm90_attn`, in place of `attn_varlen` where that is asked for |
//! | `hopper_gemm` | `sm90_gemm`, where that is asked for |
//! | `experts` | `experts_route`, `experts_order`, `gemm_experts_up` and `gemm_experts_down` with their likes in fp8, `experts_sum` |
//! | `gemm` | products: by `lt`, or `gemm_mma` |
//! | `fp8` | `quant_fp8_row` and `quant_fp8_group`, of norms and gates too; products of e4m3: by `lt`, `gemm_fp8_few` or `gemm_fp8`, with scales of blocks by `gemm_fp8_block_few` or `gemm_fp8_block` |
//! | `lt` | cuBLASLt, its plans, and the file of measured ones |
//! | `vocabulary` | `adjust`, `sample`, `prompt_logprobs` |
//! | `heads` | `pool`, `classify`, `label_dots`, `label_logits` |
//! | `launch` | what every launch is checked for; the GPU, the emulation, the record |
//! | `cuda` | modules and launches on a GPU |
//! | `image` | where compiled kernels come from |
//!
//! Wrappers take views, check what the kernel relies on, and launch. `unsafe` is here and in
//! `memory`, and nowhere else in this crate.
#![expect(
    unsafe_code,
    reason = "the driver's calls; each wrapper is safe to call"
)]

/// Returns an error of the kernel with the text of the first condition that does not hold.
macro_rules! rules {
    { $kernel:expr; $($holds:expr => $broken:literal,)+ } => {
        $($crate::kernels::check($kernel, $holds, $broken)?;)+
    };
}

pub(crate) mod attention;
pub(crate) mod cuda;
pub(crate) mod elementwise;
pub(crate) mod encoder;
pub(crate) mod experts;
pub(crate) mod fp8;
pub(crate) mod gemm;
pub(crate) mod heads;
pub(crate) mod hopper;
pub(crate) mod hopper_gemm;
pub(crate) mod image;
pub(crate) mod launch;
pub(crate) mod lt;
pub(crate) mod nvrtc;
pub(crate) mod rope;
pub(crate) mod vocabulary;

use crate::Error;

/// Refuses a launch whose arguments are not what the kernel takes: a defect of this crate or of
/// a model definition, which costs the step and not the process.
fn check(kernel: &'static str, holds: bool, otherwise: &'static str) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(Error::launch(kernel, otherwise))
    }
}

/// Returns a count as kernels take it.
///
/// # Panics
/// Beyond 2³²: configuration keeps every buffer's rows and widths far below.
fn int(n: usize) -> u32 {
    u32::try_from(n).expect("counts of rows and widths fit u32")
}
