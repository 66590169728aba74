use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{
        FP8_BLOCK, Gate, QuantFp8RowParams, RmsNormForm, RmsNormFp8RowParams, RmsNormParams,
        SiluMulParams,
    },
};

use crate::{
    fp8_scales::of_kernels,
    quant_fp8_row::rounded,
    support::{Values, launch, room_bf16, under_all_schedules, upload},
};

const GROUP: usize = FP8_BLOCK as usize;

/// Bits of quotients, and of scales, these as `[rows, width / 128]`.
type Bits = (Vec<u8>, Vec<u32>);

/// Runs a kernel that rounds `rows` rows of `width`, given where to.
fn run(
    device: &Device,
    (rows, width): (usize, usize),
    kernel: impl FnOnce(DevicePtr, DevicePtr),
) -> Bits {
    let scales = rows * width / GROUP;
    let q = device.alloc(rows * width).unwrap();
    let scale = device.alloc(scales * 4).unwrap();
    kernel(q, scale);
    let q = device.download(q, rows * width).unwrap();
    let scales = device.download(scale, scales).unwrap();
    (q, of_kernels(&scales, width / GROUP))
}

fn params(
    (rows, width, stride): (usize, usize, usize),
    x: DevicePtr,
    live: DevicePtr,
    (q, scale): (DevicePtr, DevicePtr),
) -> QuantFp8RowParams {
    QuantFp8RowParams {
        x,
        q,
        scale,
        live,
        rows: rows as u32,
        width: width as u32,
        x_stride: stride as u32,
        reserved: 0,
    }
}

fn quantise(
    device: &Device,
    shape @ (rows, width, _): (usize, usize, usize),
    x: &[bf16],
    live: Option<u32>,
) -> Bits {
    let x = upload(device, x);
    let live = live.map_or(DevicePtr::NULL, |n| upload(device, &[n]));
    run(device, (rows, width), |q, scale| {
        let params = params(shape, x, live, (q, scale));
        launch(device, params.launch_groups(), &params);
    })
}

/// Values of which the largest of a group is anywhere, negative ones among them; and what lies between
/// rows is not of a row.
fn numbers(values: &mut Values, rows: usize, width: usize, stride: usize) -> Vec<bf16> {
    let mut x = values.bf16s(rows * stride, -6.0, 6.0);
    for x in x.chunks_exact_mut(stride) {
        for (i, group) in x[..width].chunks_exact_mut(GROUP).enumerate() {
            group[values.below(GROUP)] = bf16::from_f32([-40.0, 1e30, 7.0, -1e-3][i % 4]);
        }
        x[width..].fill(bf16::NAN);
    }
    x
}

fn check(device: &Device, rows: usize, width: usize, gap: usize, live: Option<u32>) {
    let what = format!("[{rows}, {width}] gap {gap} live {live:?}");
    let mut values = Values::new((rows * 1000 + width) as u64);
    let stride = width + gap;
    let x = numbers(&mut values, rows, width, stride);
    let (q, scales) = quantise(device, (rows, width, stride), &x, live);
    for (i, (q, scale)) in q.chunks_exact(GROUP).zip(&scales).enumerate() {
        let (row, first) = (i / (width / GROUP), i % (width / GROUP) * GROUP);
        if live.is_some_and(|live| row >= live as usize) {
            assert!(*scale == u32::MAX && q.iter().all(|&q| q == 0xff), "{what}");
            continue;
        }
        let expected = rounded(&x[row * stride + first..][..GROUP]);
        assert_eq!(
            *scale,
            expected.0.to_bits(),
            "{what} row {row} from {first}"
        );
        assert_eq!(q, expected.1, "{what} row {row} from {first}");
    }
}

#[test]
fn groups_are_those_of_the_definition() {
    under_all_schedules(|device| {
        for (rows, width, gap) in [
            (1, 128, 0),
            (3, 384, 8),
            (4, 1024, 0),
            (2, 8320, 16),
            (19, 384, 0),
        ] {
            check(device, rows, width, gap, None);
        }
        check(device, 5, 256, 8, Some(3));
        check(device, 21, 256, 0, Some(18));
    });
}

/// An element that is not finite makes the scale of its own group not finite, and no other.
/// Groups of nothing have the least scale.
#[test]
fn groups_do_not_know_each_other() {
    under_all_schedules(|device| {
        let width = 3 * GROUP;
        let plain = vec![bf16::from_f32(0.5); width];
        let expected = quantise(device, (1, width, width), &plain, None);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0] {
            for at in [0, 1, 2] {
                let mut x = plain.clone();
                let group = &mut x[at * GROUP..][..GROUP];
                if value == 0.0 {
                    group.fill(bf16::ZERO);
                }
                group[77] = bf16::from_f32(value);
                let (q, scales) = quantise(device, (1, width, width), &x, None);
                for other in (0..3).filter(|&other| other != at) {
                    let places = other * GROUP..(other + 1) * GROUP;
                    assert_eq!(q[places.clone()], expected.0[places], "{value}");
                    assert_eq!(scales[other], expected.1[other], "{value}");
                }
                let scale = f32::from_bits(scales[at]);
                match value == 0.0 {
                    true => assert_eq!(scale, 2f32.powi(-24) / 448.0),
                    false => assert!(!scale.is_finite(), "{value}"),
                }
            }
        }
    });
}

/// Gates rounded at once have the bits of gates that are stored and then rounded.
#[test]
fn gates_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (rows, width, gap, live) in [
            (1, 128, 0, None),
            (3, 384, 8, None),
            (1, 9728, 0, None),
            (5, 256, 16, Some(3u32)),
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
            let at_once = run(device, (rows, width), |q, scale| {
                let params = params((rows, width, stride), gate_up, live, (q, scale));
                launch(device, params.launch_silu_mul_groups(), &params);
            });
            let in_turn = run(device, (rows, width), |q, scale| {
                let params = params((rows, width, width), a, live, (q, scale));
                launch(device, params.launch_groups(), &params);
            });
            assert!(at_once == in_turn, "[{rows}, {width}]");
        }
    });
}

/// Norms rounded at once have the bits of norms that are stored and then rounded: narrow rows and such
/// as a thread has several parts of, with an offset and without.
#[test]
fn norms_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (rows, width, gap, live, offset) in [
            (1, 128, 0, None, 0.0),
            (3, 384, 8, None, 1.0),
            (2, 8320, 16, None, 1.0),
            (5, 256, 8, Some(3u32), 0.0),
        ] {
            let what = format!("[{rows}, {width}] + {gap}");
            let mut values = Values::new((rows + width) as u64);
            let stride = width + gap;
            let mut h = values.bf16s(rows * stride, -6.0, 6.0);
            for row in h.chunks_exact_mut(stride) {
                row[width..].fill(bf16::NAN);
            }
            let h = upload(device, &h);
            let w = upload(device, &values.bf16s(width, -2.0, 2.0));
            let live = live.map_or(DevicePtr::NULL, |n| upload(device, &[n]));
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
            let in_turn = run(device, (rows, width), |q, scale| {
                let params = params((rows, width, width), x, live, (q, scale));
                launch(device, params.launch_groups(), &params);
            });
            let at_once = run(device, (rows, width), |q, scale| {
                let params = RmsNormFp8RowParams {
                    h,
                    w,
                    q,
                    scale,
                    live,
                    rows: rows as u32,
                    width: width as u32,
                    h_stride: stride as u32,
                    eps: 1e-6,
                    offset,
                    reserved: 0,
                };
                launch(device, params.launch_groups(), &params);
            });
            assert!(at_once == in_turn, "{what}");
        }
    });
}
