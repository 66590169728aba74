//! The engines that requests can go to, and what is under way at each.

use std::{collections::VecDeque, time::Duration};

use ahash::RandomState;
use prelude_core::{BadServiceTime, RequestId, ServiceTime, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    prompt::Root,
    service::{Cost, Fit},
};

/// One of the two pools of endpoints under [`crate::PolicyConfig::Laps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Endpoints for requests with few uncached tokens.
    Short,
    /// Endpoints for all other requests.
    Long,
}

/// Names an endpoint of a [`crate::Router`]; none is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EndpointId(pub u32);

impl std::fmt::Display for EndpointId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The properties of an endpoint that a router knows when it joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Tokens that its KV cache holds: blocks times their size.
    pub kv_capacity_tokens: u64,
    /// The times of a request there: the `service` of the [`Profile`](prelude_core::Profile) of
    /// its engine, or the times of an engine that others measured.
    #[serde(default)]
    pub service: ServiceTime,
    /// The pool that it stays in under [`PolicyConfig::Laps`](crate::PolicyConfig::Laps); with
    /// none, the policy moves it between the pools. Other policies do not read it.
    #[serde(default)]
    pub pool: Option<Pool>,
}

/// An endpoint, and what is under way there.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) spec: EndpointSpec,
    pub(crate) healthy: bool,
    pub(crate) outstanding: Outstanding,
    pub(crate) service: ServiceTime,
    pub(crate) fit: Fit,
}

/// The requests under way at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Requests.
    pub requests: u64,
    /// Tokens of the requests' prompts that no cache held.
    pub tokens: u64,
    /// The engine's time that they take.
    pub work: Cost,
}

impl Outstanding {
    fn add(&mut self, work: &Work) {
        self.requests += 1;
        self.tokens += u64::from(work.tokens);
        self.work += work.cost;
    }

    fn remove(&mut self, work: &Work) {
        self.requests -= 1;
        self.tokens -= u64::from(work.tokens);
        self.work -= work.cost;
    }
}

impl Endpoint {
    /// Returns the endpoint's name.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Returns the properties with which it joined.
    #[must_use]
    pub fn spec(&self) -> &EndpointSpec {
        &self.spec
    }

    /// Returns the times of a request there, as far as they are known now.
    #[must_use]
    pub fn service(&self) -> &ServiceTime {
        &self.service
    }

    /// Returns whether requests may go there.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy
    }

    /// Returns the requests under way there.
    #[must_use]
    pub fn outstanding(&self) -> Outstanding {
        self.outstanding
    }
}

/// The resources that a request under way takes of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) began: Timestamp,
    /// The time at which its first token is due, if it says so.
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) root: Root,
    pub(crate) endpoint: EndpointId,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: u32,
    /// Tokens of its prompt that are thought not to be cached.
    pub(crate) tokens: u32,
    pub(crate) cost: Cost,
}

/// Work by request; the order of the map reaches no decision.
#[expect(clippy::disallowed_types, reason = "looked up by key, and filtered")]
type ByRequest = std::collections::HashMap<RequestId, Work, RandomState>;

/// The endpoints, in the order in which they joined, and the requests that are under way.
#[derive(Debug)]
pub struct Fleet {
    endpoints: Vec<Endpoint>,
    next: u32,
    work: ByRequest,
    /// The times at which requests began, to find those that never end; also of some that have
    /// ended.
    began: VecDeque<(Timestamp, RequestId)>,
}

impl Fleet {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            endpoints: Vec::new(),
            next: 0,
            work: ByRequest::with_hasher(RandomState::with_seeds(seed, !seed, 7, 8)),
            began: VecDeque::new(),
        }
    }

    /// Returns all of them, by id.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Returns an endpoint, if it is one of these.
    #[must_use]
    pub fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.position(id).map(|at| &self.endpoints[at])
    }

    /// Returns the number of requests under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.work.len()
    }

    pub(crate) fn position(&self, id: EndpointId) -> Option<usize> {
        self.endpoints.binary_search_by_key(&id, |e| e.id).ok()
    }

    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.position(id).map(|at| &mut self.endpoints[at])
    }

    pub(crate) fn join(&mut self, spec: EndpointSpec) -> Result<EndpointId, BadServiceTime> {
        spec.service.validate()?;
        let id = EndpointId(self.next);
        self.next += 1;
        self.endpoints.push(Endpoint {
            id,
            spec,
            healthy: true,
            outstanding: Outstanding::default(),
            service: spec.service,
            fit: Fit::new(spec.service),
        });
        Ok(id)
    }

    /// Removes an endpoint and forgets its requests; returns whether it was there.
    pub(crate) fn leave(&mut self, id: EndpointId) -> bool {
        let Some(at) = self.position(id) else {
            return false;
        };
        self.endpoints.remove(at);
        self.work.retain(|_, work| work.endpoint != id);
        true
    }

    pub(crate) fn is_under_way(&self, request: RequestId) -> bool {
        self.work.contains_key(&request)
    }

    pub(crate) fn begin(&mut self, request: RequestId, work: Work) {
        if let Some(endpoint) = self.get_mut(work.endpoint) {
            endpoint.outstanding.add(&work);
        }
        self.work.insert(request, work);
        self.began.push_back((work.began, request));
        if self.began.len() > 2 * self.work.len() + 64 {
            let work = &self.work;
            self.began
                .retain(|(began, request)| is_of(work, *began, *request));
        }
    }

    /// Takes a request that has ended out of the books. None if it was not there: then somebody
    /// has said so already.
    pub(crate) fn end(&mut self, request: RequestId) -> Option<Work> {
        let work = self.work.remove(&request)?;
        if let Some(endpoint) = self.get_mut(work.endpoint) {
            endpoint.outstanding.remove(&work);
        }
        Some(work)
    }

    /// Charges another endpoint with a request that is under way.
    pub(crate) fn recharge(&mut self, request: RequestId, to: EndpointId) -> Option<EndpointId> {
        let work = self.work.get_mut(&request)?;
        let from = std::mem::replace(&mut work.endpoint, to);
        let work = *work;
        if let Some(endpoint) = self.get_mut(from) {
            endpoint.outstanding.remove(&work);
        }
        if let Some(endpoint) = self.get_mut(to) {
            endpoint.outstanding.add(&work);
        }
        Some(from)
    }

    /// Returns the oldest request under way, if it began more than `timeout` ago.
    pub(crate) fn overdue(&mut self, now: Timestamp, timeout: Duration) -> Option<RequestId> {
        while let Some(&(began, request)) = self.began.front() {
            if is_of(&self.work, began, request) {
                return (now.saturating_since(began) > timeout).then_some(request);
            }
            self.began.pop_front();
        }
        None
    }
}

/// Returns whether a request that began then is still under way.
fn is_of(work: &ByRequest, began: Timestamp, request: RequestId) -> bool {
    work.get(&request).is_some_and(|work| work.began == began)
}
