//! The endpoint with the fewest requests under way; of several, with the fewest tokens.

use prelude_core::Timestamp;

use crate::{
    config::RouterConfig,
    endpoint::Fleet,
    policy::{Choice, Policy, Query, by_rule},
    random::Random,
};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct LeastOutstanding {
    random: Random,
}

impl LeastOutstanding {
    pub(super) fn new(router: &RouterConfig) -> Self {
        Self {
            random: Random::new(router.seed),
        }
    }
}

impl Policy for LeastOutstanding {
    fn pick(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        let at = query.least(fleet, &mut self.random, |_, e| {
            let outstanding = e.outstanding();
            (outstanding.requests, outstanding.tokens)
        });
        by_rule(fleet, query, at)
    }
}
