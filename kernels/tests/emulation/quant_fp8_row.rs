use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{
        Gate, QuantFp8RowParams, RmsNormForm, RmsNormFp8RowParams, RmsNormParams, SiluMulParams,
    },
};

use crate::{
    lanes::nearest_e4m3,
    support::{Values, launch, room_bf16, under_all_schedules, upload},
};

/// The scale and the quotients of a row, by definition.
pub(crate) fn rounded(row: &[bf16]) -> (f32, Vec<u8>) {
    let largest = row.iter().fold(0.0, |most: f32, x| {
        let size = x.to_f32().abs();
        if most.is_nan() || size.is_nan() {
            f32::NAN
        } else {
            most.max(size)
        }
    });
    let largest = if largest < 2f32.powi(-24) {
        2f32.powi(-24)
    } else {
        largest
    };
    let scale = largest / 448.0;
    let q = row.iter().map(|x| nearest_e4m3(x.to_f32() / scale));
    (scale, q.collect())
}

/// Bits of quotients and scales of rows with such values.
fn quantise(
    device: &Device,
    rows: usize,
    width: usize,
    stride: usize,
    x: &[bf16],
    live: Option<u32>,
) -> (Vec<u8>, Vec<u32>) {
    let q = device.alloc(rows * width).unwrap();
    let scale = device.alloc(rows * 4).unwrap();
    let params = QuantFp8RowParams {
        x: upload(device, x),
        q,
        scale,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        x_stride: stride as u32,
        reserved: 0,
    };
    launch(device, params.launch(), &params);
    let q = device.download(q, rows * width).unwrap();
    (q, device.download(scale, rows).unwrap())
}

fn check(device: &Device, rows: usize, width: usize, gap: usize, live: Option<u32>) {
    let what = format!("[{rows}, {width}] gap {gap} live {live:?}");
    let mut values = Values::new((rows * 1000 + width) as u64);
    let stride = width + gap;
    let mut x = values.bf16s(rows * stride, -6.0, 6.0);
    // The largest is anywhere, negative ones among them; and what lies between rows is not of a row.
    for (row, x) in x.chunks_exact_mut(stride).enumerate() {
        x[values.below(width)] = bf16::from_f32([-40.0, 1e30, 7.0][row % 3]);
        x[width..].fill(bf16::NAN);
    }
    let (q, scales) = quantise(device, rows, width, stride, &x, live);
    for row in 0..rows {
        let (q, scale) = (&q[row * width..][..width], scales[row]);
        if live.is_some_and(|live| row >= live as usize) {
            assert!(scale == u32::MAX && q.iter().all(|&q| q == 0xff), "{what}");
            continue;
        }
        let expected = rounded(&x[row * stride..][..width]);
        assert_eq!(scale, expected.0.to_bits(), "{what} row {row}");
        assert_eq!(q, expected.1, "{what} row {row}");
    }
}

#[test]
fn rows_are_those_of_the_definition() {
    under_all_schedules(|device| {
        for (rows, width, gap) in [(1, 8, 0), (3, 264, 8), (2, 1024, 0), (2, 8216, 16)] {
            check(device, rows, width, gap, None);
        }
        check(device, 5, 80, 8, Some(3));
    });
}

/// Rows of nothing, of subnormal numbers, of the largest number, and with what is not finite.
#[test]
fn extreme_rows() {
    under_all_schedules(|device| {
        let one = |value: f32| {
            let mut x = vec![bf16::from_f32(0.5); 16];
            x[13] = bf16::from_f32(value);
            quantise(device, 1, 16, 16, &x, None)
        };
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!f32::from_bits(one(value).1[0]).is_finite(), "{value}");
        }
        for value in [0.0, -0.0, 1e-40, 2f32.powi(-24), -2f32.powi(-20), 3.3e38] {
            let x = [bf16::from_f32(value); 16];
            let (q, scales) = quantise(device, 1, 16, 16, &x, None);
            let (scale, expected) = rounded(&x);
            assert_eq!(scales, [scale.to_bits()], "{value}");
            assert_eq!(q, expected, "{value}");
        }
        // Every number between 0 and the largest is hit.
        let x = (0..896).map(|i| bf16::from_f32(i as f32 / 2.0));
        let mut x: Vec<bf16> = x.collect();
        x[1] = bf16::from_f32(448.0);
        let (q, scales) = quantise(device, 1, 896, 896, &x, None);
        assert_eq!(scales, [1f32.to_bits()]);
        assert_eq!(q, rounded(&x).1);
    });
}

/// A row's bits are the same alone and among others.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let width = 136;
        let mut values = Values::new(11);
        let row = values.bf16s(width, -1.0, 1.0);
        let alone = quantise(device, 1, width, width, &row, None);
        for (rows, at) in [(2, 0), (7, 6)] {
            let mut x = values.bf16s(rows * width, -90.0, 90.0);
            x[at * width..][..width].copy_from_slice(&row);
            let (q, scales) = quantise(device, rows, width, width, &x, None);
            assert_eq!(q[at * width..][..width], alone.0[..]);
            assert_eq!(scales[at], alone.1[0]);
        }
    });
}

