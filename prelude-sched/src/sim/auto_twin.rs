//! The order by time as its definition reads: every plan looks at the whole queue anew.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use prelude_core::{RequestId, ServiceTime, Timestamp};

use crate::{Auto, Grant, Plan, QueueView, SchedulerPolicy, StepBudget, StepTime, Turn, Waiting};

/// The times in nanoseconds until which overdue requests have had their part of the device: one-shot
/// requests, and generations.
pub(super) type HadTheirs = Arc<[AtomicU64; 2]>;

/// Plans with [`Auto`] and holds every plan against that of a rescan. Which times steps take is learnt;
/// of what follows from it this checks the bounds.
#[derive(Debug)]
pub(super) struct CheckedAuto {
    inner: Auto,
    until: HadTheirs,
}

impl CheckedAuto {
    pub(super) fn new(service: Option<ServiceTime>, until: HadTheirs) -> Self {
        Self {
            inner: Auto::new(service),
            until,
        }
    }

    /// Returns those that wait in one queue and that the policy has heard of, in order.
    fn line<'a>(
        &self,
        view: &QueueView<'_>,
        waiting: impl Iterator<Item = &'a Waiting>,
        class: usize,
        enough: u64,
    ) -> Vec<RequestId> {
        let key = |w: &Waiting| {
            let (takes, due, start_by) = self.inner.place_of(class, w.request).expect("it waits");
            assert!(
                w.arrival.saturating_add(takes * 20) <= due,
                "{w:?}: {due:?}"
            );
            assert!(
                due <= w.arrival.saturating_add(takes * 100),
                "{w:?}: {due:?}"
            );
            let is_late = start_by.is_some_and(|by| by < view.now());
            (w.priority, is_late, due, w.arrival, w.request)
        };
        let cost = |w: &Waiting| view.cost(w.request);
        let mut waiting: Vec<&Waiting> = waiting.filter(|w| cost(w).is_some()).collect();
        waiting.sort_by_key(|w| key(w));
        let may_be_first = view.now().as_nanos() >= self.until[class].load(Ordering::Relaxed);
        let overdue = waiting.iter().position(|w| w.turn == Turn::Overdue);
        let overdue = overdue.filter(|_| may_be_first);
        let mut line = Vec::new();
        if !waiting.is_empty() {
            let first = waiting.remove(overdue.unwrap_or(0));
            let group = |w: &Waiting| cost(w).and_then(|cost| Some((w.priority, cost.prefix?)));
            let mut tokens = cost(first).map_or(0, |cost| cost.tokens);
            line.push(first);
            for w in waiting.clone() {
                if group(w).is_none() || group(w) != group(first) {
                    continue;
                }
                tokens += cost(w).map_or(0, |cost| cost.tokens);
                if overdue.is_none() && tokens > enough {
                    break;
                }
                line.push(w);
            }
            waiting.retain(|w| !line.contains(w));
        }
        line.into_iter().chain(waiting).map(|w| w.request).collect()
    }
}

impl SchedulerPolicy for CheckedAuto {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let plan = self.inner.plan(view, budget);
        let goes_on =
            |request| { view.unfinished().iter() }.any(|prompt| prompt.request == request);
        assert!(
            self.inner.begun().all(goes_on),
            "remembers a prompt that has ended"
        );
        for (until, now) in self.until.iter().zip(self.inner.overdue_from()) {
            until.store(Timestamp::as_nanos(now), Ordering::Relaxed);
        }
        let planned = |grants: &[Grant]| -> Vec<RequestId> {
            grants.iter().map(|grant| grant.request).collect()
        };
        let enough = plan.enough_tokens.map_or(u64::MAX, u64::from);
        let mut line = self.line(view, view.oneshot(), 0, enough);
        line.truncate(budget.rows as usize);
        assert_eq!(planned(&plan.oneshot), line, "not the order of a rescan");
        let mut line = self.line(view, view.decode(), 1, enough);
        // Prompts that no step computes whole wait while eight of generations are under way.
        let under_way = { view.unfinished().iter() }.filter(|prompt| prompt.generates);
        if under_way.count() >= 8 {
            let tokens = |id: RequestId| view.cost(id).map_or(0, |cost| cost.tokens);
            line.retain(|&id| tokens(id) <= u64::from(budget.tokens) / 4);
        }
        line.truncate(budget.seqs as usize);
        assert_eq!(planned(&plan.decode), line, "not the order of a rescan");
        plan
    }

    fn completed(&mut self, step: &StepTime) {
        self.inner.completed(step);
    }

    fn follows_costs(&self) -> bool {
        true
    }

    fn recalibrations(&self) -> u64 {
        self.inner.recalibrations()
    }
}
