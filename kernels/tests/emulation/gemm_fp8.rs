use half::bf16;
use prelude_kernels::{
    DevicePtr, Launch,
    emu::Device,
    families::{FP8_BLOCK, GemmFp8Params, GemmOutput},
};

use crate::{
    fp8_scales::{of_weight, to_kernels},
    lanes::e4m3_value,
    support::{
        U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
        upload, wide,
    },
};

/// A kernel, and the scales that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Rows,
    FewRows,
    /// Scales of blocks, in tiles of two sizes.
    LargeBlocks,
    SmallBlocks,
    FewBlocks,
}

impl Kernel {
    pub(crate) fn launch(self, params: &GemmFp8Params, output: GemmOutput) -> Option<Launch> {
        let tiles = params.launch_blocks_tiles(output);
        match self {
            Self::Rows => params.launch(output),
            Self::FewRows => params.launch_few(output),
            Self::LargeBlocks => tiles.map(|[large, _]| large),
            Self::SmallBlocks => tiles.map(|[_, small]| small),
            Self::FewBlocks => params.launch_blocks_few(output),
        }
    }

    const fn is_of_rows(self) -> bool {
        matches!(self, Self::Rows | Self::FewRows)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) adds: bool,
    pub(crate) bias: bool,
    pub(crate) live: Option<u32>,
    /// Elements between rows, of x, w and y alike.
    pub(crate) gap: usize,
    pub(crate) kernel: Kernel,
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

/// Scales of very different sizes: another place's shows.
pub(crate) fn uneven(values: &mut Values, count: usize) -> Vec<f32> {
    let mut scales = values.f32s(count, 1e-3, 2e-3);
    for scale in scales.iter_mut().step_by(3) {
        *scale *= 64.0;
    }
    scales
}

pub(crate) fn check(device: &Device, case: Case) {
    let Case { m, n, k, gap, .. } = case;
    let what = format!("{case:?}");
    let mut values = Values::new((m * 1000 + n * 10 + k) as u64);
    let (x_stride, w_stride) = (k + gap, k + 2 * gap);
    let y_stride = n.next_multiple_of(8) + gap;
    let x = e4m3s(&mut values, m, k, x_stride);
    let w = e4m3s(&mut values, n, k, w_stride);
    // Elements of a row, and rows of w, that have a scale.
    let (elements, rows) = match case.kernel.is_of_rows() {
        true => (k, 1),
        false => (FP8_BLOCK as usize, FP8_BLOCK as usize),
    };
    let groups = k / elements;
    let x_scale = uneven(&mut values, m * groups);
    let w_scale = uneven(&mut values, n.div_ceil(rows) * groups);
    let (x_stored, w_stored) = match case.kernel.is_of_rows() {
        true => (x_scale.clone(), w_scale.clone()),
        false => (to_kernels(&x_scale, groups), of_weight(&w_scale, groups)),
    };
    let bias = values.bf16s(n, -4.0, 4.0);
    let before = values.bf16s(m * y_stride, -4.0, 4.0);
    let y = match case.adds {
        false => room_bf16(device, m * y_stride),
        true => upload(device, &before),
    };
    let params = GemmFp8Params {
        x: upload(device, &x),
        w: upload(device, &w),
        x_scale: upload(device, &x_stored),
        w_scale: upload(device, &w_stored),
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
    let output = match case.adds {
        true => GemmOutput::Add,
        false => GemmOutput::Write,
    };
    let shape = case.kernel.launch(&params, output);
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
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for i in 0..k {
                let group = i / elements;
                let product = e4m3_value(x[row * x_stride + i])
                    * e4m3_value(w[column * w_stride + i])
                    * f64::from(x_scale[row * groups + group])
                    * f64::from(w_scale[column / rows * groups + group]);
                sum += product;
                magnitude += product.abs();
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
            // k additions, products of scales, sums of groups, the bias and y itself.
            let bound = 1.001 * U16 * sum.abs() + (k + 2 * groups + 4) as f64 * U32 * magnitude;
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
                kernel: Kernel::Rows,
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
                kernel: Kernel::FewRows,
            };
            check(device, case);
        }
    });
}

/// Compares a row's bits among others, any number of them, by some kernels, which may differ from others'.
pub(crate) fn check_batches(device: &Device, kernels: &[Kernel], (n, k): (usize, usize)) {
    let of_rows = kernels[0].is_of_rows();
    let groups = if of_rows { 1 } else { k / FP8_BLOCK as usize };
    let mut values = Values::new(9);
    let row = e4m3s(&mut values, 1, k, k);
    let row_scales = uneven(&mut values, groups);
    let w = upload(device, &e4m3s(&mut values, n, k, k));
    let w_scale = match of_rows {
        true => values.f32s(n, 1e-4, 2e-4),
        false => of_weight(&values.f32s(groups, 1e-4, 2e-4), groups),
    };
    let w_scale = upload(device, &w_scale);
    let mut first: Option<Vec<bf16>> = None;
    for (m, at) in [(1, 0), (2, 1), (8, 5), (9, 8), (16, 15), (140, 133)] {
        let mut x = e4m3s(&mut values, m, k, k);
        x[at * k..][..k].copy_from_slice(&row);
        let mut scales = values.f32s(m * groups, 0.1, 10.0);
        scales[at * groups..][..groups].copy_from_slice(&row_scales);
        if !of_rows {
            scales = to_kernels(&scales, groups);
        }
        let y = room_bf16(device, m * n);
        let params = GemmFp8Params {
            x: upload(device, &x),
            w,
            x_scale: upload(device, &scales),
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
        for kernel in kernels {
            let Some(shape) = kernel.launch(&params, GemmOutput::Write) else {
                assert!(m > 16 && matches!(kernel, Kernel::FewRows | Kernel::FewBlocks));
                continue;
            };
            launch(device, shape, &params);
            let got: Vec<bf16> = device.download(y, m * n).unwrap();
            let got = got[at * n..][..n].to_vec();
            let what = format!("{kernel:?}: row {at} of {m}");
            assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{what}");
        }
    }
}

/// A row's bits are the same among others: any number of them, and 1 to 16 by the kernels for few.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        for kernel in [Kernel::Rows, Kernel::FewRows] {
            check_batches(device, &[kernel], (40, 1072));
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
