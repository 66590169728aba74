//! `super::elementwise` and the rows of `super::int8` and `super::fp8`, compiled once per instruction family: a leaf of `unsafe`.
//!
//! ARM's vectors are part of what every function is compiled for, so portable code is NEON's code there.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "functions compiled for features that were detected at run time"
    )
)]

#[cfg(target_arch = "x86_64")]
use super::Isa;
use super::{
    Supported,
    elementwise::{self, RowScores},
    fp8, int8, native,
    panel::{MR, NR},
};

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
                    Isa::NeonBf16 | Isa::Neon | Isa::Scalar => {}
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

multiversion! { fp8:
    /// [`fp8::round_row`].
    round_row(x: &[f32], out: &mut [u32]);
    /// [`fp8::round_groups`].
    round_groups(x: &[f32], out: &mut [u32]);
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
    /// [`elementwise::softmax_rows`].
    softmax_rows(
        scores: &mut [[f32; NR]], rows: &[RowScores; MR], max: &mut [f32; MR], sum: &mut [f32; MR]
    );
    /// [`elementwise::exp`].
    exp(x: f32) -> f32;
    /// [`elementwise::scale_add`].
    scale_add(out: &mut [f32], factor: f32, x: &[f32]);
    /// [`elementwise::divide`].
    divide(x: &[f32], divisor: f32, out: &mut [f32]);
    /// [`elementwise::put_sums`].
    put_sums(sums: &[f32], bias: Option<&[f32]>, add: bool, out: &mut [f32]);
    /// [`elementwise::interleave`].
    interleave(low: &[u16], high: &[u16], out: &mut [u32]);
    /// [`elementwise::max_finite`].
    max_finite(x: &[f32]) -> (f32, bool);
    /// [`elementwise::sum_exp`].
    sum_exp(x: &[f32], max: f32) -> f64;
    /// [`elementwise::count_above`].
    count_above(x: &[f32], bound: f32) -> u32;
}

/// Rounds a row to pairs of bf16, as [`elementwise::round_to_pairs`] does, but where a family has an
/// instruction for it, numbers smaller than 2^-126 become zeros.
#[inline]
pub(crate) fn bf16_pairs(isa: Supported, x: &[f32], out: &mut [u32]) {
    if !native::round_to_pairs(isa, x, out) {
        round_to_pairs(isa, x, out);
    }
}

