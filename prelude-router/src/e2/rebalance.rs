//! Moving and copying prefixes between endpoints (Preble §3.2, *load management*).
//!
//! What an endpoint has to do is given by the prefixes that it caches, so where one has much more
//! to do than another, prefixes move: requests that begin with one are sent to the other from
//! then on. A prefix that is too large for that is copied.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use prelude_core::Timestamp;

use super::window::{Entry, Window};
use crate::{
    config::RebalanceConfig,
    endpoint::{EndpointId, Fleet},
    index::{Index, NodeId, Override},
    service::Cost,
};

/// Most delays that are remembered of an endpoint.
const DELAYS: usize = 4096;

/// Most requests of the window that one look reads: of more, one in so many counts for all of
/// them. At 100 ns each a look takes less than a millisecond, however long the window is.
const MAX_SAMPLES: usize = 8192;

/// Most requests of the window that are charged anew at one pick, for the same reason.
const CHARGES_PER_PICK: u64 = 256;

/// The time between two looks at the balance of loads.
const INTERVAL: Duration = Duration::from_secs(1);

/// Samples of the queueing delay in each half of the window before a prefix is copied.
const DELAY_SAMPLES: u32 = 8;

/// Growth of the mean delay, from the older half of the window to the newer one, that copies a
/// prefix.
const DELAY_GROWTH: f64 = 2.0;

/// Share of a prefix's requests below which an endpoint, for a whole window, loses its copy.
const DROP_SHARE: f64 = 0.05;

/// A node moves at most once in this part of the window.
const MOVES_PER_WINDOW: u32 = 6;

/// The prefixes that can move away from each endpoint, with what they cost it.
type Prefixes = BTreeMap<EndpointId, VecDeque<(Cost, NodeId)>>;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Rebalance {
    config: RebalanceConfig,
    span: Duration,
    /// When to look next.
    due: Timestamp,
    /// Nodes that were moved or copied; some of them have gone since.
    moved: BTreeSet<NodeId>,
    /// How long requests waited, in milliseconds.
    delays: BTreeMap<EndpointId, VecDeque<(Timestamp, f64)>>,
    charging: Option<Charging>,
}

/// Requests of the window that are still to be charged to the endpoints that their prefixes have
/// moved to.
#[derive(Clone, Copy, Debug)]
struct Charging {
    /// When the prefixes were moved.
    since: Timestamp,
    /// The numbers of the next request to look at, and of the first that came after the moves.
    next: u64,
    end: u64,
}

impl Rebalance {
    pub(super) fn new(config: RebalanceConfig, span: Duration) -> Self {
        Self {
            config,
            span,
            due: Timestamp::ZERO,
            moved: BTreeSet::new(),
            delays: BTreeMap::new(),
            charging: None,
        }
    }

    pub(super) fn note_delay(&mut self, now: Timestamp, endpoint: EndpointId, ms: f64) {
        let delays = self.delays.entry(endpoint).or_default();
        delays.push_back((now, ms));
        while let Some(&(at, _)) = delays.front()
            && (delays.len() > DELAYS || now.saturating_since(at) >= self.span)
        {
            delays.pop_front();
        }
    }

    pub(super) fn leave(&mut self, endpoint: EndpointId) {
        self.delays.remove(&endpoint);
        // Its requests have gone, and the others have new numbers. Nothing is charged twice.
        if let Some(charging) = &mut self.charging {
            charging.next = 0;
        }
    }

    /// Looks whether anything should move, if it is time. Each call does a bounded amount of work.
    pub(super) fn pass(
        &mut self,
        now: Timestamp,
        fleet: &Fleet,
        index: &mut Index,
        window: &mut Window,
    ) {
        if self.charging.is_some() {
            return self.charge_some(index, window);
        }
        if now < self.due {
            return;
        }
        self.due = now.saturating_add(INTERVAL);
        self.end_overrides(now, index);
        let requests: u64 = window.loads().iter().map(|l| l.requests).sum();
        let enough = u64::from(self.config.min_requests) * fleet.endpoints().len() as u64;
        if requests < enough {
            return;
        }
        let loads = window.loads().iter().map(|l| (l.endpoint, l.sum));
        self.balance(now, fleet, loads.collect(), index, window);
        self.charge_some(index, window);
    }

