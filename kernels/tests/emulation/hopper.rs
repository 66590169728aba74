//! What Hopper does beside its threads: barriers with phases, tensor copies, products of warpgroups;
//! and that the emulation reports what is wrong with them.

use bytemuck::{Pod, Zeroable};
use half::bf16;
use prelude_kernels::{
    DevicePtr, Launch, TensorMap, TensorTile,
    emu::{Device, Error},
};

use crate::support::{Values, under_all_schedules, upload};

/// Parameters of the kernels in `kernels/emu/selftest_hopper.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HopperTest {
    a: TensorMap,
    b: TensorMap,
    input: DevicePtr,
    output: DevicePtr,
    mode: u32,
    row: u32,
    column: u32,
    bytes: u32,
    reserved: [u32; 24],
}

impl HopperTest {
    fn new(device: &Device, mode: u32, words: usize) -> Self {
        Self {
            output: device.alloc(4 * words).unwrap(),
            mode,
            ..Self::zeroed()
        }
    }

    fn run(&self, device: &Device, kernel: &'static str) -> Result<(), Error> {
        let launch = Launch {
            kernel,
            grid: [1, 1, 1],
            block: [128, 1, 1],
            // Room for the matrices, and two barriers.
            shared_bytes: (40 << 10) + 16,
        };
        device.launch_bytes(&launch, bytemuck::bytes_of(self), None)
    }
}

/// A box of a matrix on the device.
fn map(device: &Device, values: &[bf16], columns: usize, stride: usize, rows: u32) -> TensorMap {
    let tile = TensorTile {
        at: upload(device, values),
        columns: columns as u64,
        rows: (values.len() / stride) as u64,
        stride: stride as u64,
        box_columns: 64,
        box_rows: rows,
    };
    assert!(tile.is_valid());
    tile.emulated()
}

/// Element c of row r is at 16-byte chunk (c / 8) ^ (address / 128 mod 8) of the row's 128 bytes;
/// what lies outside of the matrix is 0.
#[test]
fn copies_are_swizzled_by_address() {
    under_all_schedules(|device| {
        let (rows, stride) = (19, 136);
        let value = |row: usize, column: usize| (1000 + stride * row + column) as u16;
        let values: Vec<bf16> = (0..rows * stride)
            .map(|i| bf16::from_bits(value(i / stride, i % stride)))
            .collect();
        // Box rows, where it begins, and rows beyond a multiple of 1024 where it lands.
        for (count, row, column, offset) in
            [(16, 0, 0, 0), (16, 8, 64, 0), (1, 3, 64, 5), (5, 17, 96, 2)]
        {
            let params = HopperTest {
                a: map(device, &values, 128, stride, count),
                row: row as u32,
                column: column as u32,
                bytes: 128 * count,
                ..HopperTest::new(device, offset, 2048)
            };
            params.run(device, "emu_tensor_copy").unwrap();
            let got: Vec<u16> = device.download(params.output, 4096).unwrap();
            let mut expected = vec![0u16; 4096];
            for r in 0..count as usize {
                for c in 0..64 {
                    let line = 16 + offset as usize + r;
                    let at = 64 * line + ((c / 8) ^ (line % 8)) * 8 + c % 8;
                    if row + r < rows && column + c < 128 {
                        expected[at] = value(row + r, column + c);
                    }
                }
            }
            assert!(got == expected, "{count} rows at {row}, {column}");
        }
    });
}

/// Products against sums in order, of values that are exact.
#[test]
fn products() {
    under_all_schedules(|device| {
        let mut values = Values::new(9);
        let mut draw = |n: usize| -> Vec<bf16> {
            (0..n)
                .map(|_| bf16::from_f32(values.below(9) as f32 / 2.0 - 2.0))
                .collect()
        };
        let a = draw(64 * 64);
        let (by_rows, by_columns) = (draw(256 * 64), draw(64 * 128));
        for (mode, n) in [(0, 128), (1, 64), (2, 128), (3, 256)] {
            let params = HopperTest {
                a: map(device, &a, 64, 64, 64),
                b: match mode {
                    0 | 3 => map(device, &by_rows, 64, 64, n as u32),
                    _ => map(device, &by_columns, 128, 128, 64),
                },
                input: upload(device, &a),
                ..HopperTest::new(device, mode, 64 * n)
            };
            params.run(device, "emu_wgmma").unwrap();
            let got: Vec<f32> = device.download(params.output, 64 * n).unwrap();
            let before = if mode == 1 { 0.5 } else { 0.0 };
            for (i, got) in got.into_iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let factor = |k: usize| match mode {
                    0 | 3 => by_rows[column * 64 + k],
                    _ => by_columns[k * 128 + column],
                };
                let terms = (0..64).map(|k| a[row * 64 + k].to_f32() * factor(k).to_f32());
                let expected = before + terms.sum::<f32>();
                assert_eq!(got, expected, "mode {mode} row {row} column {column}");
            }
        }
    });
}

/// Runs one of the faults.
fn fault(device: &Device, mode: u32) -> (Result<(), Error>, Vec<u32>) {
    let values = vec![bf16::from_f32(1.0); 128 * 64];
    let params = HopperTest {
        a: map(device, &values, 64, 64, 64),
        b: map(device, &values, 64, 64, 128),
        ..HopperTest::new(device, mode, 128)
    };
    let result = params.run(device, "emu_hopper_fault");
    let output = device.download(params.output, 128).unwrap();
    (result, output)
}

#[test]
fn faults_are_reported() {
    let expected: &[(u32, &[&str])] = &[
        (1, &["race in shared memory"]),
        (2, &["ended with a copy under way"]),
        (3, &["without fence_async()"]),
        (4, &["made without a fence"]),
        (
            5,
            &[
                "used without a barrier after it was made",
                "there is no mbarrier here",
            ],
        ),
        (6, &["deadlock", "wait for mbarrier"]),
        (7, &["race in shared memory"]),
        (8, &["without wgmma_fence()"]),
        (9, &["multiple of 1024"]),
        (10, &["ended with a product under way"]),
        (12, &["more arrivals"]),
        (13, &["without fence_async()"]),
        (14, &["it was not made"]),
        (15, &["warps of one warpgroup multiply different operands"]),
        (16, &["race in shared memory: write", "still under way"]),
        (17, &["race in shared memory", "deadlock"]),
    ];
    under_all_schedules(|device| {
        for &(mode, texts) in expected {
            let error = fault(device, mode).0;
            let error = error.expect_err(&format!("fault {mode}")).to_string();
            let fine = match mode {
                // A thread that arrives before the barrier is initialised finds none; a thread that is
                // two phases late waits for ever.
                5 | 17 => texts.iter().any(|t| error.contains(t)),
                _ => texts.iter().all(|t| error.contains(t)),
            };
            assert!(fine, "fault {mode}: {error}");
        }
        let (result, got) = fault(device, 0);
        result.unwrap();
        assert_eq!(got, [0x3f80_3f80; 128]);
        let (result, got) = fault(device, 11);
        result.unwrap();
        assert!(got.iter().all(|&x| f32::from_bits(x).is_nan()));
    });
}
