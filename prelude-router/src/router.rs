//! The door: requests in, endpoints out.

use std::time::Duration;

use prelude_core::{BadServiceTime, RequestId, Sample, Timestamp};
use smallvec::SmallVec;

use crate::{
    config::{ConfigError, RouterConfig},
    endpoint::{EndpointId, EndpointSpec, Fleet, Pool, Work},
    error::{RouteError, UnknownEndpoint},
    policies,
    policy::{Finished, Policy, Query, Reason},
    prompt::Prefix,
};

/// A request that must go somewhere.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// Names it until it is finished.
    pub id: RequestId,
    /// The request's prompt.
    pub prefix: &'a Prefix,
    /// Most tokens of its output, if it says so. At most 1: it needs no decoding.
    pub max_output_tokens: Option<u32>,
    /// The user, if known: for policies that keep users where they are.
    pub user: Option<u64>,
    /// True if it may be refused when all endpoints have too much to do.
    pub sheddable: bool,
    /// The only endpoints that the request may go to, if it may not go to all.
    pub subset: Option<&'a [EndpointId]>,
    /// The time at which its first token is due, if it says so: for policies that weigh it.
    pub deadline: Option<Timestamp>,
}

/// The endpoint that a request goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The endpoint that the request goes to.
    pub endpoint: EndpointId,
    /// The endpoints that a gateway may try instead, in this order, if that one cannot be reached.
    pub fallbacks: SmallVec<[EndpointId; 2]>,
    /// Tokens of its prompt that are thought to be cached there.
    pub cached_tokens: u32,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// The reason why the request goes there.
    pub reason: Reason,
}

/// The known facts about a request that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Finish {
    /// The number of tokens that the request generated.
    pub output_tokens: Option<u32>,
    /// The time from routing it to its first token, if that is known: with none, its end counts.
    pub first_token: Option<Duration>,
    /// The time of computing the prompt, and the number of its tokens that were cached: teaches the
    /// router how fast the endpoint is.
    pub prefill: Option<(Duration, u32)>,
}

/// Decides where requests go.
///
/// It reads no clock, starts no thread and sends nothing: its caller tells it what happens
/// and when. The same calls give the same picks.
pub struct Router {
    config: RouterConfig,
    fleet: Fleet,
    policy: Box<dyn Policy>,
    /// The eligible endpoints of the request that was asked about last, kept for their memory.
    eligible: Vec<usize>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router")
            .field("endpoints", &self.fleet.endpoints().len())
            .field("in_flight", &self.fleet.in_flight())
            .finish_non_exhaustive()
    }
}

impl Router {
    /// Returns a router without endpoints.
    ///
    /// # Errors
    /// If it cannot run with the config.
    pub fn new(config: RouterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let policy = policies::build(&config);
        Ok(Self::of(config, policy))
    }

