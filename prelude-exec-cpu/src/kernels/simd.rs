//! `super::elementwise` and the rows of `super::int8`, compiled once per instruction family: a leaf of `unsafe`.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "functions compiled for features that were detected at run time"
    )
)]

#[cfg(target_arch = "x86_64")]
use super::Isa;
use super::{Supported, elementwise, int8, panel::NR};

macro_rules! multiversion {
    ($module:ident: $($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub(crate) fn $name(isa: Supported, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $module::$name($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $module::$name($($arg),*)
                }
                match isa.isa() {
                    // SAFETY: `Supported` was made only after the features were detected.
                    Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    Isa::Scalar => {}
                }
            }
            let _ = isa;
            $module::$name($($arg),*)
        }
    )*};
}

multiversion! { int8:
    /// [`int8::quantise_row`].
    quantise_row(x: &[f32], out: &mut [u32]);
}

multiversion! { elementwise:
    /// [`elementwise::round_to_pairs`].
    round_to_pairs(x: &[f32], out: &mut [u32]);
    /// [`elementwise::round_to_bf16`].
    round_to_bf16(x: &[f32], out: &mut [u16]);
    /// [`elementwise::soften`].
    soften(x: &mut [f32], max: f32, temperature: f32);
    /// [`elementwise::rms_norm`].
    rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
    /// [`elementwise::rms_norm_add`].
    rms_norm_add(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
    /// [`elementwise::soft_cap`].
    soft_cap(x: &mut [f32], scale: f32, cap: f32);
    /// [`elementwise::norm_rotate`].
    norm_rotate(head: &mut [f32], weight: &[f32], eps: f32, rotation: &[f32]);
    /// [`elementwise::rotate`].
    rotate(head: &mut [f32], rotation: &[f32]);
    /// [`elementwise::silu_mul`].
    silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]);
    /// [`elementwise::layer_norm`].
    layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32);
    /// [`elementwise::gelu`].
    gelu(x: &mut [f32]);
    /// [`elementwise::gelu_tanh`].
    gelu_tanh(x: &mut [f32]);
    /// [`elementwise::relu`].
    relu(x: &mut [f32]);
    /// [`elementwise::tanh`].
    tanh(x: &mut [f32]);
    /// [`elementwise::softmax_tile`].
    softmax_tile(
        scores: &mut [f32; NR], scale: f32, visible: usize, max: &mut f32, sum: &mut f32
    ) -> f32;
    /// [`elementwise::scale_add`].
    scale_add(out: &mut [f32], factor: f32, x: &[f32]);
    /// [`elementwise::max_finite`].
    max_finite(x: &[f32]) -> (f32, bool);
    /// [`elementwise::sum_exp`].
    sum_exp(x: &[f32], max: f32) -> f64;
    /// [`elementwise::count_above`].
    count_above(x: &[f32], bound: f32) -> u32;
}
