//! Points in a stream: ends of steps, and points whose times the GPU notes.

#[cfg(feature = "emu")]
use std::{cell::Cell, time::Instant};
use std::{sync::Arc, time::Duration};

use cudarc::driver::DriverError;
use cudarc::driver::{result::event, sys};

use super::{
    context::{Context, failed, lost},
    libs,
};
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
    /// Returns a point that no stream has passed.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Error> {
        context.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
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

    /// Returns the seconds from an earlier point. The stream has been waited for.
    ///
    /// # Errors
    /// The driver's, if it has passed one of them not yet.
    pub(crate) fn seconds_since(&self, earlier: &Self) -> Result<f64, Error> {
        self.context.bind()?;
        const CALL: &str = "cuEventElapsedTime";
        let Some(elapsed_time) = libs::elapsed_time() else {
            return Err(Error::Driver {
                call: CALL,
                code: "the driver does not have it".to_owned(),
            });
        };
        let mut ms = 0.0;
        // SAFETY: both events are of this context, and live as long as their owners.
        unsafe { elapsed_time(&raw mut ms, earlier.event, self.event) }
            .result()
            .map_err(|e| failed(CALL, e))?;
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

/// The beginning or the end of a step.
#[derive(Debug)]
pub(crate) enum Point {
    /// A point in the stream of a GPU.
    Gpu(Event),
    /// The host's time where there is no GPU: steps end before the call that queues them.
    #[cfg(feature = "emu")]
    Host(Cell<Instant>),
    /// The time that a test sets: what it counts up to, in milliseconds, at the next points.
    #[cfg(test)]
    Played(Arc<std::sync::Mutex<Vec<u64>>>, Cell<u64>),
    /// A GPU that hangs.
    #[cfg(test)]
    Never,
}

impl Point {
    /// Returns a point of the host's time.
    #[cfg(feature = "emu")]
    pub(super) fn host() -> Self {
        Self::Host(Cell::new(Instant::now()))
    }

    /// Puts the point behind everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self) -> Result<(), Error> {
        match self {
            Self::Gpu(event) => event.record(),
            #[cfg(feature = "emu")]
            Self::Host(at) => {
                at.set(Instant::now());
                Ok(())
            }
            #[cfg(test)]
            Self::Played(times, at) => {
                at.set(times.lock().expect("no test panics with it").remove(0));
                Ok(())
            }
            #[cfg(test)]
            Self::Never => Ok(()),
        }
    }

    /// Returns the time from an earlier point. The stream has passed both.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Duration, Error> {
        match (self, earlier) {
            // No time of a GPU is negative but by its rounding.
            (Self::Gpu(this), Self::Gpu(earlier)) => {
                Ok(Duration::try_from_secs_f64(this.seconds_since(earlier)?).unwrap_or_default())
            }
            #[cfg(feature = "emu")]
            (Self::Host(this), Self::Host(earlier)) => Ok(this.get() - earlier.get()),
            #[cfg(test)]
            (Self::Played(_, this), Self::Played(_, earlier)) => {
                Ok(Duration::from_millis(this.get() - earlier.get()))
            }
            #[cfg(feature = "emu")]
            _ => Ok(Duration::ZERO),
        }
    }

    /// Returns true if the stream has passed the point.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], as [`Context::synchronize`].
    pub(crate) fn has_passed(&self, what: &'static str) -> Result<bool, Error> {
        match self {
            Self::Gpu(event) => event.has_passed().map_err(|e| lost(what, e)),
            #[cfg(feature = "emu")]
            Self::Host(_) => Ok(true),
            #[cfg(test)]
            Self::Played(..) => Ok(true),
            #[cfg(test)]
            Self::Never => Ok(false),
        }
    }

    /// Asks nothing of the GPU any more: calls to one that hangs do not return.
    pub(crate) fn give_up(&self) {
        match self {
            Self::Gpu(event) => event.context.give_up(),
            #[cfg(feature = "emu")]
            Self::Host(_) => {}
            #[cfg(test)]
            Self::Played(..) | Self::Never => {}
        }
    }
}
