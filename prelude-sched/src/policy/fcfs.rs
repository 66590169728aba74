//! First come, first served, but for deadlines.

use crate::{Plan, QueueView, SchedulerPolicy, StepBudget, Waiting};

/// Priority first, then deadline, then arrival, then order of submission. No deadline counts as one
/// of 30 s after arrival, and so does a later one.
///
/// Among requests of one priority without deadlines within 30 s a request starts no later than when
/// all of its class that came before it have started and left it room. A steady load of better
/// priority, or of shorter deadlines, holds a worse one up until it is [overdue](crate::Turn).
#[derive(Clone, Copy, Debug, Default)]
pub struct Fcfs;

impl SchedulerPolicy for Fcfs {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let grant = |w: &Waiting| budget.grant(w.request);
        Plan {
            // Each request starts at least one row, so more of them cannot be taken up.
            oneshot: view
                .oneshot()
                .take(budget.rows as usize)
                .map(grant)
                .collect(),
            decode: view
                .decode()
                .take(budget.seqs as usize)
                .map(grant)
                .collect(),
            ..Plan::default()
        }
    }
}
