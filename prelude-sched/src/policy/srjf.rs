//! Shortest remaining job first, calibrated by what the prefix cache holds now.

use std::collections::{BTreeMap, BTreeSet};

use prelude_core::{RequestId, ServiceTime, Timestamp};
use prelude_kv::BlockHash;

use super::{
    Fcfs, Plan, QueueView, SchedulerPolicy, StepBudget,
    places::{Orders, Places},
};
use crate::{Cost, Turn};

/// The policy that takes one-shot requests by priority, then by `cost - fairness * time waited`, the
/// lowest first (PrefillOnly §6.3: shortest job first with continuous calibration). Generations are
/// admitted as [`Fcfs`] does.
///
/// The cost is the time that the request takes by the executor's [`ServiceTime`], where that was
/// measured, and else its tokens to compute, the paper's proxy of it. Either leaves out what is in
/// the prefix cache at this moment, so those whose prefix was just computed come next, before it is
/// evicted. All scores fall at the same rate, so their order is that of `cost + fairness *
/// arrival`, which only a changed cache changes: a step looks at the requests that were touched
/// since the last one and at those it takes up, not at the whole queue.
///
/// A request of the same priority that has `m` tokens to compute overtakes one that came before it
/// and has `M` only if it came at most `(M - m) / fairness` seconds later: so none starves.
///
/// A fairness of 0 has no such bound: then it is [`Turn`] that lets long requests start.
///
/// The paper leaves two choices open: fairness is in tokens per second, and where scores are times, a token
/// is as much time as it takes in a full step; and rather
/// than one request at a time, a step takes up requests until the device has enough to do
/// (`saturation` tokens). First come those that share the first one's cached prefix, as far as
/// together they are not enough: so they delay other requests only by their place in a step, and
/// the request that has a long suffix behind that prefix waits for its own place.
#[derive(Debug)]
pub struct Srjf {
    /// The time that requests take; `None` counts their tokens.
    service: Option<ServiceTime>,
    /// The cost by which a score falls in a second: tokens, or nanoseconds where times are known.
    fairness: u64,
    /// Tokens with which a step is full enough.
    saturation: u32,
    places: Places<Place, ByScore>,
    recalibrations: u64,
}

/// The waiting requests in the order of their scores.
#[derive(Debug, Default)]
struct ByScore {
    all: BTreeSet<Key>,
    by_prefix: BTreeMap<(Turn, i64, BlockHash), BTreeSet<Key>>,
}

impl Orders<Place> for ByScore {
    fn insert(&mut self, _: RequestId, place: &Place) {
        self.all.insert(place.key);
        if let Some(group) = place.group() {
            self.by_prefix.entry(group).or_default().insert(place.key);
        }
    }

    fn remove(&mut self, _: RequestId, place: &Place) {
        self.all.remove(&place.key);
        if let Some(group) = place.group()
            && let Some(keys) = self.by_prefix.get_mut(&group)
        {
            keys.remove(&place.key);
            if keys.is_empty() {
                self.by_prefix.remove(&group);
            }
        }
    }
}

/// Place in the order. Unique, since ids are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    turn: Turn,
    priority: i64,
    /// Billionths of a token or of a nanosecond: exact, so that the order is the same everywhere.
    score: u128,
    arrival: Timestamp,
    request: RequestId,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    key: Key,
    tokens: u64,
    prefix: Option<BlockHash>,
}

impl Place {
    /// Returns the turn, the priority and the cached prefix: requests that have all of these in common
    /// go together. Those without a cached prefix have nothing to share.
    fn group(&self) -> Option<(Turn, i64, BlockHash)> {
        Some((self.key.turn, self.key.priority, self.prefix?))
    }
}

impl Srjf {
    /// Returns a policy in which a waiter's score falls by `fairness` tokens per second, and steps are
    /// full enough with `saturation` tokens. Requests count by the time that they take if `service`
    /// says it.
    #[must_use]
    pub fn new(fairness: u32, saturation: u32, service: Option<ServiceTime>) -> Self {
        let token_cost = service.map_or(1, |service| {
            let full = nanos(service.prefill_ms(saturation, saturation));
            (full / u64::from(saturation.max(1))).max(1)
        });
        Self {
            service,
            // Half of what fits, so that no score overflows.
            fairness: u64::from(fairness)
                .saturating_mul(token_cost)
                .min(u64::MAX / 2),
            saturation,
            places: Places::default(),
            recalibrations: 0,
        }
    }

    /// Returns the score of a request: the lowest score runs first.
    fn score(&self, cost: &Cost, arrival: Timestamp) -> u128 {
        let waited = u128::from(self.fairness) * u128::from(arrival.as_nanos());
        let cost = self
            .service
            .map_or(cost.tokens, |service| nanos(service.step_ms(&cost.work())));
        u128::from(cost) * 1_000_000_000 + waited
    }

    fn follow(&mut self, view: &QueueView<'_>) {
        for &(request, change) in view.changed() {
            let before = self.places.take(request);
            let oneshot = change.and_then(|change| Some((change.oneshot?, change.cost)));
            let Some((waiting, cost)) = oneshot else {
                continue;
            };
            let key = Key {
                turn: waiting.turn,
                priority: waiting.priority,
                score: self.score(&cost, waiting.arrival),
                arrival: waiting.arrival,
                request,
            };
            self.recalibrations += u64::from(before.is_some_and(|b| b.key.score != key.score));
            let place = Place {
                key,
                tokens: cost.tokens,
                prefix: cost.prefix,
            };
            self.places.put(request, place);
        }
    }

    /// Returns the first in line, then those that share its cached prefix as far as the step has room
    /// for them before it is full enough, then the others.
    fn line(&self) -> impl Iterator<Item = RequestId> {
        let ahead = self.ahead();
        let rank: BTreeSet<Key> = ahead.iter().copied().collect();
        let all = &self.places.orders().all;
        let others = all.iter().filter(move |key| !rank.contains(key));
        let line = ahead.into_iter().chain(others.copied());
        line.map(|key| key.request)
    }

    /// Returns the first in line and those that go with it.
    fn ahead(&self) -> Vec<Key> {
        let orders = self.places.orders();
        let Some(first) = orders.all.first() else {
            return Vec::new();
        };
        let place = self.places[first.request];
        let Some(group) = place.group() else {
            return vec![*first];
        };
        let mut tokens = 0;
        let fits = |key: &&Key| {
            tokens += self.places[key.request].tokens;
            *key == first || tokens <= u64::from(self.saturation)
        };
        orders.by_prefix[&group]
            .iter()
            .take_while(fits)
            .copied()
            .collect()
    }
}

/// Returns a time in nanoseconds; saturates.
fn nanos(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

impl SchedulerPolicy for Srjf {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        self.follow(view);
        let grant = |request| budget.grant(request);
        Plan {
            oneshot: self.line().take(budget.rows as usize).map(grant).collect(),
            decode: Fcfs.plan(view, budget).decode,
            enough_tokens: Some(self.saturation),
            ..Plan::default()
        }
    }

    fn follows_costs(&self) -> bool {
        true
    }

    fn recalibrations(&self) -> u64 {
        self.recalibrations
    }
}
