//! Refusals, deadlines and failures.

use super::*;

#[test]
fn queues_are_bounded_in_rows_and_tokens() {
    let config = SchedulerConfig {
        max_queued_rows: 4,
        max_queued_tokens: 50,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    let mut check = |request: Request, expected: Result<(), &str>| {
        let got = rig
            .scheduler
            .submit(rig.now, request)
            .map_err(|e| e.to_string());
        assert_eq!(got, expected.map_err(str::to_owned));
        rig.scheduler.check_invariants();
    };
    check(
        generate(0, prompt(0, 9), 1, 5),
        Err("the request's 5 rows exceed the queue's limit of 4"),
    );
    check(
        classify(0, prompt(0, 51)),
        Err("the request's 51 prompt tokens exceed the queue's limit of 50"),
    );
    check(generate(0, prompt(0, 10), 9, 3), Ok(()));
    check(classify(0, prompt(0, 9)), Err("request id 0 is in use"));
    check(
        generate(1, prompt(0, 9), 1, 2),
        Err("queue full: 2 rows beside 3 queued exceed the limit of 4"),
    );
    check(
        classify(1, prompt(0, 41)),
        Err("queue full: 41 prompt tokens beside 10 queued exceed the limit of 50"),
    );
    check(classify(1, prompt(0, 1)), Ok(()));
    // What has started does not wait any more.
    rig.step();
    rig.step();
    assert_eq!(
        (
            rig.scheduler.stats().queued_rows,
            rig.scheduler.stats().queued_tokens
        ),
        (0, 0)
    );
    assert_eq!(rig.scheduler.stats().requests, 1);
}

#[test]
fn a_request_that_can_never_fit_is_refused() {
    let capacity = Capacity {
        num_blocks: 4,
        max_step_tokens: 20,
        ..CAPACITY
    };
    let mut rig = Rig::new(SchedulerConfig::default(), capacity);
    let mut check = |request: Request, needed: Option<u64>| {
        let expected = match needed {
            Some(needed) => Err(Reject::NeverFits {
                row: 0,
                needed,
                available: 4,
            }),
            None => Ok(()),
        };
        assert_eq!(rig.scheduler.submit(rig.now, request), expected);
    };
    // 16 positions; the last token needs none.
    check(generate(0, prompt(0, 10), 7, 1), None);
    check(generate(1, prompt(0, 10), 8, 1), Some(5));
    // One step holds it without any block.
    check(classify(2, prompt(0, 20)), None);
    check(classify(3, prompt(0, 21)), Some(6));
    rig.drain();
    assert_eq!(
        (rig.outcome(0), rig.outcome(2)),
        (Some(&Outcome::Done), Some(&Outcome::Done))
    );
}

#[test]
fn deadlines_drop_what_has_not_started() {
    let mut rig = Rig::small(16);
    let due = |id, ns| {
        let mut request = classify(id, prompt(id as u32, 16));
        request.deadline = Some(Timestamp::from_nanos(ns));
        request
    };
    rig.submit(due(0, 100));
    rig.submit(due(1, 200));
    rig.submit(due(2, 150));
    assert_eq!(
        rig.scheduler.next_deadline(),
        Some(Timestamp::from_nanos(100))
    );
    rig.start();
    assert_eq!(
        rig.scheduler.next_deadline(),
        Some(Timestamp::from_nanos(150))
    );
    rig.now = Timestamp::from_nanos(170);
    rig.finish_step();
    rig.step();
    assert_eq!(rig.order(), [0, 2, 1]);
    assert_eq!(rig.outcome(2), Some(&Outcome::DeadlineExpired));
    assert_eq!(rig.usage(2).queue_time, Duration::from_nanos(168));
    assert_eq!(rig.scheduler.next_deadline(), None);
    let late = rig.scheduler.submit(rig.now, due(3, 160)).unwrap_err();
    assert_eq!(
        late.to_string(),
        "the deadline passed 10 ns before the request was submitted"
    );
}

#[test]
fn who_may_be_late_is_not_dropped() {
    let mut rig = Rig::small(16);
    let may_be_late = |id| {
        let mut request = classify(id, prompt(id as u32, 16));
        request.deadline = Some(Timestamp::from_nanos(100));
        request.on_deadline = prelude_core::OnDeadline::Finish;
        request
    };
    rig.submit(may_be_late(0));
    rig.submit(may_be_late(1));
    assert_eq!(rig.scheduler.next_deadline(), None);
    rig.start();
    rig.now = Timestamp::from_nanos(500);
    rig.submit(may_be_late(2));
    rig.finish_step();
    rig.step();
    rig.step();
    for id in 0..3 {
        assert_eq!(rig.outcome(id), Some(&Outcome::Done), "{id}");
    }
}

#[test]
fn a_failed_step_fails_its_requests_only() {
    let mut rig = Rig::new(
        SchedulerConfig {
            max_batch_tokens: Some(16),
            ..SchedulerConfig::default()
        },
        Capacity {
            pipeline_depth: 2,
            passes: None,
            host_blocks: 0,
            ..CAPACITY
        },
    );
    rig.submit(classify(0, prompt(0, 16)));
    rig.submit(classify(1, prompt(1, 16)));
    rig.submit(classify(2, prompt(2, 16)));
    rig.start();
    rig.start();
    let (first, second) = (rig.running[0], rig.running[1]);
    let output = rig.executor.collect(first).unwrap();
    assert_eq!(
        rig.scheduler
            .complete(rig.now, second, Ok(output.clone()), &mut rig.events),
        Err(UnknownStep(second)),
        "steps complete in order"
    );
    // A failure may come first.
    rig.complete(second, Err(ExecutorError::Step("overheated".to_owned())));
    assert_eq!(
        rig.outcome(1),
        Some(&Outcome::Failed("step failed: overheated".to_owned()))
    );
    rig.complete(first, Ok(output));
    assert_eq!(rig.outcome(0), Some(&Outcome::Done));
    // An output that is not this step's is a failure too.
    let (third, _) = rig.scheduler.next_batch(rig.now, &mut rig.events).unwrap();
    rig.complete(
        third,
        Ok(StepOutput {
            step: third,
            ..StepOutput::default()
        }),
    );
    let Some(Outcome::Failed(why)) = rig.outcome(2) else {
        panic!("it must fail")
    };
    assert_eq!(
        why,
        "the executor's output does not match its batch: one-shot rows"
    );
}

#[test]
fn a_lost_executor_ends_everything() {
    let mut rig = Rig::small(16);
    rig.submit(classify(0, prompt(0, 16)));
    rig.submit(generate(1, prompt(1, 16), 4, 1));
    rig.start();
    rig.complete(StepId(0), Err(ExecutorError::Lost("unplugged".to_owned())));
    let lost = Outcome::Failed("device lost: unplugged".to_owned());
    assert_eq!((rig.outcome(0), rig.outcome(1)), (Some(&lost), Some(&lost)));
    assert_eq!(rig.scheduler.stats().used_blocks, 0);
    assert!(rig.start().is_none());
}

#[test]
fn a_bad_config_is_refused() {
    let config = SchedulerConfig {
        max_batch_tokens: Some(0),
        ..SchedulerConfig::default()
    };
    assert!(Scheduler::new(config, CAPACITY).is_err());
}
