//! The policy that orders everything by the time that it takes.

use prelude_core::{OnDeadline, ServiceTime};

use super::*;
use crate::PolicyConfig;

/// Settings by which requests take a millisecond a token, in steps of so many tokens.
fn config(step_tokens: u32, max_wait_ms: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_batch_tokens: Some(step_tokens),
        max_wait_ms,
        policy: PolicyConfig::Auto,
        service: Some(ServiceTime {
            per_token_ms: 1.0,
            ..ServiceTime::ZERO
        }),
        ..SchedulerConfig::default()
    }
}

fn rig(step_tokens: u32, max_wait_ms: u32) -> Rig {
    let mut rig = Rig::new(config(step_tokens, max_wait_ms), CAPACITY);
    rig.now = Timestamp::from_nanos(1_000_000_000);
    rig
}

/// Submits a request that comes now.
fn submit(rig: &mut Rig, mut request: Request) {
    request.arrival = rig.now;
    rig.submit(request);
}

fn later(rig: &mut Rig, ms: u64) {
    rig.now = rig.now.saturating_add(Duration::from_millis(ms));
}

#[test]
fn short_ones_go_first_and_none_waits_for_ever() {
    let mut rig = rig(20, 0);
    submit(&mut rig, classify(0, prompt(1, 20)));
    // It is due at 20 times its own time, 400 ms. One of 9 ms at 100 ms: at 100 + 2 * 20 + 180.
    later(&mut rig, 100);
    submit(&mut rig, classify(1, prompt(2, 9)));
    // One of 15 ms at 200 ms: at 200 + 2 * 29 + 300.
    later(&mut rig, 100);
    submit(&mut rig, classify(2, prompt(3, 15)));
    rig.drain();
    assert_eq!(rig.order(), [1, 0, 2]);
}

#[test]
fn a_crowd_lets_a_long_one_wait_a_hundred_times_its_own_time_at_most() {
    let order = |later_ms: u64| {
        let mut rig = rig(20, 0);
        for id in 10..60 {
            submit(&mut rig, classify(id, prompt(id as u32, 20)));
        }
        // A thousand ms are ahead of it, and it takes 10.
        submit(&mut rig, classify(0, prompt(1, 10)));
        later(&mut rig, later_ms);
        // A thousand and ten ms are ahead of it, and it takes 5: it is due 500 ms after it came.
        submit(&mut rig, classify(1, prompt(2, 5)));
        rig.drain();
        let order = rig.order().into_iter();
        order.filter(|&id| id < 2).collect::<Vec<_>>()
    };
    assert_eq!(order(499), [1, 0]);
    assert_eq!(order(501), [0, 1]);
}

#[test]
fn a_prompt_of_a_generation_is_put_aside_for_a_shorter_one() {
    let mut rig = rig(20, 0);
    submit(&mut rig, generate(0, prompt(1, 90), 2, 1));
    rig.step();
    submit(&mut rig, generate(1, prompt(2, 19), 2, 1));
    rig.step();
    assert_eq!((rig.tokens(0, 0).len(), rig.tokens(1, 0).len()), (0, 1));
    // One that takes longer than what is left of the first is not.
    submit(&mut rig, generate(2, prompt(3, 85), 2, 1));
    rig.drain();
    assert_eq!(rig.order(), [1, 0, 2]);
}

#[test]
fn who_cannot_meet_a_deadline_any_more_goes_last() {
    let order = |within_ms: u64| {
        let mut rig = rig(20, 0);
        let mut late = classify(0, prompt(1, 18));
        late.deadline = Some(rig.now.saturating_add(Duration::from_millis(within_ms)));
        late.on_deadline = OnDeadline::Finish;
        submit(&mut rig, late);
        submit(&mut rig, classify(1, prompt(2, 20)));
        rig.drain();
        rig.order()
    };
    assert_eq!(order(18), [0, 1]);
    assert_eq!(order(17), [1, 0]);
}

