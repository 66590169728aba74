//! Routing by the beginning of the prompt: consistent hashing with bounded loads (Mirrokni et al.,
//! 2018).

use prelude_core::Timestamp;

use crate::{
    config::PrefixHashConfig,
    endpoint::{EndpointId, Fleet},
    policy::{Choice, Policy, Query, by_rule},
    random::mix,
};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct PrefixHash {
    config: PrefixHashConfig,
    /// Points of all endpoints, in order.
    ring: Vec<(u64, EndpointId)>,
}

impl PrefixHash {
    pub(super) fn new(config: PrefixHashConfig) -> Self {
        Self {
            config,
            ring: Vec::new(),
        }
    }
}

impl Policy for PrefixHash {
    fn pick(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        let granules = (self.config.tokens / query.granule_tokens).max(1) as usize;
        let prefix = query.granules.get(..granules).unwrap_or(query.granules);
        // Prompts shorter than a granule all have the hash of their root.
        let hash = mix(prefix.last().copied().unwrap_or(query.root.0));

        let total: u64 = query
            .endpoints(fleet)
            .map(|(_, e)| e.outstanding().requests)
            .sum();
        let mean = (total + 1) as f64 / query.eligible.len() as f64;
        let most = (self.config.load_bound * mean).ceil() as u64;
        let from = self.ring.partition_point(|(point, _)| *point < hash);
        let (before, after) = self.ring.split_at(from);
        let around = after.iter().chain(before);
        let fits = around.filter_map(|(_, id)| fleet.position(*id)).find(|at| {
            query.eligible.contains(at) && fleet.endpoints()[*at].outstanding().requests < most
        });
        // Some endpoint has less than the mean load, so some endpoint fits.
        by_rule(fleet, query, fits.unwrap_or(query.eligible[0]))
    }

    fn joined(&mut self, _: Timestamp, fleet: &Fleet) {
        let Some(endpoint) = fleet.endpoints().last() else {
            return;
        };
        let id = endpoint.id();
        for point in 0..u64::from(self.config.points) {
            self.ring.push((mix(mix(u64::from(id.0)) ^ point), id));
        }
        self.ring.sort_unstable();
    }

    fn left(&mut self, endpoint: EndpointId) {
        self.ring.retain(|(_, id)| *id != endpoint);
    }
}
