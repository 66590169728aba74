//! E2, exploit and explore (Srivatsa et al., Preble, ICLR 2025, §3.2 and algorithm 1).
//!
//! A prompt of which more is cached somewhere than is missing goes there: computing it anew costs
//! more than waiting. So does one whose beginning the window's requests have brought there, though
//! it may be evicted: each prefix stays at one endpoint, and all caches together hold more. Any other
//! goes where it costs least: the load there, what its evictions will cost those who come back, and
//! its own prefill. Endpoints that mostly decode attract such prompts.
//!
//! The load is the work under way, where the paper has that of the last minutes, and a prompt
//! leaves the endpoint that caches it where waiting costs far more than computing it anew. So a
//! prefix that is too popular for one endpoint is copied to as many as it needs, at once, where
//! the paper moves and copies prefixes after minutes of load have shown the need.

mod outputs;
mod window;

use std::time::Duration;

use prelude_core::{RequestId, Timestamp};

use crate::{
    cached::Cached,
    config::{E2Config, E2Load, RouterConfig},
    endpoint::{EndpointId, Fleet},
    policy::{Choice, Finished, Policy, Query, Reason, least_of},
    random::Random,
    service::Cost,
};
use outputs::Outputs;
use window::{Entry, Window};

/// Output tokens expected where nothing is known.
const DEFAULT_OUTPUT_TOKENS: u32 = 45;
/// Requests that must be under way at an endpoint that mostly decodes for it to attract prompts.
const DECODE_RATIO_MIN_REQUESTS: u64 = 8;
/// Least recently used nodes that are looked at to tell what evictions would cost.
const EVICTION_WALK: usize = 64;
/// The time in which an endpoint that has just joined gets at most half of its share of new
/// prompts.
const WARM_UP: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct E2 {
    config: E2Config,
    /// The index, and what endpoints have cached of the prompt that was asked about last.
    cached: Cached,
    /// The tokens of that prompt that requests of the window have brought to each endpoint, by its
    /// position.
    visited: Vec<u32>,
    window: Window,
    outputs: Outputs,
    newcomers: Vec<Newcomer>,
    random: Random,
    /// The expected length of that prompt's output.
    output: f64,
}

/// An endpoint that has just joined.
#[derive(Clone, Copy, Debug)]
struct Newcomer {
    endpoint: EndpointId,
    until: Timestamp,
    /// Requests since it joined: all, and those that went there.
    all: u64,
    own: u64,
}

impl E2 {
    pub(crate) fn new(config: E2Config, router: &RouterConfig) -> Self {
        let span = Duration::from_millis(config.window_ms);
        Self {
            cached: Cached::new(router),
            visited: Vec::new(),
            window: Window::new(span, config.max_window_requests as usize),
            outputs: Outputs::new(span, DEFAULT_OUTPUT_TOKENS),
            newcomers: Vec::new(),
            random: Random::new(router.seed),
            output: 0.0,
            config,
        }
    }

    /// Forgets what has become too old.
    fn advance(&mut self, now: Timestamp) {
        while let Some(entry) = self.window.pop(now) {
            if let Some(leaf) = entry.leaf {
                self.cached.index.expire(entry.endpoint, leaf);
            }
        }
        self.outputs.advance(now);
        self.newcomers.retain(|newcomer| now < newcomer.until);
    }

    /// Looks up which endpoints know the beginning of a prompt.
    fn look(&mut self, fleet: &Fleet, query: &Query<'_>) {
        self.cached.look(fleet, query);
        let Cached {
            index,
            path,
            granule_tokens,
            ..
        } = &self.cached;
        self.visited.clear();
        self.visited.resize(fleet.endpoints().len(), 0);
        index.visited(path, |endpoint, granules| {
            if let Some(at) = fleet.position(endpoint) {
                self.visited[at] = granules * granule_tokens;
            }
        });
    }

    /// Returns the number of tokens of the prompt that the endpoint at a position has cached, or has
    /// got within the window.
    fn known(&self, at: usize) -> u32 {
        self.cached.tokens(at).max(self.visited[at])
    }

