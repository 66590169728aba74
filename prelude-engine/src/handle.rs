//! The cloneable handle to an engine.

use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use prelude_core::{
    Capacity, OnDeadline, PromptTree, Request, RequestId, RowSpec, StepId, Timestamp,
};
use tokio::sync::mpsc;

use crate::{
    Answer, AnswerEvent, EngineSnapshot, KvEventStream, StepReport, SubmitError,
    inbox::Submission,
    inline_step::{self, SharedCore},
    report::{self, Reports},
    shared::Shared,
};

/// A request as callers write it; the engine adds an id and the time.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// The prompts.
    pub tree: PromptTree,
    /// The answers wanted, at least one.
    pub rows: Vec<RowSpec>,
    /// The priority: lower runs first.
    pub priority: i64,
    /// The time from now at which the first token (Decode) or the whole answer (OneShot) is due.
    pub deadline: Option<Duration>,
    /// The treatment of the request if it has not started by its deadline.
    pub on_deadline: OnDeadline,
    /// Requests with different salts share nothing.
    pub cache_salt: Option<Arc<str>>,
}

impl RequestSpec {
    /// Returns a request of priority 0, without deadline or salt.
    #[must_use]
    pub const fn new(tree: PromptTree, rows: Vec<RowSpec>) -> Self {
        Self {
            tree,
            rows,
            priority: 0,
            deadline: None,
            on_deadline: OnDeadline::Drop,
            cache_salt: None,
        }
    }
}

