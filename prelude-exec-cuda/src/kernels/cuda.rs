//! Kernels on a GPU: modules, entry points, launches.

use std::{collections::HashMap, ffi::CString, sync::Arc};

use cudarc::driver::{
    DriverError,
    result::{self, function, module},
    sys::{self, CUfunction_attribute},
};
use kernels::{Launch, Params};

use super::{image::Images, libs::describe};
use crate::{
    Error,
    memory::context::{Context, failed},
};

/// Dynamic shared memory that a block gets without asking.
const SHARED_BYTES_FREE: u32 = 48 << 10;

/// Launches kernels on the stream of one GPU.
#[derive(Debug)]
pub(crate) struct CudaLauncher {
    context: Arc<Context>,
    images: Images,
    modules: Vec<sys::CUmodule>,
    kernels: HashMap<&'static str, Kernel>,
}

/// An entry point.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    function: sys::CUfunction,
    /// Dynamic shared memory that it may have.
    shared_bytes_max: u32,
}

// SAFETY: the handles belong to the context, which may be used from any thread once it is current
// there; every use binds it first.
unsafe impl Send for CudaLauncher {}

impl CudaLauncher {
    /// Loads every family's kernels, so that a missing image shows at start.
    ///
    /// # Errors
    /// [`Error::KernelImageMissing`], or the driver's.
    pub(crate) fn new(context: Arc<Context>, images: Images) -> Result<Self, Error> {
        let mut this = Self {
            context,
            images,
            modules: Vec::new(),
            kernels: HashMap::new(),
        };
        this.context.bind()?;
        for family in kernels::FAMILIES {
            this.load(family)?;
        }
        Ok(this)
    }

    fn load(&mut self, family: &'static kernels::Family) -> Result<(), Error> {
        let capability = self.context.compute_capability;
        let module = self.images.get(family, capability, |image| {
            // SAFETY: the image is a fatbin, cubin or PTX that ends in a zero byte, which is what
            // the driver takes; it copies what it needs.
            unsafe { module::load_data(image.as_ptr().cast()) }
                .map_err(|e| format!("its image does not load ({})", describe(e)))
        })?;
        self.modules.push(module);
        for &entry in family.kernels {
            let name = CString::new(entry).expect("entry points have no zero bytes");
            // SAFETY: the module was loaded above and is unloaded in `drop` only.
            let function = unsafe { module::get_function(module, name) }
                .map_err(|e| failed("cuModuleGetFunction", e))?;
            let kernel = Kernel {
                function,
                shared_bytes_max: SHARED_BYTES_FREE,
            };
            self.kernels.insert(entry, kernel);
        }
        Ok(())
    }

    pub(crate) fn launch<P: Params>(&mut self, launch: &Launch, params: &P) -> Result<(), Error> {
        let fault = |e: DriverError| match failed(launch.kernel, e) {
            lost @ Error::DeviceLost { .. } => lost,
            _ => Error::launch(launch.kernel, describe(e)),
        };
        self.context.bind()?;
        let kernel = self
            .kernels
            .get_mut(launch.kernel)
            .ok_or_else(|| Error::launch(launch.kernel, "no such kernel"))?;
        if launch.shared_bytes > kernel.shared_bytes_max {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(launch.shared_bytes)
                .map_err(|_| Error::launch(launch.kernel, "too much shared memory"))?;
            // SAFETY: the function belongs to a loaded module.
            unsafe { function::set_function_attribute(kernel.function, attribute, bytes) }
                .map_err(fault)?;
            kernel.shared_bytes_max = launch.shared_bytes;
        }
        let [x, y, z] = launch.grid;
        let [threads_x, threads_y, threads_z] = launch.block;
        let params = std::ptr::from_ref(params).cast_mut().cast();
        // SAFETY: the kernel takes one struct by value, which the driver copies before the call
        // returns. Its pointers are to the buffers in `reads` and `writes`, whose lengths the
        // family's wrapper has checked against what the kernel touches; they live as long as the
        // executor, whose `drop` waits for the stream before any is freed. Indices within them
        // come from a plan made of a validated batch.
        unsafe {
            result::launch_kernel(
                kernel.function,
                (x, y, z),
                (threads_x, threads_y, threads_z),
                launch.shared_bytes,
                self.context.stream(),
                &mut [params],
            )
        }
        .map_err(fault)
    }
}

impl Drop for CudaLauncher {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            let _ = self.context.synchronize("unloading kernels");
            for &module in &self.modules {
                // SAFETY: loaded in `load`, unloaded here only, and nothing of it is running.
                let _ = unsafe { module::unload(module) };
            }
        }
    }
}
