//! Policies of the caller's, and shortest job first.

use std::sync::{Arc, Mutex};

use super::*;
use crate::{Fcfs, Grant, PolicyConfig};

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
            ..Plan::default()
        }
    }
}

/// A and D share a prefix, B and C another, there is room for one, and A < C < B < D: an order
/// that looks at the cache before every step hits twice.
#[test]
fn a_policy_can_follow_the_cache() {
    let config = SchedulerConfig::default();
    let capacity = Capacity {
        num_blocks: 4,
        ..CAPACITY
    };
    let scheduler = Scheduler::with_policy(config, capacity, Box::new(ShortestFirst)).unwrap();
    let mut rig = Rig {
        scheduler,
        ..Rig::new(SchedulerConfig::default(), capacity)
    };
    // Two rows each: the prefix of one row alone evicts nothing.
    for (id, (prefix, len)) in (0..).zip([(1, 1), (2, 3), (2, 2), (1, 4)]) {
        let of = |own| [prompt(prefix, 16), prompt(own + len, len)].concat();
        let (tree, nodes) = PromptTree::from_prompts(&[of(50), of(80)]).unwrap();
        let row = |node| RowSpec {
            node,
            head: Head::Classify,
        };
        let rows = nodes.into_iter().map(row).collect();
        rig.submit(Request::new(
            RequestId(id),
            tree,
            rows,
            Timestamp::from_nanos(id),
        ));
    }
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    assert_eq!(rig.order(), [0, 3, 2, 1]);
    assert_eq!(sizes, [18, 8, 20, 6]);
}

