//! The loop with an executor that can be held, can fail and can panic.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use prelude_core::{
    Capacity, DeviceTime, Executor, ExecutorError, ForwardBatch, Generate, GraphSteps, Head,
    OutputHead, PromptTree, RowOutput, RowSpec, SampledToken, SamplingParams, StepId, StepOutput,
};
use prelude_engine::{
    AnswerError, AnswerEvent, Collected, CollectedRow, EngineConfig, EngineHandle, RequestSpec,
    ScheduledEngine, StepKind, SubmitError,
};
use prelude_sched::{Plan, QueueView, SchedulerPolicy, StepBudget};

const CAPACITY: Capacity = Capacity {
    block_size: 4,
    num_blocks: 64,
    max_step_tokens: 256,
    full_step_tokens: 2048,
    max_context_len: 128,
    vocab_size: 1000,
    pipeline_depth: 1,
    passes: None,
    attention: prelude_core::Attention::Causal,
    host_blocks: 0,
};

/// The behaviour of the fake executor in `collect`.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Work,
    Hold,
    FailStep,
    Lose,
    Panic,
}

#[derive(Clone)]
struct Control(Arc<(Mutex<Mode>, Condvar, AtomicU64)>);

impl Control {
    fn new(mode: Mode) -> Self {
        Self(Arc::new((
            Mutex::new(mode),
            Condvar::new(),
            AtomicU64::new(0),
        )))
    }

    fn set(&self, mode: Mode) {
        *self.0.0.lock().unwrap() = mode;
        self.0.1.notify_all();
    }

    /// Waits until the executor has entered `collect` this many times.
    fn wait_for_steps(&self, n: u64) {
        until(|| self.0.2.load(Ordering::SeqCst) >= n);
    }
}

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Answers with the sum of a row's own segment's tokens.
struct Fake {
    control: Control,
    output: Option<StepOutput>,
}

impl Fake {
    fn row(tokens: u32, head: &OutputHead) -> RowOutput {
        match head {
            OutputHead::Sample(sample) => {
                let token = SampledToken {
                    token: tokens % 1000,
                    logprob: None,
                    top: Vec::new(),
                };
                RowOutput::Sampled(vec![token; sample.draws as usize])
            }
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            _ => RowOutput::Classes(vec![tokens as f32]),
        }
    }
}

impl Executor for Fake {
    fn capacity(&self) -> Capacity {
        CAPACITY
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        batch
            .validate(&CAPACITY)
            .map_err(|e| ExecutorError::Step(e.to_string()))?;
        let (oneshot, prefill, decode) = batch.parts();
        let rows = |part: &prelude_core::OneShotBatch| {
            let row = |row: &prelude_core::OutputRow| {
                let segment = &part.segments[row.segment.index()];
                let own = segment.tokens.start as usize..segment.tokens.end as usize;
                Self::row(part.tokens[own].iter().sum(), &row.head)
            };
            part.rows.iter().map(row).collect()
        };
        self.output = Some(StepOutput {
            step,
            oneshot: rows(oneshot),
            prefill: rows(prefill),
            decode: decode
                .rows
                .iter()
                .map(|r| Self::row(r.context_len, &OutputHead::Sample(r.sample.clone())))
                .collect(),
        });
        Ok(())
    }

    fn collect(&mut self, _step: StepId) -> Result<StepOutput, ExecutorError> {
        self.control.0.2.fetch_add(1, Ordering::SeqCst);
        let (mode, changed, _) = &*self.control.0;
        let mode = *changed
            .wait_while(mode.lock().unwrap(), |m| *m == Mode::Hold)
            .unwrap();
        match mode {
            Mode::FailStep => Err(ExecutorError::Step("made to fail".to_owned())),
            Mode::Lose => Err(ExecutorError::Lost("made to be lost".to_owned())),
            Mode::Panic => panic!("made to panic"),
            Mode::Work | Mode::Hold => Ok(self.output.take().expect("a step was submitted")),
        }
    }
}

