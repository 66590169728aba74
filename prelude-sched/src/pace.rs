//! The least time of recent steps: the time in which a mask can be computed beside the model.

use std::{collections::VecDeque, time::Duration};

use prelude_core::Timestamp;

/// Times of the latest steps.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    recent: VecDeque<Duration>,
    /// The time at which the last step ended: steps in flight at once overlap.
    free_from: Timestamp,
}

impl Pace {
    /// Steps that count: enough that a short one is among them if short ones run.
    const STEPS: usize = 8;

    /// The least time that any step hides: about as long as a small model takes to get to its
    /// outputs.
    const LEAST: Duration = Duration::from_millis(1);

    /// Returns the time for which a step may wait for a token mask without taking longer, as far as
    /// is known: three quarters of the shortest of late, since both times are estimates.
    pub(crate) fn hides(&self) -> Duration {
        let shortest = self.recent.iter().min().copied().unwrap_or_default();
        (shortest - shortest / 4).max(Self::LEAST)
    }

    /// Notes a step that was planned and completed at these times, and for how long it was then
    /// expected to wait for a mask. Returns how long it took.
    pub(crate) fn note(
        &mut self,
        planned: Timestamp,
        completed: Timestamp,
        wait: Duration,
    ) -> Duration {
        let took = completed.saturating_since(planned.max(self.free_from));
        self.free_from = completed.max(self.free_from);
        // If the step may have taken so long because of the mask, the time of the model is unknown.
        // Taking all of the time for the model's would let steps wait for masks as long as they
        // have been waiting; so the time counts for less, until steps without such a wait show the
        // true one.
        let waited = took < wait.saturating_add(wait / 4);
        let model = if waited { took / 2 } else { took };
        if self.recent.len() == Self::STEPS {
            self.recent.pop_front();
        }
        self.recent.push_back(model);
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn masks_have_the_time_that_the_shortest_step_takes() {
        let mut pace = Pace::default();
        assert_eq!(pace.hides(), ms(1));
        pace.note(at(0), at(100), ms(0));
        assert_eq!(pace.hides(), ms(75));
        // Planned while the one before it ran.
        pace.note(at(50), at(140), ms(0));
        assert_eq!(pace.hides(), ms(30));
        // Short steps of long ago are forgotten.
        for step in 2..10 {
            pace.note(at(100 * step), at(100 * step + 100), ms(75));
        }
        assert_eq!(pace.hides(), ms(75));
    }

    #[test]
    fn steps_that_wait_for_masks_do_not_make_masks_look_near() {
        // A model of 10 ms and masks of 50 ms, behind prompts of 200 ms.
        let mut pace = Pace::default();
        let mut now = 0;
        for _ in 0..Pace::STEPS {
            pace.note(at(now), at(now + 200), ms(0));
            now += 200;
        }
        let mut waits = 0;
        for _ in 0..100 {
            let joins = ms(50) <= pace.hides();
            let (took, wait) = if joins { (50, ms(50)) } else { (10, ms(0)) };
            waits += u32::from(joins);
            pace.note(at(now), at(now + took), wait);
            now += took;
        }
        assert_eq!(waits, 1);
    }
}
