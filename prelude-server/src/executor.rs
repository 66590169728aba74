//! The one place that knows which executors there are.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use prelude_core::Executor;
pub use prelude_exec_cpu::PackedCheck;
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor, PackedUse};
#[cfg(feature = "cuda")]
use prelude_exec_cuda::{CudaExecutor, Error as CudaError, info, usable_gpu};
use prelude_models::Checkpoint;
use serde::{Deserialize, Serialize};

pub use prelude_exec_cpu::{
    CpuConfig as ExecutorConfig, CpuDtype as ExecutorDtype, MemoryPlan as HostMemory, Quantization,
    available_bytes,
};
#[cfg(feature = "cuda")]
pub use prelude_exec_cuda::CudaConfig;

use crate::{assets::LoadError, log};

/// The error of a program without CUDA when a GPU is asked for.
#[cfg(not(feature = "cuda"))]
const WITHOUT_CUDA: &str =
    "this program was built without CUDA; build it with `cargo build --release --features cuda`";

/// Settings of executors on NVIDIA GPUs. None in a program built without CUDA.
#[cfg(not(feature = "cuda"))]
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CudaConfig {}

/// The features built in beyond the host's executor.
pub(crate) const FEATURES: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "hf-fallback")]
    "hf-fallback",
];

/// Makes results the same bits whatever else is in a step. The host's always are.
#[cfg(feature = "cuda")]
pub fn make_deterministic(config: &mut CudaConfig) {
    config.deterministic = true;
}

/// Makes results the same bits whatever else is in a step. The host's always are.
#[cfg(not(feature = "cuda"))]
pub fn make_deterministic(_: &mut CudaConfig) {}

/// The device that a model runs on: `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The host.
    #[default]
    Cpu,
    /// An NVIDIA GPU, as the driver counts them.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let gpu = |n: &str| n.parse().ok().map(Self::Cuda);
        let device = match text.split_once(':') {
            None if text == "cpu" => Some(Self::Cpu),
            None if text == "cuda" => Some(Self::Cuda(0)),
            Some(("cuda", n)) => gpu(n),
            _ => None,
        };
        device.ok_or_else(|| "must be cpu, cuda or cuda:N".to_owned())
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// The device that a model is to run on: `auto`, or one by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// A GPU where [`automatic_device`] finds one, else the host.
    #[default]
    Auto,
    /// The device that is named.
    On(Device),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text
                .parse()
                .map(Self::On)
                .map_err(|_| "must be auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> Self {
        match choice {
            DeviceChoice::Auto => "auto".to_owned(),
            DeviceChoice::On(device) => device.to_string(),
        }
    }
}

/// Returns the device of a model that may run anywhere, and why: the first GPU, if this program has
/// CUDA and the machine a driver, a GPU and kernels for it, else the host. Nothing is taken of the GPU.
/// `places` are asked for if only the compiler of kernels is missing. There is nothing to say in a
/// program without CUDA on a machine without a GPU.
#[cfg(feature = "cuda")]
pub fn automatic_device(
    config: &CudaConfig,
    places: impl FnOnce() -> CudaPlaces,
) -> (Device, Option<String>) {
    const FIRST: u32 = 0;
    let config = CudaConfig {
        device: FIRST,
        ..config.clone()
    };
    let usable = usable_gpu(&config).or_else(|error| match error {
        CudaError::KernelImageMissing { .. } => {
            let completed = configured(FIRST, &config, &places());
            completed.map_or(Err(error), |config| usable_gpu(&config))
        }
        _ => Err(error),
    });
    match usable {
        Ok(name) => (Device::Cuda(FIRST), Some(name)),
        Err(error) => (Device::Cpu, Some(error.to_string())),
    }
}

/// Returns the host, and why if there is a GPU: this program has no CUDA.
#[cfg(not(feature = "cuda"))]
pub fn automatic_device(
    _: &CudaConfig,
    _: impl FnOnce() -> CudaPlaces,
) -> (Device, Option<String>) {
    let has_gpu = std::path::Path::new("/proc/driver/nvidia/version").exists();
    (Device::Cpu, has_gpu.then(|| WITHOUT_CUDA.to_owned()))
}

