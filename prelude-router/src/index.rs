//! The index of the prompts that went to each endpoint and of the prefixes that its cache holds.
//!
//! A radix tree over granules of prompts (Preble §3.1). A node is a run of granules after which
//! prompts part, or one ends; the chained hash of a granule stands for the whole prompt up to it,
//! so one map from the hash of a node's first granule to the node is all that a walk needs.
//!
//! At each node an endpoint may have a [`Holding`]: how many of the node's granules its cache
//! holds, from the first on, and how many requests of the window went to it through the node.
//! Both hold for a node only if they do for the node before it, whole.
//!
//! The contents of caches are not known but mirrored ([`mirror`]): engines evict what was least
//! lately used, leaves first, and so does the mirror.

mod arena;
mod mirror;
mod node;

use ahash::RandomState;
use arena::{Arena, List, NONE};
use mirror::Mirror;
pub(crate) use node::NodeId;
use node::{Holding, Node};
use smallvec::SmallVec;

use crate::endpoint::EndpointId;

/// Never iterated, so its order reaches no decision.
#[expect(
    clippy::disallowed_types,
    reason = "looked up by key only; keys of the hasher fixed"
)]
type ByHash = std::collections::HashMap<u64, u32, RandomState>;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Index {
    nodes: Arena<Node>,
    holdings: Arena<Holding>,
    /// The node that begins with the granule of a hash.
    first: ByHash,
    /// The nodes by use; every one is older than the node before it in a prompt, so the oldest is a
    /// leaf.
    recent: List,
    /// The mirrors of caches, one for each endpoint, in the order of ids.
    mirrors: Vec<Mirror>,
    max_nodes: usize,
    dropped: u64,
}

/// The nodes that a prompt begins with.
#[derive(Debug, Default)]
pub(crate) struct Path {
    /// The nodes from the first on, with how many granules of each are the prompt's: all, but for
    /// the last.
    steps: SmallVec<[(u32, u32); 8]>,
}

impl Path {
    fn last(&self) -> Option<NodeId> {
        self.steps.last().map(|&(last, _)| NodeId(last))
    }
}

impl Index {
    /// Returns an index of at most `max_nodes` nodes. `seed` keeps authors of prompts from choosing
    /// which of them share a place of the table.
    pub(crate) fn new(max_nodes: usize, seed: u64) -> Self {
        let keys = RandomState::with_seeds(1, 2, 3, 4).hash_one(seed);
        Self {
            nodes: Arena::new(),
            holdings: Arena::new(),
            first: ByHash::with_hasher(RandomState::with_seeds(keys, !keys, 5, 6)),
            recent: List::EMPTY,
            mirrors: Vec::new(),
            max_nodes,
            dropped: 0,
        }
    }

    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of nodes that were dropped, or not made, because there were too many.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Finds how much of a prompt is known.
    pub(crate) fn find(&self, hashes: &[u64], path: &mut Path) {
        path.steps.clear();
        let (mut at, mut before) = (0, NONE);
        while let Some(&hash) = hashes.get(at)
            && let Some(&id) = self.first.get(&hash)
        {
            let node = &self.nodes[id];
            // A node at another place or behind another node belongs to another prefix with the
            // same hash.
            if node.start as usize != at || node.parent != before {
                break;
            }
            let pairs = node.hashes.iter().zip(&hashes[at..]);
            let same = pairs.take_while(|(a, b)| a == b).count();
            path.steps.push((id, same as u32));
            if same < node.hashes.len() {
                break;
            }
            (at, before) = (at + same, id);
        }
    }

    /// Makes the tree have all of a prompt that was [found](Index::find), which becomes what was
    /// used last, and returns its last node: none if it has no whole granule. It must be
    /// [assigned](Index::assign) to somebody then.
    pub(crate) fn insert(&mut self, hashes: &[u64], path: &mut Path) -> Option<NodeId> {
        if self.make_room(path) {
            // Dropping nodes can have merged two nodes of the path.
            self.find(hashes, path);
        }
        let end = |index: &Self, id: u32| index.nodes[id].hashes.len();
        if let Some(&(last, same)) = path.steps.last()
            && (same as usize) < end(self, last)
        {
            path.steps.pop();
            // If the hash is taken, another prefix has the same hash, and only one of the two can
            // be known.
            let is_free = !self
                .first
                .contains_key(&self.nodes[last].hashes[same as usize]);
            if self.has_room() && is_free {
                let upper = self.split(last, same);
                path.steps.push((upper, same));
            } else {
                self.dropped += 1;
                self.touch(path);
                return path.last();
            }
        }
        self.touch(path);
        let last = path.last().map_or(NONE, |id| id.0);
        let known = if last == NONE {
            0
        } else {
            self.nodes[last].end()
        };
        let rest = &hashes[known..];
        let Some(&hash) = rest.first() else {
            return path.last();
        };
        if !self.has_room() || self.first.contains_key(&hash) {
            self.dropped += 1;
            return path.last();
        }
        let id = self.nodes.put(Node {
            parent: last,
            start: known as u32,
            hashes: rest.to_vec(),
            ..Node::default()
        });
        self.first.insert(hash, id);
        self.adopt(last, id);
        // The new node is older than the node before it.
        if last == NONE {
            self.recent.push_newest(&mut self.nodes, id);
        } else {
            let older = self.nodes[last].links.older;
            self.recent.insert_newer_than(&mut self.nodes, id, older);
        }
        path.steps.push((id, rest.len() as u32));
        path.last()
    }

