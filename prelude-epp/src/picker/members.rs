//! Engines by address, and their names in the router.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use prelude_core::{BadServiceTime, Timestamp};
use prelude_router::{EndpointId, EndpointSpec, Pool, Router};

use super::{Health, Subset};

/// An engine and its health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The engine's address.
    pub address: SocketAddr,
    /// True if requests may go there.
    pub is_healthy: bool,
    /// Requests under way there.
    pub requests: u64,
    /// Tokens that its cache is thought to hold; 0 under a policy that does not look at caches.
    pub cached_tokens: u64,
    /// The engine's pool, under a policy that has pools.
    pub pool: Option<Pool>,
}

/// The engines that joined and left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The engines that joined.
    pub joined: BTreeSet<SocketAddr>,
    /// The engines that left.
    pub left: BTreeSet<SocketAddr>,
}

#[derive(Debug)]
struct Known {
    id: EndpointId,
    spec: EndpointSpec,
    /// True if it could not be reached since it was healthy last: its cache is lost.
    is_lost: bool,
}

/// The engines of all sources.
#[derive(Debug, Default)]
pub(super) struct Members {
    by_address: BTreeMap<SocketAddr, Known>,
    /// The addresses as text.
    by_id: BTreeMap<EndpointId, (SocketAddr, String)>,
    sources: BTreeMap<usize, BTreeMap<SocketAddr, EndpointSpec>>,
}

impl Members {
    /// Returns the router's name of the engine at an address.
    pub(super) fn get(&self, address: SocketAddr) -> Option<EndpointId> {
        self.by_address.get(&address).map(|known| known.id)
    }

    /// Returns the router's names of the engines of a subset.
    pub(super) fn of(&self, subset: &Subset) -> Vec<EndpointId> {
        let all = self.by_address.iter();
        let inside = all.filter(|(address, _)| subset.contains(**address));
        inside.map(|(_, known)| known.id).collect()
    }

    /// Returns addresses with commas between them.
    pub(super) fn addresses(&self, ids: impl Iterator<Item = EndpointId>) -> String {
        let mut text = String::with_capacity(64);
        for (_, name) in ids.filter_map(|id| self.by_id.get(&id)) {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(name);
        }
        text
    }

    /// Sets the engines of a source, which [`Self::apply`] puts into service.
    pub(super) fn set_source(
        &mut self,
        source: usize,
        engines: BTreeMap<SocketAddr, EndpointSpec>,
    ) {
        self.sources.insert(source, engines);
    }

    /// Lets engines join and leave until the router has those of all sources. One whose properties
    /// have changed leaves and joins.
    pub(super) fn apply(
        &mut self,
        now: Timestamp,
        router: &mut Router,
        is_healthy: bool,
    ) -> Result<Change, BadServiceTime> {
        let mut wanted = BTreeMap::new();
        for engines in self.sources.values().rev() {
            wanted.extend(engines.iter().map(|(address, spec)| (*address, *spec)));
        }
        let mut change = Change::default();
        let is_gone =
            |address: &SocketAddr, known: &Known| wanted.get(address) != Some(&known.spec);
        let known = self.by_address.iter();
        let gone = known.filter(|(address, known)| is_gone(address, known));
        let gone: Vec<SocketAddr> = gone.map(|(address, _)| *address).collect();
        for address in gone {
            self.remove(router, address);
            change.left.insert(address);
        }
        for (address, spec) in wanted {
            if !self.by_address.contains_key(&address) {
                self.join(now, router, address, spec, is_healthy)?;
                change.joined.insert(address);
            }
        }
        Ok(change)
    }

    fn join(
        &mut self,
        now: Timestamp,
        router: &mut Router,
        address: SocketAddr,
        spec: EndpointSpec,
        is_healthy: bool,
    ) -> Result<(), BadServiceTime> {
        let id = router.join(now, spec)?;
        // The endpoint has just joined, so it is known.
        let _ = router.set_healthy(id, is_healthy);
        let is_lost = false;
        self.by_address.insert(address, Known { id, spec, is_lost });
        self.by_id.insert(id, (address, address.to_string()));
        Ok(())
    }

    fn remove(&mut self, router: &mut Router, address: SocketAddr) {
        if let Some(known) = self.by_address.remove(&address) {
            self.by_id.remove(&known.id);
            let _ = router.leave(known.id);
        }
    }

    /// Notes what a probe found. Returns true if the engine's health has changed.
    pub(super) fn set_health(
        &mut self,
        now: Timestamp,
        router: &mut Router,
        address: SocketAddr,
        health: Health,
    ) -> bool {
        let Some(known) = self.by_address.get_mut(&address) else {
            return false;
        };
        let (id, spec, was_lost) = (known.id, known.spec, known.is_lost);
        let endpoint = router.fleet().get(id);
        let was_healthy = endpoint.is_some_and(|endpoint| endpoint.is_healthy());
        let is_healthy = health == Health::Up;
        known.is_lost = !is_healthy && (was_lost || health == Health::Lost);
        if is_healthy && was_lost {
            self.remove(router, address);
            // The spec was accepted before.
            return self.join(now, router, address, spec, true).is_ok();
        }
        let _ = router.set_healthy(id, is_healthy);
        was_healthy != is_healthy
    }

    /// Returns the engines and their health.
    pub(super) fn list(&self, router: &Router) -> Vec<Member> {
        let member = |(address, known): (&SocketAddr, &Known)| {
            let endpoint = router.fleet().get(known.id);
            Member {
                address: *address,
                is_healthy: endpoint.is_some_and(|endpoint| endpoint.is_healthy()),
                requests: endpoint.map_or(0, |endpoint| endpoint.outstanding().requests),
                cached_tokens: router.cached_tokens(known.id),
                pool: router.pool(known.id),
            }
        };
        self.by_address.iter().map(member).collect()
    }
}
