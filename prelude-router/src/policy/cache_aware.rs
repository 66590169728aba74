//! The policy of SGLang's and vLLM's Rust routers, as a baseline.
//!
//! The longest cached prefix, if it is long enough a part of the prompt; else whoever's cache
//! holds least; but the shortest queue while queues differ too much.

use prelude_core::Timestamp;

use super::{Choice, Policy, Query, Reason, choice};
use crate::{
    cached::Cached,
    config::{CacheAwareConfig, RouterConfig},
    endpoint::{EndpointId, Fleet},
};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct CacheAware {
    config: CacheAwareConfig,
    cached: Cached,
}

impl CacheAware {
    pub(super) fn new(config: CacheAwareConfig, router: &RouterConfig) -> Self {
        Self {
            config,
            cached: Cached::new(router),
        }
    }

    /// Whether queues differ so much that only they count.
    fn is_unbalanced(&self, fleet: &Fleet, query: &Query<'_>) -> bool {
        let queues = || {
            query
                .endpoints(fleet)
                .map(|(_, e)| e.outstanding().requests)
        };
        let (most, least) = (queues().max().unwrap_or(0), queues().min().unwrap_or(0));
        most - least > self.config.balance_abs
            && most as f64 > self.config.balance_rel * least as f64
    }
}

impl Policy for CacheAware {
    fn pick(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        self.cached.look(fleet, query);
        let cached = |at: usize| self.cached.tokens(at);
        let (at, reason) = if self.is_unbalanced(fleet, query) {
            let at = query.least(fleet, |_, e| e.outstanding().requests);
            (at, Reason::Backlog)
        } else {
            let best = query.least(fleet, |at, _| std::cmp::Reverse(cached(at)));
            if f64::from(cached(best)) > self.config.match_ratio * f64::from(query.tokens) {
                (best, Reason::Cached)
            } else {
                let at = query.least(fleet, |_, e| self.cached.index.resident(e.id()));
                (at, Reason::LeastCost)
            }
        };
        choice(fleet, query, at, cached(at), reason)
    }

    fn commit(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        self.cached.take_in(fleet, query, choice);
    }

    fn joined(&mut self, _: Timestamp, fleet: &Fleet) {
        self.cached.joined(fleet);
    }

    fn left(&mut self, endpoint: EndpointId) {
        self.cached.index.leave(endpoint);
    }

    fn index_nodes(&self) -> (usize, u64) {
        (self.cached.index.len(), self.cached.index.dropped())
    }
}
