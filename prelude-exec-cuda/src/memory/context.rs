//! A GPU: its primary context and the stream that everything runs on.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{
    DriverError,
    result::{ctx, device, mem_get_info, primary_ctx, stream},
    sys::{self, CUdevice_attribute, CUresult},
};

use super::libs;
use crate::Error;

/// Oldest compute capability that the kernels are written for: `cp.async` and bf16 products.
const COMPUTE_MIN: (i32, i32) = (8, 0);

/// A GPU in use.
#[derive(Debug)]
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// True if it hangs: then nothing is asked of it any more, and nothing is given back to it.
    has_hung: AtomicBool,
    /// The GPU's name.
    pub(crate) name: String,
    /// Major and minor.
    pub(crate) compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub(crate) multiprocessors: u32,
    /// Most bytes of shared memory that a block can have.
    pub(crate) shared_bytes: u32,
    /// Version of CUDA that the driver supports.
    pub(crate) driver: String,
    /// The GPU's memory, all of it.
    pub(crate) total_bytes: u64,
}

/// A GPU that the driver sees and that kernels are for. Nothing is taken of it.
#[derive(Debug)]
pub(crate) struct Seen {
    handle: sys::CUdevice,
    /// The GPU's name.
    pub(crate) name: String,
    compute_capability: (i32, i32),
    /// Version of CUDA that the driver supports.
    driver: String,
}

impl Seen {
    /// Starts the driver and looks at a GPU.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::DriverTooOld`], [`Error::NoDevice`], [`Error::Unsupported`].
    pub(crate) fn find(ordinal: u32) -> Result<Self, Error> {
        let driver = libs::start_driver()?;
        let count = device::get_count().map_err(|e| failed("cuDeviceGetCount", e))?;
        let no_device = || Error::NoDevice {
            ordinal,
            count: count.unsigned_abs(),
        };
        let index = i32::try_from(ordinal).map_err(|_| no_device())?;
        if index >= count {
            return Err(no_device());
        }
        let handle = device::get(index).map_err(|e| failed("cuDeviceGet", e))?;
        let name = device::get_name(handle).map_err(|e| failed("cuDeviceGetName", e))?;
        let mut this = Self {
            handle,
            name,
            compute_capability: (0, 0),
            driver,
        };
        use CUdevice_attribute as A;
        this.compute_capability = (
            this.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            this.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if this.compute_capability < COMPUTE_MIN {
            let (major, minor) = this.compute_capability;
            return Err(Error::Unsupported {
                compute_capability: format!("{major}.{minor}"),
            });
        }
        Ok(this)
    }

    fn attribute(&self, which: CUdevice_attribute) -> Result<i32, Error> {
        // SAFETY: the handle is the driver's.
        unsafe { device::get_attribute(self.handle, which) }
            .map_err(|e| failed("cuDeviceGetAttribute", e))
    }
}

// SAFETY: the handles are process-wide names of driver objects; the driver's calls that take them
// may be made from any thread once the context is current there, which `bind` sees to.
unsafe impl Send for Context {}
// SAFETY: as above; no call of this crate takes a handle from two threads at once in a way that
// the driver does not serialise.
unsafe impl Sync for Context {}

impl Context {
    /// Starts the driver and takes a GPU.
    ///
    /// # Errors
    /// The errors of [`Seen::find`]; the driver's.
    pub(crate) fn open(ordinal: u32) -> Result<Self, Error> {
        let seen = Seen::find(ordinal)?;
        let attribute = |which| seen.attribute(which);
        use CUdevice_attribute as A;
        let Seen {
            handle,
            compute_capability,
            ..
        } = seen;
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        // SAFETY: the handle is the driver's.
        let total = unsafe { device::total_mem(handle) };
        let total_bytes = total.map_err(|e| failed("cuDeviceTotalMem", e))? as u64;
        // SAFETY: the handle is the driver's; released in `drop`.
        let context = unsafe { primary_ctx::retain(handle) }
            .map_err(|e| failed("cuDevicePrimaryCtxRetain", e))?;
        // From here on `drop` releases what was taken.
        let mut this = Self {
            device: handle,
            context,
            stream: stream::null(),
            has_hung: AtomicBool::new(false),
            name: seen.name,
            compute_capability,
            multiprocessors: multiprocessors.unsigned_abs(),
            shared_bytes: shared.unsigned_abs(),
            driver: seen.driver,
            total_bytes,
        };
        this.bind()?;
        // Not the default stream: that one cannot be captured.
        this.stream = stream::create(stream::StreamKind::NonBlocking)
            .map_err(|e| failed("cuStreamCreate", e))?;
        Ok(this)
    }

    /// Asks nothing of the GPU any more. Calls to one that hangs would wait for it, those that give
    /// memory back too: the driver takes all of it back when the process ends.
    pub(super) fn give_up(&self) {
        self.has_hung.store(true, Ordering::Relaxed);
    }

