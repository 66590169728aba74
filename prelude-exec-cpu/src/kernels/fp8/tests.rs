//! The rounding against its definition, and products of every instruction family against plain loops.

use half::bf16 as Bf16;

use super::*;
use crate::{
    Isa,
    kernels::{panel::MR, simd},
};

/// The value of an e4m3, by its definition.
fn value(bits: u8) -> f64 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    match exponent {
        0 => sign * mantissa * 2f64.powi(-9),
        _ => sign * (8.0 + mantissa) * 2f64.powi(exponent - 10),
    }
}

/// The nearest e4m3, ties to even.
fn nearest(x: f32) -> f32 {
    let off = |bits: &u8| (value(*bits) - f64::from(x.abs())).abs();
    let order = |a: &u8, b: &u8| off(a).total_cmp(&off(b)).then((a & 1).cmp(&(b & 1)));
    let nearest = (0..=0x7eu8).min_by(order).unwrap();
    (value(nearest) as f32).copysign(x)
}

/// A row's scale and numbers, by their definition.
fn rounded(row: &[f32]) -> (f32, Vec<f32>) {
    let row = row.iter().map(|&x| Bf16::from_f32(x).to_f32());
    let largest = row
        .clone()
        .fold(2f32.powi(-24), |most, x| most.max(x.abs()));
    let scale = largest / 448.0;
    (scale, row.map(|x| nearest(x / scale)).collect())
}

/// Numbers of very different sizes, with zeros among them.
fn number(i: usize) -> f32 {
    let x = (i as u32).wrapping_mul(2_654_435_761);
    let size = [0.0, 1e-3, 1.0, 1.0, 30.0][x as usize % 5];
    ((x >> 8) as f32 / (1 << 23) as f32 - 1.0) * size
}

/// The rows that a test multiplies, and the panel.
fn operands(rows: &[Vec<f32>], columns: &[Vec<f32>], isa: Supported) -> (Vec<u32>, Vec<u32>) {
    let inputs = columns[0].len();
    let mut left = vec![0; rows.len() * row_dwords(inputs)];
    for (row, out) in rows.iter().zip(left.chunks_exact_mut(row_dwords(inputs))) {
        simd::round_row(isa, row, out);
    }
    let mut panel = vec![0; panel_lines(inputs) * NR];
    for (lane, column) in columns.iter().enumerate() {
        pack_column(column, lane, &mut panel);
    }
    (left, panel)
}

/// Each e4m3, what lies halfway between two, and the neighbours of both in f32.
#[test]
fn numbers_are_rounded_to_the_nearest() {
    for bits in 0..0x7eu8 {
        let (low, high) = (value(bits) as f32, value(bits + 1) as f32);
        for x in [low, (low + high) / 2.0, high] {
            for x in [x.next_down(), x, x.next_up()] {
                for x in [x, -x] {
                    assert_eq!(round(x), nearest(x), "{x}");
                }
            }
        }
    }
    assert_eq!(round(448.5), 448.0);
    assert!(round(f32::NAN).is_nan());
}

