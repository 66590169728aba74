//! The emulation itself: what it runs, and that it reports what it should.

use bytemuck::{Pod, Zeroable};
use prelude_kernels::{
    DevicePtr, Launch,
    emu::{Device, Error, Extent, Schedule},
};

use crate::support::{library, under_all_schedules, upload};

/// Parameters of the kernels in `kernels/emu/selftest.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Selftest {
    pub(crate) input: DevicePtr,
    pub(crate) output: DevicePtr,
    pub(crate) mode: u32,
    pub(crate) count: u32,
}

impl Selftest {
    pub(crate) fn run(&self, device: &Device, launch: &Launch) -> Result<(), Error> {
        device.launch_bytes(launch, bytemuck::bytes_of(self), None)
    }
}

fn words(n: u32) -> Vec<u32> {
    (0..n).map(|i| i * 7 + 1).collect()
}

#[test]
fn three_dimensions() {
    under_all_schedules(|device| {
        let launch = Launch {
            kernel: "emu_indices",
            grid: [3, 2, 2],
            block: [5, 3, 4],
            shared_bytes: 0,
        };
        let n = 12 * 60;
        let output = device.alloc(n * 4).unwrap();
        let params = Selftest {
            input: DevicePtr::NULL,
            output,
            mode: 0,
            count: 0,
        };
        params.run(device, &launch).unwrap();
        let got: Vec<u32> = device.download(output, n).unwrap();
        for (i, got) in got.into_iter().enumerate() {
            let thread = i % 60;
            let expected = i + 1000 * (thread % 32) + 100_000 * (thread / 32);
            assert_eq!(got as usize, expected);
        }
    });
}

#[test]
fn shared_memory() {
    under_all_schedules(|device| {
        let input = upload(device, &words(128));
        for mode in 0..5 {
            let output = device.alloc(512).unwrap();
            let params = Selftest {
                input,
                output,
                mode,
                count: if mode == 3 { 100 } else { 128 },
            };
            let mut launch = Launch::linear("emu_reverse", 1, 128);
            launch.shared_bytes = 512;
            params.run(device, &launch).unwrap();
            let got: Vec<u32> = device.download(output, 128).unwrap();
            for (i, got) in got.into_iter().enumerate() {
                let word = words(128)[127 - i];
                let expected = match mode {
                    // Copies that are not valid give zeros.
                    3 if 127 - i >= 100 => 0,
                    4 => words(128).iter().sum(),
                    _ => word,
                };
                assert_eq!(got, expected, "mode {mode} at {i}");
            }
        }
    });
}

#[test]
fn named_barriers_order_memory() {
    under_all_schedules(|device| {
        let output = device.alloc(128).unwrap();
        let mut params = Selftest {
            input: DevicePtr::NULL,
            output,
            mode: 0,
            count: 0,
        };
        let launch = Launch::linear("emu_pipeline", 1, 64);
        params.run(device, &launch).unwrap();
        let got: Vec<u32> = device.download(output, 32).unwrap();
        let expected: Vec<u32> = (0..32).map(|i| 4 * (31 - i) + 32 * 6).collect();
        assert_eq!(got, expected);
        // Without waiting for "empty", the refill races with the reading.
        params.mode = 1;
        let error = params.run(device, &launch).unwrap_err().to_string();
        assert!(
            error.contains("race in shared memory") || error.contains("deadlock"),
            "{error}"
        );
    });
}

/// Each fault is reported under every schedule, with words that help.
#[test]
fn faults_are_reported() {
    let faults: [(u32, &[&str]); 17] = [
        (
            0,
            &["race in shared memory", "without a barrier", "selftest.cu:"],
        ),
        (1, &["race in shared memory", "without a barrier after the"]),
        (2, &["race in shared memory"]),
        (
            3,
            &["read of 4 bytes out of bounds", "of an allocation of 512"],
        ),
        (4, &["write of 4 bytes out of bounds"]),
        (5, &["misaligned write of 16 bytes"]),
        (6, &["race between blocks"]),
        (
            7,
            &[
                "deadlock",
                "64 wait for block barrier",
                "64 wait for named barrier 0x1",
            ],
        ),
        (8, &["divergent barrier"]),
        (9, &["race in shared memory", "still under way"]),
        (10, &["race in shared memory"]),
        (11, &["race in shared memory", "still under way"]),
        (12, &["lanes of one warp at different operations"]),
        (13, &["out of bounds of the"]),
        (14, &["race between blocks"]),
        (15, &["names lanes that have left", "deadlock"]),
        (17, &["race in shared memory"]),
    ];
    under_all_schedules(|device| {
        let input = upload(device, &words(128));
        for (mode, texts) in faults {
            let output = device.alloc(1024).unwrap();
            let params = Selftest {
                input,
                output,
                mode,
                count: if mode == 3 { 128 } else { 256 },
            };
            let launch = Launch::linear("emu_fault", 2, 128);
            let result = params.run(device, &launch);
            // Block 1 reads first, before there is anything to race with.
            if mode == 14 && result.is_ok() {
                assert_ne!(device.schedule(), Schedule::RoundRobin);
                assert_ne!(device.schedule(), Schedule::WarpGreedy);
                continue;
            }
            let error = result.expect_err(&format!("fault {mode}")).to_string();
            let said = |text: &&&str| error.contains(**text);
            let fine = match mode {
                15 => texts.iter().any(|t| said(&t)),
                _ => texts.iter().all(|t| said(&t)),
            };
            assert!(fine, "fault {mode}: {error}");
            assert!(error.contains("emu_fault"), "{error}");
            device.free(output).unwrap();
        }
    });
}

