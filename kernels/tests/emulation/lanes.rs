//! The values that each lane holds: every warp operation against the tables of the PTX manual
//! (sections "ldmatrix", "mma.m16n8k16", "mma.m16n8k32", "shfl.sync"), written out here once more.

use half::{bf16, f16};
use prelude_kernels::Launch;

use crate::{
    harness::Selftest,
    support::{Values, under_all_schedules, upload},
};

#[test]
fn exchanges() {
    under_all_schedules(|device| {
        let x: Vec<u32> = (0..32).map(|i| i * i + 3).collect();
        let output = device.alloc(288 * 4).unwrap();
        let params = Selftest {
            input: upload(device, &x),
            output,
            mode: 0,
            count: 0,
        };
        params
            .run(device, &Launch::linear("emu_warp", 1, 32))
            .unwrap();
        let got: Vec<u32> = device.download(output, 288).unwrap();
        let votes: u32 = (0..32)
            .filter(|&i| x[i].is_multiple_of(3))
            .map(|i| 1 << i)
            .sum();
        for lane in 0..32 {
            let expected = [
                x[5],
                x[lane ^ 3],
                x[if lane >= 2 { lane - 2 } else { lane }],
                x[if lane + 7 < 32 { lane + 7 } else { lane }],
                votes,
                1,
                1,
                0,
                if lane < 16 {
                    x[lane ^ 1] + 0xffff
                } else {
                    0xffff_0000
                },
            ];
            for (i, expected) in expected.into_iter().enumerate() {
                assert_eq!(got[i * 32 + lane], expected, "operation {i} lane {lane}");
            }
        }
    });
}

#[test]
fn ldmatrix() {
    under_all_schedules(|device| {
        // Element c of row r is 8 r + c.
        let words: Vec<u32> = (0..128).map(|i| (2 * i) | ((2 * i + 1) << 16)).collect();
        let input = upload(device, &words);
        for mode in 0..6u32 {
            let output = device.alloc(512).unwrap();
            let params = Selftest {
                input,
                output,
                mode,
                count: 0,
            };
            params
                .run(device, &Launch::linear("emu_ldmatrix", 1, 32))
                .unwrap();
            let got: Vec<u32> = device.download(output, 128).unwrap();
            for lane in 0..32u32 {
                for matrix in 0..4 {
                    let element = |row: u32, column: u32| 8 * (8 * matrix + row) + column;
                    let (first, second) = match mode % 2 {
                        0 => (
                            element(lane / 4, 2 * (lane % 4)),
                            element(lane / 4, 2 * (lane % 4) + 1),
                        ),
                        _ => (
                            element(2 * (lane % 4), lane / 4),
                            element(2 * (lane % 4) + 1, lane / 4),
                        ),
                    };
                    let there = matrix < [4, 2, 1][mode as usize / 2];
                    let expected = if there { first | (second << 16) } else { 0 };
                    let got = got[(4 * lane + matrix) as usize];
                    assert_eq!(got, expected, "mode {mode} lane {lane} matrix {matrix}");
                }
            }
        }
    });
}

/// Runs `c + a · b` with registers filled through the manual's tables, and compares every
/// element with f64.
fn mma(mode: u32, k: usize, to_bits: fn(f32) -> u32, per_register: usize) {
    under_all_schedules(|device| {
        let mut values = Values::new(9);
        // Small integers and halves: exact in both types and in every order of sums.
        let mut draw =
            |n: usize| -> Vec<f32> { (0..n).map(|_| values.below(9) as f32 / 2.0 - 2.0).collect() };
        let (a, b, c) = (draw(16 * k), draw(k * 8), draw(16 * 8));
        let width = 32 / per_register;
        let mut registers = Vec::new();
        for lane in 0..32 {
            let (group, thread) = (lane / 4, lane % 4);
            let pack = |element: &dyn Fn(usize) -> f32| -> u32 {
                (0..per_register)
                    .map(|i| to_bits(element(i)) << (width * i))
                    .sum()
            };
            for register in 0..4 {
                let row = group + 8 * (register % 2);
                let first = per_register * thread + k / 2 * (register / 2);
                registers.push(pack(&|i| a[row * k + first + i]));
            }
            for register in 0..2 {
                let first = per_register * thread + k / 2 * register;
                registers.push(pack(&|i| b[(first + i) * 8 + group]));
            }
            for i in 0..4 {
                let (row, column) = (group + 8 * (i / 2), 2 * thread + i % 2);
                registers.push(c[row * 8 + column].to_bits());
            }
        }
        let output = device.alloc(512).unwrap();
        let params = Selftest {
            input: upload(device, &registers),
            output,
            mode,
            count: 0,
        };
        params
            .run(device, &Launch::linear("emu_mma", 1, 32))
            .unwrap();
        let got: Vec<f32> = device.download(output, 128).unwrap();
        for (i, got) in got.into_iter().enumerate() {
            let (lane, e) = (i / 4, i % 4);
            let (row, column) = (lane / 4 + 8 * (e / 2), 2 * (lane % 4) + e % 2);
            let sum: f32 = (0..k).map(|k_| a[row * k + k_] * b[k_ * 8 + column]).sum();
            assert_eq!(got, c[row * 8 + column] + sum, "row {row} column {column}");
        }
    });
}

