//! The policy of SGLang's and vLLM's Rust routers, as a baseline.
//!
//! A request goes to the endpoint with the longest match, if that is long enough a part of the
//! prompt, else to the endpoint with the smallest tree; but to the shortest queue while queues
//! differ too much. Trees are not caches: they remember prompts far beyond what a cache holds, so
//! a match may be evicted, and trees of endpoints whose caches are full still differ in size.

use std::cmp::Reverse;

use prelude_core::Timestamp;

use crate::{
    cached::Cached,
    config::{CacheAwareConfig, RouterConfig},
    endpoint::{Endpoint, EndpointId, Fleet},
    policy::{Choice, Policy, Query, Reason, choice},
    random::Random,
};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct CacheAware {
    config: CacheAwareConfig,
    trees: Cached,
    random: Random,
}

impl CacheAware {
    pub(super) fn new(config: CacheAwareConfig, router: &RouterConfig) -> Self {
        Self {
            config,
            trees: Cached::new(router),
            random: Random::new(router.seed),
        }
    }

    /// Returns whether queues differ so much that only they count.
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
        self.trees.look(fleet, query);
        let is_unbalanced = self.is_unbalanced(fleet, query);
        let (trees, random) = (&self.trees, &mut self.random);
        let matched = |at: usize| trees.tokens(at);
        let (at, reason) = if is_unbalanced {
            let at = query.least(fleet, random, |_, e| e.outstanding().requests);
            (at, Reason::Backlog)
        } else {
            let best = query.least(fleet, random, |at, _| Reverse(matched(at)));
            if f64::from(matched(best)) > self.config.match_ratio * f64::from(query.tokens) {
                (best, Reason::Cached)
            } else {
                let size = |_, e: &Endpoint| trees.index.resident(e.id());
                (query.least(fleet, random, size), Reason::LeastCost)
            }
        };
        choice(fleet, query, at, matched(at), reason)
    }

    fn commit(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        self.trees.take_in(fleet, query, choice);
    }

    fn joined(&mut self, _: Timestamp, fleet: &Fleet) {
        self.trees.joined(fleet, |_| self.config.max_tree_tokens);
    }

    fn left(&mut self, endpoint: EndpointId) {
        self.trees.index.leave(endpoint);
    }

    fn cache_holds(&mut self, endpoint: EndpointId, most_tokens: u64) {
        self.trees.trim(endpoint, most_tokens);
    }

    fn cached_tokens(&self, endpoint: EndpointId) -> u64 {
        self.trees.resident(endpoint)
    }

    fn index_nodes(&self) -> (usize, u64) {
        (self.trees.index.len(), self.trees.index.dropped())
    }
}