#[test]
fn overdue_requests_have_a_quarter_of_the_time() {
    let mut rig = rig(20, 1_000);
    submit(&mut rig, classify(0, prompt(1, 20)));
    submit(&mut rig, classify(1, prompt(2, 20)));
    later(&mut rig, 1_000);
    // More urgent ones, of which a step has two, more than enough for all steps.
    for id in 2..20 {
        let mut urgent = classify(id, prompt(id as u32 + 1, 9));
        urgent.priority = -1;
        submit(&mut rig, urgent);
    }
    // The first is overdue and goes first; the second only when 80 ms have passed since that was seen.
    for _ in 0..6 {
        rig.step();
        later(&mut rig, 20);
    }
    assert_eq!(rig.order(), [0, 2, 3, 4, 5, 6, 7, 8, 9, 1]);
}

#[test]
fn an_overdue_request_brings_those_that_share_its_prefix() {
    let mut rig = rig(60, 1_000);
    let of =
        |shared: u32, own: u32, len: u32| [prompt(shared, 16), prompt(100 + own, len)].concat();
    // Two rows each: the prefix of one row alone is not kept.
    for id in [100, 101] {
        submit(&mut rig, classify(id, of(1, id as u32, 1)));
    }
    rig.drain();
    submit(&mut rig, classify(0, of(1, 0, 24)));
    later(&mut rig, 1_000);
    submit(&mut rig, classify(1, of(1, 1, 30)));
    submit(&mut rig, classify(2, of(2, 2, 5)));
    rig.step();
    assert_eq!(rig.order()[2..], [0, 1]);
}

#[test]
fn a_step_is_as_full_as_is_best_for_what_waits_by_then() {
    let config = SchedulerConfig {
        service: Some(ServiceTime {
            base_ms: 100.0,
            per_token_ms: 1.0,
            ..ServiceTime::ZERO
        }),
        ..SchedulerConfig::default()
    };
    let capacity = Capacity {
        max_step_tokens: 1_024,
        ..CAPACITY
    };
    let mut rig = Rig::new(config, capacity);
    for id in 0..10 {
        rig.submit(classify(id, prompt(id as u32, 100)));
    }
    // Of 1,000 tokens 2 sqrt(100 * 1,000) = 632 are enough, and 346 of the 300 that are left then.
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    assert_eq!(sizes, [700, 300]);
}

#[test]
fn eight_prompts_are_under_way_at_most() {
    let capacity = Capacity {
        num_blocks: 256,
        ..CAPACITY
    };
    let mut rig = Rig::new(config(20, 0), capacity);
    // Each is more urgent than those before it, and twice as long as a step.
    for id in 0..9 {
        let mut request = generate(id, prompt(id as u32 + 1, 40), 2, 1);
        request.priority = -(id as i64);
        submit(&mut rig, request);
        rig.step();
    }
    // The ninth waits until the eighth, the most urgent of those that have begun, is computed.
    let has_begun = |id| rig.scheduler.has_started(RequestId(id));
    assert_eq!((has_begun(7), has_begun(8)), (Some(true), Some(false)));
    assert_eq!(rig.tokens(7, 0).len(), 1);
    rig.step();
    assert_eq!(rig.scheduler.has_started(RequestId(8)), Some(true));
    rig.drain();
}

#[test]
fn long_oneshot_prompts_under_way_keep_no_generation_out() {
    let config = SchedulerConfig {
        prefill_chunk_tokens: 2,
        ..config(20, 0)
    };
    let mut rig = Rig::new(config, CAPACITY);
    // Beside one that decodes, long prompts are computed in chunks.
    submit(&mut rig, generate(8, prompt(100, 4), 60, 1));
    while rig.tokens(8, 0).is_empty() {
        rig.step();
    }
    for id in 0..8 {
        submit(&mut rig, classify(id, prompt(id as u32 + 1, 30)));
    }
    while rig.scheduler.stats().running_chunked_rows < 8 {
        rig.step();
    }
    submit(&mut rig, generate(9, prompt(9, 30), 2, 1));
    rig.step();
    assert_eq!(rig.scheduler.stats().running_chunked_rows, 8);
    assert_eq!(rig.scheduler.has_started(RequestId(9)), Some(true));
    rig.drain();
}
