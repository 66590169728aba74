//! The engine's core: a scheduler, an executor, and what goes on between them.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::atomic::Ordering,
    time::Duration,
};

use prelude_core::{
    ExecutionClass, Executor, ExecutorError, ForwardBatch, RequestId, StepId, StepOutput, Timestamp,
};
use prelude_sched::{Event, Outcome, Scheduler};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    AnswerEvent, StepKind, StepReport,
    inbox::{Commands, Submission},
    report::{TINY_STEP_TOKENS, Timing, TokenGap},
    shared::Shared,
    step_times::StepTimes,
};

/// Least time until the scheduler has to be asked again in which an executor may prepare something.
const PREPARE_REST: Duration = Duration::from_millis(5);
/// The time without work after which an executor may prepare something: a client alone that asks
/// again at once waits for none of it.
const PREPARE_QUIET: Duration = Duration::from_millis(20);

/// A request whose last event was not sent yet.
struct LiveRequest {
    events: UnboundedSender<Vec<AnswerEvent>>,
    /// Events that are not sent yet.
    unsent: Vec<AnswerEvent>,
    timing: Timing,
    prompt_tokens: u64,
    class: ExecutionClass,
}

/// A scheduler, an executor, and the work between them. The thread that holds its lock runs it: the
/// engine's thread as long as there is work, and otherwise a caller, for one step
/// (`inline_step.rs`).
pub(crate) struct EngineCore {
    scheduler: Scheduler,
    pub(crate) executor: Box<dyn Executor>,
    live: BTreeMap<RequestId, LiveRequest>,
    in_flight: VecDeque<StepReport>,
    pub(crate) step_times: StepTimes,
    /// Reused from step to step.
    events: Vec<Event>,
    touched: Vec<RequestId>,
    quiet: Quiet,
}

/// The time without work, in which the executor may prepare something.
#[derive(Debug, Default)]
struct Quiet {
    since: Option<Timestamp>,
    /// True if the executor has nothing more to prepare.
    is_prepared: bool,
}

impl Quiet {
    /// Returns the time until the executor may prepare something; `None` if it has nothing to prepare.
    fn until_prepare(&mut self, now: Timestamp) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        let quiet = now.saturating_since(since);
        (!self.is_prepared).then(|| PREPARE_QUIET.saturating_sub(quiet))
    }
}

/// The engine was told to stop, or has lost its device.
pub(crate) struct Over;

impl From<ExecutorError> for Over {
    fn from(_: ExecutorError) -> Self {
        Self
    }
}

impl EngineCore {
    pub(crate) fn new(scheduler: Scheduler, executor: Box<dyn Executor>) -> Self {
        Self {
            scheduler,
            executor,
            live: BTreeMap::new(),
            in_flight: VecDeque::new(),
            step_times: StepTimes::default(),
            events: Vec::new(),
            touched: Vec::new(),
            quiet: Quiet::default(),
        }
    }

    /// Runs until there is nothing to do before the time returned, or before a command comes.
    pub(crate) fn run(&mut self, shared: &Shared) -> Result<Option<Duration>, Over> {
        loop {
            let commands = shared.inbox.drain();
            let stop = commands.stop;
            self.handle_commands(shared, commands);
            if stop {
                return Err(Over);
            }
            self.fill_pipeline(shared)?;
            if self.in_flight.is_empty() {
                self.publish(shared);
                let deadline = self.scheduler.next_deadline();
                let rest = deadline.map(|at| at.saturating_since(shared.now()));
                match self.quiet.until_prepare(shared.now()) {
                    Some(Duration::ZERO) if rest.is_none_or(|rest| rest >= PREPARE_REST) => {
                        self.quiet.is_prepared = !self.executor.prepare(true);
                    }
                    Some(wait) if !wait.is_zero() => {
                        return Ok(Some(rest.map_or(wait, |rest| rest.min(wait))));
                    }
                    _ => return Ok(rest),
                }
                continue;
            }
            self.collect_oldest(shared)?;
            // The step's answers have been sent, so the executor may prepare something.
            self.executor.prepare(false);
            self.quiet = Quiet::default();
        }
    }