/// Has three things to prepare while it is idle, and counts how often it is asked between steps.
struct Preparing {
    inner: Fake,
    left: u64,
    between: Arc<AtomicU64>,
}

impl Executor for Preparing {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        self.inner.submit(step, batch)
    }

    fn collect(&mut self, step: StepId) -> Result<StepOutput, ExecutorError> {
        self.inner.collect(step)
    }

    fn prepare(&mut self, is_idle: bool) -> bool {
        if !is_idle {
            self.between.fetch_add(1, Ordering::SeqCst);
            return false;
        }
        let has_work = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_work
    }

    fn graph_steps(&self) -> GraphSteps {
        GraphSteps {
            captures: 3 - self.left,
            ..GraphSteps::default()
        }
    }

    fn device_time(&self) -> DeviceTime {
        DeviceTime {
            busy: Duration::from_millis(7),
            idle: Duration::from_millis(3),
        }
    }
}

#[test]
fn executors_prepare_while_nothing_waits_and_between_steps() {
    let between = Arc::new(AtomicU64::new(0));
    let executor = Preparing {
        inner: Fake {
            control: Control::new(Mode::Work),
            output: None,
        },
        left: 3,
        between: Arc::clone(&between),
    };
    let engine = ScheduledEngine::spawn("test", EngineConfig::default(), Box::new(executor));
    let engine = engine.unwrap();
    let handle = engine.handle();
    until(|| handle.snapshot().graphs.captures == 3);
    assert_eq!(between.load(Ordering::SeqCst), 0);
    for tokens in [[1], [2]] {
        let answer = handle.submit(classify(&tokens)).unwrap();
        answer.blocking_collect().unwrap();
    }
    until(|| between.load(Ordering::SeqCst) == 2);
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.graphs.captures, 3);
    let times = [snapshot.device.busy, snapshot.device.idle];
    assert_eq!(times, [7, 3].map(Duration::from_millis));
}

fn engine(mode: Mode, command_queue: usize) -> (ScheduledEngine, EngineHandle, Control) {
    let control = Control::new(mode);
    let executor = Fake {
        control: control.clone(),
        output: None,
    };
    let config = EngineConfig {
        command_queue,
        ..EngineConfig::default()
    };
    let engine = ScheduledEngine::spawn("test", config, Box::new(executor)).unwrap();
    let handle = engine.handle();
    (engine, handle, control)
}

fn classify(tokens: &[u32]) -> RequestSpec {
    let tree = PromptTree::single(tokens.to_vec());
    let rows = vec![RowSpec {
        node: tree.last_node(),
        head: Head::Classify,
    }];
    RequestSpec::new(tree, rows)
}

fn generate(tokens: &[u32], max_tokens: u32) -> RequestSpec {
    let tree = PromptTree::single(tokens.to_vec());
    let sampling = Arc::new(SamplingParams::default());
    let head = Head::Generate(Generate {
        max_tokens,
        n: 1,
        sampling,
        top_logprobs: None,
        constraint: None,
    });
    let rows = vec![RowSpec {
        node: tree.last_node(),
        head,
    }];
    RequestSpec::new(tree, rows)
}

fn classes(collected: &Collected) -> f32 {
    match &collected.rows[..] {
        [CollectedRow::Output(RowOutput::Classes(c))] => c[0],
        other => panic!("not one class row: {other:?}"),
    }
}

/// Would always rather wait for more.
struct Waits;

impl SchedulerPolicy for Waits {
    fn plan(&mut self, view: &QueueView<'_>, _: StepBudget) -> Plan {
        Plan {
            wait_until: Some(view.now().saturating_add(Duration::from_secs(3600))),
            ..Plan::default()
        }
    }
}

#[test]
fn a_policy_that_waits_puts_no_request_to_sleep() {
    let executor = Fake {
        control: Control::new(Mode::Work),
        output: None,
    };
    let mut config = EngineConfig::default();
    config.scheduler.max_idle_ms = 1;
    let engine =
        ScheduledEngine::spawn_with_policy("test", config, Box::new(Waits), Box::new(executor));
    let engine = engine.unwrap();
    for _ in 0..3 {
        let answer = engine.handle().submit(classify(&[1, 2, 3])).unwrap();
        assert_eq!(classes(&answer.blocking_collect().unwrap()), 6.0);
    }
}

