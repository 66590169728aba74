//! Chunks in turns: prompts that are being computed take turns, a chunk at a time.

use std::collections::BTreeMap;

use prelude_core::{RequestId, Timestamp};

use super::{Plan, QueueView, SchedulerPolicy, StepBudget, Unfinished, Waiting};
use crate::Turn;

/// Round robin over prompts in chunks ("Production LLM serving", chapter 16, §16.5.3): every prompt
/// gets a chunk, and then goes behind all that waited by then. So a short prompt waits for one
/// chunk of each longer one, not for all of it, and long prompts end later than under
/// [`Fcfs`](crate::Fcfs), which brings to its end what it has begun.
///
/// A chunk has [`prefill_chunk_tokens`](crate::SchedulerConfig::prefill_chunk_tokens): it is below
/// `max_batch_tokens`, or one prompt fills a step. Prompts of generations and one-shot prompts are
/// cut alike. Requests that wait are in the order of [`Fcfs`](crate::Fcfs), overdue ones first; a
/// prompt that nothing waits beside is computed as under it.
///
/// All prompts that have begun hold blocks. When those run out, the youngest gives up its own and
/// is computed again: with memory for few prompts, fewer chunks are better than turns.
#[derive(Debug)]
pub struct RoundRobin {
    chunk_tokens: u32,
    /// The requests with unfinished prompts.
    prompts: BTreeMap<RequestId, Progress>,
}

/// The state of a request's unfinished prompts.
#[derive(Clone, Debug)]
struct Progress {
    /// The tokens before the next chunk of each prompt: their sum alone would not tell a prompt that
    /// got on beside one that began again.
    contexts: Vec<u32>,
    /// The time of the first plan after the prompt's last chunk.
    advanced: Timestamp,
}

impl RoundRobin {
    /// Returns a policy that computes at most so many tokens of a prompt in a step.
    #[must_use]
    pub const fn new(chunk_tokens: u32) -> Self {
        Self {
            chunk_tokens,
            prompts: BTreeMap::new(),
        }
    }

    /// Notes which prompts have got on since the last plan, and forgets those that ended.
    fn follow(&mut self, view: &QueueView<'_>) {
        let mut prompts: BTreeMap<RequestId, Progress> = BTreeMap::new();
        for prompt in view.unfinished() {
            let begins = Progress {
                contexts: Vec::new(),
                advanced: view.now(),
            };
            let progress = prompts.entry(prompt.request).or_insert(begins);
            progress.contexts.push(prompt.context);
        }
        for (request, progress) in &mut prompts {
            let stood = |before: &&Progress| before.contexts == progress.contexts;
            if let Some(before) = self.prompts.get(request).filter(stood) {
                progress.advanced = before.advanced;
            }
        }
        self.prompts = prompts;
    }

    /// Returns the requests whose unfinished prompts have their turn in a step of so many tokens,
    /// beside the waiting requests whose turn comes before theirs: the first one, and those whose
    /// chunk fits behind it.
    fn turns(&self, view: &QueueView<'_>, budget: u32) -> Vec<RequestId> {
        let mut prompts: Vec<(Timestamp, &Unfinished)> = { view.unfinished().iter() }
            .map(|prompt| (self.prompts[&prompt.request].advanced, prompt))
            .collect();
        prompts.sort_by_key(|(advanced, prompt)| (*advanced, prompt.arrival, prompt.request));
        let mut waiting = view.oneshot().chain(view.decode()).peekable();
        let (mut left, mut going) = (budget, Vec::new());
        for (advanced, prompt) in prompts {
            let is_before = |w: &&Waiting| w.turn == Turn::Overdue || w.arrival <= advanced;
            while left > 0
                && let Some(first) = waiting.next_if(is_before)
            {
                left = left.saturating_sub(self.chunk_of(view, first.request));
            }
            let chunk = prompt.tokens.min(self.chunk_tokens);
            if chunk > left && left < budget {
                break;
            }
            left = left.saturating_sub(chunk);
            going.push(prompt.request);
        }
        going
    }

    /// Returns the tokens of the first chunk of a waiting request, at least 1.
    fn chunk_of(&self, view: &QueueView<'_>, request: RequestId) -> u32 {
        let size = view.next_prompt(request);
        let new = size.map_or(1, |size| size.tokens.saturating_sub(size.cached));
        new.clamp(1, self.chunk_tokens)
    }
}

impl SchedulerPolicy for RoundRobin {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        self.follow(view);
        let plan = crate::Fcfs.plan(view, budget);
        let waiting = view.oneshot().chain(view.decode()).take(2).count();
        if self.prompts.len() + waiting < 2 {
            return plan;
        }
        Plan {
            chunks: Some(self.turns(view, budget.tokens)),
            chunk_tokens: Some(self.chunk_tokens),
            ..plan
        }
    }
}
