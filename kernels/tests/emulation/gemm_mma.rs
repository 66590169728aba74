use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{GemmOutput, GemmParams, GemmTile},
};

use crate::support::{
    U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
    upload, wide,
};

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
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    /// The tile that the size of y asks for.
    Size,
    /// This one of all tiles.
    Tile(usize),
    /// The kernels for few rows.
    Skinny,
}

const PLAIN: Case = Case {
    m: 1,
    n: 1,
    k: 8,
    output: GemmOutput::Write,
    bias: false,
    live: None,
    gap: 0,
    by: By::Size,
};

fn check(device: &Device, case: Case) {
    let Case { m, n, k, gap, .. } = case;
    let what = format!("{case:?}");
    let mut values = Values::new((m * 1000 + n * 10 + k) as u64);
    let (x_stride, w_stride) = (k + gap, k + 2 * gap);
    let y_stride = n.next_multiple_of(8) + gap;
    let mut x = values.bf16s(m * x_stride, -1.0, 1.0);
    let mut w = values.bf16s(n * w_stride, -1.0, 1.0);
    // What lies between the rows must not be read into a sum.
    for i in (0..m * x_stride).filter(|i| i % x_stride >= k) {
        x[i] = bf16::NAN;
    }
    for i in (0..n * w_stride).filter(|i| i % w_stride >= k) {
        w[i] = bf16::NAN;
    }
    let bias = values.bf16s(n, -4.0, 4.0);
    let before = values.bf16s(m * y_stride, -4.0, 4.0);
    let y = match case.output {
        GemmOutput::Write => room_bf16(device, m * y_stride),
        GemmOutput::Add => upload(device, &before),
        GemmOutput::F32 => device.alloc(m * y_stride * 4).unwrap(),
    };
    let params = GemmParams {
        x: upload(device, &x),
        w: upload(device, &w),
        bias: if case.bias {
            upload(device, &bias)
        } else {
            DevicePtr::NULL
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
    let shape = match case.by {
        By::Size => params.launch(case.output),
        By::Tile(i) => params.launch_tile(case.output, &GemmTile::ALL[i]),
        By::Skinny => params.launch_skinny(case.output).unwrap(),
    };
    launch(device, shape, &params);
    let live = case.live.map_or(m, |n| n as usize);
    let is_result = |i: usize| i / y_stride < live && i % y_stride < n;
    let got: Vec<f64> = match case.output {
        GemmOutput::F32 => {
            let got: Vec<f32> = device.download(y, m * y_stride).unwrap();
            let beside = (0..got.len()).filter(|&i| !is_result(i));
            for i in beside {
                assert_eq!(got[i].to_bits(), u32::MAX, "{what}: {i} was written");
            }
            got.into_iter().map(f64::from).collect()
        }
        output => {
            let got: Vec<bf16> = device.download(y, m * y_stride).unwrap();
            for i in (0..got.len()).filter(|&i| !is_result(i)) {
                if output == GemmOutput::Add {
                    assert_eq!(got[i], before[i], "{what}: {i} was written");
                } else {
                    assert_untouched(&what, &got[i..=i]);
                }
            }
            wide(&got)
        }
    };
    let (x, w) = (wide(&x), wide(&w));
    for row in 0..live {
        let expected: Vec<(f64, f64)> = (0..n)
            .map(|column| {
                let mut sum = 0.0;
                let mut magnitude = 0.0;
                for i in 0..k {
                    let product = x[row * x_stride + i] * w[column * w_stride + i];
                    sum += product;
                    magnitude += product.abs();
                }
                if case.bias {
                    sum += bias[column].to_f64();
                    magnitude += bias[column].to_f64().abs();
                }
                if case.output == GemmOutput::Add {
                    sum += before[row * y_stride + column].to_f64();
                    magnitude += before[row * y_stride + column].to_f64().abs();
                }
                let rounded = if case.output == GemmOutput::F32 {
                    0.0
                } else {
                    U16 * sum.abs()
                };
                // k additions, the bias and y itself.
                let bound = rounded * 1.001 + (k + 2) as f64 * U32 * magnitude;
                (sum, bound)
            })
            .collect();
        assert_within(
            &format!("{what} row {row}"),
            &got[row * y_stride..][..n],
            expected.into_iter(),
        );
    }
}

/// Edges of tiles, slabs and 16-byte columns; fewer slabs than stages, and more.
#[test]
fn products() {
    under_all_schedules(|device| {
        for (m, n, k) in [
            (1, 1, 8),
            (3, 8, 24),
            (17, 33, 32),
            (65, 40, 72),
            (5, 130, 136),
            (3, 5, 1032),
        ] {
            check(device, Case { m, n, k, ..PLAIN });
        }
        for tile in 0..GemmTile::ALL.len() {
            let by = By::Tile(tile);
            let (m, n, k, gap) = (130, 24, 200, 8);
            let strided = Case {
                m,
                n,
                k,
                gap,
                by,
                ..PLAIN
            };
            check(device, strided);
            for live in [Some(3), Some(0)] {
                check(device, Case { live, ..strided });
            }
            // Two tiles across, and the last slabs of a ring beyond k.
            let (m, n, k) = (5, 264, 72);
            check(
                device,
                Case {
                    m,
                    n,
                    k,
                    by,
                    ..PLAIN
                },
            );
        }
    });
}

/// More rows of tiles than a group has, and a last group that is not full.
#[test]
fn groups_of_tiles() {
    under_all_schedules(|device| {
        let (m, n, k) = (9 * 32 + 1, 65, 8);
        let by = By::Tile(GemmTile::ALL.len() - 1);
        check(
            device,
            Case {
                m,
                n,
                k,
                by,
                ..PLAIN
            },
        );
    });
}

#[test]
fn outputs_and_biases() {
    under_all_schedules(|device| {
        for output in [GemmOutput::Write, GemmOutput::Add, GemmOutput::F32] {
            for (bias, gap, n) in [(false, 8, 20), (true, 0, 19)] {
                let (m, k) = (19, 104);
                let live = bias.then_some(18);
                check(
                    device,
                    Case {
                        m,
                        n,
                        k,
                        output,
                        bias,
                        live,
                        gap,
                        ..PLAIN
                    },
                );
            }
        }
    });
}

/// Few rows: edges of tiles and slabs, fewer and more slabs than a block asks for ahead, blocks of
/// 8 and of 16 warps.
#[test]
fn few_rows() {
    under_all_schedules(|device| {
        for (i, (m, n, k)) in [
            (1, 1, 8),
            (3, 40, 24),
            (8, 33, 264),
            (9, 16, 1032),
            (16, 17, 2 * 16 * 32 * 4 + 40),
            (4, 2120, 8),
        ]
        .into_iter()
        .enumerate()
        {
            let output = [GemmOutput::Write, GemmOutput::Add][i % 2];
            let case = Case {
                m,
                n,
                k,
                output,
                bias: i % 3 == 0,
                live: (i % 4 == 3).then_some(m as u32 - 1),
                gap: 8 * (i % 2),
                by: By::Skinny,
            };
            check(device, case);
        }
        for (m, n, k) in [(3, 40, 24), (16, 17, 1032)] {
            let output = GemmOutput::F32;
            let bias = m == 3;
            let case = Case {
                m,
                n,
                k,
                output,
                bias,
                by: By::Skinny,
                ..PLAIN
            };
            check(device, case);
        }
    });
}

/// A row's bits are the same among 1 to 16.
#[test]
fn few_rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let (n, k) = (40, 1064);
        let mut values = Values::new(9);
        let row = values.bf16s(k, -1.0, 1.0);
        let w = upload(device, &values.bf16s(n * k, -1.0, 1.0));
        let mut first: Option<Vec<bf16>> = None;
        for (m, at) in [(1, 0), (2, 1), (8, 5), (9, 8), (16, 15)] {
            let mut x = values.bf16s(m * k, -9.0, 9.0);
            x[at * k..][..k].copy_from_slice(&row);
            let y = room_bf16(device, m * n);
            let params = GemmParams {
                x: upload(device, &x),
                w,
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
            let shape = params.launch_skinny(GemmOutput::Write).unwrap();
            launch(device, shape, &params);
            let got: Vec<bf16> = device.download(y, m * n).unwrap();
            let got = got[at * n..][..n].to_vec();
            assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{m} {at}");
        }
        let more = GemmParams {
            m: 17,
            n: 8,
            ..bytemuck::Zeroable::zeroed()
        };
        assert_eq!(more.launch_skinny(GemmOutput::Write), None);
    });
}

