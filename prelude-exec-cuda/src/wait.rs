//! Waiting for a step: asleep for most of it, late by little, and not for ever.
//!
//! ```text
//! 0 ────── 0.1 ms ─ ─ ─ ─ ─ ─ ─ ─ ─ expected ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ limit
//!   asks      sleeps, a sixteenth    asks all    sleeps again      the GPU
//!   all the   of the time so far     the time                      is lost
//!   time      at once
//! ```
//!
//! A step is expected to take what the last one of its size took, and is asked about all the time
//! from a sixteenth and 0.1 ms before that to as much after it. One that ends then is noticed within
//! a microsecond or two, as by a wait that never sleeps; one that ends at another time, up to a
//! sixteenth of its time late, and some 0.1 ms, since systems sleep longer than they are asked to.
//! A step of 1 ms keeps a core busy for 0.3 ms, one of 100 ms for 7 ms.

use std::{
    collections::BTreeMap,
    hint, thread,
    time::{Duration, Instant},
};

use crate::{
    Error,
    memory::{context::lost, event::Point},
};

/// Time for which a step is asked about before the first sleep, and around its expected end.
const SPIN: Duration = Duration::from_micros(100);
/// A sleep is the time waited so far divided by this, between the two bounds below.
const SLEEP_DIVISOR: u32 = 16;
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);
/// Most sizes of steps whose time is remembered.
const SIZES_MAX: usize = 1024;
/// Floating-point operations of a second, and bytes, of a GPU slower than any that kernels are for.
const SLOWEST_GPU: (f64, f64) = (5e12, 50e9);

/// The pause between two questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Sleep(Duration),
}

/// The state by which the pauses of a wait are chosen.
#[derive(Clone, Copy, Debug)]
struct Pace {
    expected: Option<Duration>,
    limit: Option<Duration>,
}

impl Pace {
    /// Returns the pause of a step that has run for so long.
    fn pause(&self, elapsed: Duration) -> Pause {
        if elapsed < SPIN {
            return Pause::Spin;
        }
        let nap = (elapsed / SLEEP_DIVISOR).clamp(NAP_MIN, NAP_MAX);
        let Some(expected) = self.expected else {
            return Pause::Sleep(nap);
        };
        let near = expected / SLEEP_DIVISOR + SPIN;
        if elapsed > expected + near {
            return Pause::Sleep(nap);
        }
        match expected.checked_sub(near + elapsed) {
            Some(rest) if !rest.is_zero() => Pause::Sleep(nap.min(rest)),
            _ => Pause::Spin,
        }
    }
}

/// Time, and ways to let it pass.
trait Clock {
    /// Returns the time since a point before the wait.
    fn elapsed(&self) -> Duration;
    fn pause(&mut self, pause: Pause);
}

/// The machine's clock, from the beginning of a step.
struct Machine(Instant);

impl Clock for Machine {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn pause(&mut self, pause: Pause) {
        match pause {
            Pause::Spin => hint::spin_loop(),
            Pause::Sleep(time) => thread::sleep(time),
        }
    }
}

/// Returns true when it has passed, false when the limit has: time is counted to it from the
/// beginning of the wait.
fn wait(
    pace: Pace,
    clock: &mut impl Clock,
    mut has_passed: impl FnMut() -> Result<bool, Error>,
) -> Result<bool, Error> {
    let begin = clock.elapsed();
    let mut is_over = false;
    loop {
        if has_passed()? {
            return Ok(true);
        }
        // Asked once more after the limit: this process may have been stopped meanwhile.
        if is_over {
            return Ok(false);
        }
        let elapsed = clock.elapsed();
        is_over = pace.limit.is_some_and(|limit| elapsed - begin > limit);
        if !is_over {
            clock.pause(pace.pause(elapsed));
        }
    }
}

/// The size of a step, by which its time is expected: tokens and segments, rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(usize, usize);

