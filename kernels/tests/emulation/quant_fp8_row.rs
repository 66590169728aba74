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
    lanes::nearest_e4m3,
    support::{Values, launch, room_bf16, under_all_schedules, upload},
};

/// Computes the scale and the quotients of a row, by definition.
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

/// Bits of quotients, and of scales, these as `[rows, width / elements]`.
pub(crate) type Bits = (Vec<u8>, Vec<u32>);

/// The elements that have a scale: the kernels of rows, or those of groups of 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaled {
    Rows,
    Groups,
}

/// Rows in the memory of a device.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) at: DevicePtr,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
    /// The place of the number of rows that count, or null for all.
    pub(crate) live: DevicePtr,
}

impl Scaled {
    /// Runs a kernel that rounds rows, given where to, and takes its results.
    fn run(
        self,
        device: &Device,
        (rows, width): (usize, usize),
        kernel: impl FnOnce(DevicePtr, DevicePtr),
    ) -> Bits {
        let groups = match self {
            Self::Rows => 1,
            Self::Groups => width / FP8_BLOCK as usize,
        };
        let q = device.alloc(rows * width).unwrap();
        let scale = device.alloc(rows * groups * 4).unwrap();
        kernel(q, scale);
        let q = device.download(q, rows * width).unwrap();
        let scales = device.download(scale, rows * groups).unwrap();
        match self {
            Self::Rows => (q, scales),
            Self::Groups => (q, of_kernels(&scales, groups)),
        }
    }

    /// Rows, or the gates of such rows, rounded.
    fn rounded_rows(self, device: &Device, x: Rows, is_gates: bool) -> Bits {
        self.run(device, (x.rows, x.width), |q, scale| {
            let params = QuantFp8RowParams {
                x: x.at,
                q,
                scale,
                live: x.live,
                rows: x.rows as u32,
                width: x.width as u32,
                x_stride: x.stride as u32,
                reserved: 0,
            };
            let shape = match (self, is_gates) {
                (Self::Rows, false) => params.launch(),
                (Self::Rows, true) => params.launch_silu_mul().unwrap(),
                (Self::Groups, false) => params.launch_groups(),
                (Self::Groups, true) => params.launch_silu_mul_groups(),
            };
            launch(device, shape, &params);
        })
    }

    /// Returns the rows with such values, of which so many count, rounded.
    pub(crate) fn quantise(
        self,
        device: &Device,
        (rows, width, stride): (usize, usize, usize),
        x: &[bf16],
        live: Option<u32>,
    ) -> Bits {
        let x = Rows {
            at: upload(device, x),
            rows,
            width,
            stride,
            live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        };
        self.rounded_rows(device, x, false)
    }

    /// Compares rows with the definition: `elements` share a scale.
    pub(crate) fn check(
        self,
        device: &Device,
        (rows, width, gap): (usize, usize, usize),
        live: Option<u32>,
    ) {
        let what = format!("{self:?} [{rows}, {width}] gap {gap} live {live:?}");
        let elements = match self {
            Self::Rows => width,
            Self::Groups => FP8_BLOCK as usize,
        };
        let mut values = Values::new((rows * 1000 + width) as u64);
        let stride = width + gap;
        let mut x = values.bf16s(rows * stride, -6.0, 6.0);
        // The largest is anywhere, negative ones among them; and what lies between rows is not of a row.
        for (row, x) in x.chunks_exact_mut(stride).enumerate() {
            for (i, group) in x[..width].chunks_exact_mut(elements).enumerate() {
                let largest = [-40.0, 1e30, 7.0, -1e-3][(row + i) % 4];
                group[values.below(elements)] = bf16::from_f32(largest);
            }
            x[width..].fill(bf16::NAN);
        }
        let (q, scales) = self.quantise(device, (rows, width, stride), &x, live);
        let groups = width / elements;
        for (i, (q, scale)) in q.chunks_exact(elements).zip(&scales).enumerate() {
            let (row, first) = (i / groups, i % groups * elements);
            if live.is_some_and(|live| row >= live as usize) {
                assert!(*scale == u32::MAX && q.iter().all(|&q| q == 0xff), "{what}");
                continue;
            }
            let expected = rounded(&x[row * stride + first..][..elements]);
            let at = format!("{what} row {row} from {first}");
            assert_eq!(*scale, expected.0.to_bits(), "{at}");
            assert_eq!(q, expected.1, "{at}");
        }
    }

    /// Gates rounded at once have the bits of gates that are stored and then rounded.
    pub(crate) fn check_gates(
        self,
        device: &Device,
        (rows, width, gap): (usize, usize, usize),
        live: Option<u32>,
    ) {
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
        let [at_once, in_turn] =
            [(gate_up, stride, true), (a, width, false)].map(|(at, stride, is_gates)| {
                let rows = Rows {
                    at,
                    rows,
                    width,
                    stride,
                    live,
                };
                self.rounded_rows(device, rows, is_gates)
            });
        assert!(at_once == in_turn, "{self:?} [{rows}, {width}]");
    }

