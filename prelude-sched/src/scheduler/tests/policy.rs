//! Policies of the caller's, and shortest job first.

use super::*;
use crate::{Grant, PolicyConfig};

/// Shortest remaining prompt first, asked anew before every step (the order of `PrefillOnly` §6),
/// one request a step.
struct ShortestFirst;

impl SchedulerPolicy for ShortestFirst {
    fn plan(&mut self, view: &QueueView<'_>, _budget: StepBudget) -> Plan {
        let uncached = |w: &&Waiting| {
            let size = view.next_prompt(w.request).expect("it waits");
            (size.tokens - size.cached, w.arrival)
        };
        let next = view.oneshot().min_by_key(uncached);
        let grant = |w: &Waiting| Grant {
            request: w.request,
            tokens: u32::MAX,
        };
        Plan {
            oneshot: next.map(grant).into_iter().collect(),
            decode: Vec::new(),
        }
    }
}

/// A and D share a prefix, B and C another, there is room for one, and A < C < B < D: an order
/// that looks at the cache before every step hits twice.
#[test]
fn a_policy_can_follow_the_cache() {
    let config = SchedulerConfig {
        keep_shared_min_rows: 1,
        ..SchedulerConfig::default()
    };
    let capacity = Capacity {
        num_blocks: 4,
        ..CAPACITY
    };
    let scheduler = Scheduler::with_policy(config, capacity, Box::new(ShortestFirst)).unwrap();
    let mut rig = Rig {
        scheduler,
        ..Rig::new(SchedulerConfig::default(), capacity)
    };
    let of = |prefix: u32, len: usize| {
        [prompt(prefix, 16), prompt(50 + len as u32, len as u32)].concat()
    };
    let [a, b, c, d] = [of(1, 1), of(2, 3), of(2, 2), of(1, 4)];
    for (id, prompt) in [a, b, c, d].into_iter().enumerate() {
        rig.submit(classify(id as u64, prompt));
    }
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    assert_eq!(rig.order(), [0, 3, 2, 1]);
    assert_eq!(sizes, [17, 4, 18, 3]);
}

/// Two prefixes, each of two requests, that come together: the paper's example. What A has left in
/// the cache makes D, the longest, the shortest.
#[test]
fn shortest_job_first_follows_the_cache() {
    let order = |policy| {
        let config = SchedulerConfig {
            max_batch_tokens: 24,
            policy,
            ..SchedulerConfig::default()
        };
        let mut rig = Rig::new(config, CAPACITY);
        let of = |shared: u32, id: u32, len: u32| {
            [prompt(shared, 16), prompt(100 + id, len - 16)].concat()
        };
        let prompts = [of(1, 0, 18), of(2, 1, 22), of(2, 2, 20), of(1, 3, 24)];
        for (id, prompt) in (0..).zip(prompts) {
            let mut request = classify(id, prompt);
            request.arrival = Timestamp::ZERO;
            rig.submit(request);
        }
        rig.drain();
        (rig.order(), rig.scheduler.stats().srjf_recalibrations)
    };
    assert_eq!(order(PolicyConfig::Fcfs), (vec![0, 1, 2, 3], 0));
    let (order, recalibrations) = order(PolicyConfig::Srjf);
    assert_eq!(order, [0, 3, 2, 1]);
    assert!(recalibrations > 0);
}

/// Having nothing cached is not a prefix to share: a long request does not pass a short one with
/// the shortest of all that have nothing cached.
#[test]
fn nothing_cached_is_no_group() {
    let config = SchedulerConfig {
        max_batch_tokens: 32,
        keep_shared_min_rows: 1,
        policy: PolicyConfig::Srjf,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    let shared = prompt(1, 32);
    rig.submit(classify(0, [shared.clone(), prompt(2, 1)].concat()));
    rig.drain();
    let mut requests = [
        classify(1, [shared, prompt(3, 12)].concat()),
        classify(2, prompt(4, 10)),
        classify(3, prompt(5, 100)),
    ];
    for request in &mut requests {
        request.arrival = Timestamp::ZERO;
    }
    for request in requests {
        rig.submit(request);
    }
    rig.drain();
    assert_eq!(rig.order(), [0, 2, 1, 3]);
}

/// A request with 104 tokens is overtaken by one with 4 for (104 - 4) / 500 seconds.
#[test]
fn who_waits_long_enough_is_not_overtaken() {
    let first_with = |late: Duration, priority: i64| {
        let config = SchedulerConfig {
            max_batch_tokens: 104,
            policy: PolicyConfig::Srjf,
            ..SchedulerConfig::default()
        };
        let mut rig = Rig::new(config, CAPACITY);
        let mut long = classify(0, prompt(0, 104));
        let mut short = classify(1, prompt(1, 4));
        (long.arrival, short.arrival) = (Timestamp::ZERO, Timestamp::ZERO.saturating_add(late));
        long.priority = priority;
        rig.now = short.arrival;
        rig.submit(long);
        rig.submit(short);
        rig.drain();
        rig.order()[0]
    };
    assert_eq!(first_with(Duration::from_millis(199), 0), 1);
    assert_eq!(first_with(Duration::from_millis(201), 0), 0);
    // Priorities come before anything else.
    assert_eq!(first_with(Duration::ZERO, -1), 0);
}
