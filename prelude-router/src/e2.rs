//! E2, exploit and explore (Srivatsa et al., Preble, ICLR 2025, §3.2 and algorithm 1).
//!
//! A prompt of which more is cached somewhere than is missing goes there: computing it anew costs
//! more than waiting. Any other goes where it costs least: the load of the last minutes, what its
//! evictions will cost those who come back, and its own prefill. Endpoints that mostly decode
//! attract such prompts. Prefixes that make an endpoint too busy are moved or copied
//! ([`rebalance`]).

mod outputs;
mod rebalance;
mod window;

use std::time::Duration;

use prelude_core::{RequestId, Timestamp};
use rebalance::Rebalance;

use crate::{
    cached::Cached,
    config::{E2Config, RouterConfig},
    endpoint::{EndpointId, Fleet},
    index::Override,
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
/// The time in which an endpoint that has just joined gets at most half of its share of new prompts.
const WARM_UP: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct E2 {
    config: E2Config,
    /// The index, and what endpoints have cached of the prompt that was asked about last.
    cached: Cached,
    window: Window,
    outputs: Outputs,
    rebalance: Option<Rebalance>,
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
            window: Window::new(span, config.max_window_requests as usize),
            outputs: Outputs::new(span, DEFAULT_OUTPUT_TOKENS),
            rebalance: config.rebalance.clone().map(|r| Rebalance::new(r, span)),
            newcomers: Vec::new(),
            random: Random::new(router.seed),
            output: 0.0,
            config,
        }
    }

    /// Forgets what has become too old, and moves prefixes if it is time.
    fn advance(&mut self, now: Timestamp, fleet: &Fleet) {
        while let Some(entry) = self.window.pop(now) {
            if let Some(leaf) = entry.leaf {
                self.cached.index.expire(entry.endpoint, leaf);
            }
        }
        self.outputs.advance(now);
        self.newcomers.retain(|newcomer| now < newcomer.until);
        if let Some(rebalance) = &mut self.rebalance {
            rebalance.pass(now, fleet, &mut self.cached.index, &mut self.window);
        }
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

    /// `LoadCost`: the load there, what evictions will cost, and the prompt's prefill.
    fn load_cost(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> Cost {
        let (prefill, _) = self.own_cost(fleet, query, at);
        self.window.loads()[at].sum + self.eviction_cost(fleet, query, at) + prefill
    }

    /// `M`: for what must be evicted, the time to compute it again, as often as it is asked for.
    fn eviction_cost(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> Cost {
        let endpoint = &fleet.endpoints()[at];
        let missed = query.tokens.saturating_sub(self.cached.tokens(at));
        let needed = u64::from(missed.div_ceil(self.cached.granule_tokens));
        let mut needed = needed.saturating_sub(self.cached.index.free(endpoint.id()));
        let requests = self.window.loads()[at].requests;
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

    /// Where the prompt goes of which `known` tokens are cached.
    fn exploit(&mut self, fleet: &Fleet, query: &Query<'_>, known: u32) -> (usize, Reason) {
        if let Some(at) = self.redirected(fleet, query) {
            return (at, Reason::Redirected);
        }
        let holders = || {
            query
                .eligible
                .iter()
                .filter(|&&at| self.cached.tokens(at) == known)
        };
        let only = holders().next().filter(|_| holders().count() == 1).copied();
        let pick = only
            .or_else(|| self.cheapest(fleet, query, |this, at| this.cached.tokens(at) == known));
        let pick = pick.unwrap_or(query.eligible[0]);
        (pick, Reason::Cached)
    }

    /// Where the prompt's key portion is now, if it was moved or copied.
    fn redirected(&mut self, fleet: &Fleet, query: &Query<'_>) -> Option<usize> {
        let mut deepest: Option<&Override> = None;
        for id in self.cached.index.through(&self.cached.path) {
            if self.cached.index.is_key_portion(id) {
                // What is above it moved with other prompts, which have no deeper one.
                deepest = None;
            }
            let redirect = self.cached.index.redirect(id);
            // One that no request asked for within the window has ended.
            let lives = |_: &&Override| self.cached.index.windows(id).any(|(_, count)| count > 0);
            if let Some(redirect) = redirect.filter(lives)
                && deepest.is_none_or(|above| redirect.since >= above.since)
            {
                deepest = Some(redirect);
            }
        }
        let deepest = deepest?.clone();
        self.cheapest(fleet, query, |_, at| {
            deepest.has(fleet.endpoints()[at].id())
        })
    }

    /// Returns whether the prompt would lower the share of decoding at an endpoint to the
    /// threshold in the end. If it decodes more than that itself, prompts like it would follow
    /// each other to one endpoint without bound.
    fn is_prefill_there(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> bool {
        let (prefill, decode) = self.own_cost(fleet, query, at);
        decode.as_ms() <= self.config.decode_ratio * (prefill + decode).as_ms()
    }

    /// Where a prompt goes of which little is cached.
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
        let has_had_enough = |this: &Self, at: usize| {
            let id = fleet.endpoints()[at].id();
            let mut new = this.newcomers.iter();
            new.any(|n| n.endpoint == id && n.own * 2 * count > n.all)
        };
        let among = |this: &Self, at| !has_had_enough(this, at);
        let at = self.cheapest(fleet, query, among);
        let at = at.or_else(|| self.cheapest(fleet, query, |_, _| true));
        (at.unwrap_or(query.eligible[0]), Reason::LeastCost)
    }
}

impl Policy for E2 {
    fn pick(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        self.advance(now, fleet);
        self.output = self.outputs.expected(query.root, query.max_output_tokens);
        self.cached.look(fleet, query);
        let known = query.eligible.iter().map(|&at| self.cached.tokens(at));
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
            charged: endpoint,
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
        if let (Some(rebalance), Some(ms)) = (&mut self.rebalance, finish.queue_ms) {
            rebalance.note_delay(now, finish.endpoint, ms);
        }
    }

    fn joined(&mut self, now: Timestamp, fleet: &Fleet) {
        let Some(endpoint) = fleet.endpoints().last() else {
            return;
        };
        self.cached.joined(fleet, |spec| spec.kv_capacity_tokens);
        self.window.join(now, endpoint.id());
        // The first ones have no other endpoint to take traffic from.
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
        if let Some(rebalance) = &mut self.rebalance {
            rebalance.leave(endpoint);
        }
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
