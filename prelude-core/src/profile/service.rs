//! The time that an engine takes for a step: the model that every prediction is made of.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The time of a step of one engine, by what the step has to do.
///
/// ```text
/// max( floor + per_cached · cached,                                      memory
///      base + per_token · tokens + per_pair · pairs + decode · rows )    compute
/// ```
///
/// [`StepWork`] says what `tokens`, `cached`, `pairs` and `rows` are. The first line is what a step
/// takes however little it computes: launching it, reading the weights, and reading the keys and
/// values that are cached. This is LAPS's model (§2.1: `max(α L(L + 2H) + β L, γw L + γr H)`) with
/// two differences, both because times are all that is measured: its memory term has no weights,
/// which is what keeps a device busy that computes little, so here they are `floor`; and its `γw L`
/// cannot be told from `β L`, so `per_token` has both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTime {
    /// Least time of a step, milliseconds.
    pub floor_ms: f64,
    /// Milliseconds for each cached token that is read, beside the floor.
    pub per_cached_ms: f64,
    /// Time of a step before its first token, milliseconds.
    pub base_ms: f64,
    /// Milliseconds for each token of a prompt that is computed.
    pub per_token_ms: f64,
    /// Milliseconds for each pair of a computed token and one that it attends to.
    pub per_pair_ms: f64,
    /// Milliseconds for each generation that advances by a token.
    pub decode_ms: f64,
}

impl Default for ServiceTime {
    /// Returns times close to those of a Mistral-7B on an A6000, the engine that Preble's authors
    /// fitted.
    fn default() -> Self {
        Self {
            floor_ms: 22.0,
            per_cached_ms: 0.0,
            base_ms: 4.68,
            per_token_ms: 0.12,
            per_pair_ms: 2.4e-6,
            decode_ms: 1.5,
        }
    }
}

/// A coefficient of a [`ServiceTime`] that no engine can have.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("service time: {name} is {value}, and must be a number from 0 to 1e6")]
pub struct BadServiceTime {
    /// The field.
    pub name: &'static str,
    /// The coefficient's value.
    pub value: f64,
}

impl ServiceTime {
    /// An engine whose steps take no time.
    pub const ZERO: Self = Self {
        floor_ms: 0.0,
        per_cached_ms: 0.0,
        base_ms: 0.0,
        per_token_ms: 0.0,
        per_pair_ms: 0.0,
        decode_ms: 0.0,
    };

    /// Returns the coefficients with their names.
    #[must_use]
    pub const fn fields(&self) -> [(&'static str, f64); 6] {
        [
            ("floor_ms", self.floor_ms),
            ("per_cached_ms", self.per_cached_ms),
            ("base_ms", self.base_ms),
            ("per_token_ms", self.per_token_ms),
            ("per_pair_ms", self.per_pair_ms),
            ("decode_ms", self.decode_ms),
        ]
    }

    /// Checks that every coefficient is a number of milliseconds.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn validate(&self) -> Result<(), BadServiceTime> {
        let wrong = |(_, value): &(_, f64)| !(0.0..=1e6).contains(value);
        match self.fields().into_iter().find(wrong) {
            Some((name, value)) => Err(BadServiceTime { name, value }),
            None => Ok(()),
        }
    }

    /// Returns the milliseconds of a step that does `work`.
    #[must_use]
    pub fn step_ms(&self, work: &StepWork) -> f64 {
        let memory = self.floor_ms + self.per_cached_ms * work.cached;
        let compute = self.base_ms
            + self.per_token_ms * work.tokens
            + self.per_pair_ms * work.pairs
            + self.decode_ms * work.decode_rows;
        memory.max(compute)
    }

    /// Returns the milliseconds of a step that computes the last `computed` of a prompt's `tokens`;
    /// 0 for none.
    #[must_use]
    pub fn prefill_ms(&self, computed: u32, tokens: u32) -> f64 {
        if computed == 0 {
            return 0.0;
        }
        self.step_ms(&StepWork::prompt(computed, tokens))
    }

    /// Returns the most tokens behind `cached` ones for which computing takes no longer than memory
    /// traffic, and which are therefore nearly free in a step that runs anyway (LAPS §2.1: the
    /// boundary `L_m`); 0 if computing always takes longer, infinity if it never does.
    #[must_use]
    pub fn memory_bound_tokens(&self, cached: u32) -> f64 {
        // per_pair (L² / 2 + L H) + per_token L = floor + per_cached H - base.
        let (half, cached) = (self.per_pair_ms / 2.0, f64::from(cached));
        let slope = self.per_token_ms + self.per_pair_ms * (cached + 0.5);
        let room = self.floor_ms + self.per_cached_ms * cached - self.base_ms;
        if room <= 0.0 {
            return 0.0;
        }
        // The usual form of the root would take the difference of two numbers that are nearly equal.
        2.0 * room / (slope + (slope * slope + 4.0 * half * room).sqrt())
    }
}

/// The work of a step, as far as its time depends on it. Sums are those of steps that run as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Tokens of prompts that are computed.
    pub tokens: f64,
    /// Pairs of a computed token and a token that it attends to, itself included.
    pub pairs: f64,
    /// Cached tokens that are read: by prompts, and by generations that advance.
    pub cached: f64,
    /// Generations that advance by a token.
    pub decode_rows: f64,
}

