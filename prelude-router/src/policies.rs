//! The policies that a config can name.

mod cache_aware;
mod least_outstanding;
mod min_cost;
mod prefix_hash;
mod round_robin;
mod user_sticky;

use crate::{
    config::{PolicyConfig, RouterConfig},
    e2::E2,
    laps::Laps,
    policy::Policy,
};

/// Builds the policy that a config names.
pub(crate) fn build(config: &RouterConfig) -> Box<dyn Policy> {
    match &config.policy {
        PolicyConfig::E2(e2) => Box::new(E2::new(e2.clone(), config)),
        PolicyConfig::RoundRobin => Box::new(round_robin::RoundRobin::default()),
        PolicyConfig::LeastOutstanding => {
            Box::new(least_outstanding::LeastOutstanding::new(config))
        }
        PolicyConfig::PrefixHash(prefix) => Box::new(prefix_hash::PrefixHash::new(prefix.clone())),
        PolicyConfig::CacheAware(aware) => {
            Box::new(cache_aware::CacheAware::new(aware.clone(), config))
        }
        PolicyConfig::MinCost => Box::new(min_cost::MinCost::new(config)),
        PolicyConfig::UserSticky(sticky) => Box::new(user_sticky::UserSticky::new(sticky.clone())),
        PolicyConfig::Laps(laps) => Box::new(Laps::new(laps, config)),
    }
}

#[cfg(test)]
mod tests;
