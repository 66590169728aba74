//! Redirections of requests through a node of the index to other endpoints than those whose caches
//! have it.

use prelude_core::Timestamp;
use smallvec::SmallVec;

use crate::endpoint::EndpointId;

/// The endpoints that a prefix was moved or copied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Override {
    /// The time of the redirection. A newer one further up takes the place of all that are below
    /// it.
    pub(crate) since: Timestamp,
    /// The endpoint that had too much to do.
    pub(crate) from: EndpointId,
    /// The endpoints that get the requests, and the time since which each of them has had hardly
    /// any of the prefix's requests.
    pub(crate) members: SmallVec<[(EndpointId, Option<Timestamp>); 2]>,
}

impl Override {
    pub(crate) fn new(since: Timestamp, from: EndpointId, members: &[EndpointId]) -> Self {
        Self {
            since,
            from,
            members: members.iter().map(|&id| (id, None)).collect(),
        }
    }

    /// An endpoint has left the fleet.
    pub(crate) fn leave(&mut self, endpoint: EndpointId) {
        self.members.retain(|(id, _)| *id != endpoint);
    }

    pub(crate) fn has(&self, endpoint: EndpointId) -> bool {
        self.members.iter().any(|(id, _)| *id == endpoint)
    }
}
