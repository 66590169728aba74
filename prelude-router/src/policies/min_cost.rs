//! The least outstanding work and uncached prefill, as Dynamo and Mooncake do.

use prelude_core::Timestamp;

use crate::{
    cached::Cached,
    config::RouterConfig,
    endpoint::{Endpoint, EndpointId, Fleet},
    policy::{Choice, Policy, Query, Reason, choice},
    random::Random,
};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct MinCost {
    cached: Cached,
    random: Random,
}

impl MinCost {
    pub(super) fn new(router: &RouterConfig) -> Self {
        Self {
            cached: Cached::new(router),
            random: Random::new(router.seed),
        }
    }
}

impl Policy for MinCost {
    fn pick(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        self.cached.look(fleet, query);
        let of = |at| choice(fleet, query, at, self.cached.tokens(at), Reason::LeastCost);
        let key = |at, e: &Endpoint| e.outstanding().work + of(at).cost;
        let at = query.least(fleet, &mut self.random, key);
        of(at)
    }

    fn commit(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        self.cached.take_in(fleet, query, choice);
    }

    fn joined(&mut self, _: Timestamp, fleet: &Fleet) {
        self.cached.joined(fleet, |spec| spec.kv_capacity_tokens);
    }

    fn left(&mut self, endpoint: EndpointId) {
        self.cached.index.leave(endpoint);
    }

    fn cache_holds(&mut self, endpoint: EndpointId, most_tokens: u64) {
        self.cached.trim(endpoint, most_tokens);
    }

    fn cached_tokens(&self, endpoint: EndpointId) -> u64 {
        self.cached.resident(endpoint)
    }

    fn index_nodes(&self) -> (usize, u64) {
        (self.cached.index.len(), self.cached.index.dropped())
    }
}