/// Folders in which a program looks for NVIDIA's libraries and keeps compiled kernels, unless
/// settings name others.
#[derive(Clone, Debug, Default)]
pub struct CudaPlaces {
    /// Folders of libraries, searched before any other.
    pub first: Vec<PathBuf>,
    /// Folders of libraries, searched where the system's loader finds none.
    pub fallback: Vec<PathBuf>,
    /// The folder of compiled kernels.
    pub cache: Option<PathBuf>,
}

/// The devices that all models of a process share. Executors take turns, so that two models share the
/// machine instead of fighting over it.
#[derive(Clone)]
pub struct Devices {
    cpu: Arc<ComputePool>,
    /// Settings of the GPU that models run on instead, if any.
    cuda: Option<CudaConfig>,
    /// True if models that the GPU has no kernels for run on the host.
    or_host: bool,
}

impl Devices {
    /// Returns all of the host that this process may use.
    #[must_use]
    pub fn of_machine() -> Self {
        Self {
            cpu: Arc::new(ComputePool::for_machine()),
            cuda: None,
            or_host: false,
        }
    }

    /// Returns the device for models. Nothing is asked of a GPU before a model is put on it.
    ///
    /// # Errors
    /// [`LoadError::Option`] for a GPU if this program was built without CUDA.
    pub fn new(
        device: Device,
        config: &CudaConfig,
        places: &CudaPlaces,
    ) -> Result<Self, LoadError> {
        Self::of_machine().beside(device, config, places)
    }

    /// Returns the devices of a model that runs on `device`, beside those that run on these: the
    /// models of the host share one pool of threads.
    ///
    /// # Errors
    /// [`LoadError::Option`] for a GPU if this program was built without CUDA.
    pub fn beside(
        &self,
        device: Device,
        config: &CudaConfig,
        places: &CudaPlaces,
    ) -> Result<Self, LoadError> {
        let cuda = match device {
            Device::Cpu => None,
            Device::Cuda(ordinal) => Some(configured(ordinal, config, places)?),
        };
        Ok(Self {
            cpu: Arc::clone(&self.cpu),
            cuda,
            or_host: false,
        })
    }

    /// Returns these devices, but for models that the GPU has no kernels for, which run on the host:
    /// for a GPU that no setting names.
    #[must_use]
    pub fn or_host(self) -> Self {
        Self {
            or_host: true,
            ..self
        }
    }

    /// Returns the host memory that a model's executor would be planned to take; `None` on a GPU.
    ///
    /// # Errors
    /// [`LoadError::Executor`] for settings that no machine could serve.
    pub fn plan(
        &self,
        checkpoint: &Checkpoint,
        max_model_len: u32,
        config: &ExecutorConfig,
    ) -> Result<Option<HostMemory>, LoadError> {
        if self.cuda.is_some() {
            return Ok(None);
        }
        let config = for_host(max_model_len, config);
        let plan = HostMemory::of_checkpoint(checkpoint, &config, self.cpu.threads());
        let (plan, _) = plan.map_err(|e| LoadError::Executor(e.to_string()))?;
        Ok(Some(plan))
    }

    /// Puts a model on a device. Weights are read and converted here.
    ///
    /// # Errors
    /// [`LoadError::Executor`].
    pub fn open(
        &self,
        checkpoint: &Checkpoint,
        max_model_len: u32,
        config: &ExecutorConfig,
    ) -> Result<Opened, LoadError> {
        if let Some(cuda) = &self.cuda {
            match open_cuda(checkpoint, max_model_len, config, cuda) {
                Err((error, true)) if self.or_host => {
                    log::line(format_args!("device: cpu: {error}"));
                }
                opened => return opened.map_err(|(error, _)| error),
            }
        }
        let config = for_host(max_model_len, config);
        let quantization = config.quantization;
        let mut executor = CpuExecutor::new(checkpoint, config, Arc::clone(&self.cpu))
            .map_err(|e| LoadError::Executor(e.to_string()))?;
        let check = log_packed(executor.take_packed_use());
        if quantization == Some(Quantization::Fp8) {
            log::line(format_args!("{FP8_ON_HOST}"));
        }
        Ok(Opened {
            name: cpu_name(&executor, quantization, self.cpu.threads()),
            memory: planned(&executor),
            host_memory: Some(executor.memory()),
            executor: Box::new(executor),
            check,
        })
    }
}