impl Size {
    pub(crate) fn new(tokens: usize, segments: usize) -> Self {
        // Exact up to 16, then by eighths of powers of two.
        let rounded = |n: usize| match n {
            0..=16 => n,
            _ => n.next_multiple_of(n.next_power_of_two() / 16),
        };
        Self(rounded(tokens), rounded(segments))
    }
}

/// A step that was queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) at: Instant,
    pub(crate) size: Size,
    /// The longest that may be waited for the step; none: for ever.
    pub(crate) limit: Option<Duration>,
}

/// The times of steps so far.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    took: BTreeMap<Size, Duration>,
    /// The end of the last step.
    ended: Option<Instant>,
}

impl Waits {
    /// Waits for the end of a step, the oldest that was not waited for.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], also if the step does not end within its limit: nothing is asked of
    /// the GPU after that.
    pub(crate) fn wait(&mut self, queued: &Queued, end: &Point) -> Result<(), Error> {
        // A step begins when the one before it ends.
        let begun = self.ended.map_or(queued.at, |ended| ended.max(queued.at));
        let pace = Pace {
            expected: self.took.get(&queued.size).copied(),
            limit: queued.limit,
        };
        pass(pace, begun, end, "a step's results")?;
        let ended = Instant::now();
        if self.took.len() >= SIZES_MAX && !self.took.contains_key(&queued.size) {
            self.took.clear();
        }
        self.took.insert(queued.size, ended - begun);
        self.ended = Some(ended);
        Ok(())
    }

    /// Waits for all that is queued, a step that failed half-way with it.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], as [`Waits::wait`], whatever the driver says: without knowing that the
    /// stream has passed, no buffer of a step may be written again.
    pub(crate) fn wait_for_all(&self, queued: &Queued, end: &Point) -> Result<(), Error> {
        const WHAT: &str = "a failed step";
        end.record().map_err(|e| lost(WHAT, e))?;
        let pace = Pace {
            expected: None,
            // Steps before it may be under way.
            limit: queued.limit.map(|limit| limit.saturating_mul(2)),
        };
        pass(pace, Instant::now(), end, WHAT)
    }
}

/// Waits as a [`Pace`] says.
///
/// # Errors
/// [`Error::DeviceLost`].
fn pass(pace: Pace, begun: Instant, end: &Point, what: &'static str) -> Result<(), Error> {
    let mut clock = Machine(begun);
    if wait(pace, &mut clock, || end.has_passed(what))? {
        return Ok(());
    }
    end.give_up();
    let seconds = pace.limit.unwrap_or_default().as_secs_f64();
    Err(Error::DeviceLost {
        code: format!("it hangs: no end after {seconds:.1} s"),
        kernel: what,
    })
}

/// Waits for a point that was just recorded, up to `limit`.
///
/// # Errors
/// [`Error::DeviceLost`], as [`Waits::wait`].
pub(crate) fn until_passed(end: &Point, limit: Duration, what: &'static str) -> Result<(), Error> {
    let pace = Pace {
        expected: None,
        limit: Some(limit),
    };
    pass(pace, Instant::now(), end, what)
}

