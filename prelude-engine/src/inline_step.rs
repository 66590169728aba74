//! Steps that a caller's thread computes.
//!
//! Waking a thread costs more than a small model's step: tens of microseconds where the thread's
//! core sleeps, and twice, for the engine's thread and for the caller's. So a caller that finds the
//! engine without work may compute a short step itself:
//!
//! ```text
//! caller   try to lock the engine ── no work, empty inbox ── one step ── unlock
//!                 └─ else: put the request into the inbox                  └─ work left? wake the thread
//! thread   wait for the inbox ── lock ── run while there is work ── unlock ── wait ...
//! ```
//!
//! A command that arrives meanwhile wakes the engine's thread, which waits for the lock: no command
//! is lost, and none waits longer than that step. The thread holds the lock as long as it has work,
//! so a caller never computes between two of its steps.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    time::Duration,
};

use crate::{engine_core::EngineCore, inbox::Submission, shared::Shared};

/// The engine's core, which its thread locks while there is work; `None` once the engine is
/// closed.
pub(crate) type SharedCore = Mutex<Option<EngineCore>>;

/// Computes the request's step on this thread and leaves the answer in the request's channel.
/// Returns the request if the step is not known to take at most `limit`, or if the engine is busy.
pub(crate) fn run(
    core: &SharedCore,
    shared: &Shared,
    submission: Submission,
    limit: Duration,
) -> Option<Submission> {
    let Ok(mut guard) = core.try_lock() else {
        return Some(submission);
    };
    let may_run = |engine: &&mut EngineCore| {
        engine.is_free()
            && engine.step_times.is_short(&submission.request, limit)
            && engine.executor.computes_at_once()
            && shared.inbox.is_quiet()
    };
    let Some(engine) = guard.as_mut().filter(may_run) else {
        return Some(submission);
    };
    // A panic ends the engine, whose state it may have broken, and not the caller.
    let step = AssertUnwindSafe(|| engine.step(shared, submission));
    let is_over = !matches!(catch_unwind(step), Ok(Ok(())));
    let is_work_left = !engine.is_free();
    if is_over {
        let engine = guard.take();
        drop(guard);
        shared.close();
        // The channels of its live requests close with it.
        drop(engine);
    } else {
        drop(guard);
    }
    if is_over || is_work_left {
        shared.inbox.wake();
    }
    None
}
