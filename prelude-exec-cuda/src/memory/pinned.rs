//! Host memory that a GPU copies from and to without going through the driver's own.

use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys::CUresult};

use super::context::{Context, failed};
use crate::Error;

/// Host bytes, zero at first.
#[derive(Debug)]
pub(crate) struct Pinned(Memory);

#[derive(Debug)]
enum Memory {
    /// Locked by the driver.
    Locked {
        context: Arc<Context>,
        start: *mut u8,
        bytes: usize,
    },
    /// Memory of the host for a device that stands in for a GPU.
    #[cfg(feature = "emu")]
    Plain(Box<[u8]>),
}

// SAFETY: the locked memory is owned by this value alone, and may be used from any thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates memory that the driver locks. Flags 0: write-combined memory, which some bindings
    /// ask for, is slow to read.
    pub(super) fn locked(context: Arc<Context>, name: &str, bytes: usize) -> Result<Self, Error> {
        context.bind()?;
        // SAFETY: freed once, in `drop`.
        let start = match unsafe { result::malloc_host(bytes.max(1), 0) } {
            Ok(start) => start.cast::<u8>(),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(Error::OutOfMemory {
                    stage: format!("{name} (locked memory of the host)"),
                    asked: bytes as u64,
                    free: 0,
                });
            }
            Err(e) => return Err(failed("cuMemHostAlloc", e)),
        };
        // SAFETY: `bytes` bytes were just allocated there.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self(Memory::Locked {
            context,
            start,
            bytes,
        }))
    }

    #[cfg(feature = "emu")]
    pub(super) fn plain(bytes: usize) -> Self {
        Self(Memory::Plain(vec![0; bytes].into_boxed_slice()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: allocated with `bytes` bytes, initialised, and not written by the device
            // while a reference is out: copies are waited for before results are read.
            Memory::Locked { start, bytes, .. } => unsafe {
                std::slice::from_raw_parts(*start, *bytes)
            },
            #[cfg(feature = "emu")]
            Memory::Plain(bytes) => bytes,
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            // SAFETY: as above, and `&mut self` is the only reference.
            Memory::Locked { start, bytes, .. } => unsafe {
                std::slice::from_raw_parts_mut(*start, *bytes)
            },
            #[cfg(feature = "emu")]
            Memory::Plain(bytes) => bytes,
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        match &self.0 {
            Memory::Locked { context, start, .. } => {
                if context.bind().is_ok() {
                    // A copy may still be queued if a step failed before it was waited for.
                    let _ = context.synchronize("pinned memory");
                    // SAFETY: allocated in `locked`, freed here only.
                    let _ = unsafe { result::free_host(start.cast()) };
                }
            }
            #[cfg(feature = "emu")]
            Memory::Plain(_) => {}
        }
    }
}
