use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{ExpertFactors, ExpertsGemmParams, FP8_BLOCK},
};

use crate::{
    experts::{Sorted, choices, sort},
    fp8_scales::{of_weight, to_kernels},
    gemm_fp8::{e4m3s, uneven},
    lanes::e4m3_value,
    support::{
        U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
        upload, wide,
    },
};

const BLOCK: usize = FP8_BLOCK as usize;

#[derive(Clone, Copy, Debug)]
struct Case {
    factors: ExpertFactors,
    tokens: usize,
    per_token: usize,
    experts: usize,
    n: usize,
    k: usize,
    /// Elements between rows, of x and y.
    gap: usize,
    /// By `gemm_experts_up`.
    gated: bool,
}

impl Case {
    /// The rows of w of an expert.
    const fn rows_of_w(&self) -> usize {
        if self.gated { 2 * self.n } else { self.n }
    }

    /// The elements of a row that have a scale in common.
    const fn group(&self) -> usize {
        match self.factors {
            ExpertFactors::Fp8Blocks => BLOCK,
            _ => self.k,
        }
    }
}

/// A factor as kernels take it, and the numbers that it stands for, `[rows, k]`.
struct Factor {
    data: DevicePtr,
    scales: DevicePtr,
    numbers: Vec<f64>,
}

impl Factor {
    /// Numbers of bf16 in rows of `stride`.
    fn bf16(device: &Device, values: &[bf16], k: usize, stride: usize) -> Self {
        let rows = values.chunks_exact(stride);
        Self {
            data: upload(device, values),
            scales: DevicePtr::NULL,
            numbers: rows.flat_map(|row| wide(&row[..k])).collect(),
        }
    }

    /// Numbers of e4m3 in rows of `stride`, each times the scale that `of` gives for its row and column;
    /// `stored` are the scales as kernels take them.
    fn fp8(
        device: &Device,
        (values, k, stride): (&[u8], usize, usize),
        stored: &[f32],
        of: impl Fn(usize, usize) -> f32,
    ) -> Self {
        let number =
            |(row, i): (usize, usize)| e4m3_value(values[row * stride + i]) * f64::from(of(row, i));
        let places = (0..values.len() / stride).flat_map(|row| (0..k).map(move |i| (row, i)));
        Self {
            data: upload(device, values),
            scales: upload(device, stored),
            numbers: places.map(number).collect(),
        }
    }
}

/// The numbers of x before they are uploaded.
#[derive(Clone)]
enum Rows {
    Bf16(Vec<bf16>),
    /// Numbers, and scales `[rows, groups]`.
    Fp8(Vec<u8>, Vec<f32>),
}

impl Rows {
    /// Random rows with NaN between them, which must not be read into a sum.
    fn new(values: &mut Values, case: &Case, rows: usize) -> Self {
        let (k, stride) = (case.k, case.k + case.gap);
        if case.factors == ExpertFactors::Bf16 {
            let mut all = values.bf16s(rows * stride, -1.0, 1.0);
            for i in (0..all.len()).filter(|i| i % stride >= k) {
                all[i] = bf16::NAN;
            }
            return Self::Bf16(all);
        }
        let all = e4m3s(values, rows, k, stride);
        Self::Fp8(all, uneven(values, rows * k / case.group()))
    }

    /// Puts the only row of `other` in the place of row `at`.
    fn replace(&mut self, at: usize, other: &Self) {
        match (self, other) {
            (Self::Bf16(all), Self::Bf16(row)) => {
                all[at * row.len()..][..row.len()].copy_from_slice(row)
            }
            (Self::Fp8(all, scales), Self::Fp8(row, row_scales)) => {
                all[at * row.len()..][..row.len()].copy_from_slice(row);
                scales[at * row_scales.len()..][..row_scales.len()].copy_from_slice(row_scales);
            }
            _ => panic!("rows of other types"),
        }
    }

    fn upload(&self, device: &Device, case: &Case) -> Factor {
        let (k, stride) = (case.k, case.k + case.gap);
        match self {
            Self::Bf16(all) => Factor::bf16(device, all, k, stride),
            Self::Fp8(all, scales) => {
                let (group, groups) = (case.group(), k / case.group());
                let stored = to_kernels(scales, groups);
                let of = |row: usize, i: usize| scales[row * groups + i / group];
                Factor::fp8(device, (all, k, stride), &stored, of)
            }
        }
    }
}

