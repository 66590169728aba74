//! Tests of the work that a policy may hold back, and for how long.

use std::sync::Mutex;

use super::*;
use crate::{Grant, StepTime, Turn};

/// First come, first served, but for what `change` does to each plan.
struct Changed<F>(F);

impl<F: FnMut(&QueueView<'_>, &mut Plan) + Send> SchedulerPolicy for Changed<F> {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let mut plan = crate::Fcfs.plan(view, budget);
        (self.0)(view, &mut plan);
        plan
    }
}

fn rig(
    config: SchedulerConfig,
    change: impl FnMut(&QueueView<'_>, &mut Plan) + Send + 'static,
) -> Rig {
    let policy = Box::new(Changed(change));
    let scheduler = Scheduler::with_policy(config.clone(), CAPACITY, policy).unwrap();
    Rig {
        scheduler,
        ..Rig::new(config, CAPACITY)
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn after(time: Duration) -> Timestamp {
    Timestamp::ZERO.saturating_add(time)
}

/// However a policy puts a step off, the device stands idle for `max_idle_ms` and no longer.
#[test]
fn a_policy_waits_for_a_bounded_time() {
    let starts_after = |max_idle_ms, step: Duration| {
        let config = SchedulerConfig {
            max_idle_ms,
            ..SchedulerConfig::default()
        };
        let mut rig = rig(config, move |view, plan| {
            *plan = Plan {
                wait_until: Some(view.now().saturating_add(step)),
                ..Plan::default()
            };
        });
        rig.submit(classify(0, prompt(1, 5)));
        while rig.start().is_none() {
            let at = rig.scheduler.next_deadline().expect("it is asked again");
            assert!(rig.now < at && rig.scheduler.idles());
            rig.now = at;
        }
        rig.finish_step();
        assert!(!rig.scheduler.idles());
        assert_eq!(rig.scheduler.next_deadline(), None);
        rig.now
    };
    assert_eq!(starts_after(50, ms(3)), after(ms(50)));
    assert_eq!(starts_after(50, ms(1_000_000)), after(ms(50)));
    assert_eq!(starts_after(0, ms(3)), after(ms(0)));
    // The past is no time to wait for.
    assert_eq!(starts_after(50, ms(0)), after(ms(0)));
}

/// A step runs and a second could be in flight, but the policy waits for more.
#[test]
fn a_policy_that_waits_beside_a_running_step_is_asked_again_in_time() {
    let until = after(ms(3));
    let policy = Changed(move |view: &QueueView<'_>, plan: &mut Plan| {
        if !view.is_idle() && view.now() < until {
            *plan = Plan {
                wait_until: Some(until),
                ..Plan::default()
            };
        }
    });
    let capacity = Capacity {
        pipeline_depth: 2,
        passes: None,
        host_blocks: 0,
        ..CAPACITY
    };
    let config = SchedulerConfig::default();
    let scheduler = Scheduler::with_policy(config.clone(), capacity, Box::new(policy)).unwrap();
    let mut rig = Rig {
        scheduler,
        ..Rig::new(config, capacity)
    };
    rig.submit(classify(0, prompt(1, 5)));
    assert!(rig.start().is_some());
    rig.submit(classify(1, prompt(2, 5)));
    assert!(rig.start().is_none());
    assert_eq!(rig.scheduler.next_deadline(), Some(until));
    rig.now = until;
    assert!(rig.start().is_some());
    assert_eq!(rig.scheduler.next_deadline(), None);
    rig.finish_step();
    rig.finish_step();
}

#[test]
fn each_wait_has_the_whole_bound() {
    let mut wait = false;
    let mut rig = rig(SchedulerConfig::default(), move |view, plan| {
        // Every other step.
        wait = if view.is_idle() { !wait } else { wait };
        if wait {
            plan.oneshot.clear();
            plan.wait_until = Some(view.now().saturating_add(ms(40)));
        }
    });
    for id in 0..5 {
        rig.submit(classify(id, prompt(1, 5)));
        assert!(rig.start().is_none());
        let at = rig.scheduler.next_deadline().unwrap();
        assert_eq!(at, rig.now.saturating_add(ms(40)), "request {id}");
        rig.now = at;
        rig.step();
    }
    // No request is left to wait for.
    rig.submit(classify(9, prompt(1, 5)));
    assert!(rig.start().is_none());
    let mut events = Vec::new();
    rig.scheduler.abort(rig.now, RequestId(9), &mut events);
    assert_eq!(rig.scheduler.next_deadline(), None);
}

#[test]
fn a_policy_that_grants_nothing_is_not_asked_any_more() {
    let mut rig = rig(SchedulerConfig::default(), |_, plan| {
        *plan = Plan::default()
    });
    rig.submit(classify(0, prompt(1, 5)));
    rig.submit(generate(1, prompt(2, 5), 3, 1));
    rig.drain();
    assert_eq!(rig.order(), [0, 1]);
}

#[test]
fn generations_go_on_while_a_policy_waits() {
    let mut rig = rig(SchedulerConfig::default(), |view, plan| {
        if view.oneshot().next().is_some() {
            assert!(!view.is_idle());
            plan.oneshot.clear();
            plan.wait_until = Some(view.now().saturating_add(ms(5)));
        }
    });
    rig.submit(generate(0, prompt(1, 5), 20, 1));
    rig.step();
    rig.submit(classify(1, prompt(2, 5)));
    for _ in 0..5 {
        assert!(matches!(rig.step(), ForwardBatch::Decode(_)));
    }
    assert_eq!(rig.tokens(0, 0).len(), 6);
}

/// A prompt of 60 tokens in steps of 16, paused whenever it may be, beside short ones that come
/// with every step.
#[test]
fn a_paused_prompt_keeps_its_blocks_and_has_a_bound() {
    let goes_on_after = |max_wait_ms: u32| {
        let config = SchedulerConfig {
            max_batch_tokens: Some(16),
            enable_prefix_caching: false,
            max_wait_ms,
            ..SchedulerConfig::default()
        };
        let mut rig = rig(config, |_, plan| plan.chunks = Some(Vec::new()));
        rig.submit(classify(0, prompt(1, 60)));
        rig.submit(classify(1, prompt(2, 4)));
        assert_eq!(rig.step().num_tokens(), 16);
        let held = rig.scheduler.stats().used_blocks;
        (1..100).find(|id| {
            rig.now = rig.now.saturating_add(ms(1));
            let mut short = classify(id + 1, prompt(2 + *id as u32, 4));
            short.arrival = rig.now;
            rig.submit(short);
            let tokens = rig.step().num_tokens();
            assert!(rig.scheduler.stats().used_blocks >= held);
            tokens > 4 + 4
        })
    };
    assert_eq!(goes_on_after(40), Some(40));
    assert_eq!(goes_on_after(0), None);
}

#[test]
fn a_paused_prompt_goes_on_if_nothing_else_does() {
    let config = SchedulerConfig {
        max_batch_tokens: Some(16),
        ..SchedulerConfig::default()
    };
    let mut rig = rig(config, |_, plan| plan.chunks = Some(Vec::new()));
    rig.submit(classify(0, prompt(1, 40)));
    rig.submit(classify(1, prompt(2, 4)));
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    assert_eq!(sizes, [16, 4, 16, 8]);
}

/// If two prompts are computed in chunks, only the one that the plan names goes on, at the policy's
/// pace.
#[test]
fn a_policy_names_who_goes_on_and_how_far() {
    let config = SchedulerConfig {
        max_batch_tokens: Some(32),
        ..SchedulerConfig::default()
    };
    let mut rig = rig(config, |view, plan| {
        plan.chunk_tokens = Some(8);
        let youngest = view.unfinished().last().map(|prompt| prompt.request);
        plan.chunks = Some(youngest.into_iter().collect());
    });
    rig.submit(classify(0, prompt(1, 20)));
    rig.step();
    rig.submit(generate(1, prompt(2, 20), 2, 1));
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    // Both, since the second has only come; its other two chunks; the first one's rest beside a
    // token of the second.
    assert_eq!(sizes, [16, 8, 4, 5]);
}

#[test]
fn a_prompt_that_cannot_be_split_is_computed_whole() {
    let mut rig = rig(SchedulerConfig::default(), |_, plan| {
        plan.chunk_tokens = Some(0)
    });
    rig.submit(mean(0, prompt(1, 20)));
    rig.submit(classify(1, prompt(2, 3)));
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    // And no pace is too slow.
    assert_eq!(sizes, [21, 1, 1]);
}

/// A policy that keeps what it is told of steps.
struct Told(Arc<Mutex<Vec<StepTime>>>);

impl SchedulerPolicy for Told {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let of = |w: &Waiting| {
            assert_eq!(w.turn, Turn::Usual);
            Grant {
                request: w.request,
                tokens: budget.tokens,
            }
        };
        Plan {
            oneshot: view.oneshot().map(of).collect(),
            decode: view.decode().map(of).collect(),
            ..Plan::default()
        }
    }

    fn completed(&mut self, step: &StepTime) {
        self.0.lock().unwrap().push(*step);
    }
}

#[test]
fn a_policy_learns_what_steps_took() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let policy = Box::new(Told(Arc::clone(&told)));
    let scheduler = Scheduler::with_policy(SchedulerConfig::default(), CAPACITY, policy).unwrap();
    let mut rig = Rig {
        scheduler,
        ..Rig::small(16)
    };
    rig.submit(generate(0, prompt(1, 5), 3, 1));
    for (id, took) in [(1, ms(7)), (2, ms(3))] {
        rig.submit(classify(id, prompt(10 + id as u32, 4)));
        rig.start();
        rig.now = rig.now.saturating_add(took);
        rig.finish_step();
    }
    // A step that fails took no time that would say anything.
    rig.start();
    let failed = rig.running.pop_front().expect("it was started");
    rig.complete(failed, Err(ExecutorError::Step("broken".into())));
    let step = |step, took, prompt_tokens, decode_rows| StepTime {
        step: StepId(step),
        took,
        prompt_tokens,
        decode_rows,
    };
    let expected = [step(0, ms(7), 9, 0), step(1, ms(3), 4, 1)];
    assert_eq!(*told.lock().unwrap(), expected);
}

