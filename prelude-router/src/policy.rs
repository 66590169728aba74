//! The interface of routing policies.

use std::cmp::Ordering;

use prelude_core::{RequestId, Timestamp};

use crate::{
    endpoint::{Endpoint, EndpointId, Fleet, Pool},
    prompt::Root,
    random::Random,
    service::Cost,
};

/// A request that must go somewhere.
#[derive(Debug)]
pub struct Query<'a> {
    /// The request's id.
    pub id: RequestId,
    /// The root that its prompt shares with the prompts that it can share tokens with.
    pub root: Root,
    /// The chained hash of each whole granule of its prompt.
    pub granules: &'a [u64],
    /// The number of tokens of a granule.
    pub granule_tokens: u32,
    /// Tokens of its prompt, at least 1.
    pub tokens: u32,
    /// Most tokens of its output, if that is known.
    pub max_output_tokens: Option<u32>,
    /// The user, if known.
    pub user: Option<u64>,
    /// The time at which its first token is due, if it says so.
    pub deadline: Option<Timestamp>,
    /// Positions, among [`Fleet::endpoints`], of the endpoints that it may go to: at least one,
    /// in order.
    pub eligible: &'a [usize],
}

impl Query<'_> {
    /// Returns the endpoints that the request may go to, with their positions.
    pub fn endpoints<'a>(
        &'a self,
        fleet: &'a Fleet,
    ) -> impl Iterator<Item = (usize, &'a Endpoint)> {
        self.eligible.iter().map(|&at| (at, &fleet.endpoints()[at]))
    }

    /// Returns the position of the eligible endpoint with the least `key`, as [`least_of`].
    pub(crate) fn least<K: Ord>(
        &self,
        fleet: &Fleet,
        random: &mut Random,
        mut key: impl FnMut(usize, &Endpoint) -> K,
    ) -> usize {
        let keys = self.endpoints(fleet).map(|(at, e)| (at, e, key(at, e)));
        least_of(keys, random).expect("a request is routed only if an endpoint is eligible")
    }
}

/// Returns the position of the endpoint with the least key, none of none.
///
/// A tie goes to the endpoint with the least outstanding work, then the one with the fewest
/// outstanding tokens, then any of them by a seeded draw: never the first. A tie that went by
/// position would send everything to one endpoint for as long as the tie lasts.
pub(crate) fn least_of<'a, K: Ord>(
    keys: impl Iterator<Item = (usize, &'a Endpoint, K)>,
    random: &mut Random,
) -> Option<usize> {
    let mut best = None;
    let mut equals = 0;
    for (at, endpoint, key) in keys {
        let outstanding = endpoint.outstanding();
        let key = (key, outstanding.work, outstanding.tokens);
        match best.as_ref().map(|(_, least)| key.cmp(least)) {
            Some(Ordering::Greater) => continue,
            Some(Ordering::Equal) => {
                equals += 1;
                if random.below(equals) > 0 {
                    continue;
                }
            }
            Some(Ordering::Less) | None => equals = 1,
        }
        best = Some((at, key));
    }
    best.map(|(at, _)| at)
}

/// The choice of an endpoint for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The position of the endpoint, one of [`Query::eligible`].
    pub at: usize,
    /// Tokens of the prompt that its cache is thought to hold.
    pub cached_tokens: u32,
    /// The endpoint's time that the request will take.
    pub cost: Cost,
    /// The reason for the choice.
    pub reason: Reason,
}

/// The reason for the choice of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// Most of the prompt is cached there.
    Cached,
    /// Little of the prompt is cached anywhere: it costs least there.
    LeastCost,
    /// Little of the prompt is cached anywhere, and there decoding leaves room for a prefill.
    DecodeHeavy,
    /// The endpoint that caches it has too much to do.
    Backlog,
    /// The rule of a policy that looks at neither.
    Rule,
}

/// Decides where requests go. A policy sees every pick, its own or not, before the next question.
pub trait Policy: Send {
    /// Returns the endpoint that a request should go to: a function of its arguments and of earlier
    /// calls alone.
    fn pick(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice;

    /// Tells the policy that the request that was asked about last goes where the policy said.
    fn commit(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        let _ = (now, fleet, query, choice);
    }

    /// Tells the policy that another endpoint than its choice served a request.
    fn served(&mut self, request: RequestId, endpoint: EndpointId) {
        let _ = (request, endpoint);
    }

    /// Tells the policy that a request has ended.
    fn finished(&mut self, now: Timestamp, finish: &Finished) {
        let _ = (now, finish);
    }

    /// Tells the policy that an endpoint has joined: the last one of the fleet.
    fn joined(&mut self, now: Timestamp, fleet: &Fleet) {
        let _ = (now, fleet);
    }

    /// Tells the policy that an endpoint has left the fleet.
    fn left(&mut self, endpoint: EndpointId) {
        let _ = endpoint;
    }

    /// Tells the policy that the cache of an endpoint holds at most so many tokens: of what it was
    /// thought to hold, what was least lately used is gone.
    fn cache_holds(&mut self, endpoint: EndpointId, most_tokens: u64) {
        let _ = (endpoint, most_tokens);
    }

    /// Returns the tokens that the cache of an endpoint of the fleet is thought to hold.
    fn cached_tokens(&self, endpoint: EndpointId) -> u64 {
        let _ = endpoint;
        0
    }

    /// Returns the pool of an endpoint of the fleet, if the policy has pools.
    fn pool(&self, endpoint: EndpointId) -> Option<Pool> {
        let _ = endpoint;
        None
    }

    /// Returns the number of nodes of the policy's prefix index, and of nodes dropped for want of
    /// room.
    fn index_nodes(&self) -> (usize, u64) {
        (0, 0)
    }
}

/// The known facts about a request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// The endpoint that ran it.
    pub endpoint: EndpointId,
    /// The root of its prompt.
    pub root: Root,
    /// The number of tokens that it generated.
    pub output_tokens: Option<u32>,
    /// The time at which it was routed.
    pub began: Timestamp,
    /// The time at which its first token came; the time of its end if that is not known.
    pub first_token: Timestamp,
    /// The time at which its first token was due, if it said so.
    pub deadline: Option<Timestamp>,
    /// The endpoint's time that the policy thought it would take.
    pub cost: Cost,
}

/// Returns the choice of a rule that looks at no cache.
pub(crate) fn by_rule(fleet: &Fleet, query: &Query<'_>, at: usize) -> Choice {
    choice(fleet, query, at, 0, Reason::Rule)
}

/// Returns the choice of an endpoint whose cache holds so many of the request's tokens. Outputs of
/// unknown length count for nothing.
pub(crate) fn choice(
    fleet: &Fleet,
    query: &Query<'_>,
    at: usize,
    cached_tokens: u32,
    reason: Reason,
) -> Choice {
    let missed = query.tokens - cached_tokens.min(query.tokens);
    let service = fleet.endpoints()[at].service();
    Choice {
        at,
        cached_tokens,
        cost: Cost::of_prefill(service, missed, query.tokens),
        reason,
    }
}
