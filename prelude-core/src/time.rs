//! The only notion of time below the engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since the engine (or the simulation) started.
///
/// Nothing below the engine reads a clock: time is an argument of this type.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start of the engine.
    pub const ZERO: Self = Self(0);

    /// Returns a timestamp `ns` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns this time plus `d`, at most the end of representable time (584 years).
    #[must_use]
    pub fn saturating_add(self, d: Duration) -> Self {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let t = Timestamp::from_nanos(5);
        assert_eq!(t.saturating_since(Timestamp::from_nanos(9)), Duration::ZERO);
        assert_eq!(t.saturating_add(Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(
            t.saturating_add(Duration::from_nanos(2)),
            Timestamp::from_nanos(7)
        );
    }
}
