//! LAPS with several engines: a pool of endpoints for short prefills and a pool for long ones
//! (length-aware prefill serving, §3.2, "spatial disaggregation").
//!
//! A request is short if few of its tokens are cached nowhere. It goes to the endpoint of its pool
//! where it costs least, work under way and uncached prefill together. A [`Controller`] moves
//! endpoints between the pools as their pressures ask for.
//!
//! The paper routes by length alone. Here a request whose deadline its own pool would miss goes to
//! the other pool if an endpoint there meets the deadline. A request most of which only the other
//! pool caches, as a short turn after a long history, goes there if it is in time, so that the
//! history is not computed and kept twice. An endpoint that moves keeps its cache and its requests
//! under way; these count in what new requests cost there, so it fills slowly.

mod controller;

use std::time::Duration;

use prelude_core::Timestamp;

use crate::{
    cached::Cached,
    config::{LapsConfig, RouterConfig},
    endpoint::{EndpointId, Fleet, Pool},
    policy::{Choice, Finished, Policy, Query, Reason, choice, least_of},
    random::Random,
    service::Cost,
};
use controller::{Controller, PoolState, Signals};

/// An endpoint of the fleet, and its answers in the current control period.
#[derive(Clone, Copy, Debug)]
struct Member {
    pool: Pool,
    /// True if the endpoint's label binds it to its pool.
    is_bound: bool,
    answers: u64,
    late_answers: u64,
    /// The endpoint's time that the answered requests took.
    work: Cost,
}

