use half::bf16;
use prelude_kernels::{DevicePtr, emu::Device, families::LayerNormParams};

use crate::support::{
    U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
    upload, wide,
};

const EPS: f32 = 1e-6;

/// Computes a row in f64, with the bound of each number.
fn reference(h: &[f64], w: &[f64], b: &[f64]) -> Vec<(f64, f64)> {
    let n = h.len() as f64;
    let mean = h.iter().sum::<f64>() / n;
    let variance = h.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    let root = (variance + f64::from(EPS)).sqrt();
    // The mean is off by its own rounding, which counts as much as the row is narrow.
    let largest = h.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
    let of_mean = 8.0 * U32 * largest / root;
    let weights = w.iter().zip(b);
    h.iter()
        .zip(weights)
        .map(|(v, (w, b))| {
            let scaled = (v - mean) / root * w;
            let y = scaled + b;
            let inner = 16.0 * U32 * (scaled.abs() + b.abs()) + of_mean * w.abs();
            (y, 1.01 * U16 * y.abs() + inner)
        })
        .collect()
}

fn check(
    device: &Device,
    (rows, width): (usize, usize),
    gap: usize,
    live: Option<u32>,
    in_place: bool,
) {
    let what = format!("[{rows}, {width}] gap {gap} live {live:?} in place {in_place}");
    let stride = width + gap;
    let mut values = Values::new(13);
    let mut h = values.bf16s(rows * stride, -3.0, 3.0);
    // Where epsilon decides, where it is invisible, where it is all there is, and a row whose mean
    // is far larger than what its numbers differ by.
    for (row, scale, offset) in [(0, 1e-3, 0.0), (1, 1e3, 0.0), (2, 0.0, 0.0), (3, 1.0, 40.0)] {
        for v in h.iter_mut().skip(row * stride).take(width) {
            *v = bf16::from_f32(v.to_f32() * scale + offset);
        }
    }
    let (w, b) = (
        values.bf16s(width, 0.25, 4.0),
        values.bf16s(width, -1.0, 1.0),
    );
    let at = upload(device, &h);
    let x = match in_place {
        true => at,
        false => room_bf16(device, rows * stride),
    };
    let params = LayerNormParams {
        h: at,
        w: upload(device, &w),
        b: upload(device, &b),
        x,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        h_stride: stride as u32,
        x_stride: stride as u32,
        eps: EPS,
        reserved: 0,
    };
    launch(device, params.launch(), &params);
    let got: Vec<bf16> = device.download(x, rows * stride).unwrap();
    if !in_place {
        let after: Vec<bf16> = device.download(at, rows * stride).unwrap();
        assert_eq!(after, h, "{what}: h");
    }
    let live = live.map_or(rows, |n| n as usize);
    let untouched = |range: std::ops::Range<usize>| match in_place {
        true => assert_eq!(got[range.clone()], h[range], "{what}"),
        false => assert_untouched(&what, &got[range]),
    };
    for row in 0..rows {
        let range = row * stride..row * stride + width;
        untouched(range.end..(row + 1) * stride);
        if row >= live {
            untouched(range);
            continue;
        }
        let expected = reference(&wide(&h[range.clone()]), &wide(&w), &wide(&b));
        assert_within(
            &format!("{what} row {row}"),
            &wide(&got[range]),
            expected.into_iter(),
        );
    }
}

#[test]
fn norms() {
    under_all_schedules(|device| {
        for width in [8, 56, 200, 1024] {
            for in_place in [false, true] {
                check(device, (1, width), 0, None, in_place);
                check(device, (4, width), 8, None, in_place);
                check(device, (17, width), 0, Some(5), in_place);
            }
        }
    });
}

/// More than 8 elements a thread of the largest block.
#[test]
fn wide_rows() {
    under_all_schedules(|device| {
        for in_place in [false, true] {
            check(device, (2, 8192 + 24), 0, None, in_place);
        }
    });
}
