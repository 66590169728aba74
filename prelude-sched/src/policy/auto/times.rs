//! The times of steps: a profile's, or learnt from the steps that were run.

use std::time::Duration;

use prelude_core::{ServiceTime, StepWork};

use crate::StepTime;

/// The time of steps: base + tokens * time of one, fitted by least squares to the steps that were run, in
/// which a step counts less the longer ago it ran; or a profile's, which holds.
#[derive(Debug)]
pub(super) struct Times {
    is_profiled: bool,
    time: ServiceTime,
    sums: Sums,
}

/// Sums over steps of their tokens `x` and milliseconds `t`, fading.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: f64,
    x: f64,
    t: f64,
    xx: f64,
    xt: f64,
}

/// The weight of the steps before, when another one has run.
const DECAY: f64 = 0.98;

/// The time of a token as long as none was measured: between those of a GPU and of a processor.
const UNKNOWN_TOKEN_MS: f64 = 0.1;

/// Fewer tokens are never enough.
const LEAST_ENOUGH: u64 = 128;

impl Times {
    pub(super) fn new(profile: Option<ServiceTime>) -> Self {
        Self {
            is_profiled: profile.is_some(),
            time: profile.unwrap_or(ServiceTime {
                per_token_ms: UNKNOWN_TOKEN_MS,
                ..ServiceTime::ZERO
            }),
            sums: Sums::default(),
        }
    }

    /// Notes a step that was run.
    pub(super) fn note(&mut self, step: &StepTime) {
        if self.is_profiled || step.prompt_tokens == 0 {
            return;
        }
        let (x, t) = (step.prompt_tokens as f64, step.took.as_secs_f64() * 1e3);
        let Sums {
            n,
            x: sx,
            t: st,
            xx,
            xt,
        } = self.sums;
        self.sums = Sums {
            n: n * DECAY + 1.0,
            x: sx * DECAY + x,
            t: st * DECAY + t,
            xx: xx * DECAY + x * x,
            xt: xt * DECAY + x * t,
        };
        let Sums { n, x, t, xx, xt } = self.sums;
        let spread = n * xx - x * x;
        let slope = (n * xt - x * t) / spread;
        // Steps of one size tell nothing of their parts.
        let is_fitted = spread > 0.01 * n * xx && slope > 0.0;
        let slope = if is_fitted { slope.min(t / x) } else { t / x };
        self.time.per_token_ms = slope;
        self.time.base_ms = ((t - slope * x) / n).max(0.0);
    }

    /// Returns the time that this work adds to a step that has other work.
    pub(super) fn added(&self, work: &StepWork) -> Duration {
        let added = ServiceTime {
            floor_ms: 0.0,
            per_cached_ms: 0.0,
            base_ms: 0.0,
            ..self.time
        };
        millis(added.step_ms(work))
    }

    /// Returns the time of a step with this work alone.
    pub(super) fn alone(&self, work: &StepWork) -> Duration {
        millis(self.time.step_ms(work))
    }

    /// Returns the tokens with which a step is full enough while so many requests wait, with so many
    /// tokens together, and so many generations decode.
    ///
    /// A step of `n` tokens that is cut in two lets half of its requests, of `m` tokens each, end `n b / 2`
    /// sooner and `d` generations have a token half a step sooner, and costs `w` waiting ones and these
    /// generations one more base `a`: it is best cut if `n² b / 4m + d n b / 2 > a (w + d)`.
    pub(super) fn enough(&self, waiting: u64, tokens: u64, decoding: u64) -> u64 {
        let (w, d) = (waiting as f64, decoding as f64);
        let base = self.time.base_ms.max(self.time.floor_ms);
        let ratio = base / self.time.per_token_ms;
        if waiting == 0 || base == 0.0 || !ratio.is_finite() {
            return u64::MAX;
        }
        let m = tokens as f64 / w;
        let n = m * ((d * d + 4.0 * ratio / m * (w + d)).sqrt() - d);
        // The parts of one request gain nothing by a cut.
        let n = if decoding == 0 { n.max(m) } else { n };
        (n as u64).max(LEAST_ENOUGH)
    }
}

fn millis(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use prelude_core::StepId;

    use super::*;

    fn step(prompt_tokens: u64, ms: u64) -> StepTime {
        StepTime {
            step: StepId(0),
            took: Duration::from_millis(ms),
            prompt_tokens,
            decode_rows: 0,
        }
    }

    #[test]
    fn the_base_and_the_time_of_a_token_are_learnt() {
        let mut times = Times::new(None);
        let work = StepWork::prompt(100, 100);
        assert_eq!(times.alone(&work), Duration::from_millis(10));
        assert_eq!(times.enough(10, 1_000, 0), u64::MAX);
        // 20 ms and a tenth of a millisecond for each token.
        for tokens in [100, 500, 1_000, 200, 2_000] {
            times.note(&step(tokens, 20 + tokens / 10));
        }
        let near = |took: Duration, ms: f64| (took.as_secs_f64() * 1e3 - ms).abs() < 0.01;
        assert!(near(times.alone(&work), 30.0), "{times:?}");
        assert!(near(times.added(&work), 10.0), "{times:?}");
        // A base is 200 tokens: 2 sqrt(200 * 8,000).
        assert_eq!(times.enough(80, 8_000, 0), 2_529);
        assert_eq!(times.enough(80, 8_000, 80), 763);
        // One request is not cut.
        assert_eq!(times.enough(1, 8_000, 0), 8_000);
        // Steps of one size.
        let mut times = Times::new(None);
        times.note(&step(1_000, 100));
        times.note(&step(1_000, 100));
        assert!(near(times.alone(&work), 10.0), "{times:?}");
    }

    #[test]
    fn a_profile_holds() {
        let profile = ServiceTime {
            per_token_ms: 1.0,
            ..ServiceTime::ZERO
        };
        let mut times = Times::new(Some(profile));
        times.note(&step(1_000, 5));
        assert_eq!(
            times.alone(&StepWork::prompt(3, 3)),
            Duration::from_millis(3)
        );
    }
}
