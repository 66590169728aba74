//! The windows of requests and the mirrors of the endpoints' caches.

use super::arena::{List, NONE};
use super::{Holding, Index, NodeId, Path};
use crate::endpoint::EndpointId;

/// The contents of one endpoint's cache, by last use.
///
/// Each holding is older than that of the node before it, so the oldest one is a leaf among what
/// the cache holds, and evicting from the old end evicts leaves first.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) endpoint: EndpointId,
    pub(super) list: List,
    /// The granules that the cache holds.
    pub(super) resident: u64,
    pub(super) capacity: u64,
}

/// Something that a cache could evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evictable {
    pub(crate) granules: u32,
    /// The number of requests of the window that went through it to the same endpoint.
    pub(crate) window: u32,
}

impl Index {
    /// Adds an endpoint whose cache holds `capacity` granules, none of them yet.
    pub(crate) fn join(&mut self, endpoint: EndpointId, capacity: u64) {
        let joined = Mirror {
            endpoint,
            list: List::EMPTY,
            resident: 0,
            capacity,
        };
        let at = self.mirrors.partition_point(|m| m.endpoint < endpoint);
        self.mirrors.insert(at, joined);
    }

    /// Forgets all about an endpoint. The window of its requests must be forgotten by the code that
    /// keeps it.
    pub(crate) fn leave(&mut self, endpoint: EndpointId) {
        let at = self.mirror(endpoint);
        // Goes from the oldest node on, so that children go before their parents.
        let mut id = self.recent.oldest;
        while id != NONE {
            let next = self.nodes[id].links.newer;
            if let Ok(place) = self.nodes[id].place(endpoint) {
                let (_, holding) = self.nodes[id].holdings.remove(place);
                if self.holdings[holding].cached > 0 {
                    self.mirrors[at].list.unlink(&mut self.holdings, holding);
                }
                self.holdings.take(holding);
                if self.nodes[id].holdings.is_empty() {
                    self.remove_alone(id);
                }
            }
            id = next;
        }
        self.mirrors.remove(at);
    }

    /// Removes a node as [`Index::remove`] does, without merging: that could take out the node that
    /// comes next.
    fn remove_alone(&mut self, id: u32) {
        self.abandon(id);
        self.recent.unlink(&mut self.nodes, id);
        let node = self.nodes.take(id);
        self.first.remove(&node.hashes[0]);
    }

    /// Calls `of` with an endpoint and the number of granules that its cache holds of a prompt, for
    /// each node of the path and each endpoint that holds some of the node, later nodes with more.
    pub(crate) fn held(&self, path: &Path, mut of: impl FnMut(EndpointId, u32)) {
        for &(id, same) in &path.steps {
            let node = &self.nodes[id];
            for &(endpoint, at) in &node.holdings {
                let cached = self.holdings[at].cached.min(same);
                if cached > 0 {
                    of(endpoint, node.start + cached);
                }
            }
        }
    }

    /// Calls `of` with an endpoint and the number of granules of a prompt that requests of the window
    /// have brought there, for each node of the path and each such endpoint, later nodes with more.
    pub(crate) fn visited(&self, path: &Path, mut of: impl FnMut(EndpointId, u32)) {
        for &(id, same) in &path.steps {
            let node = &self.nodes[id];
            for &(endpoint, at) in &node.holdings {
                if self.holdings[at].window > 0 {
                    of(endpoint, node.start + same);
                }
            }
        }
    }

    /// Counts a request that ends at `leaf` to the window of an endpoint, and lets its cache
    /// take in the prompt.
    pub(crate) fn assign(&mut self, endpoint: EndpointId, leaf: NodeId) {
        let mirror = self.mirror(endpoint);
        let mut id = leaf.0;
        while id != NONE {
            let at = self.holding_or_new(endpoint, id);
            self.holdings[at].window += 1;
            id = self.nodes[id].parent;
        }
        self.take_in(mirror, leaf);
    }

    /// Lets the cache of an endpoint take in the prompt that ends at `leaf`, for those who keep
    /// no window.
    pub(crate) fn hold(&mut self, endpoint: EndpointId, leaf: NodeId) {
        let mirror = self.mirror(endpoint);
        let mut id = leaf.0;
        while id != NONE {
            self.holding_or_new(endpoint, id);
            id = self.nodes[id].parent;
        }
        self.take_in(mirror, leaf);
        self.drop_empty(endpoint, leaf);
    }

    /// Takes back one [`Index::assign`], but for what the cache took in.
    pub(crate) fn expire(&mut self, endpoint: EndpointId, leaf: NodeId) {
        let mut id = leaf.0;
        while id != NONE {
            let parent = self.nodes[id].parent;
            let at = self.nodes[id].holding(endpoint);
            let at = at.expect("requests of the window have holdings");
            self.holdings[at].window -= 1;
            id = parent;
        }
        self.drop_empty(endpoint, leaf);
    }

