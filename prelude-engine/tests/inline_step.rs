//! Steps that callers' threads compute: their conditions, their answers, and that no request is
//! lost between callers and the engine's thread.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashSet,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, ThreadId},
    time::Duration,
};

use prelude_core::{
    Capacity, Executor, ExecutorError, ForwardBatch, Generate, Head, OneShotBatch, OutputHead,
    PromptTree, RowOutput, RowSpec, SampledToken, SamplingParams, StepId, StepOutput,
};
use prelude_engine::{
    AnswerError, Collected, CollectedRow, EngineConfig, EngineHandle, RequestSpec, ScheduledEngine,
    SubmitError,
};

const CAPACITY: Capacity = Capacity {
    block_size: 4,
    num_blocks: 256,
    max_step_tokens: 64,
    full_step_tokens: 2048,
    max_context_len: 128,
    vocab_size: 1000,
    pipeline_depth: 1,
    passes: None,
    attention: prelude_core::Attention::Causal,
    host_blocks: 0,
};

/// Far longer than any step of these tests.
const LONG: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Default, PartialEq)]
enum Mode {
    #[default]
    Work,
    Hold,
    Lose,
    Panic,
}

#[derive(Default)]
struct Control {
    mode: Mutex<Mode>,
    changed: Condvar,
    /// The threads that computed each step.
    threads: Mutex<Vec<ThreadId>>,
    /// True if the executor would have to wait for another one.
    is_in_the_way: AtomicBool,
}

