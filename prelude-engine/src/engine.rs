//! The loop.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use prelude_core::{
    ExecutionClass, Executor, ExecutorError, ForwardBatch, RequestId, StepId, Timestamp,
};
use prelude_sched::{Event, Outcome, Scheduler, SchedulerPolicy};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    AnswerEvent, EngineConfig, EngineError, EngineHandle, StepReport,
    handle::Shared,
    inbox::{Commands, Inbox, Submission},
    report::{Timing, TokenGap},
};

/// A running engine. Dropping it stops the thread and waits for it; requests that have not
/// finished end with [`AnswerEvent::EngineStopped`].
#[derive(Debug)]
pub struct ScheduledEngine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

impl ScheduledEngine {
    /// Starts the engine's thread, called `prelude-<name>`.
    ///
    /// # Errors
    /// [`EngineError`] if the scheduler refuses its configuration or no thread can be started.
    pub fn spawn(
        name: &str,
        config: EngineConfig,
        executor: Box<dyn Executor>,
    ) -> Result<Self, EngineError> {
        let scheduler = Scheduler::new(config.scheduler.clone(), executor.capacity())?;
        Self::start(name, &config, scheduler, executor)
    }

    /// As [`Self::spawn`], with a policy of the caller's in place of `config.scheduler.policy`.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub fn spawn_with_policy(
        name: &str,
        config: EngineConfig,
        policy: Box<dyn SchedulerPolicy>,
        executor: Box<dyn Executor>,
    ) -> Result<Self, EngineError> {
        let capacity = executor.capacity();
        let scheduler = Scheduler::with_policy(config.scheduler.clone(), capacity, policy)?;
        Self::start(name, &config, scheduler, executor)
    }

    fn start(
        name: &str,
        config: &EngineConfig,
        scheduler: Scheduler,
        executor: Box<dyn Executor>,
    ) -> Result<Self, EngineError> {
        let capacity = executor.capacity();
        let inbox = Inbox::new(config.command_queue);
        let shared = Arc::new(Shared::new(inbox, capacity, config.recent_steps));
        let engine = Loop {
            shared: Arc::clone(&shared),
            scheduler,
            executor,
            live: BTreeMap::new(),
            in_flight: VecDeque::new(),
            events: Vec::new(),
            touched: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("prelude-{name}"))
            .spawn(|| engine.run())?;
        Ok(Self {
            handle: EngineHandle { shared },
            thread: Some(thread),
        })
    }

    /// A handle through which to submit requests.
    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Stops the engine and waits for its thread.
    pub fn stop(self) {}
}

impl Drop for ScheduledEngine {
    fn drop(&mut self) {
        self.handle.shared.inbox.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the engine thread has been reported by the panic hook, and `Closing`
            // has told everybody who waits.
            let _ = thread.join();
        }
    }
}

/// A request whose end has not been announced.
struct Live {
    events: UnboundedSender<Vec<AnswerEvent>>,
    /// What happened to it and is not sent yet.
    unsent: Vec<AnswerEvent>,
    timing: Timing,
    prompt_tokens: u64,
    class: ExecutionClass,
}

struct InFlight {
    step: StepId,
    report: StepReport,
}

struct Loop {
    shared: Arc<Shared>,
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    live: BTreeMap<RequestId, Live>,
    in_flight: VecDeque<InFlight>,
    /// Reused from step to step.
    events: Vec<Event>,
    touched: Vec<RequestId>,
}

/// Tells everybody that the engine is gone, also when its thread panics.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        // Dropping the submissions closes their channels, which their answers take for
        // `EngineStopped`; so does dropping the loop's live requests.
        drop(self.0.inbox.close());
    }
}

impl Loop {
    fn run(mut self) {
        let _closing = Closing(Arc::clone(&self.shared));
        loop {
            let commands = self.shared.inbox.drain();
            let stop = commands.stop;
            self.obey(commands);
            if stop {
                return;
            }
            if let Err(ExecutorError::Lost(_)) = self.fill_pipeline() {
                return;
            }
            if self.in_flight.is_empty() {
                self.publish();
                self.rest();
            } else if let Err(ExecutorError::Lost(_)) = self.collect_oldest() {
                return;
            }
        }
    }