/// Without generations, several prompts fill a step of `full_step_tokens`.
#[test]
fn steps_are_larger_while_no_generation_waits_or_runs() {
    let capacity = Capacity {
        num_blocks: 8192,
        max_step_tokens: 16_384,
        full_step_tokens: 8192,
        max_context_len: 8192,
        ..CAPACITY
    };
    let mut rig = Rig::new(SchedulerConfig::default(), capacity);
    for id in 0..60 {
        rig.submit(classify(id, prompt(id as u32 + 1, 300)));
    }
    assert_eq!(rig.step().num_tokens(), 27 * 300);
    rig.submit(generate(60, prompt(61, 100), 3, 1));
    let shared = rig.step().num_tokens();
    assert!((300..=2048).contains(&shared), "{shared}");
    rig.drain();

    // Of a longer prompt, others wait for a chunk and not for all of it.
    for id in 70..74 {
        let len = if id == 71 { 3000 } else { 300 };
        rig.submit(classify(id, prompt(id as u32 + 1, len)));
    }
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    assert_eq!(sizes, [3 * 300 + 2048, 3000 - 2048]);

    // A size that settings name holds for every step.
    let config = SchedulerConfig {
        max_batch_tokens: Some(2048),
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, capacity);
    for id in 0..20 {
        rig.submit(classify(id, prompt(id as u32 + 1, 300)));
    }
    assert_eq!(rig.step().num_tokens(), 6 * 300);
    rig.drain();
}