/// A note for the operator of a model in fp8 that runs on the host.
const FP8_ON_HOST: &str = "fp8 on the CPU shows what it does to answers, and saves neither memory nor \
                           time: use --quantization int8 for these";

/// Logs whether weights came from the folder of packed weights, and later whether they were written
/// there. Returns the check that those from there are yet to pass.
fn log_packed(used: PackedUse) -> Option<PackedCheck> {
    let failed = |error| log::line(format_args!("packed weights could not be written: {error}"));
    match used {
        PackedUse::Found(check) => {
            log::line(format_args!("the weights are mapped from a packed file"));
            return Some(check);
        }
        PackedUse::InMemory => {
            log::line(format_args!(
                "the embedded model is not packed: packed_dir does not apply"
            ));
        }
        PackedUse::NotWritten(error) => failed(error),
        PackedUse::Writing(writing) => {
            let report = move || match writing.wait() {
                Ok(path) => log::line(format_args!("packed weights written to {}", path.display())),
                Err(error) => failed(error),
            };
            let thread = std::thread::Builder::new().name("prelude-packed-log".to_owned());
            if let Err(error) = thread.spawn(report) {
                failed(error);
            }
        }
        _ => (),
    }
    None
}

/// Returns the settings of the host's executor for sequences of at most so many tokens.
fn for_host(max_model_len: u32, config: &ExecutorConfig) -> CpuConfig {
    CpuConfig {
        max_context_len: Some(max_model_len),
        ..config.clone()
    }
}

/// A model on a device.
pub struct Opened {
    /// The executor that runs the model.
    pub executor: Box<dyn Executor>,
    /// The device and the arithmetic, on which the time of steps depends.
    pub name: String,
    /// The memory that the executor was planned to take, in words.
    pub memory: String,
    /// The plan of the host's memory, if the model runs there.
    pub host_memory: Option<HostMemory>,
    /// The check of packed weights, to be made when the model is in service.
    pub check: Option<PackedCheck>,
}

/// Names the host's executor: its arithmetic, instructions and threads.
fn cpu_name(executor: &CpuExecutor, quantization: Option<Quantization>, threads: usize) -> String {
    let path = executor.path();
    let weights = quantization.map_or_else(String::new, |q| format!("{q:?} "));
    let name = format!(
        "cpu {weights}{:?} {path:?}, {threads} threads",
        executor.dtype()
    );
    name.to_ascii_lowercase()
}

/// Returns the memory that an executor was planned to take. Its prompts and their prefixes stay in the
/// KV blocks, however many there are.
fn planned(executor: &CpuExecutor) -> String {
    let (plan, capacity) = (executor.memory(), executor.capacity());
    format!(
        "{} MiB planned: weights {}, {} KV blocks of {} tokens {}, activations {}, buffers {}",
        mib(plan.total_bytes()),
        mib(plan.weights_bytes),
        capacity.num_blocks,
        capacity.block_size,
        mib(plan.kv_bytes),
        mib(plan.arena_bytes),
        mib(plan.scratch_bytes),
    )
}

/// Returns bytes as whole MiB, rounded up.
pub(crate) const fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("cpu_threads", &self.cpu.threads())
            .field("cuda", &self.cuda)
            .finish()
    }
}

/// Returns the settings, completed by what the program knows of its machine.
#[cfg(feature = "cuda")]
fn configured(
    ordinal: u32,
    config: &CudaConfig,
    places: &CudaPlaces,
) -> Result<CudaConfig, LoadError> {
    let mut config = config.clone();
    config.device = ordinal;
    config.library_dirs.extend(places.first.iter().cloned());
    config.fallback_dirs.extend(places.fallback.iter().cloned());
    config.cache_dir = config.cache_dir.or_else(|| places.cache.clone());
    Ok(config)
}

#[cfg(not(feature = "cuda"))]
fn configured(_: u32, _: &CudaConfig, _: &CudaPlaces) -> Result<CudaConfig, LoadError> {
    Err(LoadError::Option(WITHOUT_CUDA.to_owned()))
}

