//! Points in a stream: ends of steps, and points whose times the GPU notes.

use std::sync::Arc;

use cudarc::driver::DriverError;
use cudarc::driver::{result::event, sys};

use super::context::{Context, failed, lost};
use crate::Error;

/// A point in the stream of one GPU.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: the event belongs to the context, which may be used from any thread once it is current
// there; every use binds it first. The handle has one owner, which destroys it.
unsafe impl Send for Event {}

impl Event {
    /// A point that no stream has passed.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Error> {
        Self::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Makes an event without a time, which costs less.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn untimed(context: &Arc<Context>) -> Result<Self, Error> {
        Self::with(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Self, Error> {
        context.bind()?;
        let event = event::create(flags).map_err(|e| failed("cuEventCreate", e))?;
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

    /// Returns true if the stream has passed the event.
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
    #[cfg(feature = "measure")]
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

/// The end of a step.
#[derive(Debug)]
pub(crate) enum Point {
    /// In the stream of a GPU.
    Gpu(Event),
    /// A GPU that hangs.
    #[cfg(test)]
    Never,
}

impl Point {
    /// Puts the point behind everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self) -> Result<(), Error> {
        match self {
            Self::Gpu(event) => event.record(),
            #[cfg(test)]
            Self::Never => Ok(()),
        }
    }

    /// Returns true if the stream has passed the point.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], as [`Context::synchronize`].
    pub(crate) fn has_passed(&self, what: &'static str) -> Result<bool, Error> {
        match self {
            Self::Gpu(event) => event.has_passed().map_err(|e| lost(what, e)),
            #[cfg(test)]
            Self::Never => Ok(false),
        }
    }

    /// Asks nothing of the GPU any more: calls to one that hangs do not return.
    pub(crate) fn give_up(&self) {
        match self {
            Self::Gpu(event) => event.context.give_up(),
            #[cfg(test)]
            Self::Never => {}
        }
    }
}
