//! A policy that makes no sense, to show that it does no harm.

use std::time::Duration;

use prelude_core::RequestId;

use super::Random;
use crate::{Grant, Plan, QueueView, SchedulerPolicy, StepBudget, Waiting};

/// Grants at random: in any order, too much, too little, twice, to unknown requests; pauses
/// prompts, and waits for nothing. What it is asked to order still gets on.
#[derive(Debug)]
pub(super) struct Chaos {
    pub(super) random: Random,
}

impl SchedulerPolicy for Chaos {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let unfinished = view.unfinished().iter().map(|prompt| prompt.request);
        let going = unfinished.filter(|_| self.random.one_in(2)).collect();
        let waits = Duration::from_micros(u64::from(self.random.in_range(0, 100_000)));
        Plan {
            oneshot: self.grants(view.oneshot(), budget),
            decode: self.grants(view.decode(), budget),
            enough_tokens: self.random.one_in(4).then_some(0),
            chunks: self.random.one_in(2).then_some(going),
            chunk_tokens: (self.random.one_in(4)).then(|| self.random.in_range(0, 8)),
            wait_until: (self.random.one_in(3)).then(|| view.now().saturating_add(waits)),
            fills: self.random.one_in(2),
            prefill_tokens: (self.random.one_in(4)).then(|| self.random.in_range(0, 20)),
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
