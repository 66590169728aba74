//! The room that each execution class has in a step.

use std::time::Duration;

use prelude_core::SeqId;

use super::Scheduler;
use crate::{Plan, Unfinished, length::length_of, step::Draft};

/// The classes that have work for the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) oneshot: bool,
    /// Generations that decode.
    pub(super) decode: bool,
    /// Prompts of generations.
    pub(super) prefill: bool,
}

impl Demand {
    pub(super) const fn both(self) -> bool {
        self.oneshot && (self.decode || self.prefill)
    }
}

/// The prompt tokens that each class may compute in the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rooms {
    pub(super) oneshot: u32,
    pub(super) prefill: u32,
}

/// Shared steps in which prompts of generations leave room to a one-shot row that found too little.
/// With one, the row may need a pass of its own in that step, as generations decode in it, and none
/// in the step after it. No generation begins to decode meanwhile, so the second has room for it.
pub(super) const OWED_STEPS: u32 = 2;

/// Milliseconds of a slice where neither settings nor the executor say.
const DEFAULT_SLICE_MS: u32 = 20;

impl Scheduler {
    /// Returns the time for which one-shot work may keep other work waiting at once.
    pub(super) fn slice_time(&self) -> Duration {
        let of_device = self.capacity.passes.map(|room| room.slice_ms);
        let ms = self.config.slice_ms.or(of_device);
        Duration::from_millis(ms.unwrap_or(DEFAULT_SLICE_MS).into())
    }

    /// Returns which classes have work that the step could take up.
    pub(super) fn demand(
        &self,
        draft: &Draft,
        plan: &Plan,
        unfinished: &[(SeqId, Unfinished)],
        decoding: usize,
    ) -> Demand {
        let is_decode = |id: &SeqId| self.seqs[id].is_decode();
        let goes_on = |(id, _): &(SeqId, Unfinished)| is_decode(id) && !draft.paused.contains(id);
        let slots = self.running_decode < self.max_seqs;
        let admits = slots && (!plan.decode.is_empty() || self.preempted_decode > 0);
        let chunked = self.running.len() - self.running_decode as usize;
        let paused = draft.paused.iter().filter(|id| !is_decode(id)).count();
        let chunked_waits =
            chunked > paused || self.preempted.len() > self.preempted_decode as usize;
        Demand {
            oneshot: chunked_waits || !plan.oneshot.is_empty() || !self.passes.is_empty(),
            decode: decoding > 0,
            prefill: admits || unfinished.iter().any(goes_on),
        }
    }

    /// Returns the prompt tokens that each class may compute in the step.
    pub(super) fn rooms(&mut self, draft: &Draft, demand: Demand, sits_out: bool) -> Rooms {
        let room = draft.tokens;
        if sits_out || !demand.oneshot {
            return Rooms {
                oneshot: 0,
                prefill: room,
            };
        }
        if !demand.both() {
            return Rooms {
                oneshot: room,
                prefill: 0,
            };
        }
        let slice = self.slice_time();
        // Before any step has shown how long a token takes, a class has its share of the tokens.
        let share = u64::from(room) * u64::from(self.config.oneshot_share_percent) / 100;
        let share = length_of(share as usize);
        let time = self.shares.oneshot_time(slice);
        let oneshot = self.shares.tokens_in(time).unwrap_or(share);
        // At least one token, or a small share of a small step would be none for ever.
        let oneshot = oneshot.clamp(1, room);
        let prefill = match self.shares.tokens_in(slice) {
            _ if self.owed_steps > 0 => {
                self.owed_steps -= 1;
                0
            }
            Some(tokens) => tokens.min(room),
            None => room - oneshot,
        };
        Rooms { oneshot, prefill }
    }
}