/// Does one step of the running softmax of up to [`MR`] rows: turns a tile's scores into weights, as
/// [`elementwise::softmax_rows`] does, updates the running `max` and `sum` of each row, and returns the
/// factors for what was accumulated under the old maxima; `None` for a row in which no score counts.
#[inline]
pub(crate) fn softmax_tile(
    isa: Supported,
    scores: &mut [[f32; NR]],
    rows: &[RowScores; MR],
    max: &mut [f32],
    sum: &mut [f32],
) -> [Option<f32>; MR] {
    let (mut new, mut added) = ([0.0; MR], [0.0; MR]);
    let count = scores.len();
    new[..count].copy_from_slice(max);
    if !native::softmax_rows(isa, scores, rows, &mut new, &mut added) {
        softmax_rows(isa, scores, rows, &mut new, &mut added);
    }
    let mut factors = [None; MR];
    for i in (0..count).filter(|&i| rows[i].visible > 0) {
        // The power of 0 is exactly 1.
        let factor = if max[i] == new[i] {
            1.0
        } else {
            exp(isa, max[i] - new[i])
        };
        max[i] = new[i];
        sum[i] = sum[i] * factor + added[i];
        factors[i] = Some(factor);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// The sum over what each function computed, by FNV-1a.
    const CHECKSUM: u64 = 0xc1f9_af31_27f6_1663;

    /// Numbers from 1e-9 to 64, of both signs, with all bits of the mantissa.
    fn number(i: usize) -> f32 {
        let x = (i as u32).wrapping_mul(2_654_435_761);
        let size = [1e-9, 0.01, 1.0, 8.0, 64.0][x as usize % 5];
        ((x >> 8) as f32 / (1 << 23) as f32 - 1.0) * size
    }

    fn numbers<const N: usize>(first: usize) -> [f32; N] {
        std::array::from_fn(|i| number(first + i))
    }

    /// Returns the results of each function on some numbers, ragged at the end.
    fn results(isa: Supported) -> Vec<(&'static str, Vec<f32>)> {
        const N: usize = 134;
        let (x, y, z) = (numbers::<N>(1), numbers::<N>(1001), numbers::<N>(2001));
        let changed = |name, change: &dyn Fn(&mut [f32])| {
            let mut out = x;
            change(&mut out);
            (name, out.to_vec())
        };
        let mut pairs = [0; N / 2];
        round_to_pairs(isa, &x, &mut pairs);
        let mut halves = [0; N];
        round_to_bf16(isa, &x, &mut halves);
        let (mut max, mut sum) = ([0.0, 1.0], [0.0, 2.0]);
        // The first row of the tile is left as it is.
        let mut scores = [[0.0; NR], numbers(3001)];
        let mut rows = [RowScores::default(); MR];
        rows[1] = RowScores {
            scale: 0.3,
            visible: 50,
        };
        let factors = softmax_tile(isa, &mut scores, &rows, &mut max, &mut sum);
        assert_eq!((scores[0], max[0], sum[0]), ([0.0; NR], 0.0, 0.0));
        let (largest, finite) = max_finite(isa, &x);
        let values = [
            factors[1].unwrap(),
            max[1],
            sum[1],
            largest,
            f32::from(u8::from(finite)),
            sum_exp(isa, &x, 3.0) as f32,
            count_above(isa, &x, 0.1) as f32,
        ];
        vec![
            ("round_to_pairs", pairs.map(f32::from_bits).to_vec()),
            ("round_to_bf16", halves.map(f32::from).to_vec()),
            ("softmax_tile", scores[1].to_vec()),
            ("sums", values.to_vec()),
            changed("soften", &|out| soften(isa, out, 60.0, 0.7)),
            changed("rms_norm", &|out| rms_norm(isa, &x, &y, 1e-6, out)),
            changed("rms_norm_add", &|out| {
                rms_norm_add(isa, &y, &z, 1e-6, out);
            }),
            changed("soft_cap", &|out| soft_cap(isa, out, 0.2, 5.0)),
            changed("norm_rotate", &|out| norm_rotate(isa, out, &y, 1e-6, &z)),
            changed("rotate", &|out| rotate(isa, out, &z)),
            changed("silu_mul", &|out| silu_mul(isa, &y, &z, out)),
            changed("layer_norm", &|out| layer_norm(isa, out, &y, &z, 1e-6)),
            changed("gelu", &|out| gelu(isa, out)),
            changed("gelu_tanh", &|out| gelu_tanh(isa, out)),
            changed("relu", &|out| relu(isa, out)),
            changed("tanh", &|out| tanh(isa, out)),
            changed("scale_add", &|out| scale_add(isa, out, 0.3, &y)),
            changed("divide", &|out| divide(isa, &y, 0.7, out)),
            changed("put_sums", &|out| put_sums(isa, &y, Some(&z), true, out)),
        ]
    }

    #[test]
    fn every_family_of_every_machine_computes_the_same_bits() {
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            let mut all = 0xcbf2_9ce4_8422_2325;
            let mut each = Vec::new();
            for (name, values) in results(isa) {
                for value in values {
                    assert!(!value.is_nan(), "{isa:?} {name}");
                    for byte in value.to_bits().to_le_bytes() {
                        all = (all ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                    }
                }
                each.push((name, all));
            }
            assert_eq!(all, CHECKSUM, "{isa:?}; after each: {each:x?}");
        }
    }

    /// Two tiles in turn against one softmax over both.
    #[test]
    fn softmax_over_tiles_is_softmax() {
        let score = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 7.0;
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            let (mut max, mut sum) = ([f32::NEG_INFINITY], [0.0]);
            let mut step = |first, visible| {
                let mut scores = [std::array::from_fn(|i| score(first + i))];
                let mut rows = [RowScores::default(); MR];
                rows[0] = RowScores {
                    scale: 0.5,
                    visible,
                };
                let factors = softmax_tile(isa, &mut scores, &rows, &mut max, &mut sum);
                (factors[0].unwrap(), scores[0])
            };
            let (factor, first) = step(0, NR);
            assert_eq!(factor, 0.0);
            let (factor, second) = step(NR, 10);
            assert!(second[10..].iter().all(|&p| p == 0.0));
            let weights = first.iter().map(|p| p * factor).chain(second);
            let total: f64 = (0..NR + 10).map(|i| f64::from(score(i) * 0.5).exp()).sum();
            for (i, weight) in weights.enumerate().take(NR + 10) {
                let exact = f64::from(score(i) * 0.5).exp() / total;
                assert!((f64::from(weight / sum[0]) - exact).abs() < 1e-6, "{isa:?}");
            }
        }
    }

    /// The instructions of a family against portable code: every number of rows and of scores that
    /// count, and scores that are no numbers.
    #[test]
    fn softmax_of_a_family_has_the_bits_of_portable_code() {
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            for case in 0..500 {
                let count = 1 + case % MR;
                let mut scores: Vec<[f32; NR]> =
                    (0..count).map(|i| numbers(case * 1000 + i * NR)).collect();
                match case % 5 {
                    0 => scores[count - 1][case % NR] = f32::NAN,
                    1 => scores[0][case % NR] = f32::INFINITY,
                    2 => scores[0].fill(f32::NEG_INFINITY),
                    _ => {}
                }
                let rows = std::array::from_fn(|i| RowScores {
                    scale: number(case).abs(),
                    visible: (case * 7 + i * 11) % (NR + 1),
                });
                let mut max: [f32; MR] = numbers(case);
                max[case % MR] = f32::NEG_INFINITY;
                let (mut of_family, mut new, mut sum) = (scores.clone(), max, [0.0; MR]);
                if !native::softmax_rows(isa, &mut of_family, &rows, &mut new, &mut sum) {
                    continue;
                }
                let mut sum_of_portable = [0.0; MR];
                elementwise::softmax_rows(&mut scores, &rows, &mut max, &mut sum_of_portable);
                let bits = |x: &[f32]| {
                    x.iter()
                        .map(|x| {
                            // Which NaN it is depends on the order of an addition's operands.
                            if x.is_nan() { u32::MAX } else { x.to_bits() }
                        })
                        .collect::<Vec<u32>>()
                };
                assert_eq!(bits(of_family.as_flattened()), bits(scores.as_flattened()));
                assert_eq!(bits(&new), bits(&max), "case {case}");
                for i in (0..count).filter(|&i| rows[i].visible > 0) {
                    assert_eq!(bits(&[sum[i]]), bits(&[sum_of_portable[i]]), "case {case}");
                }
            }
        }
    }

    /// All bits of bf16 and what lies between them, and ragged ends.
    #[test]
    fn pairs_by_instructions_are_those_of_portable_code() {
        let numbers: Vec<f32> = (0..1 << 20)
            .map(|i: u32| f32::from_bits(i.wrapping_mul(2_654_435_761)))
            .chain((0..1 << 16).map(|i: u32| f32::from_bits(i << 16 | 0x8000)))
            .map(|x| if x.is_subnormal() { 0.0 } else { x })
            .collect();
        let is_nan = |bits: u32| f32::from_bits(bits << 16).is_nan();
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            for len in [0, 2, 30, 32, 34, 190, numbers.len()] {
                let (mut found, mut expected) = (vec![0; len / 2], vec![0; len / 2]);
                bf16_pairs(isa, &numbers[..len], &mut found);
                elementwise::round_to_pairs(&numbers[..len], &mut expected);
                for (found, expected) in found.iter().zip(&expected) {
                    for shift in [0, 16] {
                        let (found, expected) =
                            (found >> shift & 0xffff, expected >> shift & 0xffff);
                        let both_nan = is_nan(found) && is_nan(expected);
                        assert!(
                            both_nan || found == expected,
                            "{isa:?}: {found:x} {expected:x}"
                        );
                    }
                }
            }
        }
    }
}
