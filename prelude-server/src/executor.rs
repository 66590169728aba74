//! The one place that knows which executors there are.

use std::{fmt, sync::Arc};

use prelude_core::Executor;
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor};
use prelude_models::Checkpoint;

pub use prelude_exec_cpu::{CpuConfig as ExecutorConfig, CpuDtype as ExecutorDtype};

use crate::assets::LoadError;

/// What all models of a process compute on. Executors take turns, so that two models share the
/// machine instead of fighting over it.
#[derive(Clone)]
pub struct Devices {
    cpu: Arc<ComputePool>,
}

impl Devices {
    /// All that this process may use.
    #[must_use]
    pub fn of_machine() -> Self {
        Self {
            cpu: Arc::new(ComputePool::for_machine()),
        }
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
    ) -> Result<Box<dyn Executor>, LoadError> {
        let config = CpuConfig {
            max_context_len: Some(max_model_len),
            ..config.clone()
        };
        let executor = CpuExecutor::new(checkpoint, config, Arc::clone(&self.cpu))
            .map_err(|e| LoadError::Executor(e.to_string()))?;
        Ok(Box::new(executor))
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("cpu_threads", &self.cpu.threads())
            .finish()
    }
}