    /// Returns whether no request is in the engine.
    pub(crate) fn is_free(&self) -> bool {
        self.live.is_empty()
    }

    /// Accepts a request and runs one step. The engine is free before; after the step, unanswered
    /// work is left in it.
    ///
    /// # Errors
    /// [`ExecutorError::Lost`]: the engine is over.
    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        submission: Submission,
    ) -> Result<(), ExecutorError> {
        self.accept(shared, submission);
        self.fill_pipeline(shared)?;
        self.collect_oldest(shared)
    }

    fn handle_commands(&mut self, shared: &Shared, commands: Commands) {
        for submission in commands.submissions {
            let tokens = submission.request.tree.distinct_tokens() as u64;
            shared.unseen_tokens.fetch_sub(tokens, Ordering::Relaxed);
            self.accept(shared, submission);
        }
        for id in commands.aborts {
            self.scheduler.abort(shared.now(), id, &mut self.events);
        }
        self.dispatch(shared);
    }

    fn accept(&mut self, shared: &Shared, Submission { request, events }: Submission) {
        let id = request.id;
        let timing = Timing::new(request.arrival);
        let prompt_tokens = request.prompt_tokens();
        let class = request.class();
        match self.scheduler.submit(shared.now(), request) {
            Ok(()) => {
                let live = LiveRequest {
                    events,
                    unsent: Vec::new(),
                    timing,
                    prompt_tokens,
                    class,
                };
                self.live.insert(id, live);
            }
            Err(reject) => {
                shared.reports().snapshot.rejected += 1;
                // The caller may have gone, and needs no answer then.
                let _ = events.send(vec![AnswerEvent::Rejected(reject)]);
            }
        }
    }

    /// Submits steps until the executor's pipeline is full or there is nothing to run.
    fn fill_pipeline(&mut self, shared: &Shared) -> Result<(), ExecutorError> {
        loop {
            let now = shared.now();
            let next = self.scheduler.next_batch(now, &mut self.events);
            self.dispatch(shared);
            let Some((step, batch)) = next else {
                return Ok(());
            };
            // Published now: an executor may work inside `submit`, and readers must see what runs
            // meanwhile.
            self.publish(shared);
            let report = describe(step, &batch, now);
            match self.executor.submit(step, batch) {
                Ok(()) => self.in_flight.push_back(report),
                Err(error) => {
                    // Steps complete in order: those before this one are collected first.
                    while !self.in_flight.is_empty() {
                        self.collect_oldest(shared)?;
                    }
                    self.complete(shared, report, Err(error))?;
                }
            }
        }
    }

    fn collect_oldest(&mut self, shared: &Shared) -> Result<(), ExecutorError> {
        let Some(report) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let result = self.executor.collect(report.step);
        self.complete(shared, report, result)
    }

    fn complete(
        &mut self,
        shared: &Shared,
        mut report: StepReport,
        result: Result<StepOutput, ExecutorError>,
    ) -> Result<(), ExecutorError> {
        let now = shared.now();
        report.duration = now.saturating_since(report.submitted);
        report.succeeded = result.is_ok();
        let lost = result
            .as_ref()
            .err()
            .filter(|e| matches!(e, ExecutorError::Lost(_)))
            .cloned();
        let is_tiny =
            report.kind != StepKind::Slice && report.computed_tokens() <= TINY_STEP_TOKENS;
        if report.succeeded && is_tiny {
            let ns = u64::try_from(report.duration.as_nanos()).unwrap_or(u64::MAX);
            shared.fastest_tiny_ns.fetch_min(ns, Ordering::Relaxed);
            shared.tiny_steps.fetch_add(1, Ordering::Relaxed);
        }
        let step = report.step;
        if report.succeeded && report.kind == StepKind::OneShot {
            self.step_times.note(&report);
        }
        let padded = self.executor.padded();
        let mut reports = shared.reports();
        reports.snapshot.padded = padded;
        reports.step(report);
        drop(reports);
        self.scheduler
            .complete(now, step, result, &mut self.events)
            .expect("a step completes once, and steps are collected in order");
        // Published before the events go out: a caller that has an answer also finds it counted.
        self.publish(shared);
        self.dispatch(shared);
        lost.map_or(Ok(()), Err)
    }

    /// Sends the scheduler's events to the requests that they concern: all events of a request in
    /// one message, so that its waiter wakes once and not for each row.
    fn dispatch(&mut self, shared: &Shared) {
        if self.events.is_empty() {
            return;
        }
        let now = shared.now();
        let mut events = std::mem::take(&mut self.events);
        let mut reports = shared.reports();
        let snapshot = &mut reports.snapshot;
        for event in events.drain(..) {
            let id = event.request();
            let Some(live) = self.live.get_mut(&id) else {
                continue;
            };
            match &event {
                Event::Token { row, choice, .. } => match live.timing.token(now, *row, *choice) {
                    TokenGap::First(d) => {
                        snapshot.time_to_first_token.observe(d.as_secs_f64());
                    }
                    TokenGap::Later(d) => {
                        snapshot.inter_token_latency.observe(d.as_secs_f64());
                    }
                },
                Event::Finished { outcome, usage, .. } => {
                    let finished = &mut snapshot.finished;
                    *match outcome {
                        Outcome::Done => &mut finished.done,
                        Outcome::Aborted => &mut finished.aborted,
                        Outcome::Failed(_) => &mut finished.failed,
                        Outcome::DeadlineExpired => &mut finished.deadline_expired,
                    } += 1;
                    let e2e = now.saturating_since(live.timing.arrival);
                    snapshot.e2e_latency.observe(e2e.as_secs_f64());
                    snapshot.observe_finished(live.class, &live.timing, usage);
                    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                    {
                        snapshot.prompt_tokens.observe(live.prompt_tokens as f64);
                        snapshot
                            .generation_tokens
                            .observe(usage.output_tokens as f64);
                    }
                }
                _ => {}
            }
            if live.unsent.is_empty() {
                self.touched.push(id);
            }
            live.unsent.push(AnswerEvent::Event(event));
        }
        drop(reports);
        self.events = events;
        for id in self.touched.drain(..) {
            let Entry::Occupied(mut live) = self.live.entry(id) else {
                continue;
            };
            let unsent = std::mem::take(&mut live.get_mut().unsent);
            let is_over = unsent.last().is_some_and(AnswerEvent::is_last);
            // A caller that dropped the answer has aborted the request and needs no more events.
            let _ = live.get().events.send(unsent);
            if is_over {
                live.remove();
            }
        }
    }

    /// Copies the scheduler's gauges, the executor's counts of graphs and its device's time, and events of the cache, to
    /// where handles see them.
    fn publish(&mut self, shared: &Shared) {
        let (scheduler, graphs) = (self.scheduler.stats(), self.executor.graph_steps());
        let device = self.executor.device_time();
        let mut reports = shared.reports();
        reports.snapshot.scheduler = scheduler;
        reports.snapshot.graphs = graphs;
        reports.snapshot.device = device;
        drop(reports);
        if let Some(queue) = &shared.kv_events {
            let events = self.scheduler.take_kv_events();
            if !events.is_empty() {
                queue.push(events, || self.scheduler.kv_contents());
            }
        }
    }
}

fn describe(step: StepId, batch: &ForwardBatch, now: Timestamp) -> StepReport {
    let (oneshot, prefill, decode) = batch.parts();
    StepReport {
        step,
        kind: StepKind::of(batch),
        oneshot_tokens: oneshot.tokens.len(),
        prefill_tokens: prefill.tokens.len(),
        decode_rows: decode.rows.len(),
        oneshot_rows: oneshot.rows.len(),
        submitted: now,
        duration: Duration::ZERO,
        succeeded: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_prepare_after_a_time_without_work() {
        let at = |ms| Timestamp::ZERO.saturating_add(Duration::from_millis(ms));
        let mut quiet = Quiet::default();
        assert_eq!(quiet.until_prepare(at(7)), Some(PREPARE_QUIET));
        let rest = PREPARE_QUIET - Duration::from_millis(5);
        assert_eq!(quiet.until_prepare(at(12)), Some(rest));
        assert_eq!(quiet.until_prepare(at(500)), Some(Duration::ZERO));
        quiet.is_prepared = true;
        assert_eq!(quiet.until_prepare(at(501)), None);
    }
}
