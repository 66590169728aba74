//! Shortest job first as its definition reads: every plan scores the whole queue anew.

use prelude_core::{RequestId, ServiceTime, StepWork};

use crate::{Cost, Grant, Plan, QueueView, SchedulerPolicy, Srjf, StepBudget, Waiting};

/// Plans with [`Srjf`] and holds every plan against that of a rescan.
#[derive(Debug)]
pub(super) struct CheckedSrjf {
    inner: Srjf,
    fairness: u32,
    saturation: u32,
    service: Option<ServiceTime>,
}

impl CheckedSrjf {
    pub(super) fn new(fairness: u32, saturation: u32, service: Option<ServiceTime>) -> Self {
        Self {
            inner: Srjf::new(fairness, saturation, service),
            fairness,
            saturation,
            service,
        }
    }

    /// Returns the cost of a request, and that of one token: in nanoseconds or in tokens.
    fn costs(&self, cost: &Cost) -> (u64, u64) {
        let Some(service) = &self.service else {
            return (cost.tokens, 1);
        };
        let nanos = |work: &StepWork| (service.step_ms(work) * 1e6) as u64;
        let full = nanos(&StepWork::prompt(self.saturation, self.saturation));
        (
            nanos(&cost.work()),
            (full / u64::from(self.saturation)).max(1),
        )
    }

    /// Returns all that wait for a one-shot row and that the policy has heard of, in order.
    fn line(&self, view: &QueueView<'_>) -> Vec<RequestId> {
        let cost = |w: &Waiting| view.cost(w.request).expect("it waits for a row");
        let now = i128::from(view.now().as_nanos());
        // As a score that falls while a request waits, in billionths of a token or nanosecond.
        let score = |w: &Waiting| {
            let waited = now - i128::from(w.arrival.as_nanos());
            let (cost, of_token) = self.costs(&cost(w));
            let fairness = i128::from(self.fairness) * i128::from(of_token);
            i128::from(cost) * 1_000_000_000 - fairness * waited
        };
        let key = |w: &Waiting| (w.turn, w.priority, score(w), w.arrival, w.request);
        let is_known = |w: &&Waiting| view.cost(w.request).is_some();
        let mut waiting: Vec<&Waiting> = view.oneshot().filter(is_known).collect();
        waiting.sort_by_key(|w| key(w));
        if let Some(&first) = waiting.first()
            && let Some(prefix) = cost(first).prefix
        {
            let group = |w: &Waiting| {
                (w.turn, w.priority, cost(w).prefix) == (first.turn, first.priority, Some(prefix))
            };
            let mut tokens = 0;
            let mut has_room = true;
            let goes_ahead = |w: &&Waiting| {
                let member = group(w) && has_room;
                tokens += if member { cost(w).tokens } else { 0 };
                has_room &= tokens <= u64::from(self.saturation);
                w.request == first.request || (member && has_room)
            };
            let (ahead, rest): (Vec<&Waiting>, Vec<&Waiting>) =
                waiting.into_iter().partition(goes_ahead);
            waiting = [ahead, rest].concat();
        }
        waiting.into_iter().map(|w| w.request).collect()
    }
}

impl SchedulerPolicy for CheckedSrjf {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let plan = self.inner.plan(view, budget);
        let mut line = self.line(view);
        line.truncate(budget.rows as usize);
        let planned: Vec<RequestId> = plan.oneshot.iter().map(|g: &Grant| g.request).collect();
        assert_eq!(planned, line, "the order kept is not that of a rescan");
        assert_eq!(plan.enough_tokens, Some(self.saturation));
        plan
    }

    fn follows_costs(&self) -> bool {
        true
    }

    fn recalibrations(&self) -> u64 {
        self.inner.recalibrations()
    }
}