    /// Returns the cost of the prompt itself at the endpoint at a position.
    fn own_cost(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> (Cost, Cost) {
        let service = fleet.endpoints()[at].service();
        let missed = query.tokens.saturating_sub(self.cached.tokens(at));
        (
            Cost::of_prefill(service, missed, query.tokens),
            Cost::of_decode(service, self.output),
        )
    }

    /// Returns the paper's `LoadCost`: the load there, what evictions will cost, and the prompt's
    /// prefill.
    fn load_cost(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> Cost {
        let (prefill, _) = self.own_cost(fleet, query, at);
        let load = match self.config.load {
            E2Load::UnderWay => fleet.endpoints()[at].outstanding().work,
            E2Load::Window => self.window.loads()[at].sum,
        };
        load + self.eviction_cost(fleet, query, at) + prefill
    }

    /// Returns the paper's `M`: for what must be evicted, the time to compute it again, as often as it
    /// is asked for.
    fn eviction_cost(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> Cost {
        let endpoint = &fleet.endpoints()[at];
        let missed = query.tokens.saturating_sub(self.cached.tokens(at));
        let needed = u64::from(missed.div_ceil(self.cached.granule_tokens));
        let mut needed = needed.saturating_sub(self.cached.index.free(endpoint.id()));
        // The mean of the endpoints: by its own number, an endpoint would seem the cheaper to evict
        // from, the more requests it gets.
        let loads = self.window.loads();
        let requests = loads.iter().map(|load| load.requests).sum::<u64>() / loads.len() as u64;
        let mut sum = Cost::ZERO;
        if needed == 0 || requests == 0 {
            return sum;
        }
        let evictable = self.cached.index.evictable(endpoint.id());
        for leaf in evictable.take(EVICTION_WALK) {
            let granules = u64::from(leaf.granules);
            let gone = granules.min(needed);
            let tokens = leaf.granules * self.cached.granule_tokens;
            let anew = Cost::of_prefill(endpoint.service(), tokens, tokens);
            let anew = anew.scaled(gone, granules);
            sum += anew.scaled(u64::from(leaf.window), requests);
            needed -= gone;
            if needed == 0 {
                break;
            }
        }
        sum
    }

    /// Returns the position, among some, of the endpoint where the prompt costs least.
    fn cheapest(
        &mut self,
        fleet: &Fleet,
        query: &Query<'_>,
        among: impl Fn(&Self, usize) -> bool,
    ) -> Option<usize> {
        let mut random = self.random.clone();
        let some = query.endpoints(fleet).filter(|&(at, _)| among(self, at));
        let costs = some.map(|(at, e)| (at, e, self.load_cost(fleet, query, at)));
        let least = least_of(costs, &mut random);
        self.random = random;
        least
    }

    /// Returns the endpoint for a prompt of which `known` tokens are [known](Self::known) somewhere.
    fn exploit(&mut self, fleet: &Fleet, query: &Query<'_>, known: u32) -> (usize, Reason) {
        let holders = || {
            query
                .eligible
                .iter()
                .filter(|&&at| self.known(at).min(query.tokens) == known)
        };
        let only = holders().next().filter(|_| holders().count() == 1).copied();
        let holder = only.or_else(|| {
            let is_holder = |this: &Self, at| this.known(at).min(query.tokens) == known;
            self.cheapest(fleet, query, is_holder)
        });
        let holder = holder.unwrap_or(query.eligible[0]);
        match self.far_cheaper(fleet, query, holder) {
            Some(at) => (at, Reason::Backlog),
            None => (holder, Reason::Cached),
        }
    }

    /// Returns the position of another endpoint at which the prompt costs so much less that it
    /// leaves the endpoint that caches it.
    fn far_cheaper(&mut self, fleet: &Fleet, query: &Query<'_>, holder: usize) -> Option<usize> {
        let ratio = self.config.leave_ratio?;
        // An idle endpoint serves what it caches at once.
        if fleet.endpoints()[holder].outstanding().requests == 0 {
            return None;
        }
        let here = self.load_cost(fleet, query, holder).as_ms();
        let count = fleet.endpoints().len() as u64;
        let other = self.cheapest(fleet, query, |this, at| {
            at != holder && !this.has_had_enough(fleet, at, count)
        })?;
        let there = self.load_cost(fleet, query, other).as_ms();
        (here > ratio * there).then_some(other)
    }

    /// Returns whether an endpoint has just joined and has got half of its share of new prompts.
    fn has_had_enough(&self, fleet: &Fleet, at: usize, count: u64) -> bool {
        let id = fleet.endpoints()[at].id();
        let mut new = self.newcomers.iter();
        new.any(|n| n.endpoint == id && n.own * 2 * count > n.all)
    }

    /// Returns whether the prompt would lower the share of decoding at an endpoint to the
    /// threshold in the end. If it decodes more than that itself, prompts like it would follow
    /// each other to one endpoint without bound.
    fn is_prefill_there(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> bool {
        let (prefill, decode) = self.own_cost(fleet, query, at);
        decode.as_ms() <= self.config.decode_ratio * (prefill + decode).as_ms()
    }

    /// Returns the endpoint for a prompt of which little is cached.
    fn explore(&mut self, fleet: &Fleet, query: &Query<'_>) -> (usize, Reason) {
        let mut decoding: Option<(f64, usize)> = None;
        for (at, endpoint) in query.endpoints(fleet) {
            let ratio = self.window.loads()[at].decode_ratio();
            if ratio > self.config.decode_ratio
                && self.is_prefill_there(fleet, query, at)
                && endpoint.outstanding().requests >= DECODE_RATIO_MIN_REQUESTS
                && decoding.is_none_or(|(most, _)| ratio > most)
            {
                decoding = Some((ratio, at));
            }
        }
        if let Some((_, at)) = decoding {
            return (at, Reason::DecodeHeavy);
        }
        let count = fleet.endpoints().len() as u64;
        let among = |this: &Self, at| !this.has_had_enough(fleet, at, count);
        let at = self.cheapest(fleet, query, among);
        let at = at.or_else(|| self.cheapest(fleet, query, |_, _| true));
        (at.unwrap_or(query.eligible[0]), Reason::LeastCost)
    }
}

impl Policy for E2 {
    fn pick(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        self.advance(now);
        self.output = self.outputs.expected(query.root, query.max_output_tokens);
        self.look(fleet, query);
        let known = query.eligible.iter().map(|&at| self.known(at));
        let known = known.max().unwrap_or(0).min(query.tokens);
        let (at, reason) = if query.tokens - known < known {
            self.exploit(fleet, query, known)
        } else {
            self.explore(fleet, query)
        };
        let (prefill, decode) = self.own_cost(fleet, query, at);
        Choice {
            at,
            cached_tokens: self.cached.tokens(at).min(query.tokens),
            cost: prefill + decode,
            reason,
        }
    }

    fn commit(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        let endpoint = fleet.endpoints()[choice.at].id();
        let (prefill, decode) = self.own_cost(fleet, query, choice.at);
        let leaf = self
            .cached
            .index
            .insert(query.granules, &mut self.cached.path);
        if let Some(leaf) = leaf {
            self.cached.index.assign(endpoint, leaf);
        }
        self.window.push(Entry {
            at: now,
            request: Some(query.id),
            endpoint,
            leaf,
            prefill,
            decode,
        });
        for newcomer in &mut self.newcomers {
            newcomer.all += 1;
            newcomer.own += u64::from(newcomer.endpoint == endpoint);
        }
    }

    fn served(&mut self, request: RequestId, endpoint: EndpointId) {
        if let Some(was) = self.window.serve(request, endpoint)
            && let Some(leaf) = was.leaf
        {
            self.cached.index.assign(endpoint, leaf);
            self.cached.index.withdraw(was.endpoint, leaf);
        }
    }

    fn finished(&mut self, now: Timestamp, finish: &Finished) {
        if let Some(tokens) = finish.output_tokens {
            self.outputs.note(now, finish.root, tokens);
        }
    }

    fn joined(&mut self, now: Timestamp, fleet: &Fleet) {
        let Some(endpoint) = fleet.endpoints().last() else {
            return;
        };
        self.cached.joined(fleet, |spec| spec.kv_capacity_tokens);
        self.window.join(now, endpoint.id());
        // The first endpoints have no other endpoint to take traffic from.
        if fleet.endpoints().len() > 1 && self.window.entries().any(|e| e.request.is_some()) {
            self.newcomers.push(Newcomer {
                endpoint: endpoint.id(),
                until: now.saturating_add(WARM_UP),
                all: 0,
                own: 0,
            });
        }
    }

    fn left(&mut self, endpoint: EndpointId) {
        self.window.leave(endpoint);
        self.cached.index.leave(endpoint);
        self.newcomers.retain(|n| n.endpoint != endpoint);
    }

    fn cache_holds(&mut self, endpoint: EndpointId, most_tokens: u64) {
        self.cached.trim(endpoint, most_tokens);
    }

    fn cached_tokens(&self, endpoint: EndpointId) -> u64 {
        self.cached.resident(endpoint)
    }

    fn index_nodes(&self) -> (usize, u64) {
        (self.cached.index.len(), self.cached.index.dropped())
    }
}

#[cfg(test)]
mod tests;
