use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{RmsNormForm, RmsNormParams},
};

use crate::support::{
    U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
    upload, wide,
};

const EPS: f32 = 1e-6;

/// Returns the rows of `h` in f64, each normalised, and times `w`.
fn reference(h: &[f64], w: &[f64]) -> Vec<f64> {
    h.chunks_exact(w.len())
        .flat_map(|row| {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            row.iter().zip(w).map(move |(v, w)| v * scale * w)
        })
        .collect()
}

struct Case {
    rows: usize,
    width: usize,
    add: bool,
    /// Rows that count, if not all.
    live: Option<u32>,
    /// Elements between rows beyond the width.
    gap: usize,
}

fn check(device: &Device, case: &Case) {
    let Case {
        rows,
        width,
        add,
        live,
        gap,
    } = *case;
    let what = format!("[{rows}, {width}] add {add} live {live:?} gap {gap}");
    let stride = width + gap;
    let mut values = Values::new(7);
    let mut h = values.bf16s(rows * stride, -3.0, 3.0);
    // Where epsilon decides, where it is invisible, and where it is all there is.
    for (row, scale) in [(0, 1e-3), (1, 1e3), (2, 0.0)] {
        for v in h.iter_mut().skip(row * stride).take(width) {
            *v = bf16::from_f32(v.to_f32() * scale);
        }
    }
    let d = values.bf16s(rows * stride, -1.0, 1.0);
    let w = values.bf16s(width, 0.25, 4.0);
    let at = upload(device, &h);
    let x = room_bf16(device, rows * stride);
    let count = live.map_or(rows, |n| n as usize);
    let params = RmsNormParams {
        h: at,
        d: if add {
            upload(device, &d)
        } else {
            DevicePtr::NULL
        },
        w: upload(device, &w),
        x,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        h_stride: stride as u32,
        d_stride: stride as u32,
        x_stride: stride as u32,
        eps: EPS,
        offset: 0.0,
        reserved: 0,
    };
    let form = match add {
        true => RmsNormForm::AfterSum,
        false => RmsNormForm::Plain,
    };
    launch(device, params.launch(form), &params);
    if add {
        for row in 0..count {
            for i in row * stride..row * stride + width {
                h[i] = bf16::from_f32(h[i].to_f32() + d[i].to_f32());
            }
        }
    }
    let after: Vec<bf16> = device.download(at, rows * stride).unwrap();
    assert_eq!(after, h, "{what}: h");
    let got: Vec<bf16> = device.download(x, rows * stride).unwrap();
    let mut end = 0;
    for row in 0..count {
        assert_untouched(&what, &got[end..row * stride]);
        end = row * stride + width;
        let expected = reference(&wide(&h[row * stride..end]), &wide(&w));
        // Quotient and product are rounded to bf16; the sum is in f32 in a tree.
        let bound = 2.02 * U16 + 16.0 * U32;
        let within = expected.iter().map(|&y| (y, bound * y.abs()));
        assert_within(
            &format!("{what} row {row}"),
            &wide(&got[row * stride..end]),
            within,
        );
    }
    assert_untouched(&what, &got[end..]);
}

#[test]
fn norms() {
    under_all_schedules(|device| {
        for width in [8, 56, 200, 1024] {
            for rows in [1, 3, 17] {
                for add in [false, true] {
                    let gap = if rows == 3 { 8 } else { 0 };
                    let live = (rows == 17).then_some(5);
                    check(
                        device,
                        &Case {
                            rows,
                            width,
                            add,
                            live,
                            gap,
                        },
                    );
                }
            }
        }
    });
}

/// More than 8 elements a thread of the largest block.
#[test]
fn wide_rows() {
    under_all_schedules(|device| {
        for add in [false, true] {
            let (rows, width, live, gap) = (2, 8192 + 24, None, 0);
            check(
                device,
                &Case {
                    rows,
                    width,
                    add,
                    live,
                    gap,
                },
            );
        }
    });
}

