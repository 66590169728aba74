//! `sm90_gemm` against sums in f64, and its gated form against `silu_mul` behind it.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{Gate, SiluMulParams, Sm90GemmParams, Sm90Output},
};

use crate::support::{
    U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
    upload, wide,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    /// Columns of `y`.
    n: usize,
    k: usize,
    output: Sm90Output,
    live: Option<u32>,
    /// Elements between rows, of x and y; of w twice as many.
    gap: usize,
    multiprocessors: u32,
}

const PLAIN: Case = Case {
    m: 1,
    n: 8,
    k: 8,
    output: Sm90Output::Write,
    live: None,
    gap: 0,
    multiprocessors: 132,
};

/// Matrices of a case on the device.
struct Made {
    x: Vec<bf16>,
    w: Vec<bf16>,
    before: Vec<bf16>,
    params: Sm90GemmParams,
}

impl Case {
    const fn x_stride(&self) -> usize {
        self.k + self.gap
    }

    const fn w_stride(&self) -> usize {
        self.k + 2 * self.gap
    }

    const fn y_stride(&self) -> usize {
        self.n + self.gap
    }

    fn w_rows(&self) -> usize {
        match self.output {
            Sm90Output::SiluMul => 2 * self.n,
            _ => self.n,
        }
    }

    fn make(&self, device: &Device) -> Made {
        let &Self { m, n, k, .. } = self;
        let (x_stride, w_stride, y_stride) = (self.x_stride(), self.w_stride(), self.y_stride());
        let mut values = Values::new((m * 1000 + n * 10 + k) as u64);
        let mut x = values.bf16s(m * x_stride, -1.0, 1.0);
        let mut w = values.bf16s(self.w_rows() * w_stride, -1.0, 1.0);
        // What lies between the rows must not be read into a sum.
        for i in (0..x.len()).filter(|i| i % x_stride >= k) {
            x[i] = bf16::NAN;
        }
        for i in (0..w.len()).filter(|i| i % w_stride >= k) {
            w[i] = bf16::NAN;
        }
        let before = values.bf16s(m * y_stride, -4.0, 4.0);
        let map = |at: &[bf16], stride: usize| {
            let (at, rows) = (upload(device, at), at.len() / stride);
            let tile = Sm90GemmParams::tile(at, rows as u64, k as u64, stride as u64);
            assert!(tile.is_valid());
            tile.emulated()
        };
        let params = Sm90GemmParams {
            x: map(&x, x_stride),
            w: map(&w, w_stride),
            y: match self.output {
                Sm90Output::Add => upload(device, &before),
                _ => room_bf16(device, m * y_stride),
            },
            live: self.live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
            m: m as u32,
            n: n as u32,
            k: k as u32,
            y_stride: y_stride as u32,
            reserved: [0; 24],
        };
        Made {
            x,
            w,
            before,
            params,
        }
    }

    /// Launches it in both forms, and returns all of `y`, which must have equal bits.
    fn run(&self, device: &Device, params: &Sm90GemmParams) -> Vec<bf16> {
        let count = self.m * self.y_stride();
        let before: Vec<bf16> = device.download(params.y, count).unwrap();
        let [by_self, apart] = [false, true].map(|apart| -> Vec<bf16> {
            device.write(params.y, &before).unwrap();
            let shape = params.launch(self.output, apart, self.multiprocessors);
            launch(device, shape, params);
            device.download(params.y, count).unwrap()
        });
        let bits = |y: &[bf16]| -> Vec<u16> { y.iter().map(|v| v.to_bits()).collect() };
        assert_eq!(bits(&by_self), bits(&apart), "{self:?}");
        apart
    }
}

/// A sum and what bounds its error.
fn sum(x: &[bf16], w: &[bf16]) -> (f64, f64) {
    let terms = x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64());
    let (sum, size) = terms.fold((0.0, 0.0), |(s, a): (f64, f64), t| (s + t, a + t.abs()));
    (sum, (x.len() + 1) as f64 * U32 * size)
}

