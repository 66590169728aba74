//! The share of a load's time in which the GPU has nothing to do, by its own clock: the server's
//! executor notes both ends of each step.

use std::{thread, time::Duration};

use anyhow::Result;
use prelude_measure::server::metrics;

use super::loads::Span;

/// Seconds in steps and between them.
const TIMES: [&str; 2] = [
    "prelude:device_busy_seconds_total",
    "prelude:device_idle_seconds_total",
];

/// Returns what `load` does, and the idle share in its counted time; `None` where no step ended in it,
/// or the server's device has no clock.
///
/// # Errors
/// `load`'s, or the server's.
pub(super) fn share_during<T>(
    address: &str,
    span: Span,
    load: impl FnOnce() -> Result<T>,
) -> Result<(T, Option<f64>)> {
    thread::scope(|scope| {
        // What counts is in steps that ended, so a load that is over early makes nothing idle.
        let looks = scope.spawn(move || {
            thread::sleep(span.warm_up);
            let before = metrics(address, TIMES)?;
            thread::sleep(span.time - span.time.min(MARGIN));
            anyhow::Ok(share(before, metrics(address, TIMES)?))
        });
        let done = load();
        let Ok(share) = looks.join() else {
            anyhow::bail!("the thread that reads the server's metrics has panicked");
        };
        Ok((done?, share?))
    })
}

/// Time before the end of a load in which nothing is read any more.
const MARGIN: Duration = Duration::from_millis(50);

/// Returns the idle share between two readings of [`TIMES`].
fn share(before: [f64; 2], after: [f64; 2]) -> Option<f64> {
    let [busy, idle] = [0, 1].map(|i| after[i] - before[i]);
    let all = busy + idle;
    (all > 0.0).then_some(idle / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_passed_between_two_readings() {
        assert_eq!(share([7.0, 5.0], [10.0, 6.0]), Some(0.25));
        assert_eq!(share([7.0, 5.0], [7.5, 5.0]), Some(0.0));
        assert_eq!(share([0.0; 2], [0.0; 2]), None);
    }
}