/// Puts a model on a GPU, or returns the error and whether the GPU lacks kernels for the model.
#[cfg(feature = "cuda")]
fn open_cuda(
    checkpoint: &Checkpoint,
    max_model_len: u32,
    config: &ExecutorConfig,
    cuda: &CudaConfig,
) -> Result<Opened, (LoadError, bool)> {
    if config.dtype == Some(ExecutorDtype::F32) {
        let message = "models run in bf16 on a GPU: leave --dtype at auto, or use --device cpu";
        return Err((LoadError::Option(message.to_owned()), false));
    }
    let fp8 = match config.quantization {
        None => false,
        Some(Quantization::Fp8) => true,
        Some(_) => {
            let message = "weights are quantised to fp8 alone on a GPU: use --quantization fp8, or \
                           --device cpu";
            return Err((LoadError::Option(message.to_owned()), false));
        }
    };
    let mut cuda = cuda.clone();
    cuda.fp8 = fp8;
    cuda.max_context_len = Some(max_model_len);
    // The settings that every executor has.
    cuda.num_blocks = config.num_blocks;
    cuda.kv_bytes = config.kv_bytes;
    cuda.host_bytes = config.host_bytes;
    cuda.block_size = config.block_size;
    cuda.max_step_tokens = config.max_step_tokens;
    cuda.max_pass_tokens = config.max_pass_tokens;
    let executor = CudaExecutor::new(checkpoint, cuda).map_err(|e| match e {
        CudaError::Config { .. } => (LoadError::Option(e.to_string()), false),
        CudaError::NoKernels { .. } => (LoadError::Executor(e.to_string()), true),
        _ => (LoadError::Executor(e.to_string()), false),
    })?;
    // Without NVIDIA's library products are slower: the log says so.
    log::line(format_args!("{}", executor.products()));
    Ok(Opened {
        name: cuda_name(fp8, executor.device_name()),
        memory: planned_on_gpu(&executor),
        host_memory: None,
        executor: Box::new(executor),
        check: None,
    })
}

/// Names an executor on a GPU: its arithmetic, and the GPU.
#[cfg(feature = "cuda")]
fn cuda_name(fp8: bool, device: &str) -> String {
    let arithmetic = if fp8 { "fp8 bf16" } else { "bf16" };
    format!("cuda {arithmetic}, {device}")
}

