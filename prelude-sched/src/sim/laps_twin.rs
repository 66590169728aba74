//! Length-aware prefill as its definition reads: every plan looks at the whole queue anew.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prelude_core::{RequestId, Timestamp};

use crate::{
    Grant, Laps, LapsConfig, Plan, QueueView, SchedulerPolicy, StepBudget, StepTime, Turn, Waiting,
    policy::Length,
};

/// Plans with [`Laps`] and holds every plan against a rescan. Whose turn it is and how long to wait
/// follow from what steps took; of these it checks the bounds.
#[derive(Debug)]
pub(super) struct CheckedLaps {
    inner: Laps,
    config: LapsConfig,
    /// Plans that waited.
    waits: Arc<AtomicU64>,
}

impl CheckedLaps {
    /// Times of steps are not known, so that the boundary is as configured.
    pub(super) fn new(config: LapsConfig, waits: Arc<AtomicU64>) -> Self {
        Self {
            inner: Laps::new(config.clone(), None),
            config,
            waits,
        }
    }

    fn length(&self, tokens: u64) -> Length {
        if tokens <= u64::from(self.config.boundary_tokens) {
            Length::Short
        } else {
            Length::Long
        }
    }

    fn tokens(view: &QueueView<'_>, request: RequestId) -> u64 {
        view.cost(request).expect("it waits").tokens
    }

    /// Returns the waiting requests of one length, as far as the policy has heard of them, with
    /// their tokens and when they have to start; what is kept of them is right.
    fn of<'a>(
        &self,
        view: &QueueView<'_>,
        waiting: impl Iterator<Item = &'a Waiting>,
        length: Length,
    ) -> Vec<(&'a Waiting, u64, Option<Timestamp>)> {
        let of = waiting.filter_map(|w| {
            let tokens = view.cost(w.request)?.tokens;
            let (kept, start_by) = self.inner.place_of(w.request).expect("it waits");
            assert_eq!(kept, self.length(tokens), "request {}", w.request);
            (kept == length).then_some((w, tokens, start_by))
        });
        of.collect()
    }

    /// Returns overdue requests, urgent ones, then the shortest by binary digits.
    fn line<'a>(
        &self,
        view: &QueueView<'_>,
        waiting: impl Iterator<Item = &'a Waiting>,
    ) -> Vec<RequestId> {
        let now = view.now();
        let slack = Duration::from_micros(u64::from(self.config.slack_us));
        let mut line = self.of(view, waiting, Length::Short);
        // Of a request's two kinds of work, one may be overdue.
        let turn = |w: &Waiting| {
            let all = view.oneshot().chain(view.decode());
            let of = all.filter(|other| other.request == w.request);
            of.map(|other| other.turn).min()
        };
        line.sort_by_key(|&(w, tokens, start_by)| {
            let urgent = start_by.filter(|&at| now <= at && at < now.saturating_add(slack));
            let digits = (1..=64).find(|&n| tokens >> n == 0);
            if turn(w) == Some(Turn::Overdue) {
                return (0, None, Some((i64::MIN, None, w.arrival)), w.request);
            }
            match urgent {
                Some(at) => (1, Some(at), None, w.request),
                None => (2, None, Some((w.priority, digits, w.arrival)), w.request),
            }
        });
        line.into_iter().map(|(w, ..)| w.request).collect()
    }

    fn check_short(&self, view: &QueueView<'_>, budget: StepBudget, plan: &Plan) {
        let mut rows = self.line(view, view.oneshot());
        rows.truncate(budget.rows as usize);
        assert_eq!(requests(&plan.oneshot), rows, "one-shot requests in order");
        let prompts = self.line(view, view.decode());
        let granted = requests(&plan.decode);
        assert!(prompts.starts_with(&granted), "generations in order");
        let most = u64::from(self.config.batch_tokens);
        let before_last = granted.iter().rev().skip(1);
        let sum: u64 = before_last.map(|&id| Self::tokens(view, id)).sum();
        assert!(granted.is_empty() || sum < most, "more than a batch");
        assert_eq!(plan.chunk_tokens, None);
        assert_eq!(plan.enough_tokens, Some(self.config.batch_tokens));
    }

    fn check_long(&self, view: &QueueView<'_>, plan: &Plan) {
        let chunks = plan.chunks.iter().flatten();
        let ids: BTreeSet<RequestId> = requests(&plan.oneshot)
            .into_iter()
            .chain(requests(&plan.decode))
            .chain(chunks.copied())
            .collect();
        assert!(ids.len() <= 1, "one long request at a time: {ids:?}");
        for grant in plan.oneshot.iter().chain(&plan.decode) {
            assert_eq!(self.length(Self::tokens(view, grant.request)), Length::Long);
            let is_long = |tokens: u32| self.length(tokens.into()) == Length::Long;
            let begun = view.unfinished().iter().any(|p| is_long(p.tokens));
            assert!(!begun, "what has begun goes first");
        }
        let waiting = view.oneshot().chain(view.decode());
        let waiting: BTreeSet<RequestId> = waiting.map(|w| w.request).collect();
        let is_lone = view.is_idle() && view.unfinished().is_empty() && waiting.len() == 1;
        let chunk = (!is_lone).then_some(self.config.chunk_tokens);
        assert_eq!(plan.chunk_tokens, chunk);
    }

    fn check_wait(&self, view: &QueueView<'_>, budget: StepBudget, until: Timestamp) {
        let now = view.now();
        let width = Duration::from_micros(u64::from(self.config.max_window_us));
        assert!(now < until && until <= now.saturating_add(width));
        assert!(view.unfinished().is_empty(), "a prompt stands still");
        assert!(self.of(view, view.oneshot(), Length::Long).is_empty());
        let prompts = self.of(view, view.decode(), Length::Long);
        assert!(prompts.is_empty() || budget.seqs == 0);
        let waiting = view.oneshot().chain(view.decode());
        let short = self.of(view, waiting, Length::Short);
        let is_overdue = |w: &Waiting| w.turn == Turn::Overdue;
        assert!(!short.iter().any(|(w, ..)| is_overdue(w)), "overdue");
        let head = short.iter().map(|(w, ..)| w.arrival).min();
        let head = head.expect("somebody short waits");
        assert!(until <= head.saturating_add(width * 2));
    }
}

fn requests(grants: &[Grant]) -> Vec<RequestId> {
    grants.iter().map(|grant| grant.request).collect()
}

impl SchedulerPolicy for CheckedLaps {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let plan = self.inner.plan(view, budget);
        let is_empty = plan.oneshot.is_empty()
            && plan.decode.is_empty()
            && plan.chunks.as_ref().is_none_or(Vec::is_empty);
        if let Some(until) = plan.wait_until {
            assert!(is_empty, "it waits and does not");
            self.check_wait(view, budget, until);
            self.waits.fetch_add(1, Ordering::Relaxed);
        } else if is_empty {
            let is_known = |w: &Waiting| view.cost(w.request).is_some();
            let could_start =
                view.oneshot().any(is_known) || (budget.seqs > 0 && view.decode().any(is_known));
            assert!(!could_start && view.unfinished().is_empty(), "idle");
        } else if plan.chunk_tokens.is_some() || plan.enough_tokens.is_none() {
            self.check_long(view, &plan);
        } else {
            self.check_short(view, budget, &plan);
        }
        plan
    }

    fn completed(&mut self, step: &StepTime) {
        self.inner.completed(step);
    }

    fn follows_costs(&self) -> bool {
        true
    }
}
