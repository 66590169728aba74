use half::bf16;
use prelude_kernels::{
    DevicePtr, Launch,
    emu::Device,
    families::{FP8_BLOCK, GemmFp8Params, GemmOutput},
};

use crate::{
    fp8_scales::{of_weight, to_kernels},
    gemm_fp8::e4m3s,
    lanes::e4m3_value,
    support::{
        U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
        upload, wide,
    },
};

const BLOCK: usize = FP8_BLOCK as usize;

/// The kernel of a case.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Few,
    Large,
    Small,
}

impl Kernel {
    fn launch(self, params: &GemmFp8Params, output: GemmOutput) -> Option<Launch> {
        let tiles = params.launch_blocks_tiles(output);
        match self {
            Self::Few => params.launch_blocks_few(output),
            Self::Large => tiles.map(|[large, _]| large),
            Self::Small => tiles.map(|[_, small]| small),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    output: GemmOutput,
    bias: bool,
    live: Option<u32>,
    /// Elements between rows, of x, w and y alike.
    gap: usize,
    kernel: Kernel,
}

fn check(device: &Device, case: Case) {
    let Case { m, n, k, gap, .. } = case;
    let what = format!("{case:?}");
    let adds = case.output == GemmOutput::Add;
    let mut values = Values::new((m * 1000 + n * 10 + k) as u64);
    let (x_stride, w_stride) = (k + gap, k + 2 * gap);
    let y_stride = n.next_multiple_of(8) + gap;
    let x = e4m3s(&mut values, m, k, x_stride);
    let w = e4m3s(&mut values, n, k, w_stride);
    let blocks = k / BLOCK;
    // Scales of very different sizes: one block's for another's shows.
    let mut scales = |rows: usize| {
        let mut scales = values.f32s(rows * blocks, 1e-3, 2e-3);
        for scale in scales.iter_mut().step_by(3) {
            *scale *= 64.0;
        }
        scales
    };
    let (x_scale, w_scale) = (scales(m), scales(n.div_ceil(BLOCK)));
    let bias = values.bf16s(n, -4.0, 4.0);
    let before = values.bf16s(m * y_stride, -4.0, 4.0);
    let y = match adds {
        false => room_bf16(device, m * y_stride),
        true => upload(device, &before),
    };
    let live = case.live.map_or(m, |live| live as usize);
    let params = GemmFp8Params {
        x: upload(device, &x),
        w: upload(device, &w),
        x_scale: upload(device, &to_kernels(&x_scale, blocks)),
        w_scale: upload(device, &of_weight(&w_scale, blocks)),
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
    launch(
        device,
        case.kernel.launch(&params, case.output).unwrap(),
        &params,
    );
    let got: Vec<bf16> = device.download(y, m * y_stride).unwrap();
    for i in (0..got.len()).filter(|i| i / y_stride >= live || i % y_stride >= n) {
        match adds {
            true => assert_eq!(got[i], before[i], "{what}: {i} was written"),
            false => assert_untouched(&what, &got[i..=i]),
        }
    }
    for row in 0..live {
        let expected = (0..n).map(|column| {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for i in 0..k {
                let block = i / BLOCK;
                let product = e4m3_value(x[row * x_stride + i])
                    * e4m3_value(w[column * w_stride + i])
                    * f64::from(x_scale[row * blocks + block])
                    * f64::from(w_scale[column / BLOCK * blocks + block]);
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
            if adds {
                add(before[row * y_stride + column]);
            }
            // k additions, a product of scales, sums of blocks, the bias and y itself.
            let bound = 1.001 * U16 * sum.abs() + (k + 2 * blocks + 4) as f64 * U32 * magnitude;
            (sum, bound)
        });
        let expected: Vec<_> = expected.collect();
        let got = wide(&got[row * y_stride..][..n]);
        assert_within(&format!("{what} row {row}"), &got, expected.into_iter());
    }
}

/// Edges of tiles and of blocks; more slabs than stages.
#[test]
fn products() {
    under_all_schedules(|device| {
        for (i, (kernel, m, n, k, gap)) in [
            (Kernel::Small, 1, 1, 128, 0),
            (Kernel::Small, 3, 40, 256, 16),
            (Kernel::Small, 17, 200, 384, 0),
            (Kernel::Small, 70, 130, 896, 16),
            (Kernel::Large, 5, 130, 256, 16),
            (Kernel::Large, 140, 24, 640, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let case = Case {
                m,
                n,
                k,
                gap,
                output: if i % 2 == 1 {
                    GemmOutput::Add
                } else {
                    GemmOutput::Write
                },
                bias: i % 3 == 1,
                live: (i == 3).then_some(65),
                kernel,
            };
            check(device, case);
        }
    });
}

/// Few rows: edges of tiles and blocks, fewer and more slabs than a block asks for ahead.
#[test]
fn few_rows() {
    under_all_schedules(|device| {
        for (i, (m, n, k)) in [
            (1, 1, 128),
            (3, 150, 256),
            (8, 33, 640),
            (9, 16, 2048),
            (16, 17, 4 * 16 * 64 + 128),
            (4, 260, 128),
        ]
        .into_iter()
        .enumerate()
        {
            let case = Case {
                m,
                n,
                k,
                output: if i % 2 == 1 {
                    GemmOutput::Add
                } else {
                    GemmOutput::Write
                },
                bias: i % 3 == 0,
                live: (i % 4 == 3).then_some(m as u32 - 1),
                gap: 16 * (i % 2),
                kernel: Kernel::Few,
            };
            check(device, case);
        }
    });
}

/// A row's bits are the same among others, any number of them, and in tiles of either size; and 1 to 16
/// by the kernels for few.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let (n, k) = (40, 1152);
        let blocks = k / BLOCK;
        let mut values = Values::new(9);
        let row = e4m3s(&mut values, 1, k, k);
        let row_scales = values.f32s(blocks, 1e-3, 2e-3);
        let w = upload(device, &e4m3s(&mut values, n, k, k));
        let w_scale = values.f32s(blocks, 1e-4, 2e-4);
        let w_scale = upload(device, &of_weight(&w_scale, blocks));
        for kernels in [&[Kernel::Few][..], &[Kernel::Small, Kernel::Large]] {
            let mut first: Option<Vec<bf16>> = None;
            for (m, at) in [(1, 0), (2, 1), (8, 5), (9, 8), (16, 15), (140, 133)] {
                let mut x = e4m3s(&mut values, m, k, k);
                x[at * k..][..k].copy_from_slice(&row);
                let mut scales = values.f32s(m * blocks, 0.1, 10.0);
                scales[at * blocks..][..blocks].copy_from_slice(&row_scales);
                let y = room_bf16(device, m * n);
                let params = GemmFp8Params {
                    x: upload(device, &x),
                    w,
                    x_scale: upload(device, &to_kernels(&scales, blocks)),
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
                        assert!(m > 16);
                        continue;
                    };
                    launch(device, shape, &params);
                    let got: Vec<bf16> = device.download(y, m * n).unwrap();
                    let got = got[at * n..][..n].to_vec();
                    assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{m} {at}");
                }
            }
        }
    });
}

#[test]
fn there_are_no_products_in_f32_and_few_rows_are_16() {
    let params: GemmFp8Params = bytemuck::Zeroable::zeroed();
    assert_eq!(params.launch_blocks(GemmOutput::F32), None);
    assert_eq!(params.launch_blocks_few(GemmOutput::F32), None);
    let params = GemmFp8Params { m: 17, ..params };
    assert_eq!(params.launch_blocks_few(GemmOutput::Write), None);
}
