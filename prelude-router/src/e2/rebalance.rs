//! Moving and copying prefixes between endpoints (Preble §3.2, *load management*).
//!
//! What an endpoint has to do is given by the prefixes that it caches, so where one has much more
//! to do than another, prefixes move: requests that begin with one are sent to the other from
//! then on. A prefix that is too large for that is copied.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use prelude_core::Timestamp;

use super::{
    Override,
    window::{Entry, Load, Window},
};
use crate::{
    config::RebalanceConfig,
    endpoint::{EndpointId, Fleet},
    index::{Index, NodeId},
    service::Cost,
};

/// Most delays that are remembered of an endpoint.
const DELAYS: usize = 4096;

/// A node moves at most once in this part of the window.
const MOVES_PER_WINDOW: u32 = 6;

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
}

impl Rebalance {
    pub(super) fn new(config: RebalanceConfig, span: Duration) -> Self {
        Self {
            config,
            span,
            due: Timestamp::ZERO,
            moved: BTreeSet::new(),
            delays: BTreeMap::new(),
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
    }

    /// Looks whether anything should move, if it is time.
    pub(super) fn pass(
        &mut self,
        now: Timestamp,
        fleet: &Fleet,
        index: &mut Index,
        window: &mut Window,
    ) {
        if now < self.due {
            return;
        }
        self.due = now.saturating_add(Duration::from_millis(self.config.interval_ms));
        self.end_overrides(now, index);
        let requests: u64 = window.loads().iter().map(|l| l.requests).sum();
        let enough = u64::from(self.config.min_requests) * fleet.endpoints().len() as u64;
        if requests < enough {
            return;
        }
        // Each time, one prefix at the least is moved, and none twice.
        while let Some((heavy, light)) = self.unbalanced(fleet, window) {
            let prefixes = self.prefixes(now, heavy.endpoint, index, window);
            let (from, to) = (heavy.endpoint, light.endpoint);
            let (mut heavy, mut light) = (heavy.sum, light.sum);
            let mut has_moved = false;
            for &(cost, id) in &prefixes {
                // Not if that would only make the other one too busy.
                if heavy.0.saturating_sub(cost.0) < light.0.saturating_add(cost.0) {
                    break;
                }
                self.put(now, id, &[to], index);
                let is_through = |entry: &Entry| goes_through(index, entry, id);
                // Less than it was, if a part of the prefix has moved before it.
                let charged = window.charge(from, to, is_through);
                heavy -= charged;
                light += charged;
                has_moved = true;
            }
            if !has_moved {
                if let [(_, id)] = prefixes[..]
                    && self.has_delay_grown(now, from)
                {
                    self.put(now, id, &[from, to], index);
                }
                return;
            }
        }
    }

    /// The endpoints with the greatest and with the least load, if they differ too much.
    fn unbalanced(&self, fleet: &Fleet, window: &Window) -> Option<(Load, Load)> {
        let healthy = fleet.endpoints().iter().zip(window.loads());
        let healthy = || {
            healthy
                .clone()
                .filter(|(e, _)| e.is_healthy())
                .map(|(_, l)| *l)
        };
        let heavy = healthy().max_by_key(|l| (l.sum, std::cmp::Reverse(l.endpoint)))?;
        let light = healthy().min_by_key(|l| (l.sum, l.endpoint))?;
        let most = self.config.threshold * light.sum.as_ms();
        (heavy.sum.as_ms() > most).then_some((heavy, light))
    }

    /// The prefixes that make the load of an endpoint and can move, cheapest first: those that
    /// are longer than all that is before them, with two or more requests.
    fn prefixes(
        &self,
        now: Timestamp,
        heavy: EndpointId,
        index: &Index,
        window: &Window,
    ) -> Vec<(Cost, NodeId)> {
        let mut costs: BTreeMap<NodeId, (Cost, u32)> = BTreeMap::new();
        for entry in window.entries().filter(|e| e.charged == heavy) {
            for id in entry.leaf.into_iter().flat_map(|leaf| index.upward(leaf)) {
                let (before, own) = index.granules(id);
                if own > before {
                    let (cost, requests) = costs.entry(id).or_default();
                    *cost += entry.cost();
                    *requests += 1;
                }
            }
        }
        let rest = self.span / MOVES_PER_WINDOW;
        let can_move = |id: NodeId| {
            let moved = index.redirect(id).map(|redirect| redirect.since);
            moved.is_none_or(|since| now.saturating_since(since) >= rest)
                && !index.is_deep_below(id, self.config.max_chain)
        };
        let several = costs
            .into_iter()
            .filter(|(_, (_, requests))| *requests >= 2);
        let mut prefixes: Vec<_> = several
            .filter(|(id, _)| can_move(*id))
            .map(|(id, (cost, _))| (cost, id))
            .collect();
        prefixes.sort_unstable();
        prefixes
    }

    fn put(&mut self, now: Timestamp, id: NodeId, members: &[EndpointId], index: &mut Index) {
        *index.redirect_mut(id) = Some(Box::new(Override::new(now, members)));
        self.moved.insert(id);
    }

    /// Ends overrides that nobody asked for within the window, and copies that are hardly used.
    fn end_overrides(&mut self, now: Timestamp, index: &mut Index) {
        let (share, span) = (self.config.drop_share, self.span);
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
                    if f64::from(own) >= share * f64::from(total) {
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

    /// Whether requests wait longer at an endpoint in the newer half of the window.
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
            (count >= self.config.delay_samples.max(1)).then(|| sum / f64::from(count))
        };
        match (mean(false), mean(true)) {
            (Some(older), Some(newer)) => newer > 0.0 && newer >= self.config.delay_growth * older,
            _ => false,
        }
    }
}

/// Whether a request's prompt begins with the one that ends at a node.
fn goes_through(index: &Index, entry: &Entry, id: NodeId) -> bool {
    let leaf = entry.leaf.into_iter();
    leaf.flat_map(|leaf| index.upward(leaf)).any(|of| of == id)
}

#[cfg(test)]
mod tests;
