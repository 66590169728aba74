//! The times of steps: measured beforehand, or learnt from those that were run.

use std::{collections::VecDeque, time::Duration};

use prelude_core::{ServiceTime, StepWork};

use super::Length;
use crate::StepTime;

/// The time of steps, and a usual step of each class. The times of a profile hold; without one they
/// are fitted to the steps that were run.
#[derive(Debug)]
pub(super) struct StepCosts {
    /// True if the times are a profile's.
    is_profiled: bool,
    /// The time of steps, zero as far as it is not known.
    time: ServiceTime,
    /// The latest steps.
    recent: VecDeque<Duration>,
    /// Time and tokens of steps that had at least [`Self::FEW`] tokens, fading.
    nanos: f64,
    tokens: f64,
    /// A usual step of short and of long work.
    usual: [Duration; 2],
}

impl StepCosts {
    /// Steps that count for a launch: enough that a short one is among them if short ones run.
    const STEPS: usize = 8;
    /// Tokens below which a step's time is mostly that of a launch.
    const FEW: u64 = 256;

    pub(super) fn new(profiled: Option<ServiceTime>) -> Self {
        Self {
            is_profiled: profiled.is_some(),
            time: profiled.unwrap_or(ServiceTime::ZERO),
            recent: VecDeque::new(),
            nanos: 0.0,
            tokens: 0.0,
            usual: [Duration::ZERO; 2],
        }
    }

    /// Notes a step that was run.
    pub(super) fn note(&mut self, length: Length, step: &StepTime) {
        let usual = &mut self.usual[length as usize];
        *usual = match *usual {
            Duration::ZERO => step.took,
            before => before - before / 8 + step.took / 8,
        };
        if self.is_profiled {
            return;
        }
        if self.recent.len() == Self::STEPS {
            self.recent.pop_front();
        }
        self.recent.push_back(step.took);
        if step.prompt_tokens >= Self::FEW {
            self.nanos = self.nanos * 0.875 + step.took.as_nanos() as f64;
            self.tokens = self.tokens * 0.875 + step.prompt_tokens as f64;
        }
        let launch = self.recent.iter().min().copied().unwrap_or_default();
        self.time.floor_ms = launch.as_secs_f64() * 1e3;
        if self.tokens > 0.0 {
            self.time.per_token_ms = self.nanos / self.tokens / 1e6;
        }
    }

    /// Returns the time that a step takes however little it computes; zero before there are
    /// measurements.
    pub(super) fn launch(&self) -> Duration {
        self.service(&StepWork::default())
    }

    /// Returns the time that this work adds to a step that has other work.
    pub(super) fn work(&self, work: &StepWork) -> Duration {
        let added = ServiceTime {
            floor_ms: 0.0,
            per_cached_ms: 0.0,
            base_ms: 0.0,
            ..self.time
        };
        nanos(added.step_ms(work) * 1e6)
    }

    /// Returns the time that a request with this work takes once it is its turn.
    pub(super) fn service(&self, work: &StepWork) -> Duration {
        nanos(self.time.step_ms(work) * 1e6)
    }

    /// Returns a usual step of a class.
    pub(super) const fn usual(&self, length: Length) -> Duration {
        self.usual[length as usize]
    }
}

/// Returns a time of so many nanoseconds; saturates.
fn nanos(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use prelude_core::StepId;

    use super::*;

    fn tokens(tokens: u32) -> StepWork {
        StepWork::prompt(tokens, tokens)
    }

    #[test]
    fn the_times_of_a_profile_hold_whatever_steps_take() {
        let mut costs = StepCosts::new(Some(ServiceTime {
            floor_ms: 20.0,
            per_cached_ms: 0.0,
            base_ms: 2.0,
            per_token_ms: 0.1,
            per_pair_ms: 0.0,
            decode_ms: 0.0,
        }));
        for _ in 0..2 {
            assert_eq!(costs.launch(), ms(20));
            assert_eq!(costs.work(&tokens(50)), ms(5));
            assert_eq!(
                [50, 500].map(|n| costs.service(&tokens(n))),
                [ms(20), ms(52)]
            );
            costs.note(Length::Short, &step(1000, ms(900)));
        }
        assert_eq!(
            costs.usual(Length::Short),
            ms(900) - ms(900) / 8 + ms(900) / 8
        );
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn step(prompt_tokens: u64, took: Duration) -> StepTime {
        StepTime {
            step: StepId(0),
            took,
            prompt_tokens,
            decode_rows: 0,
        }
    }

    #[test]
    fn learns_what_launches_and_tokens_take() {
        let mut costs = StepCosts::new(None);
        assert_eq!(
            [
                costs.launch(),
                costs.work(&tokens(9)),
                costs.service(&tokens(9))
            ],
            [ms(0); 3]
        );
        costs.note(Length::Short, &step(10, ms(20)));
        assert_eq!([costs.launch(), costs.work(&tokens(900))], [ms(20), ms(0)]);
        costs.note(Length::Long, &step(1000, ms(100)));
        assert_eq!(
            [costs.work(&tokens(500)), costs.service(&tokens(500))],
            [ms(50), ms(50)]
        );
        assert_eq!(
            [costs.work(&tokens(50)), costs.service(&tokens(50))],
            [ms(5), ms(20)]
        );
        assert_eq!(costs.usual(Length::Long), ms(100));
        assert_eq!(costs.usual(Length::Short), ms(20));
        // A launch that is no longer so short is forgotten.
        for _ in 0..8 {
            costs.note(Length::Short, &step(10, ms(36)));
        }
        assert_eq!(costs.launch(), ms(36));
        assert!(costs.usual(Length::Short) > ms(28) && costs.usual(Length::Short) < ms(36));
    }
}
