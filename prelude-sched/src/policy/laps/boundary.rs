//! The boundary of tokens up to which a prompt is short.

use prelude_core::ServiceTime;

use super::LapsConfig;

/// The least and the largest boundary that measured times may give, in tokens.
const RANGE: [f64; 2] = [128.0, 512.0];

/// The number of tokens at which computing a prompt takes as long as the memory traffic that it
/// causes, by the number of cached tokens before them.
///
/// Below it the device waits for memory whatever it computes, so further prompts in the same step
/// are nearly free; above it they are not. Cached lengths count as the power of two below them.
#[derive(Debug)]
pub(super) struct Boundary {
    /// The boundaries for no cached tokens, for 1, for 2..=3, for 4..=7 and so on.
    by_context: [u32; 33],
}

impl Boundary {
    /// Returns the boundary that follows from the time of steps, or the configured one.
    pub(super) fn new(config: &LapsConfig, service: Option<&ServiceTime>) -> Self {
        let of = |class: u32| match service {
            None => config.boundary_tokens,
            Some(service) => {
                let context = class.checked_sub(1).map_or(0, |power| 1_u32 << power);
                let [least, most] = RANGE;
                service.memory_bound_tokens(context).clamp(least, most) as u32
            }
        };
        let mut by_context = [0; 33];
        for (class, boundary) in (0..).zip(&mut by_context) {
            *boundary = of(class);
        }
        Self { by_context }
    }

    /// Returns the most tokens that are few behind `context` cached ones.
    pub(super) const fn tokens(&self, context: u32) -> u32 {
        self.by_context[(u32::BITS - context.leading_zeros()) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundary(service: ServiceTime) -> Boundary {
        Boundary::new(&LapsConfig::default(), Some(&service))
    }

    #[test]
    fn is_fixed_until_times_are_known() {
        let fixed = Boundary::new(&LapsConfig::default(), None);
        for context in [0, 1, 1500, u32::MAX] {
            assert_eq!(fixed.tokens(context), 256);
        }
    }

    #[test]
    fn follows_times_within_its_range() {
        let time = |floor_ms, per_cached_ms| ServiceTime {
            floor_ms,
            per_cached_ms,
            base_ms: 1.0,
            per_token_ms: 0.1,
            per_pair_ms: 0.0,
            decode_ms: 0.0,
        };
        // (floor - base) / per_token tokens.
        assert_eq!(boundary(time(31.05, 0.0)).tokens(0), 300);
        assert_eq!(boundary(time(1.0, 0.0)).tokens(0), 128);
        assert_eq!(boundary(time(900.0, 0.0)).tokens(0), 512);
        // Cached tokens that are read leave time for 0.2 more each.
        let far = boundary(time(21.05, 0.02));
        assert_eq!(far.tokens(0), 200);
        for context in [1024, 1500, 2047] {
            assert_eq!(far.tokens(context), 405);
        }
        assert_eq!(far.tokens(1023), 302);
        // Attention to 4,096 cached tokens makes them twice as long.
        let attends = ServiceTime {
            per_pair_ms: 0.1 / 4096.0,
            ..time(51.05, 0.0)
        };
        let expected = [473, 246];
        assert_eq!(
            [0, 4096].map(|context| boundary(attends).tokens(context)),
            expected
        );
    }
}