    /// Takes back one [`Index::assign`], whose request went somewhere else after all, with what
    /// no other request of the window had the cache take in.
    pub(crate) fn withdraw(&mut self, endpoint: EndpointId, leaf: NodeId) {
        let mirror = self.mirror(endpoint);
        let mut id = leaf.0;
        while id != NONE && !self.has_cached_child(endpoint, id) {
            let at = self.nodes[id].holding(endpoint);
            let at = at.expect("requests of the window have holdings");
            let holding = &mut self.holdings[at];
            if holding.window > 1 {
                break;
            }
            let mirror = &mut self.mirrors[mirror];
            mirror.resident -= u64::from(holding.cached);
            if std::mem::take(&mut holding.cached) > 0 {
                mirror.list.unlink(&mut self.holdings, at);
            }
            id = self.nodes[id].parent;
        }
        self.expire(endpoint, leaf);
    }

    /// Returns whether the cache of an endpoint holds anything that begins with all of a node.
    fn has_cached_child(&self, endpoint: EndpointId, id: u32) -> bool {
        let mut child = self.nodes[id].first_child;
        while child != NONE {
            let holding = self.nodes[child].holding(endpoint);
            if holding.is_some_and(|at| self.holdings[at].cached > 0) {
                return true;
            }
            child = self.nodes[child].siblings.1;
        }
        false
    }

    /// Removes what an endpoint has nothing of any more, of the nodes that end at `leaf`.
    fn drop_empty(&mut self, endpoint: EndpointId, leaf: NodeId) {
        // Goes from the leaf on, so that children go before their parents. An endpoint that still
        // holds some of a node holds some of all nodes before it, too.
        let mut id = leaf.0;
        while id != NONE {
            let parent = self.nodes[id].parent;
            if !self.drop_if_empty(endpoint, id) {
                break;
            }
            id = parent;
        }
    }

    /// Removes a holding that says nothing any more, and its node if that was the last one.
    /// Returns whether there was one.
    fn drop_if_empty(&mut self, endpoint: EndpointId, id: u32) -> bool {
        let Ok(place) = self.nodes[id].place(endpoint) else {
            return false;
        };
        let (_, at) = self.nodes[id].holdings[place];
        let Holding { cached, window, .. } = self.holdings[at];
        if cached > 0 || window > 0 {
            return false;
        }
        self.nodes[id].holdings.remove(place);
        self.holdings.take(at);
        if self.nodes[id].holdings.is_empty() {
            self.remove(id);
        }
        true
    }

    fn holding_or_new(&mut self, endpoint: EndpointId, id: u32) -> u32 {
        match self.nodes[id].place(endpoint) {
            Ok(place) => self.nodes[id].holdings[place].1,
            Err(place) => {
                let at = self.holdings.put(Holding {
                    node: id,
                    ..Holding::default()
                });
                self.nodes[id].holdings.insert(place, (endpoint, at));
                at
            }
        }
    }

    /// Makes the cache hold the prompt that ends at `leaf` and evict what was used least lately;
    /// last of all, if the prompt is too long, its end.
    fn take_in(&mut self, mirror: usize, leaf: NodeId) {
        let endpoint = self.mirrors[mirror].endpoint;
        let mut id = leaf.0;
        while id != NONE {
            let node = &self.nodes[id];
            let len = node.hashes.len() as u32;
            let at = node.holding(endpoint).expect("it was assigned just now");
            let holding = &mut self.holdings[at];
            let mirror = &mut self.mirrors[mirror];
            mirror.resident += u64::from(len - holding.cached);
            if std::mem::replace(&mut holding.cached, len) > 0 {
                mirror.list.unlink(&mut self.holdings, at);
            }
            mirror.list.push_newest(&mut self.holdings, at);
            id = self.nodes[id].parent;
        }
        self.evict(mirror);
    }

    fn evict(&mut self, mirror: usize) {
        loop {
            let Mirror {
                endpoint,
                list,
                resident,
                capacity,
            } = self.mirrors[mirror];
            let excess = resident.saturating_sub(capacity);
            if excess == 0 {
                return;
            }
            let at = list.oldest;
            let holding = &mut self.holdings[at];
            let gone = u64::from(holding.cached).min(excess);
            holding.cached -= gone as u32;
            let (id, is_empty) = (holding.node, holding.cached == 0);
            self.mirrors[mirror].resident -= gone;
            if is_empty {
                self.mirrors[mirror].list.unlink(&mut self.holdings, at);
                self.drop_if_empty(endpoint, id);
            }
        }
    }