/// A handle to a running engine. Clones are cheap and refer to the same engine.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) core: Arc<SharedCore>,
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineHandle")
            .field("alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// Hands a request to the engine without waiting. What becomes of it, a rejection included,
    /// arrives through the [`Answer`].
    ///
    /// # Errors
    /// [`SubmitError`] if the engine cannot take it at all.
    pub fn submit(&self, spec: RequestSpec) -> Result<Answer, SubmitError> {
        let prepared = self.prepare(spec);
        self.hand_over(prepared)
    }

    /// Submits a request, and computes it on the calling thread before this returns if the engine
    /// is idle, its executor
    /// [computes at once](prelude_core::Executor::computes_at_once) and the latest step of the
    /// request's size took at most `limit`: then no other thread has to wake up. The answer is the
    /// same either way.
    ///
    /// Call it only where a wait of about `limit` is harmless, and where nothing else is about to
    /// be submitted that could have shared the step.
    ///
    /// # Errors
    /// Those of [`Self::submit`].
    pub fn submit_inline(&self, spec: RequestSpec, limit: Duration) -> Result<Answer, SubmitError> {
        let mut prepared = self.prepare(spec);
        match inline_step::run(&self.core, &self.shared, prepared.submission, limit) {
            None => Ok(prepared.answer.build(&self.shared)),
            Some(submission) => {
                prepared.submission = submission;
                self.hand_over(prepared)
            }
        }
    }

    fn prepare(&self, spec: RequestSpec) -> Prepared {
        let arrival = self.now();
        let id = RequestId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let request = Request {
            id,
            tree: spec.tree,
            rows: spec.rows,
            arrival,
            priority: spec.priority,
            deadline: spec.deadline.map(|d| arrival.saturating_add(d)),
            on_deadline: spec.on_deadline,
            cache_salt: spec.cache_salt,
        };
        let rows = request.rows.len();
        let (events, receiver) = mpsc::unbounded_channel();
        Prepared {
            submission: Submission { request, events },
            answer: Receiving { id, rows, receiver },
        }
    }

    fn hand_over(&self, prepared: Prepared) -> Result<Answer, SubmitError> {
        let tokens = prepared.submission.request.tree.distinct_tokens() as u64;
        // Counted before the request is submitted: the engine thread subtracts the tokens when it
        // takes the request.
        let unseen = &self.shared.unseen_tokens;
        unseen.fetch_add(tokens, Ordering::Relaxed);
        if let Err(error) = self.shared.inbox.submit(prepared.submission) {
            unseen.fetch_sub(tokens, Ordering::Relaxed);
            return Err(error);
        }
        Ok(prepared.answer.build(&self.shared))
    }

    /// Returns the prompt tokens to be computed before those of a request submitted now: of steps
    /// in flight and of requests that wait, less the tokens that the prefix cache holds. In the
    /// unit of [`Self::prompt_tokens_per_second`].
    #[must_use]
    pub fn tokens_ahead(&self) -> u64 {
        let unseen = self.shared.unseen_tokens.load(Ordering::Relaxed);
        self.reports().snapshot.scheduler.tokens_ahead + unseen
    }

    /// Returns the prompt tokens that the engine can compute in a second: by the executor's profile
    /// ([`SchedulerConfig::service`](crate::SchedulerConfig::service)), or without one by the best
    /// of late, measured over seconds of steps that computed more than [`Self::TINY_STEP_TOKENS`]
    /// prompt tokens, and no fewer than they had decode rows. `None` before there was such a
    /// second.
    #[must_use]
    pub fn prompt_tokens_per_second(&self) -> Option<f64> {
        let measured = || self.reports().prompt_rate.per_second;
        self.shared.profiled_rate.or_else(measured)
    }

    /// Limits of the executor.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.shared.capacity
    }

    /// Returns gauges, counters and histograms as of the last step.
    #[must_use]
    pub fn snapshot(&self) -> EngineSnapshot {
        let mut snapshot = self.reports().snapshot.clone();
        snapshot.alive = self.is_alive();
        snapshot
    }

    /// Returns the time of the fastest of the steps so far that computed next to nothing (at most
    /// [`Self::TINY_STEP_TOKENS`]), once there were [`Self::STEPS_TO_KNOW`] of them: no answer
    /// comes much sooner, however idle the engine and however much of its prompt is cached. Larger
    /// steps say nothing about that, so an engine that ran no others answers `None`.
    #[must_use]
    pub fn fastest_step(&self) -> Option<Duration> {
        let steps = self.shared.tiny_steps.load(Ordering::Relaxed);
        let fastest = self.shared.fastest_tiny_ns.load(Ordering::Relaxed);
        (steps >= Self::STEPS_TO_KNOW).then(|| Duration::from_nanos(fastest))
    }

    /// Tiny steps of which the fastest is taken for the least there is.
    pub const STEPS_TO_KNOW: u64 = 32;

    /// Most tokens that a tiny step computes: a step of so few costs about what a step of one
    /// costs, because both read all weights once.
    pub const TINY_STEP_TOKENS: usize = report::TINY_STEP_TOKENS;

    /// Returns the latest steps, oldest first, at most `EngineConfig::recent_steps` of them.
    #[must_use]
    pub fn recent_steps(&self) -> Vec<StepReport> {
        self.steps_after(None)
    }

    /// Returns the latest steps behind the step `after`, oldest first; all that are remembered if
    /// it is `None`. A reader that asks too late finds a gap between `after` and the first of them.
    #[must_use]
    pub fn steps_after(&self, after: Option<StepId>) -> Vec<StepReport> {
        let reports = self.reports();
        let known = |report: &StepReport| after.is_some_and(|after| report.step <= after);
        let first = reports.recent.partition_point(known);
        reports.recent.range(first..).cloned().collect()
    }

    /// Returns the events of the KV cache, if [`EngineConfig::kv_events`](crate::EngineConfig)
    /// asks for them. Each event goes to one stream, so an engine has one reader.
    #[must_use]
    pub fn kv_events(&self) -> Option<KvEventStream> {
        KvEventStream::new(&self.shared)
    }

    /// Returns whether the engine still serves: false once it has stopped or lost its device.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire)
    }

    /// Returns the time since the engine started.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.now()
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.shared.reports()
    }
}

/// A request that was not handed over yet, and the parts of its answer.
struct Prepared {
    submission: Submission,
    answer: Receiving,
}

struct Receiving {
    id: RequestId,
    rows: usize,
    receiver: mpsc::UnboundedReceiver<Vec<AnswerEvent>>,
}

impl Receiving {
    fn build(self, shared: &Arc<Shared>) -> Answer {
        Answer::new(self.id, self.rows, self.receiver, Arc::clone(shared))
    }
}
