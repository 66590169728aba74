//! Up to how many tokens a prompt is short.

use super::{LapsConfig, PrefillCosts};

/// The least and the largest boundary that costs may give, in tokens.
const RANGE: [u32; 2] = [128, 512];

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
    pub(super) fn new(config: &LapsConfig) -> Self {
        let of = |class: u32| match config.costs {
            None => config.boundary_tokens,
            Some(costs) => {
                let context = class.checked_sub(1).map_or(0, |power| 1_u32 << power);
                let [least, most] = RANGE;
                // Saturates; clamped to less than that anyway.
                (root(&costs, context) as u32).clamp(least, most)
            }
        };
        let mut by_context = [0; 33];
        for (class, boundary) in (0..).zip(&mut by_context) {
            *boundary = of(class);
        }
        Self { by_context }
    }

    /// The most tokens that are few behind `context` cached ones.
    pub(super) const fn tokens(&self, context: u32) -> u32 {
        self.by_context[(u32::BITS - context.leading_zeros()) as usize]
    }
}

/// The positive `L` with `alpha L (L + 2H) + beta L = gw L + gr H`, or 0.
fn root(costs: &PrefillCosts, context: u32) -> f64 {
    let [alpha, beta, gw, gr] =
        [costs.alpha_fs, costs.beta_fs, costs.gw_fs, costs.gr_fs].map(|fs| fs as f64);
    let context = f64::from(context);
    let linear = 2.0 * alpha * context + beta - gw;
    let constant = gr * context;
    let discriminant = linear.mul_add(linear, 4.0 * alpha * constant).sqrt();
    if linear > 0.0 {
        // The other form would take the difference of two numbers that are nearly equal.
        2.0 * constant / (linear + discriminant)
    } else {
        (discriminant - linear) / (2.0 * alpha)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn boundary(costs: PrefillCosts) -> Boundary {
        Boundary::new(&LapsConfig {
            costs: Some(costs),
            ..LapsConfig::default()
        })
    }

    #[test]
    fn is_fixed_until_costs_are_known() {
        let fixed = Boundary::new(&LapsConfig::default());
        for context in [0, 1, 1500, u32::MAX] {
            assert_eq!(fixed.tokens(context), 256);
        }
    }

    #[test]
    fn follows_costs_within_its_range() {
        let costs = |gw_fs, gr_fs| PrefillCosts {
            alpha_fs: 1_000,
            beta_fs: 100_000,
            gw_fs,
            gr_fs,
        };
        // (gw - beta) / alpha tokens.
        assert_eq!(boundary(costs(400_000, 0)).tokens(0), 300);
        assert_eq!(boundary(costs(100_000, 0)).tokens(0), 128);
        assert_eq!(boundary(costs(9_000_000, 0)).tokens(0), 512);
        // L^2 + (2H + 100 - 400) L - 700 H = 0 for H = 1,024: 342.8 tokens.
        let far = boundary(costs(400_000, 700_000));
        for context in [1024, 1500, 2047] {
            assert_eq!(far.tokens(context), 342);
        }
        assert_eq!(far.tokens(1023), 337);
    }

    proptest! {
        #[test]
        fn the_root_solves_the_equation(
            alpha_fs in 1_u64..1_000_000,
            beta_fs in 0_u64..1_000_000_000_000,
            gw_fs in 0_u64..1_000_000_000_000,
            gr_fs in 0_u64..1_000_000_000,
            context in 0_u32..1_000_000,
        ) {
            let costs = PrefillCosts { alpha_fs, beta_fs, gw_fs, gr_fs };
            let tokens = root(&costs, context);
            prop_assert!(tokens >= 0.0);
            let (cached, pairs) = (f64::from(context), alpha_fs as f64 * tokens);
            let compute = pairs * (tokens + 2.0 * cached) + beta_fs as f64 * tokens;
            let memory = gw_fs as f64 * tokens + gr_fs as f64 * cached;
            prop_assert!((compute - memory).abs() <= 1e-6 * (compute + memory));
            // It is the positive one unless computing always takes longer.
            prop_assert!(tokens > 0.0 || (gr_fs == 0 || context == 0));
        }
    }
}
