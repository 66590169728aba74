use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{GemmFp8Params, GemmOutput},
};

use crate::{
    lanes::e4m3_value,
    support::{
        U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
        upload, wide,
    },
};

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    adds: bool,
    bias: bool,
    live: Option<u32>,
    /// Elements between rows, of x, w and y alike.
    gap: usize,
    /// By the kernels for few rows.
    few: bool,
}

/// Numbers of every size, NaN apart, with NaN between rows.
pub(crate) fn e4m3s(values: &mut Values, rows: usize, width: usize, stride: usize) -> Vec<u8> {
    let mut all = vec![0x7f; rows * stride];
    for row in all.chunks_exact_mut(stride) {
        for x in &mut row[..width] {
            *x = values.bits() as u8;
            if *x & 0x7f == 0x7f {
                *x ^= 1;
            }
        }
    }
    all
}

fn output(case: Case) -> GemmOutput {
    match case.adds {
        true => GemmOutput::Add,
        false => GemmOutput::Write,
    }
}

fn check(device: &Device, case: Case) {
    let Case { m, n, k, gap, .. } = case;
    let what = format!("{case:?}");
    let mut values = Values::new((m * 1000 + n * 10 + k) as u64);
    let (x_stride, w_stride) = (k + gap, k + 2 * gap);
    let y_stride = n.next_multiple_of(8) + gap;
    let x = e4m3s(&mut values, m, k, x_stride);
    let w = e4m3s(&mut values, n, k, w_stride);
    let (x_scale, w_scale) = (values.f32s(m, 1e-3, 2e-3), values.f32s(n, 1e-4, 2e-4));
    let bias = values.bf16s(n, -4.0, 4.0);
    let before = values.bf16s(m * y_stride, -4.0, 4.0);
    let y = match case.adds {
        false => room_bf16(device, m * y_stride),
        true => upload(device, &before),
    };
    let params = GemmFp8Params {
        x: upload(device, &x),
        w: upload(device, &w),
        x_scale: upload(device, &x_scale),
        w_scale: upload(device, &w_scale),
        bias: match case.bias {
            true => upload(device, &bias),
            false => DevicePtr::NULL,
        },
        y,
        live: case.live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        m: m as u32,
        n: n as u32,
        k: k as u32,
        x_stride: x_stride as u32,
        w_stride: w_stride as u32,
        y_stride: y_stride as u32,
    };
    let shape = match case.few {
        true => params.launch_few(output(case)),
        false => params.launch(output(case)),
    };
    launch(device, shape.unwrap(), &params);
    let live = case.live.map_or(m, |n| n as usize);
    let got: Vec<bf16> = device.download(y, m * y_stride).unwrap();
    for i in (0..got.len()).filter(|i| i / y_stride >= live || i % y_stride >= n) {
        match case.adds {
            true => assert_eq!(got[i], before[i], "{what}: {i} was written"),
            false => assert_untouched(&what, &got[i..=i]),
        }
    }
    for row in 0..live {
        let expected = (0..n).map(|column| {
            let scale = f64::from(x_scale[row]) * f64::from(w_scale[column]);
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for i in 0..k {
                let product =
                    e4m3_value(x[row * x_stride + i]) * e4m3_value(w[column * w_stride + i]);
                sum += product * scale;
                magnitude += (product * scale).abs();
            }
            let mut add = |x: bf16| {
                sum += x.to_f64();
                magnitude += x.to_f64().abs();
            };
            if case.bias {
                add(bias[column]);
            }
            if case.adds {
                add(before[row * y_stride + column]);
            }
            // k additions, two scales, the bias and y itself.
            let bound = 1.001 * U16 * sum.abs() + (k + 4) as f64 * U32 * magnitude;
            (sum, bound)
        });
        let expected: Vec<_> = expected.collect();
        let got = wide(&got[row * y_stride..][..n]);
        assert_within(&format!("{what} row {row}"), &got, expected.into_iter());
    }
}

/// Edges of tiles, slabs and 16-byte columns; more slabs than stages.
#[test]
fn products() {
    under_all_schedules(|device| {
        for (i, (m, n, k, gap)) in [
            (1, 1, 16, 0),
            (3, 8, 48, 16),
            (17, 33, 64, 0),
            (65, 40, 80, 16),
            (5, 130, 272, 0),
            (130, 24, 144, 16),
        ]
        .into_iter()
        .enumerate()
        {
            let case = Case {
                m,
                n,
                k,
                gap,
                adds: i % 2 == 1,
                bias: i % 3 == 1,
                live: (i == 5).then_some(3),
                few: false,
            };
            check(device, case);
        }
    });
}

/// Few rows: edges of tiles and slabs, fewer and more slabs than a block asks for ahead, blocks of
/// 8 and of 16 warps.
#[test]
fn few_rows() {
    under_all_schedules(|device| {
        for (i, (m, n, k)) in [
            (1, 1, 16),
            (3, 40, 48),
            (8, 33, 528),
            (9, 16, 2064),
            (16, 17, 4 * 16 * 64 + 80),
            (4, 2120, 16),
        ]
        .into_iter()
        .enumerate()
        {
            let case = Case {
                m,
                n,
                k,
                adds: i % 2 == 1,
                bias: i % 3 == 0,
                live: (i % 4 == 3).then_some(m as u32 - 1),
                gap: 16 * (i % 2),
                few: true,
            };
            check(device, case);
        }
    });
}

/// A row's bits are the same among others: any number of them, and 1 to 16 by the kernels for few.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let (n, k) = (40, 1072);
        let mut values = Values::new(9);
        let row = e4m3s(&mut values, 1, k, k);
        let w = upload(device, &e4m3s(&mut values, n, k, k));
        let w_scale = upload(device, &values.f32s(n, 1e-4, 2e-4));
        for few in [false, true] {
            let mut first: Option<Vec<bf16>> = None;
            for (m, at) in [(1, 0), (2, 1), (8, 5), (9, 8), (16, 15), (140, 133)] {
                let mut x = e4m3s(&mut values, m, k, k);
                x[at * k..][..k].copy_from_slice(&row);
                let y = room_bf16(device, m * n);
                let params = GemmFp8Params {
                    x: upload(device, &x),
                    w,
                    x_scale: upload(device, &vec![1e-3f32; m]),
                    w_scale,
                    bias: DevicePtr::NULL,
                    y,
                    live: DevicePtr::NULL,
                    m: m as u32,
                    n: n as u32,
                    k: k as u32,
                    x_stride: k as u32,
                    w_stride: k as u32,
                    y_stride: n as u32,
                };
                let shape = match few {
                    true => params.launch_few(GemmOutput::Write),
                    false => params.launch(GemmOutput::Write),
                };
                let Some(shape) = shape else {
                    assert!(few && m > 16);
                    continue;
                };
                launch(device, shape, &params);
                let got: Vec<bf16> = device.download(y, m * n).unwrap();
                let got = got[at * n..][..n].to_vec();
                assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{m} {at}");
            }
        }
    });
}

#[test]
fn there_are_no_products_in_f32_and_few_rows_are_16() {
    let params: GemmFp8Params = bytemuck::Zeroable::zeroed();
    assert_eq!(params.launch(GemmOutput::F32), None);
    assert_eq!(params.launch_few(GemmOutput::F32), None);
    let params = GemmFp8Params { m: 17, ..params };
    assert_eq!(params.launch_few(GemmOutput::Write), None);
}
