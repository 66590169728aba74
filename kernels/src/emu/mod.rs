//! Kernels on the host: compiled by g++, run one fibre a CUDA thread, checked.
//!
//! ```no_run
//! use prelude_kernels::{emu, families::{Gate, SiluMulParams}, DevicePtr};
//!
//! let library = emu::Library::build(&emu::Build::default())?;
//! let device = library.device(emu::Schedule::WarpGreedy);
//! let gate_up = device.upload(&[0u16; 16])?;
//! let a = device.alloc(16)?; // bytes, filled with NaN
//! let params = SiluMulParams {
//!     gate_up,
//!     a,
//!     live: DevicePtr::NULL,
//!     rows: 1,
//!     width: 8,
//!     gate_up_stride: 16,
//!     a_stride: 8,
//! };
//! device.launch(&params.launch(Gate::Silu), &params)?;
//! let silu: Vec<u16> = device.download(a, 8)?;
//! # Ok::<(), emu::Error>(())
//! ```
//!
//! [`Device::launch`] reports as an error: accesses out of bounds of an allocation or
//! of shared memory, or misaligned; races between threads over shared memory (a missing barrier,
//! or a copy that was not waited for); blocks that touch what another block wrote in the same
//! launch; deadlocks and divergent barriers, with the threads that wait and where. Memory that was
//! not written is NaN. See `kernels/README.md` for what emulation cannot show.

mod build;
mod ffi;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytemuck::{Pod, Zeroable};

pub use self::build::{Build, Sanitizer};
use crate::{DevicePtr, Field, Launch, Params};

/// Errors of the emulation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no g++ here; tests say SKIP then.
    #[error("no C++ compiler: `{program}` cannot be started ({why})")]
    NoCompiler {
        /// The attempt that failed.
        program: String,
        /// The reason why the compiler did not start.
        why: String,
    },
    /// A source does not compile.
    #[error("{file} does not compile for the emulation:\n{output}")]
    Compile {
        /// The source.
        file: String,
        /// The compiler's output.
        output: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {why}", path.display())]
    File {
        /// The attempt that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason why the file could not be used.
        why: String,
    },
    /// The library does not load.
    #[error("the emulation library does not load: {0}")]
    Load(String),
    /// A kernel did what it must not.
    #[error("{what} [schedule {schedule}]")]
    Fault {
        /// The kernel, what it did, where, and which thread.
        what: String,
        /// The schedule with which to run the kernel again.
        schedule: Schedule,
    },
    /// A copy to or from memory that was not allocated.
    #[error("{bytes} bytes at {at:#x} are not within an allocation")]
    OutOfBounds {
        /// The address.
        at: u64,
        /// The number of bytes.
        bytes: usize,
    },
}

/// The order in which threads and blocks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// One thread after another, up to where each must wait.
    RoundRobin,
    /// Each warp runs as far as it can.
    WarpGreedy,
    /// The order of [`Schedule::WarpGreedy`] from the last lane, warp and block on.
    WarpGreedyReversed,
    /// Warps, lanes and blocks by a generator with this seed.
    Random(u64),
}

impl Schedule {
    /// The schedules that every test runs.
    pub const STANDARD: [Self; 5] = [
        Self::RoundRobin,
        Self::WarpGreedy,
        Self::WarpGreedyReversed,
        Self::Random(1),
        Self::Random(2),
    ];
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A range that a launch may touch.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Extent {
    /// First byte.
    pub at: DevicePtr,
    /// The number of bytes.
    pub bytes: u64,
    /// 1 if the memory may be written, else 0.
    pub writable: u32,
    /// 0.
    pub reserved: u32,
}

/// A kernel in the library.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The kernel's `extern "C"` name.
    pub name: String,
    /// The name of the kernel's parameter struct in the source.
    pub params: String,
    /// Most threads of a block.
    pub threads_max: u32,
}

/// A parameter struct as C++ lays it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The struct's size.
    pub bytes: usize,
    /// Name, offset and size of each field.
    pub fields: Vec<(String, usize, usize)>,
}

/// The kernels, compiled and loaded.
#[derive(Clone, Debug)]
pub struct Library(Arc<ffi::Symbols>);

/// Emulated device memory, and a place to launch kernels. One launch at a time.
#[derive(Debug)]
pub struct Device {
    handle: Mutex<ffi::Handle>,
    schedule: Schedule,
}