/// The quotient is rounded to bf16 before the product with the weight.
#[test]
fn rounds_before_the_weight() {
    under_all_schedules(|device| {
        let mut values = Values::new(3);
        let width = 256;
        let h = values.bf16s(width, -3.0, 3.0);
        let w = values.bf16s(width, 0.25, 4.0);
        let x = room_bf16(device, width);
        let params = RmsNormParams {
            h: upload(device, &h),
            d: DevicePtr::NULL,
            w: upload(device, &w),
            x,
            live: DevicePtr::NULL,
            rows: 1,
            width: width as u32,
            h_stride: width as u32,
            d_stride: 0,
            x_stride: width as u32,
            eps: EPS,
            offset: 0.0,
            reserved: 0,
        };
        launch(device, params.launch(RmsNormForm::Plain), &params);
        let got: Vec<bf16> = device.download(x, width).unwrap();
        let mean = wide(&h).iter().map(|v| v * v).sum::<f64>() / width as f64;
        let scale = (1.0 / (mean + f64::from(EPS)).sqrt()) as f32;
        let twice = |i: usize| {
            let normed = bf16::from_f32(h[i].to_f32() * scale);
            bf16::from_f32(normed.to_f32() * w[i].to_f32())
        };
        // The scale may differ in its last place, which moves a rounding now and then.
        let differing = (0..width).filter(|&i| got[i] != twice(i)).count();
        assert!(differing <= 2, "{differing} of {width}");
    });
}

/// A weight that is stored less 1, before a product and behind one: `h += norm(d) · (1 + w)`. Sums and
/// products are rounded once.
#[test]
fn offsets_and_norms_behind() {
    under_all_schedules(|device| {
        for (rows, width, live) in [(1, 8, None), (3, 200, Some(2)), (2, 8192 + 24, None)] {
            for form in [RmsNormForm::Plain, RmsNormForm::Behind] {
                check_offset(device, (rows, width), live, form);
            }
        }
    });
}

fn check_offset(
    device: &Device,
    (rows, width): (usize, usize),
    live: Option<u32>,
    form: RmsNormForm,
) {
    let what = format!("{form:?} [{rows}, {width}] live {live:?}");
    let stride = width + 8;
    let mut values = Values::new(11);
    let h = values.bf16s(rows * stride, -3.0, 3.0);
    let d = values.bf16s(rows * stride, -3.0, 3.0);
    // Sums rounded to bf16 would show.
    let w = values.bf16s(width, -0.3, 0.3);
    let is_behind = form == RmsNormForm::Behind;
    let x = room_bf16(device, rows * stride);
    let at = upload(device, &h);
    let params = RmsNormParams {
        h: at,
        d: upload(device, &d),
        w: upload(device, &w),
        x: if is_behind { DevicePtr::NULL } else { x },
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        h_stride: stride as u32,
        d_stride: stride as u32,
        x_stride: stride as u32,
        eps: EPS,
        offset: 1.0,
        reserved: 0,
    };
    launch(device, params.launch(form), &params);
    let after: Vec<bf16> = device.download(at, rows * stride).unwrap();
    let got = match is_behind {
        true => after,
        false => {
            assert_eq!(after, h, "{what}: h");
            device.download(x, rows * stride).unwrap()
        }
    };
    let weight: Vec<f64> = wide(&w).into_iter().map(|w| 1.0 + w).collect();
    let live = live.map_or(rows, |n| n as usize);
    for row in 0..rows {
        let range = row * stride..row * stride + width;
        let gap = range.end..(row + 1) * stride;
        if is_behind {
            assert_eq!(got[gap.clone()], h[gap], "{what}: gap {row}");
        } else {
            assert_untouched(&what, &got[gap]);
        }
        if row >= live {
            match is_behind {
                true => assert_eq!(got[range.clone()], h[range], "{what}: row {row}"),
                false => assert_untouched(&what, &got[range]),
            }
            continue;
        }
        let input = if is_behind { &d } else { &h };
        let normed = reference(&wide(&input[range.clone()]), &weight);
        let before = wide(&h[range.clone()]);
        let expected = normed.iter().zip(&before).map(|(y, h)| {
            let (value, inner) = match is_behind {
                true => (h + y, h.abs() + y.abs()),
                false => (*y, y.abs()),
            };
            (value, 1.01 * U16 * value.abs() + 32.0 * U32 * inner)
        });
        let expected: Vec<_> = expected.collect();
        assert_within(
            &format!("{what} row {row}"),
            &wide(&got[range]),
            expected.into_iter(),
        );
    }
}
