//! The interface of `gpu-check` to a device: single operations, their times, whole suites.
//!
//! Behind the feature `measure`, for that program alone: it changes with the needs of that
//! program. A [`Target`] is a GPU, the emulation, or the device that writes launches down; what
//! runs on one of them runs on all, so that nothing meets its first mistake on a GPU.

mod device;
mod products;
mod times;

use std::sync::Arc;

use prelude_models::ModelConfig;

pub use self::{
    device::{Device, Room},
    products::{Measured, Operands, Tuner, WeightCycle, logits_f32, product_f32},
    times::Times,
};
pub use crate::kernels::gemm::ProductCounts;
use crate::{
    CudaConfig, CudaOps, Error, MemoryPlan, Recording,
    executor::kv_shape,
    kernels::{cuda::CudaLauncher, image::Images, launch::Launcher},
    memory::{context::Context, space::Space},
    ops::Sizes,
};

/// Something that runs kernels, or stands in for it.
#[derive(Clone, Debug)]
pub struct Target(TargetKind);

#[derive(Clone, Debug)]
enum TargetKind {
    Gpu(Arc<Context>, Box<CudaConfig>),
    Emulated(Arc<prelude_kernels::emu::Device>),
    Recorded(Arc<Recording>),
}

/// A GPU's properties.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The GPU's name.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Version of CUDA that the driver supports.
    pub driver: String,
    /// The GPU's memory, all of it.
    pub total_bytes: u64,
}

impl Target {
    /// Opens the GPU of a configuration, its images and its libraries.
    ///
    /// # Errors
    /// [`Error::NoDriver`] and its like.
    pub fn gpu(config: &CudaConfig) -> Result<Self, Error> {
        let context = Arc::new(Context::open(config.device)?);
        Ok(Self(TargetKind::Gpu(context, Box::new(config.clone()))))
    }

    /// Returns the emulation.
    #[must_use]
    pub const fn emulated(device: Arc<prelude_kernels::emu::Device>) -> Self {
        Self(TargetKind::Emulated(device))
    }

    /// Returns the device that computes nothing.
    #[must_use]
    pub fn recorded() -> Self {
        Self(TargetKind::Recorded(Arc::default()))
    }

    /// Returns true if this is a GPU, so that times mean something.
    #[must_use]
    pub const fn is_gpu(&self) -> bool {
        matches!(self.0, TargetKind::Gpu(..))
    }

    /// Returns the GPU's properties, if this is one.
    #[must_use]
    pub fn facts(&self) -> Option<Facts> {
        let TargetKind::Gpu(context, _) = &self.0 else {
            return None;
        };
        Some(Facts {
            name: context.name.clone(),
            compute_capability: context.compute_capability,
            multiprocessors: context.multiprocessors,
            driver: context.driver.clone(),
            total_bytes: context.total_bytes,
        })
    }

    /// Returns the bytes that are free, where memory has a limit.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes(&self) -> Result<Option<u64>, Error> {
        self.space().free_bytes()
    }

    /// Loads every kernel, as an executor does at its start, and forgets them.
    ///
    /// # Errors
    /// [`Error::KernelImageMissing`], or the driver's.
    pub fn load_kernels(&self) -> Result<(), Error> {
        self.launcher().map(drop)
    }

    /// Times `repetitions` copies of `bytes` bytes from one buffer to another on the device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or the driver's.
    pub fn copy_times(&self, bytes: usize, repetitions: usize) -> Result<Times, Error> {
        let space = self.space();
        let [from, to] = [space.alloc("from", bytes)?, space.alloc("to", bytes)?];
        times::times(&space, repetitions, |_| to.copy_from(0, &from, 0..bytes))
    }

    pub(crate) fn space(&self) -> Space {
        match &self.0 {
            TargetKind::Gpu(context, _) => Space::Cuda(Arc::clone(context)),
            TargetKind::Emulated(device) => Space::Emu(Arc::clone(device)),
            TargetKind::Recorded(recording) => Space::Virtual(Arc::clone(recording)),
        }
    }

    pub(crate) fn launcher(&self) -> Result<Launcher, Error> {
        Ok(match &self.0 {
            TargetKind::Gpu(context, config) => {
                let images = Images::new(config);
                Launcher::Cuda(Box::new(CudaLauncher::new(Arc::clone(context), images)?))
            }
            TargetKind::Emulated(device) => Launcher::Emu(Arc::clone(device), None),
            TargetKind::Recorded(recording) => Launcher::Record(Arc::clone(recording), None),
        })
    }

    /// Returns the configuration that the GPU was opened with; the default elsewhere.
    fn config(&self) -> CudaConfig {
        match &self.0 {
            TargetKind::Gpu(_, config) => (**config).clone(),
            TargetKind::Emulated(_) | TargetKind::Recorded(_) => CudaConfig::default(),
        }
    }
}

/// Returns the memory that an executor would take on a GPU with NVIDIA's library for products, for a
/// model whose weights take `weights_bytes`. Nothing is taken, and no limit of a setting is checked.
///
/// # Errors
/// [`Error::Config`] for what exceeds the address space.
pub fn memory_plan(
    model: &ModelConfig,
    weights_bytes: u64,
    config: &CudaConfig,
) -> Result<MemoryPlan, Error> {
    let target = Target::recorded();
    let longest = u32::try_from(model.max_position_embeddings).unwrap_or(u32::MAX);
    let passes = config.passes(model, config.max_context_len.unwrap_or(longest));
    let sizes = Sizes::new(model, config, passes.as_ref());
    let (space, launcher) = (target.space(), target.launcher()?);
    let ops = CudaOps::new(space, launcher, model, config, sizes, |space| {
        kv_shape(space, model, config)
    })?;
    Ok(ops.memory(weights_bytes))
}

/// Times `repetitions` calls of `queue` with a running number, as the GPU notes the times of what the
/// calls queue; `queue` is called some more times first. Elsewhere as the host's clock has them.
///
/// # Errors
/// `queue`'s, or the driver's.
pub fn times(
    ops: &mut CudaOps,
    repetitions: usize,
    mut queue: impl FnMut(&mut CudaOps, usize) -> Result<(), Error>,
) -> Result<Times, Error> {
    let space = ops.space.clone();
    times::times(&space, repetitions, |i| queue(ops, i))
}