    fn has_room(&self) -> bool {
        self.nodes.len() < self.max_nodes
    }

    /// Makes room for the two nodes that a prompt may need, by dropping leaves that were used
    /// least lately: none that a request of the window went through, and none of `path`. Returns
    /// whether any was dropped.
    fn make_room(&mut self, path: &Path) -> bool {
        let before = self.dropped;
        while self.nodes.len() + 2 > self.max_nodes {
            let oldest = self.recent.oldest;
            let is_needed = |id| path.steps.iter().any(|&(of, _)| of == id);
            if oldest == NONE || is_needed(oldest) || self.is_in_window(oldest) {
                break;
            }
            self.dropped += 1;
            self.forget(oldest);
        }
        self.dropped > before
    }

    fn is_in_window(&self, id: u32) -> bool {
        let mut holdings = self.nodes[id].holdings.iter();
        holdings.any(|&(_, at)| self.holdings[at].window > 0)
    }

    /// Makes the nodes of a prompt those that were used last, the first of them last of all.
    fn touch(&mut self, path: &Path) {
        for &(id, _) in path.steps.iter().rev() {
            self.recent.unlink(&mut self.nodes, id);
            self.recent.push_newest(&mut self.nodes, id);
        }
    }

    /// Makes two nodes of one. The first `at` granules become a new one, whose id is returned;
    /// the rest keeps the id, since requests of the window ended there.
    fn split(&mut self, id: u32, at: u32) -> u32 {
        let node = &mut self.nodes[id];
        let rest = node.hashes.split_off(at as usize);
        let hashes = std::mem::replace(&mut node.hashes, rest);
        let (parent, start) = (node.parent, node.start);
        node.start += at;
        let (first, second) = (hashes[0], node.hashes[0]);
        self.abandon(id);
        let upper = self.nodes.put(Node {
            parent,
            start,
            hashes,
            ..Node::default()
        });
        self.first.insert(first, upper);
        self.first.insert(second, id);
        self.adopt(parent, upper);
        self.adopt(upper, id);
        self.nodes[id].parent = upper;
        self.recent.insert_newer_than(&mut self.nodes, upper, id);
        self.split_holdings(id, upper, at);
        if self.nodes[id].holdings.is_empty() {
            self.remove(id);
        }
        upper
    }

    /// Makes `id` a child of `parent`.
    fn adopt(&mut self, parent: u32, id: u32) {
        if parent == NONE {
            return;
        }
        let next = std::mem::replace(&mut self.nodes[parent].first_child, id);
        if next != NONE {
            self.nodes[next].siblings.0 = id;
        }
        self.nodes[id].siblings = (NONE, next);
    }

    /// Takes `id` from its parent.
    fn abandon(&mut self, id: u32) {
        let (before, next) = std::mem::replace(&mut self.nodes[id].siblings, (NONE, NONE));
        let parent = self.nodes[id].parent;
        if next != NONE {
            self.nodes[next].siblings.0 = before;
        }
        if before != NONE {
            self.nodes[before].siblings.1 = next;
        } else if parent != NONE {
            self.nodes[parent].first_child = next;
        }
    }

    /// Removes a node without holdings, and those before it for which that becomes
    /// true as well.
    fn remove(&mut self, id: u32) {
        let node = &self.nodes[id];
        assert!(
            node.first_child == NONE && node.holdings.is_empty(),
            "only a leaf without holdings goes"
        );
        let parent = node.parent;
        self.abandon(id);
        self.recent.unlink(&mut self.nodes, id);
        let node = self.nodes.take(id);
        self.first.remove(&node.hashes[0]);
        if parent == NONE {
            return;
        }
        // The caller takes care of the holdings of one node after the other, and of the
        // leaf first.
        self.merge(parent);
    }

    /// Makes one node of a node and its only child, if they could not be told apart by anything:
    /// the same requests of the window, and for each cache one right after the other.
    fn merge(&mut self, id: u32) {
        let child = self.nodes[id].first_child;
        if child == NONE || self.nodes[child].siblings.1 != NONE {
            return;
        }
        if !self.are_alike(id, child) {
            return;
        }
        self.merge_holdings(id, child);
        self.abandon(id);
        self.recent.unlink(&mut self.nodes, id);
        let upper = self.nodes.take(id);
        self.first.remove(&self.nodes[child].hashes[0]);
        self.first.insert(upper.hashes[0], child);
        let node = &mut self.nodes[child];
        let rest = std::mem::replace(&mut node.hashes, upper.hashes);
        node.hashes.extend(rest);
        node.start = upper.start;
        node.parent = upper.parent;
        node.siblings = (NONE, NONE);
        self.adopt(upper.parent, child);
    }

    /// Returns the number of requests of the window that went through a node to each endpoint.
    #[cfg(test)]
    pub(crate) fn windows(&self, id: NodeId) -> impl Iterator<Item = (EndpointId, u32)> + '_ {
        let holdings = self.nodes[id.0].holdings.iter();
        holdings.map(|&(endpoint, at)| (endpoint, self.holdings[at].window))
    }

    fn mirror(&self, endpoint: EndpointId) -> usize {
        let at = self.mirrors.binary_search_by_key(&endpoint, |m| m.endpoint);
        at.expect("who is assigned to has joined")
    }
}

#[cfg(test)]
mod tests;