#[test]
fn all_families_give_the_bits_of_the_definition() {
    for inputs in [2, 46, 128, 1006] {
        let column = |c: usize| (0..inputs).map(|k| number(c * 7001 + k * 13 + 1)).collect();
        let mut columns: Vec<Vec<f32>> = (0..NR - 1).map(column).collect();
        columns[5].fill(0.0);
        columns[6].fill(1e-9);
        let mut rows: Vec<Vec<f32>> = (100..100 + MR).map(column).collect();
        rows[1].fill(0.0);
        rows[2].fill(-3.0);
        let of_rows: Vec<_> = rows.iter().map(|row| rounded(row)).collect();
        let of_columns: Vec<_> = columns.iter().map(|column| rounded(column)).collect();
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            let (left, panel) = operands(&rows, &columns, isa);
            let stride = row_dwords(inputs);
            for (row, (scale, q)) in left.chunks_exact(stride).zip(&of_rows) {
                let row: Vec<f32> = row.iter().map(|&bits| f32::from_bits(bits)).collect();
                assert_eq!((row[0], &row[1..]), (*scale, &q[..]), "{isa:?}");
            }
            for (first, count) in [(0, MR), (2, 1), (3, 3)] {
                let mut out = Tile([[f32::NAN; NR]; MR]);
                let rows = &left[first * stride..];
                multiply(isa, rows, stride, count, &panel, &mut out);
                for (out, (s, x)) in out.0.iter().zip(&of_rows[first..first + count]) {
                    for (&got, (t, w)) in out.iter().zip(&of_columns) {
                        let sum = x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w);
                        assert_eq!(got, sum * s * t, "{isa:?} {inputs}");
                    }
                    // A panel's column without an output.
                    assert_eq!(out[NR - 1], 0.0);
                }
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_fails_alone_and_tiny_ones_are_small() {
    let column: Vec<f32> = (0..256).map(number).collect();
    for (value, finite) in [
        (f32::NAN, false),
        (f32::INFINITY, false),
        (f32::NEG_INFINITY, false),
        (f32::MAX, false),
        (1e-38, true),
        (-1e-45, true),
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
            match finite {
                false => assert!(!bad.is_finite(), "{isa:?} {value}: {bad}"),
                true => assert!(bad.abs() < 1e-7, "{isa:?} {value}: {bad}"),
            }
        }
    }
}

/// Products of numbers as they are stored with rows that are rounded 128 at a time.
#[test]
fn blocks_give_the_bits_of_the_definition() {
    use blocks::{BLOCK, row_dwords};

    for inputs in [128, 384, 1024] {
        let groups = inputs / BLOCK;
        let mut rows: Vec<Vec<f32>> = (0..MR)
            .map(|r| (0..inputs).map(|k| number(r * 7001 + k * 13 + 1)).collect())
            .collect();
        rows[1][..BLOCK].fill(0.0);
        rows[2].fill(-3.0);
        // The numbers of a column, then its scales.
        let element = |c: usize, k: usize| match k.checked_sub(inputs) {
            None => value(((c * 31 + k * 7) % 0x7f) as u8 | (k as u8 & 1) << 7) as f32,
            Some(group) => (1 + (c + group) % 7) as f32 / 1024.0,
        };
        let column = |c: usize| (0..inputs + groups).map(|k| element(c, k)).collect();
        let columns: Vec<Vec<f32>> = (0..NR - 1).map(column).collect();
        let mut panel = vec![0; blocks::panel_lines(inputs) * NR];
        for (lane, column) in columns.iter().enumerate() {
            blocks::pack_column(column, lane, &mut panel);
        }
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            let stride = row_dwords(inputs);
            let mut left = vec![0; rows.len() * stride];
            for (row, out) in rows.iter().zip(left.chunks_exact_mut(stride)) {
                simd::round_groups(isa, row, out);
            }
            for (first, count) in [(0, MR), (2, 1), (3, 3)] {
                let mut out = Tile([[f32::NAN; NR]; MR]);
                blocks::multiply(
                    isa,
                    &left[first * stride..],
                    stride,
                    count,
                    &panel,
                    &mut out,
                );
                for (out, row) in out.0.iter().zip(&rows[first..first + count]) {
                    let of_row: Vec<_> = row.chunks_exact(BLOCK).map(rounded).collect();
                    for (&got, column) in out.iter().zip(&columns) {
                        let (numbers, scales) = column.split_at(inputs);
                        let of_column = numbers.chunks_exact(BLOCK).zip(scales);
                        let mut sum = 0.0;
                        for ((s, x), (w, t)) in of_row.iter().zip(of_column) {
                            let part = x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w);
                            sum += part * (s * t);
                        }
                        assert_eq!(got, sum, "{isa:?} {inputs}");
                    }
                    // A panel's column without an output.
                    assert_eq!(out[NR - 1], 0.0);
                }
            }
        }
    }
}
