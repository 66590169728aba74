//! Turns of prompts in chunks, held against what was seen of each prompt.

use std::collections::BTreeMap;

use prelude_core::{RequestId, Timestamp};

use crate::{Plan, QueueView, RoundRobin, SchedulerPolicy, StepBudget};

/// Plans with [`RoundRobin`] and checks every plan: no prompt sits out a step in which one goes on
/// that got on later.
pub(super) struct CheckedRoundRobin {
    policy: RoundRobin,
    /// The contexts of each request's prompts, and the time at which they were first seen like this.
    seen: BTreeMap<RequestId, (Vec<u32>, Timestamp)>,
}

impl CheckedRoundRobin {
    pub(super) const fn new(chunk_tokens: u32) -> Self {
        Self {
            policy: RoundRobin::new(chunk_tokens),
            seen: BTreeMap::new(),
        }
    }
}

impl SchedulerPolicy for CheckedRoundRobin {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let plan = self.policy.plan(view, budget);
        let mut contexts: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        for prompt in view.unfinished() {
            contexts
                .entry(prompt.request)
                .or_default()
                .push(prompt.context);
        }
        let since = |(request, contexts): (RequestId, Vec<u32>)| {
            let before = self.seen.get(&request).filter(|seen| seen.0 == contexts);
            (
                request,
                (contexts, before.map_or_else(|| view.now(), |seen| seen.1)),
            )
        };
        self.seen = contexts.into_iter().map(since).collect();
        let Some(going) = &plan.chunks else {
            return plan;
        };
        let advanced = |request: &RequestId| self.seen[request].1;
        let latest_going = going.iter().map(advanced).max();
        let paused = { self.seen.keys() }.filter(|request| !going.contains(request));
        let first_paused = paused.map(advanced).min();
        if let (Some(latest), Some(first)) = (latest_going, first_paused) {
            assert!(latest <= first, "{latest:?} goes before {first:?}");
        }
        let nothing_waits = view.oneshot().next().is_none() && view.decode().next().is_none();
        let stands = going.is_empty() && nothing_waits && !self.seen.is_empty();
        assert!(!stands || budget.tokens == 0, "all stand still");
        plan
    }
}
