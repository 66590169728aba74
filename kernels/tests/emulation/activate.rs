use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{ActivateParams, Function},
};

use crate::support::{
    U16, U32, Values, assert_within, erf, launch, under_all_schedules, upload, wide,
};

fn function(f: Function, x: f64) -> f64 {
    match f {
        Function::GeluErf => x / 2.0 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Function::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * inner).exp())
        }
        Function::Relu => x.max(0.0),
        Function::Tanh => x.tanh(),
    }
}

fn check(device: &Device, f: Function, (rows, width): (usize, usize), live: Option<u32>) {
    let what = format!("{f:?} [{rows}, {width}] live {live:?}");
    let stride = width + 8;
    let mut values = Values::new(12);
    let mut x = values.bf16s(rows * stride, -6.0, 6.0);
    // Where exponentials over- and underflow, and where numbers are nearly the largest.
    for (i, special) in [0.0, 1e-3, 20.0, -20.0, 88.0, -1e4, 3e38, -3e38]
        .into_iter()
        .enumerate()
    {
        x[i] = bf16::from_f32(special);
    }
    let at = upload(device, &x);
    let params = ActivateParams {
        x: at,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        stride: stride as u32,
        reserved: 0,
    };
    launch(device, params.launch(f), &params);
    let got: Vec<bf16> = device.download(at, rows * stride).unwrap();
    let live = live.map_or(rows, |n| n as usize);
    for row in 0..rows {
        let (end, next) = (row * stride + width, (row + 1) * stride);
        assert_eq!(got[end..next], x[end..next], "{what}: behind row {row}");
        let row = row * stride..end;
        if row.start >= live * stride {
            assert_eq!(
                got[row.clone()],
                x[row],
                "{what}: a row that does not count"
            );
            continue;
        }
        let expected: Vec<_> = wide(&x[row.clone()])
            .into_iter()
            .map(|x| (x, function(f, x)))
            // The error function is within 1.5e-7 of itself, tanh within units of 1.
            .map(|(x, y)| (y, 1.01 * U16 * y.abs() + 8.0 * U32 * x.abs().max(1.0)))
            .collect();
        assert_within(&what, &wide(&got[row]), expected.into_iter());
    }
}

#[test]
fn functions() {
    under_all_schedules(|device| {
        for f in [
            Function::GeluErf,
            Function::GeluTanh,
            Function::Relu,
            Function::Tanh,
        ] {
            for size in [(1, 8), (3, 56), (17, 200), (2, 1024)] {
                check(device, f, size, None);
            }
            check(device, f, (17, 72), Some(9));
        }
    });
}

/// A number that is none spoils itself and no other.
#[test]
fn not_numbers_stay() {
    under_all_schedules(|device| {
        for f in [
            Function::GeluErf,
            Function::GeluTanh,
            Function::Relu,
            Function::Tanh,
        ] {
            let mut x = vec![bf16::ONE; 8];
            x[3] = bf16::NAN;
            let at = upload(device, &x);
            let params = ActivateParams {
                x: at,
                live: DevicePtr::NULL,
                rows: 1,
                width: 8,
                stride: 8,
                reserved: 0,
            };
            launch(device, params.launch(f), &params);
            let got: Vec<bf16> = device.download(at, 8).unwrap();
            for (i, x) in got.iter().enumerate() {
                assert_eq!(x.is_nan(), i == 3, "{f:?} at {i}");
            }
        }
    });
}
