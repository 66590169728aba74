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
    time::Duration,
};

use crate::{handle::Shared, inbox::Submission};

/// Runs the request's step on this thread and leaves its answer in its channel; gives the request
/// back if that is not to be.
pub(crate) fn run(shared: &Shared, submission: Submission, limit: Duration) -> Option<Submission> {
    let Ok(mut place) = shared.engine.try_lock() else {
        return Some(submission);
    };
    let tokens = submission.request.tree.distinct_tokens();
    let may = |engine: &&mut crate::engine::Loop| {
        engine.is_free()
            && engine.step_times.are_within(tokens, limit)
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
        shared.close(engine);
    } else {
        drop(place);
    }
    if is_over || is_left {
        shared.inbox.call();
    }
    None
}

/// What steps took of late, by size: sizes of as many binary digits count as one.
#[derive(Debug, Default)]
pub(crate) struct StepTimes([Option<Duration>; Self::SIZES]);

impl StepTimes {
    const SIZES: usize = 20;

    fn size(tokens: usize) -> usize {
        let digits = usize::BITS - tokens.leading_zeros();
        (digits as usize).min(Self::SIZES - 1)
    }

    /// A step of one-shot work computed `tokens` in `duration`. A longer time than the one known
    /// is believed at once, a shorter one by and by: what counts is how long a step may take.
    pub(crate) fn note(&mut self, tokens: usize, duration: Duration) {
        let known = &mut self.0[Self::size(tokens)];
        let faded = known.map_or(Duration::ZERO, |known| known - known / 8);
        *known = Some(duration.max(faded));
    }

    /// Whether steps of so many tokens are known, and take at most `limit`. Nothing takes no time.
    pub(crate) fn are_within(&self, tokens: usize, limit: Duration) -> bool {
        let known = self.0[Self::size(tokens)];
        !limit.is_zero() && known.is_some_and(|known| known <= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn longer_times_are_believed_at_once_and_shorter_ones_by_and_by() {
        let mut times = StepTimes::default();
        let check = |times: &StepTimes, tokens, within: Duration, expected| {
            assert_eq!(
                times.are_within(tokens, within),
                expected,
                "{tokens}, {within:?}"
            );
        };
        check(&times, 16, Duration::MAX, false);
        times.note(16, 100 * US);
        // Of the same size, and not.
        check(&times, 31, 100 * US, true);
        check(&times, 32, 100 * US, false);
        check(&times, 15, 100 * US, false);
        times.note(20, 800 * US);
        check(&times, 16, 799 * US, false);
        times.note(20, 100 * US);
        check(&times, 16, 700 * US, true);
        check(&times, 16, 699 * US, false);
        for _ in 0..20 {
            times.note(16, 100 * US);
        }
        check(&times, 16, 100 * US, true);
    }

    #[test]
    fn no_time_is_never() {
        let mut times = StepTimes::default();
        times.note(1, Duration::ZERO);
        assert!(!times.are_within(1, Duration::ZERO));
        // Larger than any step.
        times.note(usize::MAX, US);
        assert!(times.are_within(1 << 40, US));
    }
}