#[test]
fn answers_and_counts() {
    let (_engine, handle, _) = engine(Mode::Work, 16);
    let answer = handle
        .submit(classify(&[1, 2, 3]))
        .unwrap()
        .blocking_collect()
        .unwrap();
    assert_eq!(classes(&answer), 6.0);
    assert_eq!(answer.usage.prompt_tokens, 3);
    assert_eq!(answer.usage.computed_tokens, 3);
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.finished.done, 1);
    assert_eq!(snapshot.scheduler.requests, 0);
    let steps = handle.recent_steps();
    assert_eq!(
        (steps.len(), steps[0].kind, steps[0].oneshot_tokens),
        (1, StepKind::OneShot, 3)
    );
}

#[test]
fn only_tiny_steps_say_how_fast_a_step_can_be() {
    let (_engine, handle, _) = engine(Mode::Work, 16);
    let ask = |tokens: &[u32]| {
        let answer = handle.submit(classify(tokens)).unwrap();
        answer.blocking_collect().unwrap();
    };
    let large = EngineHandle::TINY_STEP_TOKENS + 1;
    let times = u32::try_from(EngineHandle::STEPS_TO_KNOW).unwrap();
    // Every prompt begins with a token of its own, so that none is cached.
    for i in 0..times {
        ask(&vec![i; large]);
    }
    assert_eq!(handle.fastest_step(), None);
    for i in 0..times {
        assert_eq!(handle.fastest_step(), None);
        ask(&[500 + i]);
    }
    let tiny = handle.recent_steps().into_iter().rev().take(times as usize);
    assert_eq!(handle.fastest_step(), tiny.map(|step| step.duration).min());
}

/// A reader that comes late finds the steps that are remembered, and sees by their numbers that
/// others are gone.
#[test]
fn steps_are_read_on_from_the_last_one_seen() {
    let (_engine, handle, _) = engine(Mode::Work, 16);
    let remembered = EngineConfig::default().recent_steps;
    let ask = |token: u32| {
        let answer = handle.submit(classify(&[token])).unwrap();
        answer.blocking_collect().unwrap();
    };
    assert_eq!(handle.steps_after(None), []);
    ask(1);
    ask(2);
    let first = handle.steps_after(None);
    assert_eq!(first.len(), 2);
    assert_eq!(handle.steps_after(Some(first[0].step)), first[1..]);
    let last = first[1].step;
    assert_eq!(handle.steps_after(Some(last)), []);
    for i in 0..remembered {
        ask(10 + u32::try_from(i).unwrap());
    }
    let later = handle.steps_after(Some(last));
    assert_eq!(later.len(), remembered);
    assert_eq!(later[0].step.0, last.0 + 1);
    ask(3);
    let later = handle.steps_after(Some(last));
    assert_eq!(later.len(), remembered, "the oldest makes room");
    assert_eq!(later[0].step.0, last.0 + 2);
}

#[test]
fn generations_stream_token_by_token() {
    let (_engine, handle, _) = engine(Mode::Work, 16);
    let mut answer = handle.submit(generate(&[1, 2, 3], 4)).unwrap();
    let mut tokens = 0;
    while let Some(event) = answer.blocking_next() {
        if let AnswerEvent::Event(prelude_engine::Event::Token { .. }) = event {
            tokens += 1;
        }
    }
    assert_eq!(tokens, 4);
    assert_eq!(handle.snapshot().time_to_first_token.count(), 1);
    assert_eq!(handle.snapshot().inter_token_latency.count(), 3);
}

