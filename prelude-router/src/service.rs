//! How long an engine takes for a request: the model that every cost in this crate is made of.

mod fit;

pub(crate) use fit::Fit;
pub use fit::{FitConfig, FitError, Profile, Sample};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Service times of one engine, in milliseconds.
///
/// A prefill of `m` uncached tokens in a prompt of `n` takes
/// `max(floor, base + per_token * m + per_pair * m * n)`; an output token takes `decode`, which is
/// the time of a decode step divided by the mean number of rows in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceTime {
    /// Least time of a prefill, milliseconds (default 22).
    pub floor_ms: f64,
    /// Time of a prefill before its first token, milliseconds (default 4.68).
    pub base_ms: f64,
    /// Milliseconds for each uncached token (default 0.12).
    pub per_token_ms: f64,
    /// Milliseconds for each pair of an uncached token and one of the prompt (default 2.4e-6).
    pub per_pair_ms: f64,
    /// Milliseconds for each output token (default 1.5).
    pub decode_ms: f64,
}

impl Default for ServiceTime {
    /// About a Mistral-7B on an A6000, the engine that Preble's authors fitted.
    fn default() -> Self {
        Self {
            floor_ms: 22.0,
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
    /// Its value.
    pub value: f64,
}

impl ServiceTime {
    /// Checks that every coefficient is a number of milliseconds.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn validate(&self) -> Result<(), BadServiceTime> {
        let fields = [
            ("floor_ms", self.floor_ms),
            ("base_ms", self.base_ms),
            ("per_token_ms", self.per_token_ms),
            ("per_pair_ms", self.per_pair_ms),
            ("decode_ms", self.decode_ms),
        ];
        match fields.into_iter().find(|(_, v)| !(0.0..=1e6).contains(v)) {
            Some((name, value)) => Err(BadServiceTime { name, value }),
            None => Ok(()),
        }
    }

    /// Time to compute `missed` tokens of a prompt of `tokens`. Nothing for none.
    #[must_use]
    pub fn prefill(&self, missed: u32, tokens: u32) -> Cost {
        if missed == 0 {
            return Cost::ZERO;
        }
        let (m, n) = (f64::from(missed), f64::from(tokens));
        let ms = self.base_ms + self.per_token_ms * m + self.per_pair_ms * m * n;
        Cost::from_ms(ms.max(self.floor_ms))
    }

    /// Time to generate `tokens`. Nothing for at most one, which the prefill yields.
    #[must_use]
    pub fn decode(&self, tokens: f64) -> Cost {
        if tokens <= 1.0 {
            return Cost::ZERO;
        }
        Cost::from_ms(self.decode_ms * tokens)
    }
}

/// An amount of an engine's time.
///
/// Whole nanoseconds, so that what is added to a sum and subtracted later leaves exactly what
/// was there before: sums of floating-point numbers drift. Of 128 bits, which no sum of costs of
/// 64 bits, the most that one request can have, leaves.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Cost(pub u128);

impl Cost {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// So many milliseconds; none if that is negative or not a number.
    #[must_use]
    pub fn from_ms(ms: f64) -> Self {
        // `as` saturates, and takes what is not a number for 0.
        Self(u128::from((ms * 1e6) as u64))
    }

    /// In milliseconds.
    #[must_use]
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// `self * by / of`; nothing if `of` is 0.
    pub(crate) fn scaled(self, by: u64, of: u64) -> Self {
        let product = self.0.saturating_mul(u128::from(by));
        Self(product.checked_div(u128::from(of)).unwrap_or(0))
    }
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::SubAssign for Cost {
    /// # Panics
    /// If more is subtracted than was added: the books of a window are wrong then.
    fn sub_assign(&mut self, other: Self) {
        self.0 = self
            .0
            .checked_sub(other.0)
            .expect("a window subtracts what it has added");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_has_a_floor_and_costs_nothing_for_nothing() {
        let time = ServiceTime::default();
        assert_eq!(time.prefill(0, 5000), Cost::ZERO);
        assert_eq!(time.prefill(1, 1), Cost::from_ms(22.0));
        let ms = 4.68 + 0.12 * 1000.0 + 2.4e-6 * 1000.0 * 4000.0;
        assert_eq!(time.prefill(1000, 4000), Cost::from_ms(ms));
        assert_eq!(time.decode(1.0), Cost::ZERO);
        assert_eq!(time.decode(4.0), Cost::from_ms(6.0));
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

    /// The longest times that pass as such, of as many requests as a window can have.
    #[test]
    fn sums_of_the_greatest_costs_return_to_nothing() {
        let most = Cost::from_ms(f64::MAX);
        let mut sum = Cost::ZERO;
        for _ in 0..1000 {
            sum += most;
        }
        assert_eq!(sum, Cost(most.0 * 1000));
        for _ in 0..1000 {
            sum -= most;
        }
        assert_eq!(sum, Cost::ZERO);
    }

    #[test]
    fn shares_round_down_and_never_divide_by_zero() {
        assert_eq!(Cost(10).scaled(2, 3), Cost(6));
        assert_eq!(Cost(10).scaled(2, 0), Cost::ZERO);
        assert_eq!(Cost(u128::MAX).scaled(u64::MAX, 1), Cost(u128::MAX));
        assert_eq!(Cost::from_ms(f64::NAN), Cost::ZERO);
    }
}