    /// Norms rounded at once have the bits of norms that are stored and then rounded.
    pub(crate) fn check_norms(
        self,
        device: &Device,
        (rows, width, gap): (usize, usize, usize),
        live: Option<u32>,
        offset: f32,
    ) {
        let mut values = Values::new((rows + width) as u64);
        let stride = width + gap;
        let mut h = values.bf16s(rows * stride, -6.0, 6.0);
        // What lies between rows is not of a row, and the last row's numbers are small.
        for row in h.chunks_exact_mut(stride) {
            row[width..].fill(bf16::NAN);
        }
        h[(rows - 1) * stride..]
            .iter_mut()
            .for_each(|x| *x = bf16::from_f32(x.to_f32() * 1e-3));
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
        let stored = Rows {
            at: x,
            rows,
            width,
            stride: width,
            live,
        };
        let in_turn = self.rounded_rows(device, stored, false);
        let at_once = self.run(device, (rows, width), |q, scale| {
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
            let shape = match self {
                Self::Rows => params.launch(),
                Self::Groups => params.launch_groups(),
            };
            launch(device, shape, &params);
        });
        assert!(at_once == in_turn, "{self:?} [{rows}, {width}] gap {gap}");
    }
}

#[test]
fn rows_are_those_of_the_definition() {
    under_all_schedules(|device| {
        for (rows, width, gap) in [(1, 8, 0), (3, 264, 8), (2, 1024, 0), (2, 8216, 16)] {
            Scaled::Rows.check(device, (rows, width, gap), None);
        }
        Scaled::Rows.check(device, (5, 80, 8), Some(3));
    });
}

/// Rows of nothing, of subnormal numbers, of the largest number, and with what is not finite.
#[test]
fn extreme_rows() {
    under_all_schedules(|device| {
        let one = |value: f32| {
            let mut x = vec![bf16::from_f32(0.5); 16];
            x[13] = bf16::from_f32(value);
            Scaled::Rows.quantise(device, (1, 16, 16), &x, None)
        };
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!f32::from_bits(one(value).1[0]).is_finite(), "{value}");
        }
        for value in [0.0, -0.0, 1e-40, 2f32.powi(-24), -2f32.powi(-20), 3.3e38] {
            let x = [bf16::from_f32(value); 16];
            let (q, scales) = Scaled::Rows.quantise(device, (1, 16, 16), &x, None);
            let (scale, expected) = rounded(&x);
            assert_eq!(scales, [scale.to_bits()], "{value}");
            assert_eq!(q, expected, "{value}");
        }
        // Every number between 0 and the largest is hit.
        let x = (0..896).map(|i| bf16::from_f32(i as f32 / 2.0));
        let mut x: Vec<bf16> = x.collect();
        x[1] = bf16::from_f32(448.0);
        let (q, scales) = Scaled::Rows.quantise(device, (1, 896, 896), &x, None);
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
        let alone = Scaled::Rows.quantise(device, (1, width, width), &row, None);
        for (rows, at) in [(2, 0), (7, 6)] {
            let mut x = values.bf16s(rows * width, -90.0, 90.0);
            x[at * width..][..width].copy_from_slice(&row);
            let (q, scales) = Scaled::Rows.quantise(device, (rows, width, width), &x, None);
            assert_eq!(q[at * width..][..width], alone.0[..]);
            assert_eq!(scales[at], alone.1[0]);
        }
    });
}

/// Gates of narrow rows, and of such as a thread has several parts of.
#[test]
fn gates_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (rows, width, gap) in [(1, 8, 0), (3, 264, 8), (2, 1016, 0), (1, 9728, 0)] {
            Scaled::Rows.check_gates(device, (rows, width, gap), None);
        }
        Scaled::Rows.check_gates(device, (5, 80, 16), Some(3));
        let wide = QuantFp8RowParams {
            width: 25_000,
            ..bytemuck::Zeroable::zeroed()
        };
        assert_eq!(wide.launch_silu_mul(), None);
    });
}

/// Norms of narrow rows and of such as a thread has several parts of, with an offset and without.
#[test]
fn norms_are_rounded_as_if_stored() {
    under_all_schedules(|device| {
        for (shape, live, offset) in [
            ((1, 8, 0), None, 0.0),
            ((3, 264, 8), None, 1.0),
            ((2, 2560, 0), None, 0.0),
            ((2, 8216, 16), None, 1.0),
            ((5, 80, 8), Some(3), 0.0),
        ] {
            Scaled::Rows.check_norms(device, shape, live, offset);
        }
    });
}