/// Accesses that a kernel makes before it waits for the launches ahead of it are reported.
#[test]
fn early_accesses_are_reported() {
    under_all_schedules(|device| {
        let output = device.alloc(1024).unwrap();
        let run = |mode, input| {
            let params = Selftest {
                input,
                output,
                mode,
                count: 128,
            };
            params.run(device, &Launch::linear("emu_fault", 2, 128))
        };
        let written = || {
            let made = device.alloc(512).unwrap();
            let params = Selftest {
                input: upload(device, &words(128)),
                output: made,
                mode: 1,
                count: 128,
            };
            params
                .run(device, &Launch::linear("emu_reverse", 1, 128))
                .unwrap();
            made
        };
        for mode in [18, 19] {
            let error = run(mode, written()).unwrap_err().to_string();
            assert!(error.contains("read ahead of dep_wait()"), "{error}");
            // What the host sent is there, and so is what was written before it did.
            run(mode, upload(device, &words(128))).unwrap();
            let before = written();
            upload(device, &words(1));
            run(mode, before).unwrap();
        }
        let input = upload(device, &words(128));
        let error = run(20, input).unwrap_err().to_string();
        assert!(error.contains("write ahead of dep_wait()"), "{error}");
        let error = run(21, input).unwrap_err().to_string();
        assert!(error.contains("block (1,0,0) ended without"), "{error}");
    });
}

#[test]
fn unwritten_memory_is_poison() {
    under_all_schedules(|device| {
        let output = device.alloc(512).unwrap();
        assert_eq!(
            device.download::<u32>(output, 128).unwrap(),
            [u32::MAX; 128]
        );
        device.write(output, &[0u32; 128]).unwrap();
        let params = Selftest {
            input: DevicePtr::NULL,
            output,
            mode: 16,
            count: 0,
        };
        let launch = Launch::linear("emu_fault", 1, 128);
        params.run(device, &launch).unwrap();
        assert_eq!(
            device.download::<u32>(output, 128).unwrap(),
            [u32::MAX; 128]
        );
    });
}

#[test]
fn extents_bound_a_launch() {
    under_all_schedules(|device| {
        let memory = upload(device, &words(256));
        let params = Selftest {
            input: memory,
            output: memory.offset(512),
            mode: 1,
            count: 128,
        };
        let launch = Launch::linear("emu_reverse", 1, 128);
        let extent = |at: DevicePtr, bytes, writable| Extent {
            at,
            bytes,
            writable,
            reserved: 0,
        };
        let run = |extents: &[Extent]| {
            device.launch_bytes(&launch, bytemuck::bytes_of(&params), Some(extents))
        };
        let fine = [extent(memory, 512, 0), extent(params.output, 512, 1)];
        run(&fine).unwrap();
        let short = [extent(memory, 508, 0), fine[1]];
        let read_only = [fine[0], extent(params.output, 512, 0)];
        for extents in [short, read_only] {
            let error = run(&extents).unwrap_err().to_string();
            assert!(error.contains("outside what the launch said"), "{error}");
        }
    });
}

#[test]
fn bad_launches_are_refused() {
    let Some(library) = library() else { return };
    let device = library.device(Schedule::RoundRobin);
    let check = |launch: Launch, bytes: usize, expected: &str| {
        let error = device.launch_bytes(&launch, &vec![0; bytes], None);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(Launch::linear("no_such", 1, 32), 24, "no such kernel");
    check(Launch::linear("emu_warp", 1, 32), 20, "takes 24 bytes");
    check(Launch::linear("emu_warp", 1, 64), 24, "at most 32 threads");
    check(Launch::linear("emu_warp", 1, 0), 24, "at most 32 threads");
    check(Launch::linear("emu_warp", 0, 32), 24, "grid is empty");
    let mut much = Launch::linear("emu_warp", 1, 32);
    much.shared_bytes = 228 << 10;
    check(much, 24, "227 KB");
    assert!(device.download::<u8>(DevicePtr(64), 1).is_err());
    assert!(device.free(DevicePtr(64)).is_err());
}