/// Returns the memory that an executor took on its GPU.
#[cfg(feature = "cuda")]
fn planned_on_gpu(executor: &CudaExecutor) -> String {
    let (plan, capacity) = (executor.memory(), executor.capacity());
    format!(
        "{} MiB of GPU memory: weights {}, {} KV blocks of {} tokens {}, activations {}, passes of {} \
         tokens {}, buffers {}; {} MiB of host memory for {} evicted KV blocks",
        mib(plan.total_bytes()),
        mib(plan.weights_bytes),
        capacity.num_blocks,
        capacity.block_size,
        mib(plan.kv_bytes),
        mib(plan.arena_bytes),
        capacity.passes.map_or(0, |passes| passes.tokens),
        mib(plan.pass_bytes),
        mib(plan.buffers_bytes),
        mib(plan.host_bytes),
        capacity.host_blocks,
    )
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(
    _: &Checkpoint,
    _: u32,
    _: &ExecutorConfig,
    _: &CudaConfig,
) -> Result<Opened, (LoadError, bool)> {
    Err((LoadError::Option(WITHOUT_CUDA.to_owned()), false))
}

/// Returns a line for each part of CUDA on this machine: driver, GPUs, libraries with their paths,
/// kernels.
///
/// # Errors
/// [`LoadError::Option`] if this program was built without CUDA.
#[cfg(feature = "cuda")]
pub fn cuda_info(
    ordinal: u32,
    config: &CudaConfig,
    places: &CudaPlaces,
) -> Result<Vec<String>, LoadError> {
    Ok(info(&configured(ordinal, config, places)?))
}

/// Says that there is no CUDA in this program.
///
/// # Errors
/// Always.
#[cfg(not(feature = "cuda"))]
pub fn cuda_info(_: u32, _: &CudaConfig, _: &CudaPlaces) -> Result<Vec<String>, LoadError> {
    Err(LoadError::Option(WITHOUT_CUDA.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        let check = |text: &str, expected| {
            let device = text.parse::<Device>().ok();
            assert_eq!(device, expected, "{text}");
            if let Some(device) = device {
                assert_eq!(device.to_string().parse(), Ok(device));
            }
        };
        check("cpu", Some(Device::Cpu));
        check("cuda", Some(Device::Cuda(0)));
        check("cuda:3", Some(Device::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "CUDA"] {
            check(wrong, None);
        }
    }

    #[test]
    fn the_device_may_be_left_open() {
        let check = |text: &str, expected| {
            let choice = text.parse::<DeviceChoice>();
            assert_eq!(choice.as_ref().ok(), Some(&expected), "{text}");
            assert_eq!(String::from(expected).parse(), choice);
        };
        check("auto", DeviceChoice::default());
        check("cpu", DeviceChoice::On(Device::Cpu));
        check("cuda:2", DeviceChoice::On(Device::Cuda(2)));
        let wrong = "tpu".parse::<DeviceChoice>().unwrap_err();
        assert_eq!(wrong, "must be auto, cpu, cuda or cuda:N");
    }

    /// Whatever this machine has: a GPU has its name, and the host a reason, unless there is no choice.
    #[test]
    fn a_device_that_is_left_open_is_chosen_with_a_reason() {
        let (device, why) = automatic_device(&CudaConfig::default(), CudaPlaces::default);
        let has_cuda = cfg!(feature = "cuda");
        match device {
            Device::Cuda(ordinal) => assert!(has_cuda && ordinal == 0 && why.is_some()),
            Device::Cpu => assert!(why.is_some() || !has_cuda),
        }
    }

    #[test]
    fn rounded_models_are_named_so() {
        let assets = crate::assets::Assets::embedded(&crate::demo::CLASSIFIER).unwrap();
        let open = |quantization| {
            let config = ExecutorConfig {
                quantization,
                ..ExecutorConfig::default()
            };
            let opened = Devices::of_machine().open(&assets.checkpoint, 128, &config);
            opened.unwrap()
        };
        let bf16 = open(None);
        assert!(bf16.name.starts_with("cpu bf16"), "{}", bf16.name);
        for (quantization, name) in [
            (Quantization::Int8, "cpu int8 bf16"),
            (Quantization::Fp8, "cpu fp8 bf16"),
        ] {
            let opened = open(Some(quantization));
            assert!(opened.name.starts_with(name), "{}", opened.name);
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_gpu_has_fp8_and_not_int8() {
        let assets = crate::assets::Assets::embedded(&crate::demo::CLASSIFIER).unwrap();
        let open = |quantization| {
            let config = ExecutorConfig {
                quantization: Some(quantization),
                ..ExecutorConfig::default()
            };
            let cuda = CudaConfig {
                // No machine has so many.
                device: 4000,
                ..CudaConfig::default()
            };
            let opened = open_cuda(&assets.checkpoint, 128, &config, &cuda);
            opened.map(|_| ()).unwrap_err().0.to_string()
        };
        assert!(open(Quantization::Int8).contains("use --quantization fp8"));
        let of_gpu = open(Quantization::Fp8);
        assert!(!of_gpu.contains("quantis"), "{of_gpu}");
        assert_eq!(cuda_name(true, "a GPU"), "cuda fp8 bf16, a GPU");
    }

    #[test]
    fn a_gpu_that_cannot_be_used_is_an_error() {
        let assets = crate::assets::Assets::embedded(&crate::demo::CLASSIFIER).unwrap();
        let places = CudaPlaces::default();
        // No machine has so many.
        let opened =
            Devices::new(Device::Cuda(4000), &CudaConfig::default(), &places).and_then(|d| {
                d.open(&assets.checkpoint, 128, &ExecutorConfig::default())
                    .map(|_| ())
            });
        let text = opened.unwrap_err().to_string();
        let expected = [
            "built without CUDA",
            "no NVIDIA driver",
            "no GPU 4000",
            "driver supports",
        ];
        assert!(expected.iter().any(|e| text.contains(e)), "{text}");
    }
}
