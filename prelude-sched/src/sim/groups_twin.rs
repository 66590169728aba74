//! Groups by cached share as their definition reads: every plan sorts the whole queue anew.

use std::collections::BTreeMap;

use prelude_core::RequestId;

use crate::{
    Grant, Groups, Plan, QueueView, SchedulerPolicy, StepBudget, Turn, Waiting,
    policy::{group_of, parts},
};

/// Plans with [`Groups`] and holds every plan against a rescan.
#[derive(Debug, Default)]
pub(super) struct CheckedGroups(Groups);

/// The waiting requests by priority and group, first come first.
type Sorted = BTreeMap<(Turn, i64), BTreeMap<u32, Vec<RequestId>>>;

fn sorted<'a>(view: &QueueView<'_>, waiting: impl Iterator<Item = &'a Waiting>) -> Sorted {
    let mut waiting: Vec<&Waiting> = waiting.collect();
    waiting.sort_by_key(|w| (w.arrival, w.request));
    let mut sorted = Sorted::new();
    for w in waiting {
        // The policy has not heard of the others.
        let Some(cost) = view.cost(w.request) else {
            continue;
        };
        let level = sorted.entry((w.turn, w.priority)).or_default();
        let group = level.entry(group_of(cost.prompt)).or_default();
        group.push(w.request);
    }
    sorted
}

/// Checks that a plan has the right number of each group, in order of arrival, and that a request
/// that has a better priority comes before.
fn check(mut planned: &[RequestId], sorted: &Sorted, mut places: usize) {
    for level in sorted.values() {
        let sizes: BTreeMap<u32, usize> = level.iter().map(|(&g, of)| (g, of.len())).collect();
        let parts = parts(&sizes, places);
        let of_level: usize = parts.values().sum();
        let (mine, rest) = planned.split_at(of_level);
        let (mut more, mut fewer) = (0, 0);
        for (group, line) in level {
            let found: Vec<_> = mine
                .iter()
                .filter(|id| line.contains(id))
                .copied()
                .collect();
            assert_eq!(found, line[..found.len()], "first come, first served");
            more += found.len().saturating_sub(parts[group]);
            fewer += parts[group].saturating_sub(found.len());
        }
        // One place may go to a group that was passed over for long.
        assert!(more <= 1 && more == fewer, "{more} and {fewer} places");
        (planned, places) = (rest, places - of_level);
    }
    assert!(planned.is_empty(), "a request is planned twice, or unknown");
}

impl SchedulerPolicy for CheckedGroups {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let plan = self.0.plan(view, budget);
        let ids = |grants: &[Grant]| grants.iter().map(|g| g.request).collect::<Vec<_>>();
        let oneshot = sorted(view, view.oneshot());
        check(&ids(&plan.oneshot), &oneshot, budget.rows as usize);
        let decode = sorted(view, view.decode());
        check(&ids(&plan.decode), &decode, budget.seqs as usize);
        plan
    }

    fn follows_costs(&self) -> bool {
        true
    }
}