/// Random weights of all experts.
fn weights(device: &Device, values: &mut Values, case: &Case) -> Factor {
    let (k, rows) = (case.k, case.rows_of_w());
    if case.factors == ExpertFactors::Bf16 {
        let all = values.bf16s(case.experts * rows * k, -1.0, 1.0);
        return Factor::bf16(device, &all, k, k);
    }
    let all = e4m3s(values, case.experts * rows, k, k);
    let (group, groups) = (case.group(), k / case.group());
    // Rows that have a scale in common, and how many such sets of rows an expert has.
    let height = match case.factors {
        ExpertFactors::Fp8Blocks => BLOCK,
        _ => 1,
    };
    let sets = rows.div_ceil(height);
    let mut scales = uneven(values, case.experts * sets * groups);
    // Gates of every size.
    scales.iter_mut().for_each(|scale| *scale *= 0.01);
    let stored = match case.factors {
        ExpertFactors::Fp8Blocks => of_weight(&scales, groups),
        _ => scales.clone(),
    };
    let of = |row: usize, i: usize| {
        let set = row / rows * sets + row % rows / height;
        scales[set * groups + i / group]
    };
    Factor::fp8(device, (&all, k, k), &stored, of)
}

/// Sum and magnitude of the products of two rows.
fn dot(x: &[f64], w: &[f64]) -> (f64, f64) {
    let products = x.iter().zip(w).map(|(x, w)| x * w);
    products.fold((0.0, 0.0), |(sum, magnitude), product| {
        (sum + product, magnitude + product.abs())
    })
}

/// Runs a product of sorted rows, and returns all that lies at y.
fn run(device: &Device, case: &Case, sorted: &Sorted, x: &Factor, w: &Factor) -> Vec<bf16> {
    let &Case { n, k, gap, .. } = case;
    let choices = sorted.tokens.len();
    let y = room_bf16(device, choices * (n + gap));
    let params = ExpertsGemmParams {
        x: x.data,
        w: w.data,
        y,
        tokens: match case.gated {
            true => sorted.at_tokens,
            false => DevicePtr::NULL,
        },
        tiles: sorted.at_tiles,
        tile_count: sorted.at_count,
        x_scale: x.scales,
        w_scale: w.scales,
        n: n as u32,
        k: k as u32,
        x_rows: (x.numbers.len() / k) as u32,
        x_stride: (k + gap) as u32,
        y_stride: (n + gap) as u32,
        reserved: 0,
    };
    let (choices, experts) = (choices as u32, case.experts as u32);
    let shape = match case.gated {
        true => params.launch_up(case.factors, choices, experts),
        false => params.launch_down(case.factors, choices, experts),
    };
    launch(device, shape, &params);
    device.download(y, choices as usize * (n + gap)).unwrap()
}

fn check(device: &Device, case: &Case) {
    let &Case { n, k, gap, .. } = case;
    let what = format!("{case:?}");
    let mut values = Values::new((case.tokens * 1000 + n * 10 + k) as u64);
    let chosen = choices(&mut values, case.tokens, case.per_token, case.experts);
    let sorted = sort(device, &chosen, case.per_token, case.experts);
    let rows_of_x = match case.gated {
        true => case.tokens,
        false => chosen.len(),
    };
    let x = Rows::new(&mut values, case, rows_of_x).upload(device, case);
    let w = weights(device, &mut values, case);
    let got = run(device, case, &sorted, &x, &w);
    let rows_of_w = case.rows_of_w();
    // k additions, products of scales, and sums of groups.
    let roundings = (k + 2 * k / case.group() + 4) as f64;
    for &[expert, first, rows, _] in &sorted.tiles {
        for row in first as usize..(first + rows) as usize {
            let of_x = match case.gated {
                true => sorted.tokens[row] as usize,
                false => row,
            };
            let x = &x.numbers[of_x * k..][..k];
            let of_w = |i: usize| &w.numbers[(expert as usize * rows_of_w + i) * k..][..k];
            let expected = (0..n).map(|column| {
                let (sum, magnitude) = dot(x, of_w(column));
                let off = roundings * U32 * magnitude;
                if !case.gated {
                    return (sum, U16 * sum.abs() * 1.001 + off);
                }
                let (up, up_magnitude) = dot(x, of_w(n + column));
                let off_up = roundings * U32 * up_magnitude;
                let gate = sum / (1.0 + (-sum).exp());
                // The gate grows by at most 1.1 times what its argument does.
                let off_gate = 1.1 * off + 16.0 * U32 * sum.abs();
                let y = gate * up;
                let off = off_gate * up.abs() + off_up * gate.abs() + off_gate * off_up;
                (y, U16 * y.abs() * 1.001 + off)
            });
            let at = row * (n + gap);
            let expected: Vec<_> = expected.collect();
            let row_got = wide(&got[at..][..n]);
            let what = format!("{what} row {row}");
            assert_within(&what, &row_got, expected.into_iter());
            assert_untouched(&what, &got[at + n..][..gap]);
        }
    }
}

