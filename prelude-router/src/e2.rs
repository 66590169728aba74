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
    config::{Affinity, E2Config, RouterConfig},
    endpoint::{EndpointId, Fleet},
    index::{Index, Override, Path},
    policy::{Choice, Finished, Policy, Query, Reason, least_of},
    random::Random,
    service::Cost,
};
use outputs::Outputs;
use window::{Entry, Window};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct E2 {
    config: E2Config,
    granule_tokens: u32,
    index: Index,
    window: Window,
    outputs: Outputs,
    rebalance: Option<Rebalance>,
    newcomers: Vec<Newcomer>,
    random: Random,
    /// The index path of the prompt that was asked about last, and the number of its tokens that
    /// are cached at, and attract it to, the endpoint at each position.
    path: Path,
    cached: Vec<u32>,
    attracting: Vec<u32>,
    /// The expected length of its output.
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
            granule_tokens: router.granule_tokens,
            index: Index::new(router.max_nodes as usize, router.seed),
            window: Window::new(span, config.max_window_requests as usize),
            outputs: Outputs::new(span, config.default_output_tokens),
            rebalance: config.rebalance.clone().map(|r| Rebalance::new(r, span)),
            newcomers: Vec::new(),
            random: Random::new(router.seed),
            path: Path::default(),
            cached: Vec::new(),
            attracting: Vec::new(),
            output: 0.0,
            config,
        }
    }

    /// Forgets what has become too old, and moves prefixes if it is time.
    fn advance(&mut self, now: Timestamp, fleet: &Fleet) {
        while let Some(entry) = self.window.pop(now) {
            if let Some(leaf) = entry.leaf {
                self.index.expire(entry.endpoint, leaf);
            }
        }
        self.outputs.advance(now);
        self.newcomers.retain(|newcomer| now < newcomer.until);
        if let Some(rebalance) = &mut self.rebalance {
            rebalance.pass(now, fleet, &mut self.index, &mut self.window);
        }
    }

    /// Finds out what is known of a prompt.
    fn look(&mut self, fleet: &Fleet, query: &Query<'_>) {
        self.output = self.outputs.expected(query.root, query.max_output_tokens);
        self.index.find(query.granules, &mut self.path);
        for known in [&mut self.cached, &mut self.attracting] {
            known.clear();
            known.resize(fleet.endpoints().len(), 0);
        }
        let by_assignment = self.config.affinity == Affinity::Assigned;
        self.index.held(&self.path, |endpoint, cached, assigned| {
            let Some(at) = fleet.position(endpoint) else {
                return;
            };
            let attracting = if by_assignment {
                cached.max(assigned)
            } else {
                cached
            };
            if cached > 0 {
                self.cached[at] = cached * self.granule_tokens;
            }
            if attracting > 0 {
                self.attracting[at] = attracting * self.granule_tokens;
            }
        });
    }

    /// Returns the cost of the prompt itself at the endpoint at a position.
    fn own_cost(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> (Cost, Cost) {
        let service = fleet.endpoints()[at].service();
        let missed = query.tokens.saturating_sub(self.cached[at]);
        (
            service.prefill(missed, query.tokens),
            service.decode(self.output),
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
        let missed = query.tokens.saturating_sub(self.cached[at]);
        let needed = u64::from(missed.div_ceil(self.granule_tokens));
        let mut needed = needed.saturating_sub(self.index.free(endpoint.id()));
        let requests = self.window.loads()[at].requests;
        let mut sum = Cost::ZERO;
        if needed == 0 || requests == 0 {
            return sum;
        }
        let evictable = self.index.evictable(endpoint.id());
        for leaf in evictable.take(self.config.eviction_walk as usize) {
            let granules = u64::from(leaf.granules);
            let gone = granules.min(needed);
            let tokens = leaf.granules * self.granule_tokens;
            let anew = endpoint.service().prefill(tokens, tokens);
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
                .filter(|&&at| self.attracting[at] == known)
        };
        let only = holders().next().filter(|_| holders().count() == 1).copied();
        let pick =
            only.or_else(|| self.cheapest(fleet, query, |this, at| this.attracting[at] == known));
        let pick = pick.unwrap_or(query.eligible[0]);
        if self.config.backlog_guard {
            let work = |at: usize| fleet.endpoints()[at].outstanding().work;
            let other = query.least(fleet, &mut self.random, |_, e| e.outstanding().work);
            let whole = fleet.endpoints()[other].service();
            let whole = whole.prefill(query.tokens, query.tokens);
            if work(pick) > work(other) + work(other) + whole {
                return (other, Reason::Backlog);
            }
        }
        (pick, Reason::Cached)
    }

    /// Where the prompt's key portion is now, if it was moved or copied.
    fn redirected(&mut self, fleet: &Fleet, query: &Query<'_>) -> Option<usize> {
        let mut deepest: Option<&Override> = None;
        for id in self.index.through(&self.path) {
            if self.index.is_key_portion(id) {
                // What is above it moved with other prompts, which have no deeper one.
                deepest = None;
            }
            let redirect = self.index.redirect(id);
            // One that no request asked for within the window has ended.
            let lives = |_: &&Override| self.index.windows(id).any(|(_, count)| count > 0);
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
            let enough = self.config.decode_ratio_min_requests;
            if ratio > self.config.decode_ratio
                && self.is_prefill_there(fleet, query, at)
                && endpoint.outstanding().requests >= enough
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
        self.look(fleet, query);
        let known = query.eligible.iter().map(|&at| self.attracting[at]);
        let known = known.max().unwrap_or(0).min(query.tokens);
        let (at, reason) = if query.tokens - known < known {
            self.exploit(fleet, query, known)
        } else {
            self.explore(fleet, query)
        };
        let (prefill, decode) = self.own_cost(fleet, query, at);
        Choice {
            at,
            cached_tokens: self.cached[at].min(query.tokens),
            cost: prefill + decode,
            reason,
        }
    }

    fn commit(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        let endpoint = fleet.endpoints()[choice.at].id();
        let (prefill, decode) = self.own_cost(fleet, query, choice.at);
        let leaf = self.index.insert(query.granules, &mut self.path);
        if let Some(leaf) = leaf {
            self.index.assign(endpoint, leaf);
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
            self.index.assign(endpoint, leaf);
            self.index.withdraw(was.endpoint, leaf);
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
        let capacity = endpoint.spec().kv_capacity_tokens / u64::from(self.granule_tokens);
        self.index.join(endpoint.id(), capacity);
        self.window.join(now, endpoint.id());
        // The first ones have no other endpoint to take traffic from.
        if fleet.endpoints().len() > 1 && self.window.entries().any(|e| e.request.is_some()) {
            let warm_up = Duration::from_millis(self.config.warm_up_ms);
            self.newcomers.push(Newcomer {
                endpoint: endpoint.id(),
                until: now.saturating_add(warm_up),
                all: 0,
                own: 0,
            });
        }
    }

    fn left(&mut self, endpoint: EndpointId) {
        self.window.leave(endpoint);
        self.index.leave(endpoint);
        self.newcomers.retain(|n| n.endpoint != endpoint);
        if let Some(rebalance) = &mut self.rebalance {
            rebalance.leave(endpoint);
        }
    }

    fn index_nodes(&self) -> (usize, u64) {
        (self.index.len(), self.index.dropped())
    }
}

#[cfg(test)]
mod tests;
