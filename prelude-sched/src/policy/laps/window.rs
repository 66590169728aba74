//! The adaptive waiting window: the time that short requests wait for each other.

use std::time::Duration;

use prelude_core::Timestamp;

use super::{LapsConfig, config::micros};

/// Most short requests to wait for. Requests beyond that go along while the step has room.
const MAX_DEPTH: u32 = 64;

/// The window and the depth of LAPS's adaptive waiting.
///
/// ```text
/// wait     until `depth` are there, or for the window: as long as those still missing take to
///          come, as long as the first due can wait, at most `max_window_us`
/// go       depth reached: wait for the next power of two; else for as many as came
/// ```
///
/// As the paper prints it, the depth only shrinks; that it grows is ours, and needed.
#[derive(Debug)]
pub(super) struct Window {
    most: Duration,
    slack: Duration,
    /// The number of requests to wait for.
    depth: u32,
    /// The time to wait while the rate of arrivals is unknown: what the last batch took that
    /// came together.
    usual: Duration,
    /// The time since which a batch has been gathered.
    since: Option<Timestamp>,
}

/// The short requests that are there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathered {
    pub(super) depth: u32,
    /// The time at which the first of the gathered requests came.
    pub(super) head: Timestamp,
    /// The time by which the most urgent of the gathered requests has to start.
    pub(super) start_by: Timestamp,
    /// Mean time between two of the gathered requests, as far as is known.
    pub(super) gap: Option<Duration>,
}

impl Window {
    pub(super) fn new(config: &LapsConfig) -> Self {
        Self {
            most: micros(config.max_window_us),
            slack: micros(config.slack_us),
            depth: 1,
            usual: Duration::ZERO,
            since: None,
        }
    }

    /// Returns the time until which to wait for more; `None` if it is time to go.
    pub(super) fn wait_until(&mut self, now: Timestamp, there: &Gathered) -> Option<Timestamp> {
        let since = *self.since.get_or_insert(now);
        if there.depth >= self.depth {
            return None;
        }
        let end = since.saturating_add(self.width(now, there));
        let last = there.head.saturating_add(self.most * 2);
        Some(end.min(last)).filter(|&until| until > now)
    }

    /// Returns the time until which requests without a deadline, the first of which came at `head`,
    /// wait to fill a step; `None` if it is time to go.
    pub(super) fn fill_until(&self, now: Timestamp, head: Timestamp) -> Option<Timestamp> {
        let last = head.saturating_add(self.most * 2);
        let end = last.min(now.saturating_add(self.most));
        Some(end).filter(|&until| until > now)
    }

    fn width(&self, now: Timestamp, there: &Gathered) -> Duration {
        let missing = self.depth - there.depth;
        let growth = there
            .gap
            .map_or(self.usual, |gap| gap.saturating_mul(missing));
        let slack = there.start_by.saturating_since(now);
        growth.min(slack.saturating_sub(self.slack)).min(self.most)
    }

    /// Notes that a batch of `depth` requests starts.
    pub(super) fn go(&mut self, now: Timestamp, depth: u32) {
        let took = now.saturating_since(self.since.take().unwrap_or(now));
        if depth >= self.depth {
            self.usual = took.min(self.most);
            self.depth = (self.depth + 1).next_power_of_two().min(MAX_DEPTH);
        } else {
            self.depth = depth.max(1);
        }
    }

    /// Notes that no request is left to wait for.
    pub(super) const fn forget(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(us: u64) -> Timestamp {
        Timestamp::from_nanos(us * 1_000)
    }

    fn there(depth: u32, gap_us: u32) -> Gathered {
        Gathered {
            depth,
            head: at(0),
            start_by: at(400_000),
            gap: Some(micros(gap_us)),
        }
    }

    #[test]
    fn depth_follows_what_comes() {
        let mut window = Window::new(&LapsConfig::default());
        let mut depths = Vec::new();
        for depth in [1, 3, 9, 8, 2, 1, 1, 100, 100, 100, 100, 100, 100, 100] {
            window.go(at(0), depth);
            depths.push(window.depth);
        }
        assert_eq!(depths, [2, 4, 8, 16, 2, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn waits_for_those_who_are_missing() {
        let wait = |there: Gathered, now| {
            let mut window = Window::new(&LapsConfig::default());
            (window.depth, window.usual) = (8, micros(700));
            window.since = Some(at(0));
            window.wait_until(at(now), &there)
        };
        assert_eq!(wait(there(5, 1_000), 0), Some(at(3_000)));
        assert_eq!(wait(there(5, 1_000), 3_000), None);
        assert_eq!(wait(there(8, 1_000), 0), None);
        // At most the window,
        assert_eq!(wait(there(1, 9_000), 0), Some(at(10_000)));
        // as long as the first due can wait,
        let due = Gathered {
            start_by: at(7_000),
            ..there(1, 9_000)
        };
        assert_eq!(wait(due, 0), Some(at(2_000)));
        // and as the first one has waited already.
        let mut late = Window::new(&LapsConfig::default());
        (late.depth, late.since) = (8, Some(at(15_000)));
        assert_eq!(
            late.wait_until(at(15_000), &there(1, 9_000)),
            Some(at(20_000))
        );
        assert_eq!(late.wait_until(at(20_000), &there(1, 9_000)), None);
        // As long as the last batch took, if nothing better is known.
        let unknown = Gathered {
            gap: None,
            ..there(1, 0)
        };
        assert_eq!(wait(unknown, 0), Some(at(700)));
    }

    proptest! {
        #[test]
        fn no_wait_exceeds_the_bounds(
            depth in 1_u32..64,
            max_window_us in 0_u32..20_000,
            gap in prop::option::of(0_u32..50_000),
            start_by in 0_u64..1_000_000,
            mut now in 0_u64..100_000,
        ) {
            let config = LapsConfig { max_window_us, ..LapsConfig::default() };
            let mut window = Window::new(&config);
            window.depth = 64;
            let head = now;
            let there = Gathered {
                depth,
                head: at(head),
                start_by: at(start_by),
                gap: gap.map(micros),
            };
            // However often it is asked again.
            while let Some(until) = window.wait_until(at(now), &there) {
                prop_assert!(until > at(now));
                prop_assert!(until <= at(head + u64::from(max_window_us)));
                now = until.as_nanos().div_ceil(1_000);
            }
        }
    }
}