fn check(device: &Device, case: Case) {
    let what = format!("{case:?}");
    let Made {
        x,
        w,
        before,
        params,
    } = case.make(device);
    let got = case.run(device, &params);
    let Case { m, n, k, .. } = case;
    let y_stride = case.y_stride();
    let live = case.live.map_or(m, |n| n as usize);
    for i in (0..got.len()).filter(|&i| i / y_stride >= live || i % y_stride >= n) {
        if case.output == Sm90Output::Add {
            assert_eq!(got[i], before[i], "{what}: {i} was written");
        } else {
            assert_untouched(&what, &got[i..=i]);
        }
    }
    for row in 0..live {
        let x = &x[row * case.x_stride()..][..k];
        let of_w = |row: usize| sum(x, &w[row * case.w_stride()..][..k]);
        let expected: Vec<(f64, f64)> = (0..n)
            .map(|column| {
                let (sum, bound) = of_w(column);
                match case.output {
                    Sm90Output::Write => (sum, bound + 1.001 * U16 * sum.abs()),
                    Sm90Output::Add => {
                        let before = before[row * y_stride + column].to_f64();
                        let sum = sum + before;
                        let bound = bound + 2.0 * U32 * before.abs();
                        (sum, bound + 1.001 * U16 * sum.abs())
                    }
                    Sm90Output::SiluMul => {
                        let (up, up_bound) = of_w(n + column);
                        let silu = sum / (1.0 + (-sum).exp());
                        // Rounded to bf16: gate, silu, up, product. The slope of silu is at most 1.1.
                        let off_gate = 1.1 * (bound + U16 * sum.abs()) + U16 * silu.abs();
                        let off_up = up_bound + U16 * up.abs();
                        let bound = off_gate * (up.abs() + off_up) + silu.abs() * off_up;
                        (silu * up, 1.02 * (bound + U16 * (silu * up).abs()) + 1e-6)
                    }
                }
            })
            .collect();
        assert_within(
            &format!("{what} row {row}"),
            &wide(&got[row * y_stride..][..n]),
            expected.into_iter(),
        );
    }
}

const OUTPUTS: [Sm90Output; 3] = [Sm90Output::Write, Sm90Output::Add, Sm90Output::SiluMul];

/// Edges of tiles, of the halves of a tile, of slabs; fewer slabs than stages, and more.
#[test]
fn products() {
    under_all_schedules(|device| {
        for (i, (m, n, k)) in [
            (1, 8, 8),
            (127, 128, 64),
            (128, 136, 72),
            (129, 264, 200),
            (65, 256, 264),
            (20, 120, 704),
        ]
        .into_iter()
        .enumerate()
        {
            for (j, output) in OUTPUTS.into_iter().enumerate() {
                // Each shape in two of the three forms under every schedule.
                if (i + j) % 3 != 2 {
                    let gap = 8 * (i % 2);
                    let case = Case {
                        m,
                        n,
                        k,
                        output,
                        gap,
                        ..PLAIN
                    };
                    check(device, case);
                }
            }
        }
    });
}

/// Several tiles a block, so that the ring of stages goes on from one to the next.
#[test]
fn more_tiles_than_blocks() {
    under_all_schedules(|device| {
        for (i, output) in OUTPUTS.into_iter().enumerate() {
            let case = Case {
                m: 300,
                n: 264,
                k: 136,
                output,
                multiprocessors: 1 + i as u32,
                ..PLAIN
            };
            check(device, case);
        }
    });
}

/// More rows of tiles than a group has, and a last group that is not full.
#[test]
fn groups_of_tiles() {
    under_all_schedules(|device| {
        let case = Case {
            m: 17 * 128 + 1,
            n: 264,
            k: 8,
            multiprocessors: 5,
            ..PLAIN
        };
        check(device, case);
    });
}

/// Rows that do not count are left alone, and blocks without tiles end.
#[test]
fn live_rows() {
    under_all_schedules(|device| {
        for (output, live) in [
            (Sm90Output::Write, 0),
            (Sm90Output::Add, 3),
            (Sm90Output::SiluMul, 129),
            (Sm90Output::Write, 128),
        ] {
            let case = Case {
                m: 260,
                n: 16,
                k: 72,
                output,
                live: Some(live),
                ..PLAIN
            };
            check(device, case);
        }
    });
}

