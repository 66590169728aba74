//! The nodes of the index.

use smallvec::SmallVec;

use super::arena::{Linked, Links, NONE};
use crate::endpoint::EndpointId;

/// Names a node for as long as a request of the window ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(super) u32);

/// Some granules that follow each other in prompts.
#[derive(Debug)]
pub(super) struct Node {
    /// The node before it.
    pub(super) parent: u32,
    pub(super) first_child: u32,
    /// The children of the same parent before and after it.
    pub(super) siblings: (u32, u32),
    /// The number of granules before the node.
    pub(super) start: u32,
    /// The chained hash of each of its granules; at least one.
    pub(super) hashes: Vec<u64>,
    /// The holdings of the endpoints whose caches or windows have it.
    pub(super) holdings: SmallVec<[(EndpointId, u32); 2]>,
    pub(super) links: Links,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            parent: NONE,
            first_child: NONE,
            siblings: (NONE, NONE),
            start: 0,
            hashes: Vec::new(),
            holdings: SmallVec::new(),
            links: Links::default(),
        }
    }
}

impl Node {
    /// Returns the number of granules of a prompt that ends with the node.
    pub(super) fn end(&self) -> usize {
        self.start as usize + self.hashes.len()
    }

    /// Returns the holding of an endpoint.
    pub(super) fn holding(&self, endpoint: EndpointId) -> Option<u32> {
        let at = self.place(endpoint).ok()?;
        Some(self.holdings[at].1)
    }

    /// Returns the index of an endpoint's holding, or the index at which to insert it.
    pub(super) fn place(&self, endpoint: EndpointId) -> Result<usize, usize> {
        self.holdings.binary_search_by_key(&endpoint, |(of, _)| *of)
    }
}

impl Linked for Node {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The part of one node that one endpoint holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    pub(super) node: u32,
    /// The number of granules that the endpoint's cache holds, from the node's first on.
    pub(super) cached: u32,
    /// The number of requests of the window that went to the endpoint through the node.
    pub(super) window: u32,
    /// The holding's place in the list of what the endpoint's cache holds, if that is anything.
    pub(super) links: Links,
}

impl Linked for Holding {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}
