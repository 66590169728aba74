//! Points in a stream whose times the GPU notes.

use std::sync::Arc;

use cudarc::driver::{DriverError, result::event, sys};

use super::context::{Context, failed};
use crate::Error;

/// A point in the stream of one GPU.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

impl Event {
    /// A point that no stream has passed.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Error> {
        context.bind()?;
        let event = event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(|e| failed("cuEventCreate", e))?;
        Ok(Self {
            context: Arc::clone(context),
            event,
        })
    }

    /// Puts the point behind everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: event and stream are of this context, and live as long as `self`.
        unsafe { event::record(self.event, self.context.stream()) }
            .map_err(|e| failed("cuEventRecord", e))
    }

    /// Whether the stream has passed it.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn has_passed(&self) -> Result<bool, Error> {
        self.context.bind()?;
        // SAFETY: the event is of this context, and lives as long as `self`.
        match unsafe { event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(failed("cuEventQuery", e)),
        }
    }

    /// Seconds from an earlier point. The stream has been waited for.
    ///
    /// # Errors
    /// The driver's, if it has passed one of them not yet.
    pub(crate) fn seconds_since(&self, earlier: &Self) -> Result<f64, Error> {
        self.context.bind()?;
        // SAFETY: both events are of this context, and live as long as their owners.
        let ms = unsafe { event::elapsed(earlier.event, self.event) }
            .map_err(|e| failed("cuEventElapsedTime", e))?;
        Ok(f64::from(ms) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`, destroyed here only.
            let _ = unsafe { event::destroy(self.event) };
        }
    }
}