#[test]
fn invalid_requests_are_rejected_with_their_reason() {
    let (_engine, handle, _) = engine(Mode::Work, 16);
    let error = handle
        .submit(classify(&[1000]))
        .unwrap()
        .blocking_collect()
        .unwrap_err();
    assert!(matches!(error, AnswerError::Rejected(_)), "{error:?}");
    assert!(error.to_string().contains("1000"), "{error}");
    assert_eq!(handle.snapshot().rejected, 1);
}

#[test]
fn dropping_an_answer_aborts_its_request() {
    let (_engine, handle, control) = engine(Mode::Hold, 16);
    let running = handle.submit(generate(&[1, 2, 3], 50)).unwrap();
    control.wait_for_steps(1);
    let queued = handle.submit(classify(&[4])).unwrap();
    drop(running);
    drop(queued);
    control.set(Mode::Work);
    until(|| handle.snapshot().finished.aborted == 2);
    let stats = handle.snapshot().scheduler;
    assert_eq!(
        (stats.requests, stats.used_blocks, stats.queued_rows),
        (0, 0, 0)
    );
}

#[test]
fn a_full_command_queue_refuses_at_once() {
    let (_engine, handle, control) = engine(Mode::Hold, 2);
    let first = handle.submit(classify(&[1])).unwrap();
    control.wait_for_steps(1);
    let waiting = [
        handle.submit(classify(&[2])).unwrap(),
        handle.submit(classify(&[3])).unwrap(),
    ];
    assert_eq!(
        handle.submit(classify(&[4])).unwrap_err(),
        SubmitError::Busy
    );
    control.set(Mode::Work);
    assert_eq!(classes(&first.blocking_collect().unwrap()), 1.0);
    for (answer, expected) in waiting.into_iter().zip([2.0, 3.0]) {
        assert_eq!(classes(&answer.blocking_collect().unwrap()), expected);
    }
}

#[test]
fn a_failed_step_fails_its_requests_and_the_engine_goes_on() {
    let (_engine, handle, control) = engine(Mode::FailStep, 16);
    let error = handle
        .submit(classify(&[1]))
        .unwrap()
        .blocking_collect()
        .unwrap_err();
    assert!(
        matches!(&error, AnswerError::Failed(why) if why.contains("made to fail")),
        "{error:?}"
    );
    control.set(Mode::Work);
    assert_eq!(
        classes(
            &handle
                .submit(classify(&[5]))
                .unwrap()
                .blocking_collect()
                .unwrap()
        ),
        5.0
    );
    assert_eq!(handle.snapshot().failed_steps, 1);
    assert!(handle.is_alive());
}

#[test]
fn a_lost_device_or_a_panic_stops_the_engine_and_hangs_no_caller() {
    for mode in [Mode::Lose, Mode::Panic] {
        let (_engine, handle, control) = engine(Mode::Hold, 16);
        let running = handle.submit(classify(&[1])).unwrap();
        control.wait_for_steps(1);
        let queued = handle.submit(classify(&[2])).unwrap();
        control.set(mode);
        let error = running.blocking_collect().unwrap_err();
        assert!(
            matches!(error, AnswerError::EngineStopped | AnswerError::Failed(_)),
            "{error:?}"
        );
        assert_eq!(
            queued.blocking_collect().unwrap_err(),
            AnswerError::EngineStopped
        );
        until(|| !handle.is_alive());
        assert_eq!(
            handle.submit(classify(&[3])).unwrap_err(),
            SubmitError::Stopped
        );
    }
}

#[test]
fn stopping_ends_what_is_queued() {
    let (engine, handle, control) = engine(Mode::Hold, 16);
    let running = handle.submit(classify(&[1])).unwrap();
    control.wait_for_steps(1);
    let queued = handle.submit(classify(&[2])).unwrap();
    let stopper = std::thread::spawn(move || engine.stop());
    // The stop is seen after the step in flight, which still answers.
    until(|| handle.submit(classify(&[3])).is_err());
    control.set(Mode::Work);
    stopper.join().unwrap();
    assert_eq!(classes(&running.blocking_collect().unwrap()), 1.0);
    assert_eq!(
        queued.blocking_collect().unwrap_err(),
        AnswerError::EngineStopped
    );
}