    fn obey(&mut self, commands: Commands) {
        for Submission { request, events } in commands.submissions {
            let tokens = request.tree.distinct_tokens() as u64;
            let unseen = &self.shared.unseen_tokens;
            unseen.fetch_sub(tokens, Ordering::Relaxed);
            let now = self.shared.now();
            let id = request.id;
            let timing = Timing::new(request.arrival);
            let prompt_tokens = request.prompt_tokens();
            let class = request.class();
            match self.scheduler.submit(now, request) {
                Ok(()) => {
                    self.live.insert(
                        id,
                        Live {
                            events,
                            unsent: Vec::new(),
                            timing,
                            prompt_tokens,
                            class,
                        },
                    );
                }
                Err(reject) => {
                    self.reports().snapshot.rejected += 1;
                    // The caller may have gone; then nobody needs to know.
                    let _ = events.send(vec![AnswerEvent::Rejected(reject)]);
                }
            }
        }
        for id in commands.aborts {
            self.scheduler
                .abort(self.shared.now(), id, &mut self.events);
        }
        self.dispatch();
    }

    /// Submits steps until the executor's pipeline is full or there is nothing to run.
    fn fill_pipeline(&mut self) -> Result<(), ExecutorError> {
        loop {
            let now = self.shared.now();
            let next = self.scheduler.next_batch(now, &mut self.events);
            self.dispatch();
            let Some((step, batch)) = next else {
                return Ok(());
            };
            // An executor may work inside `submit`: what runs is to be seen meanwhile.
            self.publish();
            let report = describe(step, &batch, now);
            match self.executor.submit(step, batch) {
                Ok(()) => self.in_flight.push_back(InFlight { step, report }),
                Err(error) => {
                    // Steps complete in order: those before this one first.
                    while !self.in_flight.is_empty() {
                        self.collect_oldest()?;
                    }
                    self.complete(report, Err(error))?;
                }
            }
        }
    }

    fn collect_oldest(&mut self) -> Result<(), ExecutorError> {
        let Some(InFlight { step, report }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let result = self.executor.collect(step);
        self.complete(report, result)
    }

    fn complete(
        &mut self,
        mut report: StepReport,
        result: Result<prelude_core::StepOutput, ExecutorError>,
    ) -> Result<(), ExecutorError> {
        let now = self.shared.now();
        report.duration = now.saturating_since(report.submitted);
        report.succeeded = result.is_ok();
        let lost = result
            .as_ref()
            .err()
            .filter(|e| matches!(e, ExecutorError::Lost(_)))
            .cloned();
        if report.succeeded && report.computed_tokens() <= EngineHandle::TINY_STEP_TOKENS {
            let ns = u64::try_from(report.duration.as_nanos()).unwrap_or(u64::MAX);
            self.shared.fastest_tiny_ns.fetch_min(ns, Ordering::Relaxed);
            self.shared.tiny_steps.fetch_add(1, Ordering::Relaxed);
        }
        let step = report.step;
        self.reports().step(report);
        self.scheduler
            .complete(now, step, result, &mut self.events)
            .expect("a step completes once, and steps are collected in order");
        // Before the events go out: who has seen an answer also sees it counted.
        self.publish();
        self.dispatch();
        lost.map_or(Ok(()), Err)
    }

    /// Sends the scheduler's events to whom they concern: whatever happened to a request in one
    /// message, so that whoever waits for it wakes once and not for each row.
    fn dispatch(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let now = self.shared.now();
        let mut events = std::mem::take(&mut self.events);
        let mut reports = lock(&self.shared.reports);
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
                    let index = match outcome {
                        Outcome::Done => 0,
                        Outcome::Aborted => 1,
                        Outcome::Failed(_) => 2,
                        Outcome::DeadlineExpired => 3,
                    };
                    snapshot.finished[index].1 += 1;
                    let e2e = now.saturating_since(live.timing.arrival);
                    snapshot.e2e_latency.observe(e2e.as_secs_f64());
                    snapshot.finished(live.class, &live.timing, usage);
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
            // Whoever dropped the answer has aborted the request; its last events concern nobody.
            let _ = live.get().events.send(unsent);
            if is_over {
                live.remove();
            }
        }
    }

    /// Copies the scheduler's gauges to where handles see them.
    fn publish(&self) {
        self.reports().snapshot.scheduler = self.scheduler.stats();
    }

    /// Sleeps until there is a command or the scheduler's next deadline.
    fn rest(&self) {
        let timeout = self
            .scheduler
            .next_deadline()
            .map(|at| at.saturating_since(self.shared.now()));
        self.shared.inbox.wait(timeout);
    }

    fn reports(&self) -> std::sync::MutexGuard<'_, crate::report::Reports> {
        lock(&self.shared.reports)
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn describe(step: StepId, batch: &ForwardBatch, now: Timestamp) -> StepReport {
    let (oneshot, prefill, decode) = batch.parts();
    StepReport {
        step,
        kind: batch.kind(),
        oneshot_tokens: oneshot.tokens.len(),
        prefill_tokens: prefill.tokens.len(),
        decode_rows: decode.rows.len(),
        oneshot_rows: oneshot.rows.len(),
        submitted: now,
        duration: std::time::Duration::ZERO,
        succeeded: false,
    }
}