    /// Moves prefixes until no endpoint has too much to do, or nothing can be moved.
    fn balance(
        &mut self,
        now: Timestamp,
        fleet: &Fleet,
        mut loads: Vec<(EndpointId, Cost)>,
        index: &mut Index,
        window: &Window,
    ) {
        let mut prefixes = None;
        // Each time, one prefix at the least is moved, and none twice.
        while let Some((heavy, light)) = self.unbalanced(fleet, &loads) {
            let prefixes = prefixes.get_or_insert_with(|| self.prefixes(now, index, window));
            let (from, to) = (loads[heavy].0, loads[light].0);
            let movable = prefixes.entry(from).or_default();
            let mut has_moved = false;
            while let Some(&(cost, id)) = movable.front() {
                let less = loads[heavy].1.0.saturating_sub(cost.0);
                let more = loads[light].1 + cost;
                // Not if that would only make the other one too busy.
                if less < more.0 {
                    break;
                }
                movable.pop_front();
                self.put(now, id, from, &[to], index);
                (loads[heavy].1, loads[light].1) = (Cost(less), more);
                has_moved = true;
            }
            if !has_moved {
                if let (1, Some(&(_, id))) = (movable.len(), movable.front())
                    && self.has_delay_grown(now, from)
                {
                    self.put(now, id, from, &[from, to], index);
                }
                return;
            }
            self.charging = Some(Charging {
                since: now,
                next: window.numbers().start,
                end: window.numbers().end,
            });
        }
    }

    /// Charges some requests of the window to the endpoints that their prefixes have moved to.
    fn charge_some(&mut self, index: &Index, window: &mut Window) {
        let Some(charging) = &mut self.charging else {
            return;
        };
        let end = charging.end.min(charging.next + CHARGES_PER_PICK);
        let since = charging.since;
        window.charge(charging.next..end, |entry| moved_to(index, entry, since));
        charging.next = end.max(window.numbers().start);
        if charging.next >= charging.end {
            self.charging = None;
        }
    }

    /// Returns the positions of the greatest and of the least load, if they differ too much.
    fn unbalanced(&self, fleet: &Fleet, loads: &[(EndpointId, Cost)]) -> Option<(usize, usize)> {
        let healthy = || {
            let all = loads.iter().zip(fleet.endpoints()).enumerate();
            all.filter(|(_, (_, endpoint))| endpoint.is_healthy())
        };
        let sum = |&(at, (&(_, sum), _)): &(usize, (&(EndpointId, Cost), _))| (sum, at);
        let (heavy, (most, _)) = healthy().max_by_key(|l| (sum(l).0, Reverse(sum(l).1)))?;
        let (light, (least, _)) = healthy().min_by_key(sum)?;
        let threshold = self.config.threshold * least.1.as_ms();
        (most.1.as_ms() > threshold).then_some((heavy, light))
    }

