use half::bf16;
use prelude_kernels::{DevicePtr, emu::Device, families::ExpertsGemmParams};

use crate::{
    experts::{Sorted, choices, sort},
    support::{
        U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
        upload, wide,
    },
};

#[derive(Clone, Copy, Debug)]
struct Case {
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

/// Sum and magnitude of the products of two rows.
fn dot(x: &[f64], w: &[f64]) -> (f64, f64) {
    let products = x.iter().zip(w).map(|(x, w)| x * w);
    products.fold((0.0, 0.0), |(sum, magnitude), product| {
        (sum + product, magnitude + product.abs())
    })
}

/// Runs a product of sorted rows, and returns all that lies at y.
fn run(device: &Device, case: Case, sorted: &Sorted, x: &[bf16], w: &[bf16]) -> Vec<bf16> {
    let Case { n, k, gap, .. } = case;
    let choices = sorted.tokens.len();
    let y = room_bf16(device, choices * (n + gap));
    let params = ExpertsGemmParams {
        x: upload(device, x),
        w: upload(device, w),
        y,
        tokens: match case.gated {
            true => sorted.at_tokens,
            false => DevicePtr::NULL,
        },
        tiles: sorted.at_tiles,
        tile_count: sorted.at_count,
        n: n as u32,
        k: k as u32,
        x_stride: (k + gap) as u32,
        y_stride: (n + gap) as u32,
    };
    let (choices, experts) = (choices as u32, case.experts as u32);
    let shape = match case.gated {
        true => params.launch_up(choices, experts),
        false => params.launch_down(choices, experts),
    };
    launch(device, shape, &params);
    device.download(y, choices as usize * (n + gap)).unwrap()
}

fn check(device: &Device, case: Case) {
    let Case { n, k, gap, .. } = case;
    let what = format!("{case:?}");
    let mut values = Values::new((case.tokens * 1000 + n * 10 + k) as u64);
    let chosen = choices(&mut values, case.tokens, case.per_token, case.experts);
    let sorted = sort(device, &chosen, case.per_token, case.experts);
    let rows_of_x = match case.gated {
        true => case.tokens,
        false => chosen.len(),
    };
    let mut x = values.bf16s(rows_of_x * (k + gap), -1.0, 1.0);
    // What lies between the rows must not be read into a sum.
    for i in (0..x.len()).filter(|i| i % (k + gap) >= k) {
        x[i] = bf16::NAN;
    }
    let rows_of_w = if case.gated { 2 * n } else { n };
    let w = values.bf16s(case.experts * rows_of_w * k, -1.0, 1.0);
    let got = run(device, case, &sorted, &x, &w);
    let (x, w) = (wide(&x), wide(&w));
    for &[expert, first, rows, _] in &sorted.tiles {
        for row in first as usize..(first + rows) as usize {
            let of_x = match case.gated {
                true => sorted.tokens[row] as usize,
                false => row,
            };
            let x = &x[of_x * (k + gap)..][..k];
            let of_w = |i: usize| &w[(expert as usize * rows_of_w + i) * k..][..k];
            let expected = (0..n).map(|column| {
                let (sum, magnitude) = dot(x, of_w(column));
                let off = (k + 2) as f64 * U32 * magnitude;
                if !case.gated {
                    return (sum, U16 * sum.abs() * 1.001 + off);
                }
                let (up, up_magnitude) = dot(x, of_w(n + column));
                let off_up = (k + 2) as f64 * U32 * up_magnitude;
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

/// Edges of tiles, slabs and columns; more slabs than stages; experts of no row and of several
/// tiles.
#[test]
fn products() {
    under_all_schedules(|device| {
        for (i, (tokens, per_token, experts, n, k)) in [
            (1, 1, 1, 8, 8),
            (3, 2, 5, 40, 72),
            (9, 2, 3, 72, 40),
            (70, 1, 2, 16, 136),
            (2, 2, 2, 136, 24),
        ]
        .into_iter()
        .enumerate()
        {
            for gated in [true, false] {
                let case = Case {
                    tokens,
                    per_token,
                    experts,
                    n,
                    k,
                    gap: 8 * (i % 2),
                    gated,
                };
                check(device, case);
            }
        }
    });
}

/// A token's bits are the same alone and among others, whatever tile it falls into.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let (n, k, experts) = (24, 264, 2);
        let mut values = Values::new(9);
        let row = values.bf16s(k, -1.0, 1.0);
        for gated in [true, false] {
            let rows_of_w = if gated { 2 * n } else { n };
            let w = values.bf16s(experts * rows_of_w * k, -1.0, 1.0);
            let mut first: Option<Vec<bf16>> = None;
            for (tokens, at) in [(1, 0), (17, 16), (70, 69)] {
                let sorted = sort(device, &vec![1; tokens], 1, experts);
                let mut x = values.bf16s(tokens * k, -9.0, 9.0);
                x[at * k..][..k].copy_from_slice(&row);
                let case = Case {
                    tokens,
                    per_token: 1,
                    experts,
                    n,
                    k,
                    gap: 0,
                    gated,
                };
                let got = run(device, case, &sorted, &x, &w)[at * n..][..n].to_vec();
                assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{tokens}");
            }
        }
    });
}
