//! The interface of scheduling policies: a policy proposes, the scheduler disposes.

mod auto;
mod fcfs;
mod groups;
mod laps;
mod places;
mod round_robin;
mod srjf;

use std::{collections::BTreeSet, time::Duration};

use prelude_core::{RequestId, StepId, Timestamp};
use prelude_kv::KvCache;

pub use auto::Auto;
pub use fcfs::Fcfs;
pub use groups::Groups;
#[cfg(test)]
pub(crate) use groups::{group_of, parts};
#[cfg(test)]
pub(crate) use laps::Length;
pub use laps::{Laps, LapsConfig};
pub use round_robin::RoundRobin;
pub use srjf::Srjf;

use crate::{
    length::length_of,
    queue::Queue,
    request::Requests,
    waiting::{PromptSize, Waiting},
    watch::{Change, Cost, Watch},
};

/// Chooses the requests whose work the next step takes up, and their order.
///
/// A policy sees what waits and returns a [`Plan`]; it cannot touch blocks or queues. The
/// scheduler takes up granted work while it fits and ignores grants that make no sense, so a
/// wrong policy can be slow or unfair, but cannot leak, deadlock or corrupt. Generations that
/// decode are not the policy's: they have a row in every step. Prompts that are being computed in
/// chunks go on unless the policy [pauses](Plan::chunks) them.
///
/// Whatever a policy withholds is withheld for a bounded time: a prompt stands still for
/// [`SchedulerConfig::max_wait_ms`](crate::SchedulerConfig::max_wait_ms) at most and not at all
/// while the device has nothing else to do, an idle device waits for
/// [`SchedulerConfig::max_idle_ms`](crate::SchedulerConfig::max_idle_ms) at most, and if it would
/// still be idle then, the step is planned as [`Fcfs`] does.
pub trait SchedulerPolicy: Send {
    /// Plans one step. Called whenever something waits or is unfinished, and now and then again for
    /// the same [step](QueueView::step); must be a function of its arguments and of earlier calls
    /// alone.
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan;

    /// Tells the policy that a step has succeeded, and the time that it took.
    fn completed(&mut self, _step: &StepTime) {}

    /// Returns whether [`QueueView::changed`] is wanted. Asked once.
    fn follows_costs(&self) -> bool {
        false
    }

    /// Returns how often the policy has changed a waiting request's place because its cost changed.
    fn recalibrations(&self) -> u64 {
        0
    }
}

/// The waiting requests, in order of turn, then priority, then deadline ([`Fcfs`]), then arrival,
/// then submission.
#[derive(Clone, Copy, Debug)]
pub struct QueueView<'a> {
    pub(crate) oneshot: &'a Queue,
    pub(crate) decode: &'a Queue,
    pub(crate) now: Timestamp,
    pub(crate) requests: &'a Requests,
    pub(crate) cache: &'a KvCache,
    pub(crate) watch: Option<&'a Watch>,
    pub(crate) changed: &'a [(RequestId, Option<Change>)],
    pub(crate) withdrawn: &'a BTreeSet<RequestId>,
    pub(crate) unfinished: &'a [Unfinished],
    pub(crate) step: StepId,
    pub(crate) is_idle: bool,
}

