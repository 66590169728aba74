//! A policy that makes no sense, to show that it does no harm.

use prelude_core::RequestId;

use super::Random;
use crate::{Grant, Plan, QueueView, SchedulerPolicy, StepBudget, Waiting};

/// Grants at random: in any order, too much, too little, twice, to nobody. What it is asked to
/// order still gets on sooner or later.
#[derive(Debug)]
pub(super) struct Chaos {
    pub(super) random: Random,
}

impl SchedulerPolicy for Chaos {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        Plan {
            oneshot: self.grants(view.oneshot(), budget),
            decode: self.grants(view.decode(), budget),
            enough_tokens: None,
        }
    }
}

impl Chaos {
    fn grants<'a>(
        &mut self,
        waiting: impl Iterator<Item = &'a Waiting>,
        budget: StepBudget,
    ) -> Vec<Grant> {
        let mut grants = Vec::new();
        for waiting in waiting {
            let tokens = match self.random.in_range(0, 3) {
                0 => self.random.in_range(0, 8),
                1 => u32::MAX,
                _ => budget.tokens,
            };
            let request = match self.random.in_range(0, 7) {
                0 => RequestId(u64::MAX),
                _ => waiting.request,
            };
            let at = self.random.in_range(0, grants.len() as u32) as usize;
            for _ in 0..self.random.in_range(0, 2) {
                grants.insert(at, Grant { request, tokens });
            }
        }
        grants
    }
}
