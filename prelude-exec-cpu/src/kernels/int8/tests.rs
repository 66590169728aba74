//! Every instruction family against plain loops that pack nothing: equal bits.

use super::*;
use crate::{Isa, kernels::simd};

/// Numbers of very different sizes, with zeros among them.
fn number(i: usize) -> f32 {
    let x = (i as u32).wrapping_mul(2_654_435_761);
    let size = [0.0, 1e-3, 1.0, 1.0, 30.0][x as usize % 5];
    ((x >> 8) as f32 / (1 << 23) as f32 - 1.0) * size
}

/// The rows that a test multiplies, `stride` dwords each, and the panel.
fn operands(rows: &[Vec<f32>], columns: &[Vec<f32>], isa: Supported) -> (Vec<u32>, Vec<u32>) {
    let inputs = columns[0].len();
    let mut left = vec![0; rows.len() * row_dwords(inputs)];
    for (row, out) in rows.iter().zip(left.chunks_exact_mut(row_dwords(inputs))) {
        simd::quantise_row(isa, row, out);
    }
    let mut panel = vec![0; panel_lines(inputs) * NR];
    for (lane, column) in columns.iter().enumerate() {
        pack_column(column, lane, &mut panel);
    }
    (left, panel)
}

/// The definition, from the numbers themselves.
fn naive(row: &[f32], column: &[f32]) -> f32 {
    let largest = |x: &[f32]| x.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let quantised = |x: f32, largest: f32| match largest {
        0.0 => 0,
        _ => (x * (127.0 / largest)).round_ties_even() as i64,
    };
    let s = largest(column);
    let sum = row
        .chunks(GROUP)
        .zip(column.chunks(GROUP))
        .fold(0.0, |sum, (x, w)| {
            let t = largest(x);
            let products = x.iter().zip(w);
            let group: i64 = products
                .map(|(&x, &w)| quantised(x, t) * quantised(w, s))
                .sum();
            sum + group as f32 * (t / 127.0)
        });
    sum * (s / 127.0)
}

#[test]
fn all_families_give_the_bits_of_the_definition() {
    for inputs in [2, 46, 128, 130, 256, 384, 1006] {
        let column = |c: usize| (0..inputs).map(|k| number(c * 7001 + k * 13 + 1)).collect();
        let mut columns: Vec<Vec<f32>> = (0..NR - 1).map(column).collect();
        columns[5].fill(0.0);
        // What is farthest from zero in each sum of a machine's instructions.
        columns[6].fill(-127.0);
        let mut rows: Vec<Vec<f32>> = (100..100 + MR).map(column).collect();
        rows[1].fill(0.0);
        rows[2].fill(3.0);
        rows[3].fill(-3.0);
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            for isa in [isa, isa.without_byte_products()] {
                let (left, panel) = operands(&rows, &columns, isa);
                let stride = row_dwords(inputs);
                for count in 1..=MR {
                    for first in 0..=MR - count {
                        let mut out = Tile([[f32::NAN; NR]; MR]);
                        multiply(
                            isa,
                            &left[first * stride..],
                            stride,
                            count,
                            &panel,
                            &mut out,
                        );
                        for (out, row) in out.0.iter().zip(&rows[first..first + count]) {
                            for (&got, column) in out.iter().zip(&columns) {
                                let expected = naive(row, column);
                                assert_eq!(got, expected, "{isa:?} {inputs}");
                            }
                            // A panel's column without an output.
                            assert_eq!(out[NR - 1], 0.0);
                        }
                    }
                }
            }
        }
    }
}

/// The error of a product is within what its roundings allow.
#[test]
fn products_are_close() {
    for inputs in [64, 1000] {
        let values = |seed: usize| {
            (0..inputs)
                .map(|k| number(seed + k * 3))
                .collect::<Vec<_>>()
        };
        let (row, column) = (values(9), values(77));
        let exact: f64 = row
            .iter()
            .zip(&column)
            .map(|(&x, &w)| f64::from(x) * f64::from(w))
            .sum();
        let largest = |x: &[f32]| {
            x.iter()
                .fold(0.0f64, |most, &v| most.max(f64::from(v).abs()))
        };
        let s = largest(&column) / 127.0;
        let groups = row.chunks(GROUP).zip(column.chunks(GROUP));
        let bound: f64 = groups
            .map(|(x, w)| {
                let t = largest(x) / 127.0;
                let terms = x.iter().zip(w);
                terms
                    .map(|(&x, &w)| {
                        let (x, w) = (f64::from(x).abs(), f64::from(w).abs());
                        x * s / 2.0 + w * t / 2.0 + s * t / 4.0
                    })
                    .sum::<f64>()
            })
            .sum();
        let got = f64::from(naive(&row, &column));
        assert!(
            (got - exact).abs() <= bound * 1.001,
            "{got} {exact} {bound}"
        );
    }
}

#[test]
fn a_row_that_is_not_finite_fails_alone_and_tiny_ones_are_zero() {
    let column: Vec<f32> = (0..256).map(number).collect();
    for (value, expected) in [
        (f32::NAN, None),
        (f32::INFINITY, None),
        (f32::NEG_INFINITY, None),
        (1e-38, Some(0.0)),
        (-1e-45, Some(0.0)),
        (f32::MAX, Some(f32::INFINITY)),
    ] {
        let mut bad = vec![0.0; 256];
        bad[200] = value;
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            let rows = [column.clone(), bad.clone(), column.clone()];
            let (left, panel) = operands(&rows, std::slice::from_ref(&column), isa);
            let mut out = Tile::ZERO;
            multiply(isa, &left, row_dwords(256), 3, &panel, &mut out);
            let [before, bad, after] = [0, 1, 2].map(|r| out.0[r][0]);
            assert!(before.is_finite() && before == after);
            match expected {
                None => assert!(bad.is_nan(), "{isa:?} {value}: {bad}"),
                Some(f32::INFINITY) => assert!(bad.abs() > 1e30, "{isa:?} {value}: {bad}"),
                Some(expected) => assert_eq!(bad, expected, "{isa:?} {value}"),
            }
        }
    }
}

#[test]
fn columns_are_read_back_within_half_a_step() {
    for inputs in [2, 46, 130, 384] {
        let column: Vec<f32> = (0..inputs).map(|k| number(k * 5 + 3)).collect();
        let mut panel = vec![0; panel_lines(inputs) * NR];
        pack_column(&column, 17, &mut panel);
        let mut back = vec![f32::NAN; inputs];
        read_column(&panel, 17, &mut back);
        let step = column.iter().fold(0.0f32, |most, v| most.max(v.abs())) / 127.0;
        for (got, expected) in back.iter().zip(&column) {
            assert!((got - expected).abs() <= step * 0.5001, "{got} {expected}");
        }
    }
}