impl Library {
    /// Compiles what has changed, and loads it.
    ///
    /// # Errors
    /// [`Error::NoCompiler`], [`Error::Compile`], [`Error::File`], [`Error::Load`].
    pub fn build(build: &Build) -> Result<Self, Error> {
        let path = build.run()?;
        ffi::Symbols::load(&path).map(|symbols| Self(Arc::new(symbols)))
    }

    /// Returns an empty device whose launches run in this order.
    #[must_use]
    pub fn device(&self, schedule: Schedule) -> Device {
        Device {
            handle: Mutex::new(ffi::Handle::open(Arc::clone(&self.0))),
            schedule,
        }
    }

    /// Returns all kernels in the library.
    #[must_use]
    pub fn kernels(&self) -> Vec<Kernel> {
        self.0.kernels()
    }

    /// Returns the layout of a parameter struct in C++.
    #[must_use]
    pub fn layout(&self, name: &str) -> Option<Layout> {
        self.0.layout(name)
    }

    /// Returns the difference between the C++ and the Rust definition of a parameter struct, if
    /// there is one.
    #[must_use]
    pub fn layout_difference<P: Params>(&self) -> Option<String> {
        let Some(theirs) = self.layout(P::NAME) else {
            return Some(format!("{} is not in the library", P::NAME));
        };
        let field = |f: &Field| (f.name.to_owned(), f.offset, f.bytes);
        let ours = Layout {
            bytes: size_of::<P>(),
            fields: P::FIELDS.iter().map(field).collect(),
        };
        (ours != theirs).then(|| format!("{}: {theirs:?} in C++, {ours:?} in Rust", P::NAME))
    }
}

impl Device {
    fn handle(&self) -> std::sync::MutexGuard<'_, ffi::Handle> {
        // A panic between two calls leaves the device whole.
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the order in which the device runs threads.
    #[must_use]
    pub const fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Takes `bytes` of memory, aligned to 256, filled with NaN. Freed with the device, if not
    /// before.
    ///
    /// # Errors
    /// None at present: memory that the host lacks ends the process, as everywhere in Rust.
    pub fn alloc(&self, bytes: usize) -> Result<DevicePtr, Error> {
        Ok(self.handle().alloc(bytes))
    }

    /// Gives memory back.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if `at` is not the start of an allocation.
    pub fn free(&self, at: DevicePtr) -> Result<(), Error> {
        self.handle().free(at)
    }

    /// Takes memory for `values` and copies them there.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<DevicePtr, Error> {
        let at = self.alloc(size_of_val(values))?;
        self.write(at, values)?;
        Ok(at)
    }

    /// Copies to the device.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn write<T: Pod>(&self, to: DevicePtr, values: &[T]) -> Result<(), Error> {
        self.handle().write(to, bytemuck::cast_slice(values))
    }

    /// Copies `count` values from the device.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn download<T: Pod>(&self, from: DevicePtr, count: usize) -> Result<Vec<T>, Error> {
        let mut values = vec![T::zeroed(); count];
        self.read(from, &mut values)?;
        Ok(values)
    }

    /// Copies from the device.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read<T: Pod>(&self, from: DevicePtr, values: &mut [T]) -> Result<(), Error> {
        self.handle().read(from, bytemuck::cast_slice_mut(values))
    }

    /// Fills with NaN again, so that what a launch does not write shows.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn poison(&self, at: DevicePtr, bytes: usize) -> Result<(), Error> {
        self.handle().poison(at, bytes)
    }

    /// Runs a kernel to its end. It may touch every allocation.
    ///
    /// # Errors
    /// [`Error::Fault`].
    pub fn launch<P: Params>(&self, launch: &Launch, params: &P) -> Result<(), Error> {
        self.launch_bytes(launch, bytemuck::bytes_of(params), None)
    }

    /// Runs a kernel with parameters given as bytes. With `extents` it may touch those alone.
    ///
    /// # Errors
    /// [`Error::Fault`].
    pub fn launch_bytes(
        &self,
        launch: &Launch,
        params: &[u8],
        extents: Option<&[Extent]>,
    ) -> Result<(), Error> {
        let handle = self.handle();
        handle.launch(launch, params, self.schedule, extents)
    }
}