/// The sum is rounded once: adding to y afterwards, or a bf16 product before, differs.
#[test]
fn adds_before_it_rounds() {
    under_all_schedules(|device| {
        // 256 + 1 + 1 is 258, which bf16 has; 256 + 1 is not, and ties to 256.
        let (one, big) = (bf16::ONE, bf16::from_f32(256.0));
        let mut x = [bf16::ZERO; 8];
        x[0] = one;
        let y = upload(device, &[big]);
        let params = GemmParams {
            x: upload(device, &x),
            w: upload(device, &x),
            bias: upload(device, &[one]),
            y,
            live: DevicePtr::NULL,
            m: 1,
            n: 1,
            k: 8,
            x_stride: 8,
            w_stride: 8,
            y_stride: 8,
        };
        launch(device, params.launch(GemmOutput::Add), &params);
        let got: Vec<bf16> = device.download(y, 1).unwrap();
        assert_eq!(got[0].to_f32(), 258.0);
    });
}

/// A row's bits do not depend on how many rows there are, where it lies among them, or the tile.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let (n, k) = (40, 264);
        let mut values = Values::new(9);
        let row = values.bf16s(k, -1.0, 1.0);
        let w = upload(device, &values.bf16s(n * k, -1.0, 1.0));
        let mut first: Option<Vec<u32>> = None;
        for (m, at) in [(1, 0), (16, 15), (17, 16), (140, 77), (140, 133)] {
            let mut x = values.bf16s(m * k, -9.0, 9.0);
            x[at * k..][..k].copy_from_slice(&row);
            // f32, since rounding to bf16 would hide most differences.
            let y = device.alloc(m * n * 4).unwrap();
            let params = GemmParams {
                x: upload(device, &x),
                w,
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
            for tile in &GemmTile::ALL {
                launch(device, params.launch_tile(GemmOutput::F32, tile), &params);
                let got: Vec<u32> = device.download(y, m * n).unwrap();
                let got = got[at * n..][..n].to_vec();
                let first = first.get_or_insert_with(|| got.clone());
                assert_eq!(first, &got, "{m} {at} {tile:?}");
            }
        }
    });
}