/// Two prefixes, each of two requests, that come together: the paper's example. What A has left in
/// the cache makes D, the longest, the shortest.
#[test]
fn shortest_job_first_follows_the_cache() {
    let order = |policy| {
        let config = SchedulerConfig {
            max_batch_tokens: Some(24),
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

/// Remembers how many changes each plan was told of, and plans as [`Fcfs`] does.
struct Listener(Arc<Mutex<Vec<usize>>>);

impl SchedulerPolicy for Listener {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        self.0.lock().unwrap().push(view.changed().len());
        Fcfs.plan(view, budget)
    }

    fn follows_costs(&self) -> bool {
        true
    }
}

/// However many requests come at once and wait for one prefix, a plan is told of a bounded number
/// of them, besides those that the step before took up and answered.
#[test]
fn a_plan_is_told_of_a_bounded_number_of_changed_costs() {
    let config = SchedulerConfig {
        max_batch_rows: 4,
        ..SchedulerConfig::default()
    };
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Listener(Arc::clone(&told));
    let scheduler = Scheduler::with_policy(config.clone(), CAPACITY, Box::new(listener)).unwrap();
    let mut rig = Rig {
        scheduler,
        ..Rig::new(config, CAPACITY)
    };
    let shared = prompt(1, 32);
    for id in 0..1040 {
        // The first 40 share nothing: until they are done, the policy has heard of all.
        let start = if id < 40 {
            prompt(2 + id, 32)
        } else {
            shared.clone()
        };
        let request = classify(id.into(), [start, vec![id % 1000]].concat());
        rig.scheduler.submit(rig.now, request).unwrap();
    }
    for _ in 0..20 {
        rig.step();
    }
    let told = told.lock().unwrap();
    let [newcomers, watchers] =
        [&told[..10], &told[10..]].map(|plans| *plans.iter().max().unwrap());
    // Two requests are touched by each row: when it is taken up and when it is answered.
    assert!((256..=256 + 8).contains(&newcomers), "{told:?}");
    assert!((256..=256 + 8).contains(&watchers), "{told:?}");
}

/// Having nothing cached is not a prefix to share: a long request does not pass a short one with
/// the shortest of all that have nothing cached.
#[test]
fn nothing_cached_is_no_group() {
    let config = SchedulerConfig {
        max_batch_tokens: Some(32),
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
            max_batch_tokens: Some(104),
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

/// Somebody of better priority comes with every step and fills it.
#[test]
fn steady_traffic_of_better_priority_holds_no_request_up_for_good() {
    let waits = |max_wait_ms: u32, generates: bool| {
        let config = SchedulerConfig {
            max_batch_tokens: Some(16),
            max_num_seqs: 1,
            enable_prefix_caching: false,
            max_wait_ms,
            ..SchedulerConfig::default()
        };
        let mut rig = Rig::new(config, CAPACITY);
        let request = |id: u64, priority: i64, now: Timestamp| {
            let prompt = prompt(id as u32, 16);
            let mut request = match generates {
                true => generate(id, prompt, 2, 1),
                false => classify(id, prompt),
            };
            (request.priority, request.arrival) = (priority, now);
            request
        };
        for id in 0..3 {
            rig.submit(request(id, 1, rig.now));
        }
        let has_started = |rig: &Rig, id| rig.scheduler.has_started(RequestId(id)) != Some(false);
        (10..200)
            .map(|id| {
                rig.submit(request(id, 0, rig.now));
                rig.step();
                rig.now = rig.now.saturating_add(Duration::from_millis(1));
                (0..3).filter(|&id| has_started(&rig, id)).count()
            })
            .collect::<Vec<_>>()
    };
    for generates in [false, true] {
        // No request is overdue before its time, and then one after the other.
        let started = waits(50, generates);
        assert_eq!(started[49], 0);
        let each = if generates { 4 } else { 1 };
        for n in 1..=3 {
            assert!(started[50 + n * each] >= n, "{n}: {started:?}");
        }
        // What else that traffic would do.
        assert_eq!(waits(0, generates).last(), Some(&0));
    }
}

/// Without a price on waiting, short requests would always pass a long one.
#[test]
fn shortest_job_first_without_fairness_is_bounded_by_the_longest_wait() {
    let config = SchedulerConfig {
        max_batch_tokens: Some(32),
        enable_prefix_caching: false,
        policy: PolicyConfig::Srjf,
        srjf_tokens_per_second: 0,
        max_wait_ms: 40,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    rig.submit(classify(0, prompt(0, 32)));
    let starts_at = (1..200).find(|&id| {
        let mut short = classify(id, prompt(id as u32, 4));
        short.arrival = rig.now;
        rig.submit(short);
        rig.step();
        rig.now = rig.now.saturating_add(Duration::from_millis(1));
        rig.scheduler.has_started(RequestId(0)) != Some(false)
    });
    assert_eq!(starts_at, Some(41));
}

/// Requests that share the first one's prefix go with it while the step is not full enough; a long
/// rest behind that prefix does not pass a short request.
#[test]
fn a_long_suffix_waits_for_its_own_place() {
    let order = |saturation: u32| {
        let config = SchedulerConfig {
            max_batch_tokens: Some(100),
            policy: PolicyConfig::Srjf,
            srjf_saturation_tokens: saturation,
            ..SchedulerConfig::default()
        };
        let mut rig = Rig::new(config, CAPACITY);
        let shared = prompt(1, 16);
        rig.submit(classify(0, [shared.clone(), prompt(2, 1)].concat()));
        rig.drain();
        let behind = |id: u64, len: u32| {
            let own = prompt(10 + id as u32, len);
            classify(id, [shared.clone(), own].concat())
        };
        let mut requests = [
            behind(1, 4),
            classify(2, prompt(30, 12)),
            behind(3, 14),
            behind(4, 60),
        ];
        for request in &mut requests {
            request.arrival = Timestamp::ZERO;
        }
        for request in requests {
            rig.submit(request);
        }
        let steps = rig.drain();
        let sizes: Vec<usize> = steps.iter().map(ForwardBatch::num_tokens).collect();
        (rig.order(), sizes)
    };
    // Together 18 tokens: below what is enough, the third goes along; the fourth does not.
    assert_eq!(order(20), (vec![0, 1, 3, 2, 4], vec![30, 60]));
    // Each step takes up rows until it has enough.
    assert_eq!(order(10), (vec![0, 1, 2, 3, 4], vec![16, 14, 60]));
    // All fit: the requests that share come first.
    assert_eq!(order(90), (vec![0, 1, 3, 4, 2], vec![90]));
}

/// Five prompts, of which none, a quarter and so on is cached, and a stream of more like them.
#[test]
fn groups_follow_the_cache_and_none_is_forgotten() {
    let rig_of = |max_batch_rows: u32| {
        let config = SchedulerConfig {
            max_batch_rows,
            policy: PolicyConfig::Groups,
            ..SchedulerConfig::default()
        };
        let capacity = Capacity {
            num_blocks: 256,
            max_step_tokens: 512,
            ..CAPACITY
        };
        let mut rig = Rig::new(config, capacity);
        // Published by two rows that share it.
        let shared = prompt(1, 36);
        rig.submit(classify(0, suffixed(&shared, 1)));
        rig.submit(classify(1, suffixed(&shared, 2)));
        rig.drain();
        rig.events.clear();
        (rig, shared)
    };
    let like = |id: u64, shared: &[u32], cached: usize| {
        let own = prompt(100 + id as u32, 40 - cached as u32);
        classify(id, [&shared[..cached], &own].concat())
    };
    // Group 9 gets nine places, group 3 three, group 1 one; woven, so that any part of a step has
    // about as many of each.
    let (mut rig, shared) = rig_of(13);
    for id in 0..60 {
        let cached = [0, 12, 36][id as usize % 3];
        rig.submit(like(id, &shared, cached));
    }
    rig.step();
    let first = rig.order();
    let of = |group: u64, line: &[u64]| line.iter().filter(|&&id| id % 3 == group).count();
    assert_eq!([0, 1, 2].map(|g| of(g, &first)), [1, 3, 9], "{first:?}");
    for (group, line) in [0, 1, 2].map(|g| (g, first.iter().filter(move |&&id| id % 3 == g))) {
        let expected: Vec<u64> = (0..13)
            .map(|i| 3 * i + group)
            .take(line.clone().count())
            .collect();
        assert_eq!(
            line.copied().collect::<Vec<_>>(),
            expected,
            "first come, first served"
        );
    }
    rig.drain();

    // One place a step: each group has it at least once in ten.
    let (mut rig, shared) = rig_of(1);
    for id in 0..12 {
        rig.submit(like(id, &shared, [0, 12, 36][id as usize % 3]));
    }
    for id in 12..72 {
        // Always enough of those that are cached.
        rig.submit(like(id, &shared, 36));
        rig.step();
    }
    let order = rig.order();
    let turns: Vec<usize> = (0..order.len())
        .filter(|&at| order[at] < 12 && order[at] % 3 == 0)
        .collect();
    assert_eq!(turns.len(), 4, "{order:?}");
    assert!(
        turns[0] < 10 && turns.windows(2).all(|w| w[1] - w[0] <= 10),
        "{turns:?}"
    );
    assert!(of_cached(&order) > 40, "{order:?}");
    rig.drain();
}

fn of_cached(order: &[u64]) -> usize {
    order.iter().filter(|&&id| id >= 12 || id % 3 == 2).count()
}
