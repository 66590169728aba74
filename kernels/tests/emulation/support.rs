//! Tools for every family's tests.

use std::{
    io::{self, Write as _},
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    sync::OnceLock,
};

use half::bf16;
use prelude_kernels::{
    DevicePtr, Launch, Params,
    emu::{Build, Device, Error, Library, Sanitizer, Schedule},
};

/// Returns the kernels, or `None` (said aloud) where there is no compiler.
///
/// For `cargo xtask kernels emu`, environment variables choose another source tree
/// (`PRELUDE_EMU_SOURCES`: mutation tests), a sanitizer (`PRELUDE_EMU_SANITIZE=undefined|address`)
/// or the portable fibres (`PRELUDE_EMU_PORTABLE=1`).
pub(crate) fn library() -> Option<Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let mut build = Build::default();
        if let Ok(sources) = std::env::var("PRELUDE_EMU_SOURCES") {
            build.sources = PathBuf::from(sources);
            // A mutant may leave a variable unused.
            build.strict = false;
        }
        build.sanitizer = match std::env::var("PRELUDE_EMU_SANITIZE").as_deref() {
            Ok("undefined") => Some(Sanitizer::Undefined),
            Ok("address") => Some(Sanitizer::Address),
            _ => None,
        };
        build.portable_fibres = std::env::var_os("PRELUDE_EMU_PORTABLE").is_some();
        match Library::build(&build) {
            Ok(library) => Some(library),
            Err(e @ Error::NoCompiler { .. }) => {
                // Past the test harness, which keeps what passing tests print to itself.
                let skip = format!("SKIP: kernels are not tested: {e}\n");
                let required = std::env::var_os("PRELUDE_REQUIRE_EMU").is_some();
                assert!(!required, "{skip}");
                io::stderr().write_all(skip.as_bytes()).unwrap();
                None
            }
            Err(e) => panic!("{e}"),
        }
    });
    library.clone()
}

/// Returns the seed in `PRELUDE_EMU_SEED`, if it is set.
pub(crate) fn extra_seed() -> Option<u64> {
    let seed = std::env::var("PRELUDE_EMU_SEED").ok()?;
    Some(seed.parse().expect("a seed is a number"))
}

/// Runs a test on a fresh device under every schedule (and one more with the seed in
/// `PRELUDE_EMU_SEED`, if set); says which one failed.
pub(crate) fn under_all_schedules(test: impl Fn(&Device)) {
    let Some(library) = library() else { return };
    let extra = extra_seed().map(Schedule::Random);
    for schedule in Schedule::STANDARD.into_iter().chain(extra) {
        let device = library.device(schedule);
        let result = panic::catch_unwind(AssertUnwindSafe(|| test(&device)));
        if let Err(panic) = result {
            eprintln!("failed under schedule {schedule}");
            panic::resume_unwind(panic);
        }
    }
}

/// Launches a kernel, and fails the test if the kernel does what it must not.
pub(crate) fn launch<P: Params>(device: &Device, launch: Launch, params: &P) {
    if let Err(e) = device.launch(&launch, params) {
        panic!("{e}");
    }
}

/// SplitMix64 (Steele et al., OOPSLA 2014), so that a failure repeats.
pub(crate) struct Values(u64);

impl Values {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub(crate) fn f32(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 40) as f32 / (1u64 << 24) as f32)
    }

    pub(crate) fn f32s(&mut self, n: usize, low: f32, high: f32) -> Vec<f32> {
        (0..n).map(|_| self.f32(low, high)).collect()
    }

    pub(crate) fn bf16s(&mut self, n: usize, low: f32, high: f32) -> Vec<bf16> {
        (0..n)
            .map(|_| bf16::from_f32(self.f32(low, high)))
            .collect()
    }
}

/// Allocates memory with `values`.
pub(crate) fn upload<T: bytemuck::Pod>(device: &Device, values: &[T]) -> DevicePtr {
    device.upload(values).unwrap()
}

/// Allocates memory for `n` values of 2 bytes, filled with NaN.
pub(crate) fn room_bf16(device: &Device, n: usize) -> DevicePtr {
    device.alloc(n * 2).unwrap()
}

pub(crate) fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|v| v.to_f64()).collect()
}

/// Unit roundoff of bf16: half the distance from 1 to the next number.
pub(crate) const U16: f64 = 1.0 / 256.0;
/// Unit roundoff of f32.
pub(crate) const U32: f64 = 1.0 / (1u64 << 24) as f64;

/// The error function by its series of positive terms: `2/√π · e^(-x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!`.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// Fails unless each value is within its bound, given with what is expected. NaN fails.
pub(crate) fn assert_within(
    what: &str,
    got: &[f64],
    expected: impl ExactSizeIterator<Item = (f64, f64)>,
) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    for (i, (&got, (value, bound))) in got.iter().zip(expected).enumerate() {
        let error = (got - value).abs();
        assert!(
            error <= bound,
            "{what} at {i}: got {got}, expected {value:.9e}, off by {error:.3e} of {bound:.3e} allowed"
        );
    }
}

/// Fails unless the values have not been written since they were allocated.
pub(crate) fn assert_untouched(what: &str, values: &[bf16]) {
    let at = values.iter().position(|v| v.to_bits() != 0xffff);
    assert_eq!(
        at, None,
        "{what}: an element outside the result was written"
    );
}
