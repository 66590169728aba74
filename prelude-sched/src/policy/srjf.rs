//! Shortest remaining job first, calibrated by what the prefix cache holds now.

use std::collections::{BTreeMap, BTreeSet};

use prelude_core::{RequestId, Timestamp};
use prelude_kv::BlockHash;

use super::{Fcfs, Grant, Plan, QueueView, SchedulerPolicy, StepBudget};

/// One-shot requests by priority, then by `tokens to compute - fairness * seconds waited`, the
/// lowest first (PrefillOnly §4.2: shortest job first with continuous calibration). Generations
/// are admitted as [`Fcfs`] does.
///
/// What a request costs is what is *not* in the prefix cache at this moment, so those whose prefix
/// was just computed come next, before it is evicted. All scores fall at the same rate, so their
/// order is that of `tokens + fairness * arrival`, which only a changed cache changes: a step looks
/// at the requests that were touched since the last one and at those it takes up, not at the whole
/// queue.
///
/// A request of the same priority that has `m` tokens to compute overtakes one that came before it
/// and has `M` only if it came at most `(M - m) / fairness` seconds later: so none starves.
///
/// Of the paper's choices: a score is in tokens, so fairness is in tokens per second; and rather
/// than one request at a time, a step takes up requests until it is full, first those that share
/// the first one's cached prefix.
#[derive(Debug)]
pub struct Srjf {
    /// Tokens per second of waiting, at least 1.
    fairness: u32,
    order: BTreeMap<Key, RequestId>,
    places: BTreeMap<RequestId, Place>,
    by_prefix: BTreeMap<(i64, BlockHash), BTreeSet<Key>>,
    recalibrations: u64,
}

/// Place in the order. Unique, since ids are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    priority: i64,
    /// Billionths of a token: exact, so that the order is the same everywhere.
    score: u128,
    arrival: Timestamp,
    request: RequestId,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    key: Key,
    prefix: Option<BlockHash>,
}

impl Srjf {
    /// With a waiter's score falling by `fairness` tokens per second.
    ///
    /// # Panics
    /// If that is 0: long requests would starve.
    #[must_use]
    pub fn new(fairness: u32) -> Self {
        assert!(fairness > 0, "long requests would starve");
        Self {
            fairness,
            order: BTreeMap::new(),
            places: BTreeMap::new(),
            by_prefix: BTreeMap::new(),
            recalibrations: 0,
        }
    }

    /// Lower runs first.
    fn score(&self, tokens: u64, arrival: Timestamp) -> u128 {
        let waited = u128::from(self.fairness) * u128::from(arrival.as_nanos());
        u128::from(tokens) * 1_000_000_000 + waited
    }

    fn remove(&mut self, request: RequestId) -> Option<Place> {
        let place = self.places.remove(&request)?;
        self.order.remove(&place.key);
        let Some(prefix) = place.prefix else {
            return Some(place);
        };
        let group = (place.key.priority, prefix);
        if let Some(keys) = self.by_prefix.get_mut(&group) {
            keys.remove(&place.key);
            if keys.is_empty() {
                self.by_prefix.remove(&group);
            }
        }
        Some(place)
    }

    fn insert(&mut self, place: Place) {
        let Place { key, prefix } = place;
        self.order.insert(key, key.request);
        self.places.insert(key.request, place);
        // Those without a cached prefix have nothing to share.
        if let Some(prefix) = prefix {
            let group = (key.priority, prefix);
            self.by_prefix.entry(group).or_default().insert(key);
        }
    }

    fn follow(&mut self, view: &QueueView<'_>) {
        for &(request, change) in view.changed() {
            let before = self.remove(request);
            let Some((waiting, cost)) = change else {
                continue;
            };
            let key = Key {
                priority: waiting.priority,
                score: self.score(cost.tokens, waiting.arrival),
                arrival: waiting.arrival,
                request,
            };
            self.recalibrations += u64::from(before.is_some_and(|b| b.key != key));
            self.insert(Place {
                key,
                prefix: cost.prefix,
            });
        }
    }

    /// The first in line, then those that share its cached prefix, then the others.
    fn line(&self) -> impl Iterator<Item = RequestId> {
        let first = self.order.keys().next();
        let group = first.and_then(|key| {
            let prefix = self.places[&key.request].prefix?;
            self.by_prefix.get(&(key.priority, prefix))
        });
        let others = self.order.keys();
        let others = others.filter(move |key| group.is_none_or(|group| !group.contains(key)));
        let sharing = group.into_iter().flatten();
        sharing.chain(others).map(|key| key.request)
    }
}

impl SchedulerPolicy for Srjf {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        self.follow(view);
        let grant = |request| Grant {
            request,
            tokens: budget.tokens,
        };
        Plan {
            oneshot: self.line().take(budget.rows as usize).map(grant).collect(),
            decode: Fcfs.plan(view, budget).decode,
        }
    }

    fn follows_costs(&self) -> bool {
        true
    }

    fn recalibrations(&self) -> u64 {
        self.recalibrations
    }
}