impl StepWork {
    /// Returns the work for the last `computed` of a prompt's `tokens`, of which there are at least as
    /// many.
    #[must_use]
    pub fn prompt(computed: u32, tokens: u32) -> Self {
        let (computed, tokens) = (f64::from(computed), f64::from(tokens.max(computed)));
        Self {
            tokens: computed,
            // The first computed token attends to `tokens - computed + 1` tokens, the last to
            // `tokens`.
            pairs: computed * (2.0 * tokens - computed + 1.0) / 2.0,
            cached: tokens - computed,
            decode_rows: 0.0,
        }
    }

    /// Returns the work for the next token of a generation behind `context` tokens.
    #[must_use]
    pub fn decode(context: u32) -> Self {
        Self {
            cached: f64::from(context),
            decode_rows: 1.0,
            ..Self::default()
        }
    }

    /// Returns the work of `count` steps like this one that run as one step.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        let count = f64::from(count);
        Self {
            tokens: self.tokens * count,
            pairs: self.pairs * count,
            cached: self.cached * count,
            decode_rows: self.decode_rows * count,
        }
    }
}

impl std::iter::Sum for StepWork {
    fn sum<I: Iterator<Item = Self>>(works: I) -> Self {
        works.fold(Self::default(), |sum, work| Self {
            tokens: sum.tokens + work.tokens,
            pairs: sum.pairs + work.pairs,
            cached: sum.cached + work.cached,
            decode_rows: sum.decode_rows + work.decode_rows,
        })
    }
}

/// The measured time of a step of prompts or generations that are all alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Prompts or generations in the step, at least 1.
    pub batch: u32,
    /// Tokens that were computed of each, at least 1; 1 of a generation.
    pub computed: u32,
    /// Tokens of each that were cached before.
    pub cached: u32,
    /// Milliseconds.
    pub ms: f64,
}

impl Sample {
    /// Returns the work of the step if it was one of prompts.
    #[must_use]
    pub fn prefill_work(&self) -> StepWork {
        let tokens = self.cached.saturating_add(self.computed);
        StepWork::prompt(self.computed, tokens).times(self.batch)
    }

    /// Returns the work of the step if it was one of generations.
    #[must_use]
    pub fn decode_work(&self) -> StepWork {
        StepWork::decode(self.cached).times(self.batch)
    }

    /// Returns whether the numbers are those of a step: something was computed, in some time of at
    /// most eleven days.
    pub(super) fn is_valid(&self) -> bool {
        self.batch > 0 && self.computed > 0 && self.ms > 0.0 && self.ms < 1e9
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefill_has_a_floor_and_costs_nothing_for_nothing() {
        let time = ServiceTime::default();
        assert_eq!(time.prefill_ms(0, 5000), 0.0);
        assert_eq!(time.prefill_ms(1, 1), 22.0);
        // The 1,000 tokens attend to 3,001, 3,002 and so on up to 4,000.
        let ms = 4.68 + 0.12 * 1000.0 + 2.4e-6 * 1000.0 * 3500.5;
        assert!((time.prefill_ms(1000, 4000) - ms).abs() < 1e-9);
    }

    #[test]
    fn generations_read_what_is_cached() {
        let time = ServiceTime {
            per_cached_ms: 0.01,
            ..ServiceTime::default()
        };
        let step = |rows, context| time.step_ms(&StepWork::decode(context).times(rows));
        assert_eq!(step(4, 100), 22.0 + 4.0);
        assert_eq!(step(100, 10), 4.68 + 150.0);
    }

    #[test]
    fn nonsense_is_named() {
        for value in [-1.0, f64::NAN, f64::INFINITY] {
            let time = ServiceTime {
                per_pair_ms: value,
                ..ServiceTime::default()
            };
            let bad = time.validate().expect_err("not a number of milliseconds");
            assert_eq!(bad.name, "per_pair_ms");
        }
        assert_eq!(ServiceTime::default().validate(), Ok(()));
    }

    proptest! {
        /// More work never takes less time.
        #[test]
        fn times_grow_with_the_work(
            coefficients in prop::array::uniform6(0.0_f64..100.0),
            cached in 0_u32..100_000,
            computed in 1_u32..10_000,
            more in 0_u32..10_000,
        ) {
            let [floor_ms, per_cached_ms, base_ms, per_token_ms, per_pair_ms, decode_ms] =
                coefficients;
            let time = ServiceTime {
                floor_ms, per_cached_ms, base_ms, per_token_ms, per_pair_ms, decode_ms,
            };
            let ms = |computed, cached| time.prefill_ms(computed, cached + computed);
            prop_assert!(ms(computed, cached) <= ms(computed + more, cached));
            prop_assert!(ms(computed, cached) <= ms(computed, cached + more));
        }

        /// At the boundary both terms are equal.
        #[test]
        fn the_boundary_solves_the_equation(
            floor_ms in 0.0_f64..100.0,
            per_cached_ms in 0.0_f64..1e-2,
            base_ms in 0.0_f64..100.0,
            per_token_ms in 1e-6_f64..1.0,
            per_pair_ms in 0.0_f64..1e-3,
            cached in 0_u32..1_000_000,
        ) {
            let time = ServiceTime {
                floor_ms, per_cached_ms, base_ms, per_token_ms, per_pair_ms, decode_ms: 0.0,
            };
            let tokens = time.memory_bound_tokens(cached);
            let context = f64::from(cached);
            let pairs = tokens * (tokens + 1.0) / 2.0 + tokens * context;
            let compute = base_ms + per_token_ms * tokens + per_pair_ms * pairs;
            let memory = floor_ms + per_cached_ms * context;
            if base_ms < memory {
                prop_assert!((compute - memory).abs() <= 1e-6 * memory, "{compute} {memory}");
            } else {
                prop_assert_eq!(tokens, 0.0);
            }
        }
    }
}