/// Returns the time that a step may take: `least`, and what the slowest GPU would need for so many
/// operations and bytes. None without a `least`.
pub(crate) fn limit(least_ms: u32, operations: f64, bytes: f64) -> Option<Duration> {
    let seconds = operations / SLOWEST_GPU.0 + bytes / SLOWEST_GPU.1;
    let least = Duration::from_millis(least_ms.into());
    let more = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    (least_ms > 0).then(|| least.saturating_add(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock whose sleeps are 60 µs too long, and whose questions take one.
    #[derive(Debug, Default)]
    struct Played {
        now: Duration,
        spun: Duration,
    }

    impl Clock for &mut Played {
        fn elapsed(&self) -> Duration {
            self.now
        }

        fn pause(&mut self, pause: Pause) {
            let time = match pause {
                Pause::Spin => Duration::from_micros(1),
                Pause::Sleep(time) => time + Duration::from_micros(60),
            };
            self.now += time;
            if pause == Pause::Spin {
                self.spun += time;
            }
        }
    }

    /// Returns the delay and the time of spinning, in µs, of a step that takes `took` µs and was
    /// expected to take `expected`.
    fn late(took: u64, expected: Option<u64>) -> (u128, u128) {
        let mut clock = Played::default();
        let end = Duration::from_micros(took);
        let pace = Pace {
            expected: expected.map(Duration::from_micros),
            limit: None,
        };
        // The closure has no clock: what it would see is played one question late.
        loop {
            if clock.now >= end {
                break;
            }
            let pause = pace.pause(clock.now);
            (&mut clock).pause(pause);
        }
        ((clock.now - end).as_micros(), clock.spun.as_micros())
    }

    #[test]
    fn steps_that_take_what_they_took_are_noticed_at_once() {
        for took in [40, 300, 1000, 1120, 5000, 100_000] {
            for expected in [took, took * 104 / 100, took * 96 / 100] {
                let (late, spun) = late(took, Some(expected));
                assert!(late <= 1, "{took} {expected}: {late} late");
                let most = 100 + 2 * (100 + u128::from(took) / 16);
                assert!(spun <= most, "{took} {expected}: {spun} spun");
            }
        }
    }

    #[test]
    fn other_steps_are_noticed_soon() {
        for took in [130, 1000, 5000, 100_000, 3_000_000] {
            for expected in [None, Some(took / 3), Some(took * 3)] {
                let (late, _) = late(took, expected);
                let most = (u128::from(took) / 16).min(1000) + 120;
                assert!(late <= most, "{took} {expected:?}: {late} late");
            }
        }
    }

    #[test]
    fn the_limit_ends_a_wait() {
        let pace = Pace {
            expected: None,
            limit: Some(Duration::from_secs(10)),
        };
        let mut clock = Played {
            // The step was queued long before.
            now: Duration::from_mins(1),
            ..Played::default()
        };
        let mut asked = 0;
        let passed = wait(pace, &mut &mut clock, || {
            asked += 1;
            Ok(false)
        });
        assert!(matches!(passed, Ok(false)));
        let waited = clock.now - Duration::from_mins(1);
        assert!(waited > Duration::from_secs(10) && waited < Duration::from_millis(10_002));
        assert!(asked > 5000 && clock.spun.is_zero());
    }

    /// A process that was stopped, and a step that ended meanwhile.
    #[test]
    fn a_step_that_has_passed_is_not_over_the_limit() {
        let pace = Pace {
            expected: None,
            limit: Some(Duration::ZERO),
        };
        let mut clock = Played::default();
        let mut asked = 0;
        let passed = wait(pace, &mut &mut clock, || {
            asked += 1;
            Ok(asked == 3)
        });
        assert!(matches!(passed, Ok(true)));
        let failed = wait(pace, &mut &mut clock, || Err(Error::launch("k", "wrong")));
        assert!(failed.is_err());
    }

    #[test]
    fn limits_grow_with_the_work() {
        assert_eq!(limit(0, 1e15, 1e9), None);
        let check = |operations, bytes, expected: f64| {
            let limit = limit(10_000, operations, bytes).unwrap().as_secs_f64();
            assert!((limit - expected).abs() < 0.1, "{limit}");
        };
        check(0.0, 0.0, 10.0);
        // 8,192 tokens of a model of 4 billion parameters.
        check(8192.0 * 8e9, 8e9, 23.3);
        assert_eq!(limit(1, f64::INFINITY, 0.0), Some(Duration::MAX));
    }

    #[test]
    fn steps_of_like_sizes_have_one_time() {
        assert_ne!(Size::new(4, 4), Size::new(5, 5));
        assert_ne!(Size::new(64, 64), Size::new(64, 1));
        assert_eq!(Size::new(4000, 8), Size::new(4096, 8));
        assert_ne!(Size::new(4096, 8), Size::new(4097, 8));
    }
}