    /// Evicts from the cache of an endpoint until it holds at most so many granules.
    pub(crate) fn trim(&mut self, endpoint: EndpointId, most: u64) {
        let mirror = self.mirror(endpoint);
        let capacity = self.mirrors[mirror].capacity;
        self.mirrors[mirror].capacity = capacity.min(most);
        self.evict(mirror);
        self.mirrors[mirror].capacity = capacity;
    }

    /// Granules that the cache of an endpoint has room for without evicting anything.
    pub(crate) fn free(&self, endpoint: EndpointId) -> u64 {
        let mirror = &self.mirrors[self.mirror(endpoint)];
        mirror.capacity - mirror.resident
    }

    /// Granules that the cache of an endpoint holds.
    pub(crate) fn resident(&self, endpoint: EndpointId) -> u64 {
        self.mirrors[self.mirror(endpoint)].resident
    }

    /// Returns the holdings that the cache of an endpoint would evict, in this order.
    pub(crate) fn evictable(&self, endpoint: EndpointId) -> impl Iterator<Item = Evictable> + '_ {
        let oldest = self.mirrors[self.mirror(endpoint)].list.oldest;
        let next = |&at: &u32| Some(self.holdings[at].links.newer).filter(|&at| at != NONE);
        let all = std::iter::successors(Some(oldest).filter(|&at| at != NONE), next);
        all.map(|at| Evictable {
            granules: self.holdings[at].cached,
            window: self.holdings[at].window,
        })
    }

    /// Forgets a leaf that no request of the window went through.
    pub(super) fn forget(&mut self, id: u32) {
        for (endpoint, at) in std::mem::take(&mut self.nodes[id].holdings) {
            let mirror = self.mirror(endpoint);
            let cached = self.holdings[at].cached;
            if cached > 0 {
                self.mirrors[mirror].list.unlink(&mut self.holdings, at);
                self.mirrors[mirror].resident -= u64::from(cached);
            }
            self.holdings.take(at);
        }
        self.remove(id);
    }

    /// Splits the holdings of a node whose first `at` granules became the node `upper`.
    pub(super) fn split_holdings(&mut self, id: u32, upper: u32, at: u32) {
        let holdings = self.nodes[id].holdings.clone();
        for (endpoint, lower) in holdings {
            let Holding { cached, window, .. } = self.holdings[lower];
            let new = self.holdings.put(Holding {
                node: upper,
                cached: cached.min(at),
                window,
                ..Holding::default()
            });
            self.nodes[upper].holdings.push((endpoint, new));
            if cached == 0 {
                continue;
            }
            let mirror = self.mirror(endpoint);
            let list = &mut self.mirrors[mirror].list;
            list.insert_newer_than(&mut self.holdings, new, lower);
            self.holdings[lower].cached = cached - cached.min(at);
            if self.holdings[lower].cached == 0 {
                list.unlink(&mut self.holdings, lower);
                if window == 0 {
                    let place = self.nodes[id].place(endpoint);
                    self.nodes[id]
                        .holdings
                        .remove(place.expect("the node holds this endpoint's holding"));
                    self.holdings.take(lower);
                }
            }
        }
    }

    /// Returns whether a node and its only child differ in nothing that matters.
    pub(super) fn are_alike(&self, id: u32, child: u32) -> bool {
        let (upper, lower) = (&self.nodes[id], &self.nodes[child]);
        let pairs = upper.holdings.iter().zip(&lower.holdings);
        upper.holdings.len() == lower.holdings.len()
            && pairs.into_iter().all(|((a, upper_at), (b, lower_at))| {
                let (first, second) = (&self.holdings[*upper_at], &self.holdings[*lower_at]);
                let whole = first.cached as usize == upper.hashes.len();
                a == b
                    && first.window == second.window
                    && (second.cached == 0 || whole && first.links.older == *lower_at)
            })
    }

    /// Adds what holdings have of a node to those of its only child.
    pub(super) fn merge_holdings(&mut self, id: u32, child: u32) {
        let upper = std::mem::take(&mut self.nodes[id].holdings);
        for (endpoint, first) in upper {
            let lower = self.nodes[child].holding(endpoint);
            let lower = lower.expect("alike nodes have alike holdings");
            let mirror = self.mirror(endpoint);
            let list = &mut self.mirrors[mirror].list;
            let cached = self.holdings[first].cached;
            if cached > 0 {
                if self.holdings[lower].cached == 0 {
                    list.insert_newer_than(&mut self.holdings, lower, first);
                }
                list.unlink(&mut self.holdings, first);
                self.holdings[lower].cached += cached;
            }
            self.holdings.take(first);
        }
    }
}
