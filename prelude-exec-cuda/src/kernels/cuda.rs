//! Kernels on a GPU: modules, entry points, launches.

use std::{collections::HashMap, ffi::CString, sync::Arc};

use cudarc::driver::{
    DriverError,
    result::{self, function, module},
    sys::{self, CUfunction_attribute},
};
use prelude_kernels::{Family, Launch, Params, TensorMap, TensorTile};

use super::image::Images;
use crate::{
    Error,
    config::HOPPER,
    memory::{
        context::{Context, failed},
        libs::describe,
    },
};

/// Dynamic shared memory that a block gets without asking.
const SHARED_BYTES_FREE: u32 = 48 << 10;

/// Compute capability from which on a kernel may start before the one ahead of it has ended.
const EARLY_LAUNCH: (i32, i32) = (9, 0);

/// A kernel that waits for a clock to be zero, which it never is.
#[cfg(feature = "measure")]
const ENDLESS: &std::ffi::CStr = c"
.version 7.0
.target sm_80
.address_size 64
.visible .entry endless()
{
    .reg .u64 %now;
    .reg .pred %goes;
again:
    mov.u64 %now, %globaltimer;
    setp.ne.u64 %goes, %now, 0;
    @%goes bra again;
    ret;
}
";

/// Launches kernels on the stream of one GPU.
#[derive(Debug)]
pub(crate) struct CudaLauncher {
    context: Arc<Context>,
    images: Images,
    modules: Vec<sys::CUmodule>,
    kernels: HashMap<&'static str, Kernel>,
}

/// A captured step, ready to be queued.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    context: Arc<Context>,
    exec: sys::CUgraphExec,
}

// SAFETY: as `CudaLauncher`.
unsafe impl Send for CudaGraph {}

/// An entry point.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    function: sys::CUfunction,
    /// Dynamic shared memory that the kernel may have.
    shared_bytes_max: u32,
}

// SAFETY: the handles belong to the context, which may be used from any thread once it is current
// there; every use binds it first.
unsafe impl Send for CudaLauncher {}

impl CudaLauncher {
    /// Loads every family's kernels, so that a missing image shows at start; those for Hopper on GPUs of
    /// compute capability 9.0 alone.
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
        let has_hopper = this.is_on_hopper();
        let families = prelude_kernels::FAMILIES.iter();
        for family in families.filter(|f| has_hopper || !f.is_of_hopper()) {
            this.load(family)?;
        }
        Ok(this)
    }

    pub(crate) fn multiprocessors(&self) -> u32 {
        self.context.multiprocessors
    }

    /// Returns true if the GPU has the instructions of kernels for Hopper.
    pub(crate) fn is_on_hopper(&self) -> bool {
        self.context.compute_capability == HOPPER
    }

    fn load(&mut self, family: &'static Family) -> Result<(), Error> {
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
        // The kernel may start while the one before it ends: each waits (`dep_wait`) before it
        // touches what another writes. Without effect below compute capability 9.0.
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads_x,
            blockDimY: threads_y,
            blockDimZ: threads_z,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.context.stream(),
            attrs: &raw mut early,
            numAttrs: u32::from(self.context.compute_capability >= EARLY_LAUNCH),
        };
        let mut params: [*mut std::ffi::c_void; 1] = [params];
        // SAFETY: the kernel takes one struct by value, which the driver copies before the call
        // returns, as it does the configuration. The struct's pointers are to the buffers in
        // `reads` and `writes`, whose lengths the family's wrapper has checked against what the
        // kernel touches; they live as long as the executor, whose `drop` waits for the stream
        // before any is freed. Indices within them come from a plan made of a validated batch.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                kernel.function,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(fault)
    }

    /// Encodes a matrix of bf16 and a box of it: 128-byte swizzle, zeros outside.
    pub(crate) fn tensor_map(&self, tile: TensorTile) -> Result<TensorMap, Error> {
        use sys::{
            CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
            CUtensorMapL2promotion, CUtensorMapSwizzle,
        };

        self.context.bind()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, strides) = ([tile.columns, tile.rows], [2 * tile.stride]);
        let (box_sizes, steps) = ([tile.box_columns, tile.box_rows], [1; 2]);
        // SAFETY: of two dimensions, the driver reads two sizes, one stride, two sizes of the box and
        // two steps, and writes the map; nothing is kept. It checks the values. The address is not
        // read here; kernels read it within the sizes, which are those of a buffer.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                tile.at.0 as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                box_sizes.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|e| failed("cuTensorMapEncodeTiled", e))?;
        Ok(TensorMap::new(map.opaque))
    }

    /// Queues a kernel that never ends. Nothing ends it but the end of the process.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn hang(&mut self) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: PTX that ends in a zero byte, which the driver copies.
        let module = unsafe { module::load_data(ENDLESS.as_ptr().cast()) }
            .map_err(|e| failed("cuModuleLoadData", e))?;
        self.modules.push(module);
        // SAFETY: the module was loaded above and is unloaded in `drop` only.
        let function = unsafe { module::get_function(module, c"endless".to_owned()) }
            .map_err(|e| failed("cuModuleGetFunction", e))?;
        let one = (1, 1, 1);
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe { result::launch_kernel(function, one, one, 0, self.context.stream(), &mut []) }
            .map_err(|e| failed("cuLaunchKernel", e))
    }

    /// Begins a capture: what this thread queues on the stream from here on is kept and not run.
    pub(crate) fn begin_capture(&self) -> Result<(), Error> {
        self.context.bind()?;
        // In this mode only other calls of this thread can break the capture, not those of other
        // threads.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is the context's, and no capture is under way: `end_capture` ends
        // every one.
        unsafe { result::stream::begin_capture(self.context.stream(), mode) }
            .map_err(|e| failed("cuStreamBeginCapture", e))
    }

    /// Returns the captured launches as a graph. From here on launches run at once.
    pub(crate) fn end_capture(&self) -> Result<CudaGraph, Error> {
        self.context.bind()?;
        // SAFETY: a capture is under way on the stream, which is the context's.
        let graph = unsafe { result::stream::end_capture(self.context.stream()) }
            .map_err(|e| failed("cuStreamEndCapture", e))?;
        if graph.is_null() {
            return Err(Error::launch("graph", "nothing was captured"));
        }
        // SAFETY: the graph was made above; what its kernels read and write lives as long as the
        // executor, which drops its graphs first.
        let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: made above, given back here only; what was made of it is on its own.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let exec = exec.map_err(|e| failed("cuGraphInstantiate", e))?;
        let made = CudaGraph {
            context: Arc::clone(&self.context),
            exec,
        };
        destroyed.map_err(|e| failed("cuGraphDestroy", e))?;
        Ok(made)
    }

    pub(crate) fn replay(&self, graph: &CudaGraph) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: the graph is ready, and the stream is the context's; buffers as in `launch`.
        unsafe { result::graph::launch(graph.exec, self.context.stream()) }.map_err(
            |e| match failed("graph", e) {
                lost @ Error::DeviceLost { .. } => lost,
                _ => Error::launch("graph", describe(e)),
            },
        )
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made in `end_capture`, given back here only. The driver waits for it where it
            // is still running.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
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