    /// Makes the context the calling thread's.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] for a GPU that hangs; the driver's.
    pub(crate) fn bind(&self) -> Result<(), Error> {
        if self.has_hung.load(Ordering::Relaxed) {
            return Err(Error::DeviceLost {
                code: "it hangs".to_owned(),
                kernel: "an earlier step",
            });
        }
        // SAFETY: the context is held until `drop`.
        unsafe { ctx::set_current(self.context) }.map_err(|e| failed("cuCtxSetCurrent", e))
    }

    /// Returns the stream that everything runs on.
    pub(crate) const fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Returns the bytes of free memory.
    pub(crate) fn free_bytes(&self) -> Result<u64, Error> {
        self.bind()?;
        let (free, _) = mem_get_info().map_err(|e| failed("cuMemGetInfo", e))?;
        Ok(free as u64)
    }

    /// Waits for everything queued on the stream.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], whatever the driver says: without knowing that the stream has
    /// passed, no buffer of a step may be written again.
    pub(crate) fn synchronize(&self, what: &'static str) -> Result<(), Error> {
        self.bind().map_err(|e| lost(what, e))?;
        // SAFETY: the stream is this context's.
        unsafe { stream::synchronize(self.stream) }.map_err(|e| lost(what, failed(what, e)))
    }

    /// Waits for everything in the context, on all its streams: the stream of the steps does not
    /// wait for the default stream, on which copies of measurements run.
    ///
    /// # Errors
    /// The errors of [`Context::synchronize`].
    pub(crate) fn synchronize_all(&self, what: &'static str) -> Result<(), Error> {
        self.bind().map_err(|e| lost(what, e))?;
        ctx::synchronize().map_err(|e| lost(what, failed(what, e)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if *self.has_hung.get_mut() {
            return;
        }
        // What fails here fails because the context is already broken, and the process is ending
        // or said so before.
        if self.bind().is_ok() && self.stream != stream::null() {
            // SAFETY: the stream was created here and is not used after.
            let _ = unsafe { stream::destroy(self.stream) };
        }
        // SAFETY: retained once in `open`.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

/// Returns an error of waiting.
pub(crate) fn lost(what: &'static str, error: Error) -> Error {
    match error {
        Error::Driver { code, .. } => Error::DeviceLost { code, kernel: what },
        other => other,
    }
}

/// Returns the error of a driver's call: errors after which the context is of no more use are
/// [`Error::DeviceLost`].
pub(crate) fn failed(call: &'static str, error: DriverError) -> Error {
    let code = libs::describe(error);
    if is_sticky(error.0) {
        return Error::DeviceLost { code, kernel: call };
    }
    Error::Driver { call, code }
}

/// Returns true if every later call in the context fails with this error too.
const fn is_sticky(code: CUresult) -> bool {
    use CUresult as R;
    matches!(
        code,
        R::CUDA_ERROR_ILLEGAL_ADDRESS
            | R::CUDA_ERROR_LAUNCH_FAILED
            | R::CUDA_ERROR_LAUNCH_TIMEOUT
            | R::CUDA_ERROR_HARDWARE_STACK_ERROR
            | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | R::CUDA_ERROR_MISALIGNED_ADDRESS
            | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | R::CUDA_ERROR_INVALID_PC
            | R::CUDA_ERROR_ASSERT
            | R::CUDA_ERROR_ECC_UNCORRECTABLE
            | R::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | R::CUDA_ERROR_CONTAINED
            | R::CUDA_ERROR_EXTERNAL_DEVICE
            | R::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | R::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | R::CUDA_ERROR_MPS_CONNECTION_FAILED
            | R::CUDA_ERROR_MPS_RPC_FAILURE
            | R::CUDA_ERROR_UNKNOWN
            | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | R::CUDA_ERROR_DEVICE_UNAVAILABLE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sticky_errors_lose_the_device() {
        let check = |code, lost: bool| {
            let error = failed("call", DriverError(code));
            assert_eq!(matches!(error, Error::DeviceLost { .. }), lost, "{error}");
        };
        check(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, true);
        check(CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, true);
        check(CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE, true);
        check(CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED, true);
        check(CUresult::CUDA_ERROR_UNKNOWN, true);
        check(CUresult::CUDA_ERROR_INVALID_VALUE, false);
        check(CUresult::CUDA_ERROR_OUT_OF_MEMORY, false);
    }

    #[test]
    fn failing_to_wait_loses_the_device() {
        let error = failed("call", DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let error = lost("a step's results", error);
        let text = error.to_string();
        assert!(matches!(error, Error::DeviceLost { .. }), "{text}");
        assert!(text.contains("a step's results"), "{text}");
    }
}
