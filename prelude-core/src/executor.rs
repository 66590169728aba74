//! The interface of executors: the boundary between deciding and computing.

use std::time::Duration;

use thiserror::Error;

use crate::{Capacity, ForwardBatch, StepId, StepOutput};

/// Runs batches. Two calls, so that work can overlap: `submit` returns before the device has
/// finished, `collect` waits.
///
/// Steps are collected in the order of their submission, at most
/// [`Capacity::pipeline_depth`] outstanding.
pub trait Executor: Send {
    /// Limits that the scheduler plans within.
    fn capacity(&self) -> Capacity;

    /// Starts a step.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] if this step cannot run; nothing is outstanding for it then.
    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError>;

    /// Waits for a submitted step, the oldest outstanding one.
    ///
    /// # Errors
    /// [`ExecutorError`]; the step is over either way.
    fn collect(&mut self, step: StepId) -> Result<StepOutput, ExecutorError>;

    /// Returns whether a step submitted now would be computed at once on the calling thread, inside
    /// these calls: there is no device to wait for, no other executor in the way, and any thread
    /// may call. An engine may then leave a short step to the thread that asks for it.
    fn computes_at_once(&self) -> bool {
        false
    }

    /// Does one piece of work, of a few milliseconds at most, that makes later steps faster, such as
    /// capturing a shape of steps: true if there was one. An engine calls it between steps, after it
    /// has sent out what the one before it gave; with `is_idle` where there has been no work for some
    /// time, and then again and again.
    fn prepare(&mut self, _is_idle: bool) -> bool {
        false
    }

    /// Returns how steps were launched so far; zeros unless an executor captures shapes.
    fn graph_steps(&self) -> GraphSteps {
        GraphSteps::default()
    }

    /// Returns the time of the collected steps by the device's own clock; zeros where it has none.
    fn device_time(&self) -> DeviceTime {
        DeviceTime::default()
    }

    /// Returns the number of padding tokens of all collected steps; zero unless an executor fills
    /// shapes.
    fn padded(&self) -> Padded {
        Padded::default()
    }
}

/// Padding tokens, computed to fill a captured or compiled shape, by the class beside whose tokens
/// they stood. The counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padded {
    /// Padding tokens beside one-shot work.
    pub oneshot: u64,
    /// Padding tokens beside generations.
    pub decode: u64,
}

/// The time of a device, from the beginning of its first step to the end of its last one, by its own
/// clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTime {
    /// The time in steps, from the first copy of a step to its last.
    pub busy: Duration,
    /// The time between steps.
    pub idle: Duration,
}

/// Steps of an executor that captures shapes of steps as graphs, and these graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphSteps {
    /// Steps that ran as a graph that was captured before.
    pub replayed: u64,
    /// Steps that were launched one kernel after the other.
    pub eager: u64,
    /// Graphs that were captured.
    pub captures: u64,
    /// Graphs that are kept.
    pub kept: u64,
}

/// A failure of an executor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// This step failed; its requests end with an error and the engine goes on.
    #[error("step failed: {0}")]
    Step(String),
    /// The device is gone for good; the engine stops.
    #[error("device lost: {0}")]
    Lost(String),
}
