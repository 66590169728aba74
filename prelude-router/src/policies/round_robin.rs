//! Routing to one endpoint after the other.

use prelude_core::Timestamp;

use crate::{
    endpoint::{EndpointId, Fleet},
    policy::{Choice, Policy, Query, by_rule},
};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// The endpoint that was chosen last.
    last: Option<EndpointId>,
}

impl Policy for RoundRobin {
    fn pick(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        let next = query
            .endpoints(fleet)
            .find(|(_, e)| Some(e.id()) > self.last);
        let at = next.map_or(query.eligible[0], |(at, _)| at);
        self.last = Some(fleet.endpoints()[at].id());
        by_rule(fleet, query, at)
    }
}
