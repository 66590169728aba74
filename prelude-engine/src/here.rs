//! A step on the caller's thread.
//!
//! Waking a thread costs more than a small model's step: tens of microseconds where the thread's
//! core sleeps, and twice, for the engine's thread and for the one that waits. So a caller who
//! finds the engine free may run the step itself, if it will be short:
//!
//! ```text
//! caller   try the engine's lock ── free, and the inbox empty ── one step ── unlock
//!                 └─ else: into the inbox, as ever                            └─ work left? call the thread
//! thread   wait for the inbox ── lock ── run while there is work ── unlock ── wait ...
//! ```
//!
//! What comes to the inbox meanwhile wakes the thread, which waits for the lock: so nothing is
//! lost, and nothing waits longer than that step. The thread holds the lock as long as it has
//! work, so a caller never takes a turn between two of its steps.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    time::Duration,
};

use crate::{engine_core::EngineCore, inbox::Submission, shared::Shared, step_time::StepSize};

/// The engine's core, which its thread locks while there is work; `None` once the engine is
/// closed.
pub(crate) type SharedCore = Mutex<Option<EngineCore>>;

/// Runs the request's step on this thread and leaves its answer in its channel; gives the request
/// back if that is not to be.
pub(crate) fn run(
    core: &SharedCore,
    shared: &Shared,
    submission: Submission,
    limit: Duration,
) -> Option<Submission> {
    let Ok(mut place) = core.try_lock() else {
        return Some(submission);
    };
    let size = StepSize::of_request(&submission.request);
    let may = |engine: &&mut EngineCore| {
        engine.is_free()
            && engine.step_times.are_within(size, limit)
            && engine.executor.computes_at_once()
            && shared.inbox.is_quiet()
    };
    let Some(engine) = place.as_mut().filter(may) else {
        return Some(submission);
    };
    // A panic ends the engine, whose state it may have broken, and not the caller.
    let step = AssertUnwindSafe(|| engine.step(shared, submission));
    let is_over = !matches!(catch_unwind(step), Ok(Ok(())));
    let is_left = !engine.is_free();
    if is_over {
        let engine = place.take();
        drop(place);
        shared.close();
        // Its live requests' channels close with it.
        drop(engine);
    } else {
        drop(place);
    }
    if is_over || is_left {
        shared.inbox.call();
    }
    None
}
