//! Errors between a caller and the engine.

use prelude_sched::{ConfigError, Reject};
use thiserror::Error;

/// The engine could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The scheduler refused its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refused a thread.
    #[error("cannot start the engine thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A request did not reach the engine. It was not accepted and nothing is owed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests wait for the engine thread; try again shortly.
    #[error("the engine's command queue is full")]
    Busy,
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

/// A request that reached the engine has no answer.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The scheduler did not accept the request.
    #[error(transparent)]
    Rejected(Reject),
    /// The step that ran the request failed, or a row had no finite result.
    #[error("the request failed: {0}")]
    Failed(String),
    /// The request's deadline passed while the request was queued.
    #[error("the deadline passed before the request could run")]
    DeadlineExpired,
    /// The request was aborted.
    #[error("the request was aborted")]
    Aborted,
    /// The engine stopped before the request finished.
    #[error("the engine has stopped")]
    EngineStopped,
}
