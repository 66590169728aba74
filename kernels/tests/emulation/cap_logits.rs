use prelude_kernels::{DevicePtr, emu::Device, families::CapLogitsParams};

use crate::support::{U32, Values, assert_within, launch, under_all_schedules, upload};

fn check(device: &Device, rows: usize, width: usize, gap: usize, live: Option<u32>) {
    const CAP: f32 = 3.0;
    let what = format!("[{rows}, {width}] gap {gap} live {live:?}");
    let stride = width + gap;
    let mut values = Values::new(9);
    let mut before = values.f32s(rows * stride, -12.0, 12.0);
    for (i, special) in [0.0, 1e-4, -1e4, 1e30, f32::NEG_INFINITY, f32::NAN]
        .into_iter()
        .enumerate()
    {
        before[i % width] = special;
    }
    let x = upload(device, &before);
    let params = CapLogitsParams {
        x,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        stride: stride as u32,
        cap: CAP,
    };
    launch(device, params.launch(), &params);
    let got: Vec<f32> = device.download(x, rows * stride).unwrap();
    let live = live.map_or(rows, |n| n as usize);
    for (i, (&got, &before)) in got.iter().zip(&before).enumerate() {
        let at = format!("{what} at {i}");
        if i / stride >= live || i % stride >= width {
            assert_eq!(got.to_bits(), before.to_bits(), "{at}: is not a logit");
        } else if before.is_nan() {
            assert!(got.is_nan(), "{at}");
        } else {
            let cap = f64::from(CAP);
            let expected = (cap * (f64::from(before) / cap).tanh(), 16.0 * U32 * cap);
            assert_within(&at, &[f64::from(got)], [expected].into_iter());
        }
    }
}

#[test]
fn logits_are_bounded_in_place() {
    under_all_schedules(|device| {
        check(device, 1, 331, 0, None);
        check(device, 3, 2048, 5, Some(2));
        check(device, 2, 4100, 1, None);
    });
}
