//! Rounding of f32 to pairs of bf16 by the conversion instruction of AVX-512.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_storeu_si512,
};

use super::super::elementwise;

/// Dwords of a register, each a pair.
const LANES: usize = 16;

/// `super::super::elementwise::round_to_pairs`, but numbers smaller than 2^-126 become zeros:
/// `vdpbf16ps` takes what bf16 could hold of them for zeros too.
///
/// # Safety
/// The instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn round_to_pairs(x: &[f32], out: &mut [u32]) {
    let (blocks, rest) = x.as_chunks::<{ 2 * LANES }>();
    let (registers, out_rest) = out.as_chunks_mut::<LANES>();
    for (block, out) in blocks.iter().zip(&mut *registers) {
        // SAFETY: a block is two registers of f32.
        let (low, high) = unsafe {
            let first = block.as_ptr();
            (_mm512_loadu_ps(first), _mm512_loadu_ps(first.add(LANES)))
        };
        let pairs = _mm512_cvtne2ps_pbh(high, low);
        // SAFETY: both types are 64 bytes without invalid values, and `out` has as many.
        unsafe {
            let pairs = std::mem::transmute::<__m512bh, __m512i>(pairs);
            _mm512_storeu_si512(out.as_mut_ptr().cast(), pairs);
        }
    }
    elementwise::round_to_pairs(rest, out_rest);
}