impl Control {
    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
        self.changed.notify_all();
    }

    fn threads(&self) -> Vec<ThreadId> {
        self.threads.lock().unwrap().clone()
    }

    fn wait_for_steps(&self, n: usize) {
        while self.threads().len() < n {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Answers with the sum of the tokens that a row's own segment has.
struct Sums {
    control: Arc<Control>,
    done: Option<StepOutput>,
}

fn sums(batch: &OneShotBatch) -> Vec<RowOutput> {
    let row = |row: &prelude_core::OutputRow| {
        let own = &batch.segments[row.segment.index()].tokens;
        let sum: u32 = batch.tokens[own.start as usize..own.end as usize]
            .iter()
            .sum();
        output(sum, &row.head)
    };
    batch.rows.iter().map(row).collect()
}

fn output(sum: u32, head: &OutputHead) -> RowOutput {
    match head {
        OutputHead::Sample(sample) => {
            let token = SampledToken {
                token: sum % 1000,
                logprob: None,
                top: Vec::new(),
            };
            RowOutput::Sampled(vec![token; sample.draws as usize])
        }
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        _ => RowOutput::Classes(vec![sum as f32]),
    }
}

impl Executor for Sums {
    fn capacity(&self) -> Capacity {
        CAPACITY
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        batch.validate(&CAPACITY).unwrap();
        let (oneshot, prefill, decode) = batch.parts();
        let decode = decode.rows.iter();
        let decode = decode.map(|r| output(r.context_len, &OutputHead::Sample(r.sample.clone())));
        self.done = Some(StepOutput {
            step,
            oneshot: sums(oneshot),
            prefill: sums(prefill),
            decode: decode.collect(),
        });
        Ok(())
    }

    fn collect(&mut self, _step: StepId) -> Result<StepOutput, ExecutorError> {
        let control = &self.control;
        let me = thread::current().id();
        control.threads.lock().unwrap().push(me);
        let mode = control.mode.lock().unwrap();
        let held = control.changed.wait_while(mode, |m| *m == Mode::Hold);
        let mode = *held.unwrap();
        match mode {
            Mode::Lose => Err(ExecutorError::Lost("made to be lost".to_owned())),
            Mode::Panic => panic!("made to panic"),
            Mode::Work | Mode::Hold => Ok(self.done.take().unwrap()),
        }
    }

    fn computes_at_once(&self) -> bool {
        !self.control.is_in_the_way.load(Ordering::SeqCst)
    }
}

fn engine() -> (ScheduledEngine, EngineHandle, Arc<Control>) {
    let control = Arc::new(Control::default());
    let executor = Sums {
        control: Arc::clone(&control),
        done: None,
    };
    let config = EngineConfig::default();
    let engine = ScheduledEngine::spawn("test", config, Box::new(executor)).unwrap();
    let handle = engine.handle();
    (engine, handle, control)
}

fn spec(tokens: &[u32], head: Head) -> RequestSpec {
    let tree = PromptTree::single(tokens.to_vec());
    let node = tree.last_node();
    RequestSpec::new(tree, vec![RowSpec { node, head }])
}

fn classify(tokens: &[u32]) -> RequestSpec {
    spec(tokens, Head::Classify)
}

fn sum(collected: &Collected) -> f32 {
    match &collected.rows[..] {
        [CollectedRow::Output(RowOutput::Classes(c))] => c[0],
        other => panic!("not one class row: {other:?}"),
    }
}

/// Submits a classification that this thread may compute, and waits for its answer.
fn ask(handle: &EngineHandle, tokens: &[u32], limit: Duration) -> Result<f32, AnswerError> {
    let answer = handle.submit_inline(classify(tokens), limit).unwrap();
    answer.blocking_collect().map(|c| sum(&c))
}

/// Asks for a sum of two tokens until this thread has computed it. The engine's thread is known to
/// rest then; an answer alone does not show that.
fn ask_until_inline(handle: &EngineHandle, control: &Control) -> usize {
    let me = thread::current().id();
    for tries in 1..=10_000 {
        assert_eq!(ask(handle, &[1, 2], LONG), Ok(3.0));
        if control.threads().pop() == Some(me) {
            return tries;
        }
        thread::yield_now();
    }
    panic!("no step of this thread's");
}

#[test]
fn a_short_step_of_a_known_size_runs_on_the_callers_thread() {
    let (_engine, handle, control) = engine();
    // At first it is unknown how long it takes.
    assert!(ask_until_inline(&handle, &control) > 1);
    let me = thread::current().id();
    let is_inline = |tokens: &[u32], limit| {
        let expected = tokens
            .iter()
            .map(|&t| f32::from(u16::try_from(t).unwrap()))
            .sum();
        assert_eq!(ask(&handle, tokens, limit), Ok(expected));
        control.threads().pop() == Some(me)
    };
    // The thread has nothing to do meanwhile.
    assert!(is_inline(&[5, 6], LONG));
    assert!(is_inline(&[6, 5], LONG));
    // Not of that size; not short enough; not asked for.
    assert!(!is_inline(&[9; 16], LONG));
    ask_until_inline(&handle, &control);
    assert!(!is_inline(&[7, 7], Duration::from_nanos(1)));
    ask_until_inline(&handle, &control);
    assert!(!is_inline(&[7, 8], Duration::ZERO));
    ask_until_inline(&handle, &control);
    // Another executor would have to be waited for.
    control.is_in_the_way.store(true, Ordering::SeqCst);
    assert!(!is_inline(&[7, 9], LONG));
    control.is_in_the_way.store(false, Ordering::SeqCst);
    ask_until_inline(&handle, &control);
    // Counted like any other.
    let steps = control.threads().len() as u64;
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.finished.done, steps);
    assert_eq!(snapshot.scheduler.requests, 0);
    assert_eq!(handle.recent_steps().len() as u64, steps.min(256));
    assert_eq!(handle.tokens_ahead(), 0);
}

#[test]
fn a_refused_request_is_refused_alike() {
    let (_engine, handle, control) = engine();
    ask_until_inline(&handle, &control);
    let refused = ask(&handle, &[1, 1000], LONG).unwrap_err();
    assert!(matches!(refused, AnswerError::Rejected(_)), "{refused:?}");
    assert_eq!(ask(&handle, &[1, 3], LONG), Ok(4.0));
}

#[test]
fn a_busy_engine_is_left_to_its_thread() {
    let (_engine, handle, control) = engine();
    assert!(ask(&handle, &[1, 2], LONG).is_ok());
    control.set(Mode::Hold);
    let held = handle.submit(classify(&[3, 4])).unwrap();
    control.wait_for_steps(2);
    // Does not wait for the step that is held.
    let queued = handle.submit_inline(classify(&[5, 6]), LONG).unwrap();
    control.set(Mode::Work);
    assert_eq!(sum(&held.blocking_collect().unwrap()), 7.0);
    assert_eq!(sum(&queued.blocking_collect().unwrap()), 11.0);
    assert!(!control.threads().contains(&thread::current().id()));
}

#[test]
fn requests_of_several_steps_are_left_to_the_thread() {
    let (_engine, handle, control) = engine();
    let before = ask_until_inline(&handle, &control);
    let sampling = Arc::new(SamplingParams::default());
    let head = Head::Generate(Generate {
        max_tokens: 5,
        n: 1,
        sampling,
        top_logprobs: None,
        constraint: None,
    });
    let answer = handle.submit_inline(spec(&[3, 4], head), LONG).unwrap();
    let collected = answer.blocking_collect().unwrap();
    let [CollectedRow::Generated(generated)] = &collected.rows[..] else {
        panic!("not one generation: {collected:?}");
    };
    assert_eq!(generated[0].tokens.len(), 5);
    let me = thread::current().id();
    let inline = control
        .threads()
        .into_iter()
        .skip(before)
        .map(|id| id == me);
    let expected = [true, false, false, false, false];
    assert_eq!(inline.collect::<Vec<_>>(), expected);
}

#[test]
fn a_lost_device_or_a_panic_ends_the_engine_and_not_the_caller() {
    for mode in [Mode::Lose, Mode::Panic] {
        let (engine, handle, control) = engine();
        ask_until_inline(&handle, &control);
        control.set(mode);
        let error = ask(&handle, &[3, 4], LONG).unwrap_err();
        assert!(
            matches!(error, AnswerError::EngineStopped | AnswerError::Failed(_)),
            "{error:?}"
        );
        assert_eq!(control.threads().pop(), Some(thread::current().id()));
        assert!(!handle.is_alive());
        let refused = handle.submit_inline(classify(&[5]), LONG).unwrap_err();
        assert_eq!(refused, SubmitError::Stopped);
        // Its thread has noticed as well.
        engine.stop();
    }
}

/// A small generator: the same numbers for the same seed.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn callers_and_the_thread_lose_nothing_between_them() {
    let mut callers_ran_steps = false;
    for seed in 1..=4u64 {
        let (engine, handle, control) = engine();
        let (done, all_done) = mpsc::channel();
        for caller in 0..4 {
            let (handle, done) = (handle.clone(), done.clone());
            thread::spawn(move || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ caller;
                for i in 0..2_000 {
                    let random = next(&mut state);
                    // Prompts that are in the engine together begin differently and share nothing.
                    let tokens = [caller * 200 + i % 200, random % 1000].map(|t| t as u32);
                    let limit = match random >> 60 {
                        0..4 => Duration::ZERO,
                        _ => LONG,
                    };
                    let answer = handle.submit_inline(classify(&tokens), limit).unwrap();
                    if (random >> 50).is_multiple_of(8) {
                        // Aborted, wherever it is.
                        drop(answer);
                        continue;
                    }
                    let collected = answer.blocking_collect().unwrap();
                    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                    let expected = (tokens[0] + tokens[1]) as f32;
                    assert_eq!(sum(&collected), expected);
                }
                done.send(()).unwrap();
            });
        }
        drop(done);
        for _ in 0..4 {
            // A lost wake-up would leave somebody waiting for ever.
            let finished = all_done.recv_timeout(Duration::from_secs(60));
            assert_eq!(finished, Ok(()), "seed {seed}");
        }
        engine.stop();
        let who: HashSet<ThreadId> = control.threads().into_iter().collect();
        callers_ran_steps |= who.len() > 1;
        let scheduler = handle.snapshot().scheduler;
        assert_eq!((scheduler.requests, scheduler.queued_rows), (0, 0));
    }
    // On a busy machine, not with every seed.
    assert!(callers_ran_steps);
}