    /// Returns a router with a policy of one's own, in place of the one that the config names.
    ///
    /// # Errors
    /// If it cannot run with the config.
    pub fn with_policy(config: RouterConfig, policy: Box<dyn Policy>) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self::of(config, policy))
    }

    fn of(config: RouterConfig, policy: Box<dyn Policy>) -> Self {
        Self {
            fleet: Fleet::new(config.seed),
            policy,
            eligible: Vec::new(),
            config,
        }
    }

    /// Returns the endpoints, and what is under way.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Returns the tokens that the cache of an endpoint is thought to hold; 0 if there is none of
    /// that name, or if the policy does not look at caches.
    #[must_use]
    pub fn cached_tokens(&self, id: EndpointId) -> u64 {
        match self.fleet.get(id) {
            Some(_) => self.policy.cached_tokens(id),
            None => 0,
        }
    }

    /// Returns the pool of an endpoint; none if there is no endpoint of that name, or if the policy
    /// has no pools.
    #[must_use]
    pub fn pool(&self, id: EndpointId) -> Option<Pool> {
        self.policy.pool(id)
    }

    /// Returns the nodes of the prefix index, and how many were forgotten, or not made, for want of
    /// room.
    #[must_use]
    pub fn index_nodes(&self) -> (usize, u64) {
        self.policy.index_nodes()
    }

    /// Adds an endpoint, which is healthy and whose cache is empty.
    ///
    /// # Errors
    /// If its service time is none.
    pub fn join(
        &mut self,
        now: Timestamp,
        spec: EndpointSpec,
    ) -> Result<EndpointId, BadServiceTime> {
        let id = self.fleet.join(spec)?;
        self.policy.joined(now, &self.fleet);
        Ok(id)
    }

    /// Removes an endpoint for good: all that is known of it is forgotten, and its requests count
    /// as finished.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn leave(&mut self, id: EndpointId) -> Result<(), UnknownEndpoint> {
        if !self.fleet.leave(id) {
            return Err(UnknownEndpoint(id));
        }
        self.policy.left(id);
        Ok(())
    }

    /// Sets whether an endpoint is healthy: nothing goes to one that is not, and what is known of
    /// it stays.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn set_healthy(&mut self, id: EndpointId, healthy: bool) -> Result<(), UnknownEndpoint> {
        let endpoint = self.fleet.get_mut(id).ok_or(UnknownEndpoint(id))?;
        endpoint.healthy = healthy;
        Ok(())
    }

    /// Notes that the cache of an endpoint holds so many tokens, as its KV events say. What the
    /// router thought to be cached beyond them, and beyond the prompts that are under way there, is
    /// forgotten, least lately used first; 0 forgets all after a restart.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn cache_holds(&mut self, id: EndpointId, tokens: u64) -> Result<(), UnknownEndpoint> {
        let endpoint = self.fleet.get(id).ok_or(UnknownEndpoint(id))?;
        // The router counts a prompt as cached at once, and the engine stores it as it computes.
        let under_way = endpoint.outstanding().tokens;
        self.policy
            .cache_holds(id, tokens.saturating_add(under_way));
        Ok(())
    }

    /// Decides where a request goes, and counts it there until it is [finished](Self::finished).
    ///
    /// # Errors
    /// If it goes nowhere. Nothing is counted then.
    ///
    /// # Panics
    /// If a policy of one's own picks an endpoint that the request may not go to.
    pub fn route(
        &mut self,
        now: Timestamp,
        request: &RouteRequest<'_>,
    ) -> Result<Pick, RouteError> {
        self.sweep(now);
        self.admit(request)?;
        let prefix = request.prefix;
        let query = Query {
            id: request.id,
            root: prefix.root(),
            granules: prefix.hashes(),
            granule_tokens: prefix.granule_tokens(),
            tokens: prefix.tokens(),
            max_output_tokens: request.max_output_tokens,
            user: request.user,
            deadline: request.deadline,
            eligible: &self.eligible,
        };
        let choice = self.policy.pick(now, &self.fleet, &query);
        assert!(
            query.eligible.contains(&choice.at),
            "a policy picks one of the eligible endpoints"
        );
        self.policy.commit(now, &self.fleet, &query, &choice);
        let endpoint = self.fleet.endpoints()[choice.at].id();
        let pick = Pick {
            endpoint,
            fallbacks: fallbacks(&self.fleet, &query, choice.at, self.config.fallbacks),
            cached_tokens: choice.cached_tokens,
            prompt_tokens: query.tokens,
            reason: choice.reason,
        };
        let work = Work {
            began: now,
            deadline: request.deadline,
            root: prefix.root(),
            endpoint,
            prompt_tokens: query.tokens,
            tokens: query.tokens - choice.cached_tokens.min(query.tokens),
            cost: choice.cost,
        };
        self.fleet.begin(request.id, work);
        Ok(pick)
    }

    /// Finds out where a request may go.
    fn admit(&mut self, request: &RouteRequest<'_>) -> Result<(), RouteError> {
        if self.fleet.is_under_way(request.id) {
            return Err(RouteError::Duplicate(request.id));
        }
        let (granule, own) = (request.prefix.granule_tokens(), self.config.granule_tokens);
        if granule != own {
            return Err(RouteError::Granule { granule, own });
        }
        let most = self.config.max_in_flight;
        if self.fleet.in_flight() >= most as usize {
            return Err(RouteError::TooMany { most });
        }
        let endpoints = self.fleet.endpoints();
        self.eligible.clear();
        self.eligible.extend((0..endpoints.len()).filter(|&at| {
            let id = endpoints[at].id();
            endpoints[at].is_healthy() && request.subset.is_none_or(|some| some.contains(&id))
        }));
        let work = |&at: &usize| endpoints[at].outstanding().work;
        let Some(least) = self.eligible.iter().map(work).min() else {
            let endpoints = endpoints.len();
            return Err(RouteError::NoEndpoint { endpoints });
        };
        let least_ms = u64::try_from(least.0 / 1_000_000).unwrap_or(u64::MAX);
        match self.config.shed_ms {
            Some(shed_ms) if request.sheddable && least_ms > shed_ms => {
                Err(RouteError::Overloaded { least_ms, shed_ms })
            }
            _ => Ok(()),
        }
    }

    /// Records that a request was served by another endpoint than was said, such as its fallback.
    /// Returns whether both the request and the endpoint are known.
    pub fn served(&mut self, request: RequestId, endpoint: EndpointId) -> bool {
        if self.fleet.get(endpoint).is_none() {
            return false;
        }
        match self.fleet.recharge(request, endpoint) {
            None => false,
            Some(said) => {
                if said != endpoint {
                    self.policy.served(request, endpoint);
                }
                true
            }
        }
    }

    /// Notes that a request has ended, well or not. Returns whether it was under way: a caller that
    /// says it again changes nothing.
    pub fn finished(&mut self, now: Timestamp, request: RequestId, finish: Finish) -> bool {
        let Some(work) = self.fleet.end(request) else {
            return false;
        };
        self.learn(&work, finish.prefill);
        let finished = Finished {
            endpoint: work.endpoint,
            root: work.root,
            output_tokens: finish.output_tokens,
            began: work.began,
            first_token: { finish.first_token }.map_or(now, |took| work.began.saturating_add(took)),
            deadline: work.deadline,
            cost: work.cost,
        };
        self.policy.finished(now, &finished);
        true
    }

    /// Learns how fast an endpoint is.
    fn learn(&mut self, work: &Work, prefill: Option<(Duration, u32)>) {
        let Some((took, cached)) = prefill else {
            return;
        };
        let Some(config) = &self.config.fit else {
            return;
        };
        let sample = Sample {
            batch: 1,
            computed: work.prompt_tokens.saturating_sub(cached),
            cached: cached.min(work.prompt_tokens),
            ms: took.as_secs_f64() * 1e3,
        };
        if let Some(endpoint) = self.fleet.get_mut(work.endpoint) {
            endpoint.service = endpoint.fit.learn(config, sample);
        }
    }

    /// Counts requests as finished that have been under way for too long.
    fn sweep(&mut self, now: Timestamp) {
        let timeout = Duration::from_millis(self.config.request_timeout_ms);
        while let Some(request) = self.fleet.overdue(now, timeout) {
            self.fleet.end(request);
        }
    }
}

/// Returns the endpoints for when the one at `at` cannot be reached: those with least to do.
fn fallbacks(fleet: &Fleet, query: &Query<'_>, at: usize, most: u8) -> SmallVec<[EndpointId; 2]> {
    let mut best: SmallVec<[_; 2]> = SmallVec::new();
    for (other, endpoint) in query.endpoints(fleet).filter(|(other, _)| *other != at) {
        let key = (endpoint.outstanding().work, other);
        let place = best.partition_point(|(better, _)| *better < key);
        if place < usize::from(most) {
            best.truncate(usize::from(most) - 1);
            best.insert(place, (key, endpoint.id()));
        }
    }
    best.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests;