/// Gates rounded at once have the bits of gates that are stored and then rounded.
#[test]
fn gates_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (rows, width, gap, live) in [
            (1, 8, 0, None),
            (3, 264, 8, None),
            (2, 1016, 0, None),
            (1, 9728, 0, None),
            (5, 80, 16, Some(3u32)),
        ] {
            let mut values = Values::new((rows + width) as u64);
            let stride = 2 * width + gap;
            let mut x = values.bf16s(rows * stride, -6.0, 6.0);
            // A gate that overflows in the exponential, and a product that is the largest.
            x[0] = bf16::from_f32(-120.0);
            x[(rows - 1) * stride + width - 1] = bf16::from_f32(90.0);
            let live = live.map_or(DevicePtr::NULL, |n| upload(device, &[n]));
            let gate_up = upload(device, &x);
            let a = room_bf16(device, rows * width);
            let stored = SiluMulParams {
                gate_up,
                a,
                live,
                rows: rows as u32,
                width: width as u32,
                gate_up_stride: stride as u32,
                a_stride: width as u32,
            };
            launch(device, stored.launch(Gate::Silu), &stored);
            let [one, two] = [true, false].map(|at_once| {
                let q = device.alloc(rows * width).unwrap();
                let scale = device.alloc(rows * 4).unwrap();
                let params = QuantFp8RowParams {
                    x: if at_once { gate_up } else { a },
                    q,
                    scale,
                    live,
                    rows: rows as u32,
                    width: width as u32,
                    x_stride: (if at_once { stride } else { width }) as u32,
                    reserved: 0,
                };
                let shape = match at_once {
                    true => params.launch_silu_mul().unwrap(),
                    false => params.launch(),
                };
                launch(device, shape, &params);
                let q: Vec<u8> = device.download(q, rows * width).unwrap();
                let scale: Vec<u32> = device.download(scale, rows).unwrap();
                (q, scale)
            });
            assert!(one == two, "[{rows}, {width}]");
        }
        let wide = QuantFp8RowParams {
            width: 25_000,
            ..bytemuck::Zeroable::zeroed()
        };
        assert_eq!(wide.launch_silu_mul(), None);
    });
}

/// Norms rounded at once have the bits of norms that are stored and then rounded: narrow rows and such
/// as a thread has several parts of, with an offset and without.
#[test]
fn norms_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (rows, width, gap, live, offset) in [
            (1, 8, 0, None, 0.0),
            (3, 264, 8, None, 1.0),
            (2, 2560, 0, None, 0.0),
            (2, 8216, 16, None, 1.0),
            (5, 80, 8, Some(3u32), 0.0),
        ] {
            let what = format!("[{rows}, {width}] + {gap}");
            let mut values = Values::new((rows + width) as u64);
            let stride = width + gap;
            let mut h = values.bf16s(rows * stride, -6.0, 6.0);
            // What lies between rows is not of a row, and the last row's numbers are small.
            h[(rows - 1) * stride..]
                .iter_mut()
                .for_each(|x| *x = bf16::from_f32(x.to_f32() * 1e-3));
            for row in h.chunks_exact_mut(stride) {
                row[width..].fill(bf16::NAN);
            }
            let h = upload(device, &h);
            let w = upload(device, &values.bf16s(width, -2.0, 2.0));
            let live = live.map_or(DevicePtr::NULL, |n| upload(device, &[n]));
            let [q_at_once, q_stored] = [(); 2].map(|()| device.alloc(rows * width).unwrap());
            let [at_once, stored] = [(); 2].map(|()| device.alloc(rows * 4).unwrap());
            let x = room_bf16(device, rows * width);
            let norm = RmsNormParams {
                h,
                d: DevicePtr::NULL,
                w,
                x,
                live,
                rows: rows as u32,
                width: width as u32,
                h_stride: stride as u32,
                d_stride: 0,
                x_stride: width as u32,
                eps: 1e-6,
                offset,
                reserved: 0,
            };
            launch(device, norm.launch(RmsNormForm::Plain), &norm);
            let in_turn = QuantFp8RowParams {
                x,
                q: q_stored,
                scale: stored,
                live,
                rows: rows as u32,
                width: width as u32,
                x_stride: width as u32,
                reserved: 0,
            };
            launch(device, in_turn.launch(), &in_turn);
            let fused = RmsNormFp8RowParams {
                h,
                w,
                q: q_at_once,
                scale: at_once,
                live,
                rows: rows as u32,
                width: width as u32,
                h_stride: stride as u32,
                eps: 1e-6,
                offset,
                reserved: 0,
            };
            launch(device, fused.launch(), &fused);
            let [at_once, stored] =
                [at_once, stored].map(|at| device.download::<u32>(at, rows).unwrap());
            assert_eq!(at_once, stored, "{what}: scales");
            let [at_once, stored] =
                [q_at_once, q_stored].map(|at| device.download::<u8>(at, rows * width).unwrap());
            assert!(at_once == stored, "{what}");
        }
    });
}
