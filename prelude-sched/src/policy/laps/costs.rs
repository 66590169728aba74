//! How long steps take, learnt from those that were run.

use std::{collections::VecDeque, time::Duration};

use super::Length;
use crate::StepTime;

/// The measured costs of launching a step, of a token, and of a step of each class.
#[derive(Debug, Default)]
pub(super) struct StepCosts {
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

    pub(super) fn note(&mut self, length: Length, step: &StepTime) {
        if self.recent.len() == Self::STEPS {
            self.recent.pop_front();
        }
        self.recent.push_back(step.took);
        let usual = &mut self.usual[length as usize];
        *usual = match *usual {
            Duration::ZERO => step.took,
            before => before - before / 8 + step.took / 8,
        };
        if step.prompt_tokens >= Self::FEW {
            self.nanos = self.nanos * 0.875 + step.took.as_nanos() as f64;
            self.tokens = self.tokens * 0.875 + step.prompt_tokens as f64;
        }
    }

    /// Returns the time that a step takes however little it computes; zero before there are
    /// measurements.
    pub(super) fn launch(&self) -> Duration {
        self.recent.iter().min().copied().unwrap_or_default()
    }

    /// Returns the time that so many tokens add to a step that has others.
    pub(super) fn work(&self, tokens: u64) -> Duration {
        if self.tokens < 1.0 {
            return Duration::ZERO;
        }
        let nanos = self.nanos / self.tokens * tokens as f64;
        // Saturates.
        Duration::from_nanos(nanos as u64)
    }

    /// Returns the time that a request of so many tokens takes once it is its turn.
    pub(super) fn service(&self, tokens: u64) -> Duration {
        self.work(tokens).max(self.launch())
    }

    /// A usual step of a class.
    pub(super) const fn usual(&self, length: Length) -> Duration {
        self.usual[length as usize]
    }
}

#[cfg(test)]
mod tests {
    use prelude_core::StepId;

    use super::*;

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
        let mut costs = StepCosts::default();
        assert_eq!(
            [costs.launch(), costs.work(9), costs.service(9)],
            [ms(0); 3]
        );
        costs.note(Length::Short, &step(10, ms(20)));
        assert_eq!([costs.launch(), costs.work(900)], [ms(20), ms(0)]);
        costs.note(Length::Long, &step(1000, ms(100)));
        assert_eq!([costs.work(500), costs.service(500)], [ms(50), ms(50)]);
        assert_eq!([costs.work(50), costs.service(50)], [ms(5), ms(20)]);
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