/// The gated form has the bits of `silu_mul` behind a plain product.
#[test]
fn gates_have_the_bits_of_two_kernels() {
    under_all_schedules(|device| {
        let (m, n) = (130, 136);
        let gated = Case {
            m,
            n,
            k: 200,
            output: Sm90Output::SiluMul,
            ..PLAIN
        };
        let Made { params, .. } = gated.make(device);
        let got = gated.run(device, &params);

        let plain = Case {
            n: 2 * n,
            output: Sm90Output::Write,
            ..gated
        };
        let gate_up = Sm90GemmParams {
            y: room_bf16(device, m * 2 * n),
            n: 2 * n as u32,
            y_stride: 2 * n as u32,
            ..params
        };
        plain.run(device, &gate_up);
        let a = room_bf16(device, m * n);
        let silu_mul = SiluMulParams {
            gate_up: gate_up.y,
            a,
            live: DevicePtr::NULL,
            rows: m as u32,
            width: n as u32,
            gate_up_stride: 2 * n as u32,
            a_stride: n as u32,
        };
        launch(device, silu_mul.launch(Gate::Silu), &silu_mul);
        let expected: Vec<bf16> = device.download(a, m * n).unwrap();
        assert_eq!(got, expected);
    });
}

/// The sum is rounded once: adding to y afterwards, or a bf16 product before, differs.
#[test]
fn adds_before_it_rounds() {
    under_all_schedules(|device| {
        // 256 + 1.001 rounds to 258. Rounded before, the product is 1, and 256 + 1 a tie that goes to 256.
        let x = [bf16::ONE, bf16::from_f32(0.001)].map(|v| [v, bf16::ZERO, bf16::ZERO, bf16::ZERO]);
        let x = upload(device, x.as_flattened());
        let w = [bf16::ONE; 8];
        let w = upload(device, &w.repeat(8));
        let before = [bf16::from_f32(256.0); 8];
        let y = upload(device, &before);
        let params = Sm90GemmParams {
            x: Sm90GemmParams::tile(x, 1, 8, 8).emulated(),
            w: Sm90GemmParams::tile(w, 8, 8, 8).emulated(),
            y,
            live: DevicePtr::NULL,
            m: 1,
            n: 8,
            k: 8,
            y_stride: 8,
            reserved: [0; 24],
        };
        for apart in [false, true] {
            device.write(y, &before).unwrap();
            launch(device, params.launch(Sm90Output::Add, apart, 1), &params);
            let got: Vec<bf16> = device.download(y, 8).unwrap();
            assert_eq!(got, [bf16::from_f32(258.0); 8]);
        }
    });
}

/// A row's bits do not depend on how many rows there are, where it lies among them, or how many blocks
/// share the work.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let (n, k) = (40, 264);
        for output in OUTPUTS {
            let mut values = Values::new(9);
            let row = values.bf16s(k, -1.0, 1.0);
            let mut first: Option<Vec<bf16>> = None;
            for (m, at, multiprocessors) in
                [(1, 0, 132), (17, 16, 132), (140, 77, 1), (300, 299, 2)]
            {
                let case = Case {
                    m,
                    n,
                    k,
                    output,
                    multiprocessors,
                    ..PLAIN
                };
                let mut made = case.make(device);
                let mut values = Values::new(11);
                made.w = values.bf16s(case.w_rows() * k, -1.0, 1.0);
                made.x[at * k..][..k].copy_from_slice(&row);
                let tile = |at: &[bf16]| {
                    let rows = (at.len() / k) as u64;
                    Sm90GemmParams::tile(upload(device, at), rows, k as u64, k as u64).emulated()
                };
                let params = Sm90GemmParams {
                    x: tile(&made.x),
                    w: tile(&made.w),
                    y: upload(device, &vec![bf16::ONE; m * n]),
                    ..made.params
                };
                let got = case.run(device, &params)[at * n..][..n].to_vec();
                let first = first.get_or_insert_with(|| got.clone());
                assert_eq!(first, &got, "{output:?} {m} {at}");
            }
        }
    });
}