impl Member {
    /// Returns the signals of a control period, and begins the next one.
    fn end_period(&mut self, period: Duration, under_way: Cost, target: Duration) -> Signals {
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let signals = Signals {
            backlog: ratio(under_way.as_ms(), ms(target)),
            late_share: ratio(self.late_answers as f64, self.answers as f64),
            busy_share: ratio(self.work.as_ms(), ms(period)).min(1.0),
        };
        (self.answers, self.late_answers, self.work) = (0, 0, Cost::ZERO);
        signals
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Laps {
    short_tokens: u32,
    /// The time within which a first token is due, if a request does not say.
    target: Duration,
    controller: Controller,
    cached: Cached,
    /// The members by position of the endpoint.
    members: Vec<Member>,
    /// The endpoint's names, in the same order.
    ids: Vec<EndpointId>,
    random: Random,
}

impl Laps {
    pub(crate) fn new(config: &LapsConfig, router: &RouterConfig) -> Self {
        Self {
            short_tokens: config.short_tokens,
            target: Duration::from_millis(config.target_ms),
            controller: Controller::new(config),
            cached: Cached::new(router),
            members: Vec::new(),
            ids: Vec::new(),
            random: Random::new(router.seed),
        }
    }

    fn position(&self, endpoint: EndpointId) -> Option<usize> {
        self.ids.binary_search(&endpoint).ok()
    }

    /// Ends the control period if it is over, and moves an endpoint if the pools' pressures ask
    /// for it.
    fn control(&mut self, now: Timestamp, fleet: &Fleet) {
        let Some(period) = self.controller.period_ends(now) else {
            return;
        };
        let (mut short, mut long) = (PoolState::default(), PoolState::default());
        for (member, endpoint) in self.members.iter_mut().zip(fleet.endpoints()) {
            let under_way = endpoint.outstanding().work;
            let signals = member.end_period(period, under_way, self.target);
            if endpoint.is_healthy() {
                let pool = match member.pool {
                    Pool::Short => &mut short,
                    Pool::Long => &mut long,
                };
                pool.signals.push(signals);
                pool.movable += usize::from(!member.is_bound);
            }
        }
        if let Some(receiver) = self.controller.decide(now, &short, &long) {
            self.move_one_to(receiver, fleet);
        }
    }

    /// Moves the endpoint of the other pool with least to do to this pool.
    fn move_one_to(&mut self, receiver: Pool, fleet: &Fleet) {
        let movable = fleet.endpoints().iter().enumerate().filter(|(at, e)| {
            let member = &self.members[*at];
            member.pool != receiver && !member.is_bound && e.is_healthy()
        });
        let keyed = movable.map(|(at, endpoint)| (at, endpoint, ()));
        if let Some(at) = least_of(keyed, &mut self.random) {
            self.members[at].pool = receiver;
        }
    }

    /// Returns the pool of a request: short if few of its tokens are cached nowhere.
    fn pool_of(&self, query: &Query<'_>) -> Pool {
        let cached = query.eligible.iter().map(|&at| self.cached.tokens(at));
        let cached = cached.max().unwrap_or(0);
        match query.tokens.saturating_sub(cached) <= self.short_tokens {
            true => Pool::Short,
            false => Pool::Long,
        }
    }

    /// Returns the time until the endpoint at a position would have the first token of a request.
    fn cost(&self, fleet: &Fleet, query: &Query<'_>, at: usize) -> Cost {
        let own = choice(fleet, query, at, self.cached.tokens(at), Reason::LeastCost).cost;
        fleet.endpoints()[at].outstanding().work + own
    }

    /// Returns the position, among the eligible endpoints of a pool or of both, where a request
    /// costs least.
    fn cheapest(&mut self, fleet: &Fleet, query: &Query<'_>, pool: Option<Pool>) -> Option<usize> {
        self.cheapest_of(fleet, query, |this, at| {
            pool.is_none_or(|pool| this.members[at].pool == pool)
        })
    }

    /// Returns the position, among the eligible endpoints that `is_one` names, where a request costs
    /// least.
    fn cheapest_of(
        &mut self,
        fleet: &Fleet,
        query: &Query<'_>,
        is_one: impl Fn(&Self, usize) -> bool,
    ) -> Option<usize> {
        let mut random = self.random.clone();
        let some = query.endpoints(fleet);
        let some = some.filter(|(at, _)| is_one(self, *at));
        let keyed = some.map(|(at, endpoint)| (at, endpoint, self.cost(fleet, query, at)));
        let least = least_of(keyed, &mut random);
        self.random = random;
        least
    }

    /// Returns true if the endpoint at a position caches more of a request than it lacks.
    fn caches_most(&self, query: &Query<'_>, at: usize) -> bool {
        let cached = self.cached.tokens(at).min(query.tokens);
        cached > query.tokens - cached
    }

    /// Returns the position of the endpoint that caches most of a request and would have the first
    /// token in time, unless the best endpoint of the request's own pool caches most of it, too.
    fn keeper(
        &mut self,
        now: Timestamp,
        fleet: &Fleet,
        query: &Query<'_>,
        own: Option<usize>,
    ) -> Option<usize> {
        if own.is_some_and(|own| self.caches_most(query, own)) {
            return None;
        }
        let at = self.cheapest_of(fleet, query, |this, at| this.caches_most(query, at))?;
        self.is_in_time(now, fleet, query, at).then_some(at)
    }

    /// Returns whether the endpoint at a position would have the first token in time.
    fn is_in_time(&self, now: Timestamp, fleet: &Fleet, query: &Query<'_>, at: usize) -> bool {
        let due = query
            .deadline
            .map(|deadline| deadline.saturating_since(now));
        let most_ms = due.unwrap_or(self.target).as_secs_f64() * 1e3;
        self.cost(fleet, query, at).as_ms() <= most_ms
    }
}

impl Policy for Laps {
    fn pick(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        self.control(now, fleet);
        self.cached.look(fleet, query);
        let own = self.cheapest(fleet, query, Some(self.pool_of(query)));
        if let Some(at) = self.keeper(now, fleet, query, own) {
            let cached = self.cached.tokens(at).min(query.tokens);
            return choice(fleet, query, at, cached, Reason::Cached);
        }
        let in_time = own.filter(|&at| self.is_in_time(now, fleet, query, at));
        let any = match in_time {
            Some(_) => None,
            None => self.cheapest(fleet, query, None),
        };
        let rescue = any.filter(|&at| own.is_none() || self.is_in_time(now, fleet, query, at));
        let at = in_time.or(rescue).or(own).unwrap_or(query.eligible[0]);
        let cached = self.cached.tokens(at).min(query.tokens);
        let reason = match (own == Some(at), query.tokens - cached < cached) {
            (false, _) => Reason::Backlog,
            (true, true) => Reason::Cached,
            (true, false) => Reason::LeastCost,
        };
        choice(fleet, query, at, cached, reason)
    }

    fn commit(&mut self, _: Timestamp, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        self.cached.take_in(fleet, query, choice);
    }

    fn finished(&mut self, _: Timestamp, finish: &Finished) {
        let Some(at) = self.position(finish.endpoint) else {
            return;
        };
        let target = finish.began.saturating_add(self.target);
        let is_late = finish.first_token > finish.deadline.unwrap_or(target);
        let member = &mut self.members[at];
        member.answers += 1;
        member.late_answers += u64::from(is_late);
        member.work += finish.cost;
    }

    fn joined(&mut self, _: Timestamp, fleet: &Fleet) {
        let Some(endpoint) = fleet.endpoints().last() else {
            return;
        };
        self.cached.joined(fleet, |spec| spec.kv_capacity_tokens);
        let label = endpoint.spec().pool;
        let short = self.members.iter().filter(|m| m.pool == Pool::Short);
        let smaller = match 2 * short.count() <= self.members.len() {
            true => Pool::Short,
            false => Pool::Long,
        };
        self.ids.push(endpoint.id());
        self.members.push(Member {
            pool: label.unwrap_or(smaller),
            is_bound: label.is_some(),
            answers: 0,
            late_answers: 0,
            work: Cost::ZERO,
        });
    }

    fn left(&mut self, endpoint: EndpointId) {
        self.cached.index.leave(endpoint);
        if let Some(at) = self.position(endpoint) {
            self.ids.remove(at);
            self.members.remove(at);
        }
    }

    fn cache_holds(&mut self, endpoint: EndpointId, most_tokens: u64) {
        self.cached.trim(endpoint, most_tokens);
    }

    fn cached_tokens(&self, endpoint: EndpointId) -> u64 {
        self.cached.resident(endpoint)
    }

    fn pool(&self, endpoint: EndpointId) -> Option<Pool> {
        self.position(endpoint).map(|at| self.members[at].pool)
    }

    fn index_nodes(&self) -> (usize, u64) {
        (self.cached.index.len(), self.cached.index.dropped())
    }
}

#[cfg(test)]
mod tests;