impl<'a> QueueView<'a> {
    /// Returns the requests with one-shot rows that are not planned yet. Lazy: a policy need not
    /// look at all of them.
    pub fn oneshot(&self) -> impl Iterator<Item = &'a Waiting> {
        self.oneshot.iter()
    }

    /// Returns the requests with generations that are not admitted yet.
    pub fn decode(&self) -> impl Iterator<Item = &'a Waiting> {
        self.decode.iter()
    }

    /// Returns the length of the prompt of a request's next row, and how many of its tokens the
    /// prefix cache holds (whole blocks, and never the last token); `None` for a request that does
    /// not wait.
    ///
    /// O(prompt): a policy that wants it of many requests remembers what it learnt.
    #[must_use]
    pub fn next_prompt(&self, request: RequestId) -> Option<PromptSize> {
        let live = self.requests.get(&request)?;
        let row = live.next_row()?;
        let tokens = live.prompts.tree.prompt(live.node(row));
        let most = live.first_needed(row);
        let cached = self
            .cache
            .cached_prefix(live.prompts.salt.as_ref(), &tokens, most as usize);
        Some(PromptSize {
            tokens: live.prompt_len(row),
            cached: length_of(cached),
        })
    }

    /// Returns the cost that [`Self::changed`] told last of a waiting request; `None` for any
    /// other, for a request that it has not mentioned yet, and unless the policy [follows
    /// costs](SchedulerPolicy::follows_costs).
    #[must_use]
    pub fn cost(&self, request: RequestId) -> Option<Cost> {
        self.watch?.told(request)
    }

    /// Returns the requests that have changed since the last plan, and their costs now: requests
    /// that came, whose rows were taken up, or whose cached prefix changed. `None` for requests
    /// that wait no more. Empty unless the policy [follows costs](SchedulerPolicy::follows_costs).
    ///
    /// A step stays cheap to plan however many come at once or wait for one prefix: a plan is told
    /// of at most 256 newcomers, or [`max_batch_rows`](crate::SchedulerConfig::max_batch_rows) if
    /// that is more, and of at most so many others that the cache holds more or less of, in the
    /// order of the changes; the next plan hears of more. It is told at once of a request that went
    /// on, ended or became overdue.
    #[must_use]
    pub const fn changed(&self) -> &'a [(RequestId, Option<Change>)] {
        self.changed
    }

    /// Returns the requests that ended since the last plan before all of their rows had started:
    /// aborted, late or failed. An id may wait again. Empty unless the policy [follows
    /// costs](SchedulerPolicy::follows_costs).
    #[must_use]
    pub const fn withdrawn(&self) -> &'a BTreeSet<RequestId> {
        self.withdrawn
    }

    /// Returns the prompts that are being computed in chunks and have chunks left, oldest first.
    #[must_use]
    pub const fn unfinished(&self) -> &'a [Unfinished] {
        self.unfinished
    }

    /// Returns the number of the step being planned. If the step stays empty, the next plan is for
    /// the same one.
    #[must_use]
    pub const fn step(&self) -> StepId {
        self.step
    }

    /// Returns whether the device has nothing to do but what this plan gives it: no step is in
    /// flight, and no generation decodes.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Returns the time of the plan.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }
}

/// A prompt that is being computed in chunks, some of which no step has taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The request that the prompt belongs to. A request may have several.
    pub request: RequestId,
    /// True for a generation's prompt, false for a one-shot row's.
    pub generates: bool,
    /// The request's priority: lower runs first.
    pub priority: i64,
    /// The number of tokens that no step has taken up and that were not cached.
    pub tokens: u32,
    /// The number of tokens before `tokens`: the context of the next chunk.
    pub context: u32,
    /// The time of the request's arrival.
    pub arrival: Timestamp,
    /// The deadline of the request's answer.
    pub deadline: Option<Timestamp>,
}

/// The time that a step took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// The step.
    pub step: StepId,
    /// The time since the step was planned, or since the step before it ended if that was later.
    pub took: Duration,
    /// Tokens of prompts that the step computed.
    pub prompt_tokens: u64,
    /// Tokens that the step generated beside prompts.
    pub decode_rows: u32,
}

/// The budget of a step, beside the work that goes on anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBudget {
    /// Tokens.
    pub tokens: u32,
    /// Rows of one-shot work.
    pub rows: u32,
    /// Sequences that may be admitted.
    pub seqs: u32,
}

impl StepBudget {
    /// Returns the permission for a request to start work in all of the step.
    pub(crate) const fn grant(self, request: RequestId) -> Grant {
        Grant {
            request,
            tokens: self.tokens,
        }
    }
}

/// A policy's proposal: the requests that go next, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The one-shot work.
    pub oneshot: Vec<Grant>,
    /// Admission of generations.
    pub decode: Vec<Grant>,
    /// Once a step computes so many one-shot tokens, no further row is taken up for it; `None`
    /// fills it. A step that is full enough for the device only delays who comes next.
    pub enough_tokens: Option<u32>,
    /// Most tokens of prompts of generations that the step computes; `None` fills it. Fewer let
    /// generations that decode have their next tokens sooner.
    pub prefill_tokens: Option<u32>,
    /// The requests whose unfinished prompts go on in this step; `None`: all of them. Those left
    /// out keep their blocks.
    pub chunks: Option<Vec<RequestId>>,
    /// True if prompts that `chunks` leaves out use what is left of the step behind all others.
    pub fills: bool,
    /// A prompt of more tokens is computed in chunks of so many, though the step had room for more
    /// or the prompt delayed no other request; `None`: only as room and
    /// [`SchedulerConfig::prefill_chunk_tokens`](crate::SchedulerConfig::prefill_chunk_tokens) say.
    /// What cannot be split is computed whole.
    pub chunk_tokens: Option<u32>,
    /// The time at which the policy is asked again, if nothing happens before: for a step that has
    /// nothing in it, the policy would rather wait for more requests than take up what waits.
    pub wait_until: Option<Timestamp>,
}

/// A permission for one request to start work in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The request.
    pub request: RequestId,
    /// Most tokens that the request's newly started work may compute in this step.
    pub tokens: u32,
}
