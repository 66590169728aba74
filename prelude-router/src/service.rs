//! The time that an engine takes for a request: the costs that this crate adds up.

mod fit;

pub(crate) use fit::Fit;
pub use fit::FitConfig;
use prelude_core::ServiceTime;
use serde::{Deserialize, Serialize};

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

    /// Returns the time in which an engine computes `missed` tokens of a prompt of `tokens`;
    /// nothing for none.
    #[must_use]
    pub fn of_prefill(service: &ServiceTime, missed: u32, tokens: u32) -> Self {
        Self::from_ms(service.prefill_ms(missed, tokens))
    }

    /// Returns the time in which an engine generates `tokens`; nothing for at most one, which the
    /// prefill yields.
    #[must_use]
    pub fn of_decode(service: &ServiceTime, tokens: f64) -> Self {
        if tokens <= 1.0 {
            return Self::ZERO;
        }
        Self::from_ms(service.decode_ms * tokens)
    }

    /// Returns so many milliseconds; `None` if that is negative or not a number.
    #[must_use]
    pub fn from_ms(ms: f64) -> Self {
        // `as` saturates, and takes what is not a number for 0.
        Self(u128::from((ms * 1e6) as u64))
    }

    /// Returns the cost in milliseconds.
    #[must_use]
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns `self * by / of`; nothing if `of` is 0.
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
    fn nothing_costs_nothing() {
        let time = ServiceTime::default();
        assert_eq!(Cost::of_prefill(&time, 0, 5000), Cost::ZERO);
        assert_eq!(Cost::of_prefill(&time, 1, 1), Cost::from_ms(22.0));
        assert_eq!(Cost::of_decode(&time, 1.0), Cost::ZERO);
        assert_eq!(Cost::of_decode(&time, 4.0), Cost::from_ms(6.0));
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