/// Tokens, experts of a token, experts, n, and k of each product, in either form.
fn check_all(factors: ExpertFactors, gap: usize, sizes: &[(usize, usize, usize, usize, usize)]) {
    under_all_schedules(|device| {
        for (i, &(tokens, per_token, experts, n, k)) in sizes.iter().enumerate() {
            for gated in [true, false] {
                let case = Case {
                    factors,
                    tokens,
                    per_token,
                    experts,
                    n: match factors {
                        ExpertFactors::Fp8Blocks if gated => n.next_multiple_of(BLOCK),
                        _ => n,
                    },
                    k,
                    gap: gap * (i % 2),
                    gated,
                };
                check(device, &case);
            }
        }
    });
}

/// Edges of tiles, slabs and columns; more slabs than stages; experts of no row and of several
/// tiles.
#[test]
fn products() {
    let sizes = [
        (1, 1, 1, 8, 8),
        (3, 2, 5, 40, 72),
        (9, 2, 3, 72, 40),
        (70, 1, 2, 16, 136),
        (2, 2, 2, 136, 24),
    ];
    check_all(ExpertFactors::Bf16, 8, &sizes);
}

/// The same of e4m3 with scales of rows.
#[test]
fn products_in_fp8() {
    let sizes = [
        (1, 1, 1, 8, 16),
        (3, 2, 5, 40, 144),
        (9, 2, 3, 72, 80),
        (70, 1, 2, 16, 272),
        (2, 2, 2, 136, 48),
    ];
    check_all(ExpertFactors::Fp8Rows, 16, &sizes);
}

/// The same with scales of blocks: of as many tokens and choices as have their scales one row after the
/// other, and of more; of experts with a part of a block.
#[test]
fn products_in_fp8_with_scales_of_blocks() {
    let sizes = [
        (1, 1, 1, 8, 128),
        (3, 2, 5, 264, 256),
        (21, 2, 3, 72, 640),
        (70, 1, 2, 16, 256),
    ];
    check_all(ExpertFactors::Fp8Blocks, 16, &sizes);
}

/// A token's bits are the same alone and among others, whatever tile it falls into.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        for (factors, n, k) in [
            (ExpertFactors::Bf16, 24, 264),
            (ExpertFactors::Fp8Rows, 24, 528),
            (ExpertFactors::Fp8Blocks, 128, 640),
        ] {
            let mut values = Values::new(9);
            let case = |tokens, gated| Case {
                factors,
                tokens,
                per_token: 1,
                experts: 2,
                n,
                k,
                gap: 0,
                gated,
            };
            let row = Rows::new(&mut values, &case(1, true), 1);
            for gated in [true, false] {
                let w = weights(device, &mut values, &case(1, gated));
                let mut first: Option<Vec<bf16>> = None;
                for (tokens, at) in [(1, 0), (17, 16), (70, 69)] {
                    let case = case(tokens, gated);
                    let sorted = sort(device, &vec![1; tokens], 1, case.experts);
                    let mut x = Rows::new(&mut values, &case, tokens);
                    x.replace(at, &row);
                    let x = x.upload(device, &case);
                    let got = run(device, &case, &sorted, &x, &w)[at * n..][..n].to_vec();
                    let what = format!("{case:?}");
                    assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{what}");
                }
            }
        }
    });
}