    /// Returns the prefixes that make the load of each endpoint and can move, cheapest first: the
    /// key portions of two requests or more.
    ///
    /// A request counts for its own key portion alone. Were it to count for each node that is
    /// longer than all before it, as the first node of every prompt is, then a start that all
    /// prompts share would be a prefix of every request, and a hot document never the only one.
    fn prefixes(&self, now: Timestamp, index: &Index, window: &Window) -> Prefixes {
        let stride = window.len().div_ceil(MAX_SAMPLES).max(1);
        let mut costs: BTreeMap<(EndpointId, NodeId), (Cost, u32)> = BTreeMap::new();
        for entry in window.entries().step_by(stride) {
            if let Some(leaf) = entry.leaf {
                let key = (entry.charged, index.key_portion(leaf));
                let (cost, requests) = costs.entry(key).or_default();
                *cost += entry.cost().scaled(stride as u64, 1);
                *requests += 1;
            }
        }
        let rest = self.span / MOVES_PER_WINDOW;
        let can_move = |id: NodeId| {
            let moved = index.redirect(id).map(|redirect| redirect.since);
            moved.is_none_or(|since| now.saturating_since(since) >= rest)
                && !index.is_deep_below(id, self.config.max_chain)
        };
        let mut prefixes = Prefixes::new();
        for ((endpoint, id), (cost, requests)) in costs {
            if requests >= 2 && can_move(id) {
                prefixes.entry(endpoint).or_default().push_back((cost, id));
            }
        }
        for movable in prefixes.values_mut() {
            movable.make_contiguous().sort_unstable();
        }
        prefixes
    }

    fn put(
        &mut self,
        now: Timestamp,
        id: NodeId,
        from: EndpointId,
        members: &[EndpointId],
        index: &mut Index,
    ) {
        *index.redirect_mut(id) = Some(Box::new(Override::new(now, from, members)));
        self.moved.insert(id);
    }

    /// Ends overrides that no request asked for within the window, and copies that are hardly used.
    fn end_overrides(&mut self, now: Timestamp, index: &mut Index) {
        let span = self.span;
        self.moved.retain(|&id| {
            if index.redirect(id).is_none() {
                return false;
            }
            let windows: Vec<_> = index.windows(id).collect();
            let total: u32 = windows.iter().map(|(_, count)| count).sum();
            let redirect = index.redirect_mut(id);
            let Some(members) = redirect.as_deref_mut().map(|r| &mut r.members) else {
                return false;
            };
            if members.len() > 1 {
                members.retain(|(endpoint, low_since)| {
                    let own = windows.iter().find(|(of, _)| of == endpoint);
                    let own = own.map_or(0, |(_, count)| *count);
                    if f64::from(own) >= DROP_SHARE * f64::from(total) {
                        *low_since = None;
                        return true;
                    }
                    let since = *low_since.get_or_insert(now);
                    now.saturating_since(since) < span
                });
            }
            let lives = total > 0 && !members.is_empty();
            if !lives {
                *redirect = None;
            }
            lives
        });
    }

    /// Returns whether requests wait longer at an endpoint in the newer half of the window.
    fn has_delay_grown(&self, now: Timestamp, endpoint: EndpointId) -> bool {
        let Some(delays) = self.delays.get(&endpoint) else {
            return false;
        };
        let mean = |is_newer: bool| {
            let half = self.span / 2;
            let within = delays
                .iter()
                .filter(|(at, _)| now.saturating_since(*at) < self.span);
            let some = within.filter(|(at, _)| (now.saturating_since(*at) < half) == is_newer);
            let (sum, count) = some.fold((0.0, 0), |(sum, count), (_, ms)| (sum + ms, count + 1));
            (count >= DELAY_SAMPLES).then(|| sum / f64::from(count))
        };
        match (mean(false), mean(true)) {
            (Some(older), Some(newer)) => newer > 0.0 && newer >= DELAY_GROWTH * older,
            _ => false,
        }
    }
}

/// Returns the endpoint that a request's prefix was moved to at a time, if it was.
fn moved_to(index: &Index, entry: &Entry, since: Timestamp) -> Option<EndpointId> {
    let leaf = entry.leaf?;
    let key = index.key_portion(leaf);
    // The key portion may have been split since, and then the rest of it has the override.
    let beyond = index.upward(leaf).take_while(|&id| id != key);
    let mut own = beyond.chain([key]).filter_map(|id| index.redirect(id));
    let redirect = own.find(|r| r.since == since && r.from == entry.charged)?;
    match redirect.members[..] {
        [(to, _)] => Some(to),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