#[test]
fn mma_bf16() {
    mma(0, 16, |x| u32::from(bf16::from_f32(x).to_bits()), 2);
}

#[test]
fn mma_f16() {
    mma(2, 16, |x| u32::from(f16::from_f32(x).to_bits()), 2);
}

#[test]
fn mma_e4m3() {
    mma(1, 32, |x| u32::from(nearest_e4m3(x)), 4);
}

/// Value of an e4m3, by its definition.
pub(crate) fn e4m3_value(bits: u8) -> f64 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from((bits >> 3) & 15), f64::from(bits & 7));
    match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => sign * mantissa / 8.0 * 2f64.powi(-6),
        _ => sign * (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    }
}

/// Finds the nearest e4m3 by search: nearest, then even.
pub(crate) fn nearest_e4m3(x: f32) -> u8 {
    // Far beyond 448 all distances would round to the same f64.
    let x = x.clamp(-1000.0, 1000.0);
    let candidates =
        (0..=255u8).filter(|b| b & 0x7f != 0x7f && (b & 0x80 != 0) == x.is_sign_negative());
    let distance = |b: &u8| (e4m3_value(*b) - f64::from(x)).abs();
    candidates
        .min_by(|a, b| {
            distance(a)
                .total_cmp(&distance(b))
                .then((a & 1).cmp(&(b & 1)))
        })
        .expect("there are candidates")
}

#[test]
fn conversions() {
    under_all_schedules(|device| {
        let convert = |mode: u32, input: &[u32]| -> Vec<u32> {
            let output = device.alloc(input.len() * 4).unwrap();
            let params = Selftest {
                input: upload(device, input),
                output,
                mode,
                count: input.len() as u32,
            };
            let blocks = input.len().div_ceil(256) as u32;
            params
                .run(device, &Launch::linear("emu_convert", blocks, 256))
                .unwrap();
            device.download(output, input.len()).unwrap()
        };
        let mut values = Values::new(5);
        let mut floats: Vec<f32> = (0..512)
            .map(|_| f32::from_bits(values.bits() as u32))
            .collect();
        floats.extend(values.f32s(512, -500.0, 500.0));
        floats.extend(values.f32s(256, -0.05, 0.05));
        // Every e4m3, every midpoint between neighbours, and what lies beyond.
        for b in 0..=0x7du8 {
            let (x, next) = (e4m3_value(b), e4m3_value(b + 1));
            floats.extend([x as f32, -x as f32, ((x + next) / 2.0) as f32]);
        }
        floats.extend([
            448.0,
            464.0,
            1e9,
            -1e9,
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1e-40,
        ]);
        let bits: Vec<u32> = floats.iter().map(|x| x.to_bits()).collect();
        for (x, got) in floats.iter().zip(convert(0, &bits)) {
            let expected = bf16::from_f32(*x);
            let same = got == u32::from(expected.to_bits()) || x.is_nan() && got == 0x7fff;
            assert!(same, "bf16 of {x}: {got:#x}");
        }
        for (x, got) in floats.iter().zip(convert(1, &bits)) {
            let expected = if x.is_nan() { 0x7f } else { nearest_e4m3(*x) };
            let mask = if x.is_nan() { 0x7f } else { 0xff };
            assert_eq!(got & mask, u32::from(expected), "e4m3 of {x:e}");
        }
        for (i, got) in convert(4, &bits).into_iter().enumerate() {
            let expected = [i, i / 2].map(|i| floats[i]);
            for (x, got) in expected.into_iter().zip([got & 0xff, got >> 8]) {
                let expected = if x.is_nan() { 0x7f } else { nearest_e4m3(x) };
                let mask = if x.is_nan() { 0x7f } else { 0xff };
                assert_eq!(got & mask, u32::from(expected), "e4m3 of {x:e}");
            }
        }
        let all: Vec<u32> = (0..256).collect();
        for (b, got) in all.iter().zip(convert(2, &all)) {
            let expected = e4m3_value(*b as u8);
            let got = f64::from(f32::from_bits(got));
            assert!(
                got == expected || got.is_nan() && expected.is_nan(),
                "{b:#x}: {got}"
            );
        }
        let arguments: Vec<f32> = (-700..=700).map(|i| i as f32 / 8.0).collect();
        let bits: Vec<u32> = arguments.iter().map(|x| x.to_bits()).collect();
        for (x, got) in arguments.iter().zip(convert(3, &bits)) {
            let (got, expected) = (f64::from(f32::from_bits(got)), f64::from(*x).exp());
            let ulp = 2.0 / f64::from(1 << 23) * expected;
            assert!(
                (got - expected).abs() <= 2.0 * ulp || *x < -87.0 && got == 0.0,
                "e^{x}: {got}"
            );
        }
    });
}
