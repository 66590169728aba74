//! Policies that know how long steps take.

use prelude_core::ServiceTime;

use super::*;
use crate::{LapsConfig, PolicyConfig};

/// Each token takes a tenth of a millisecond, and nothing else takes any time.
const TOKENS: ServiceTime = ServiceTime {
    floor_ms: 0.0,
    per_cached_ms: 0.0,
    base_ms: 0.0,
    per_token_ms: 0.1,
    per_pair_ms: 0.0,
    decode_ms: 0.0,
};

fn srjf(service: Option<ServiceTime>) -> Rig {
    let config = SchedulerConfig {
        max_batch_tokens: Some(104),
        policy: PolicyConfig::Srjf,
        srjf_saturation_tokens: 1,
        service,
        ..SchedulerConfig::default()
    };
    Rig::new(config, CAPACITY)
}

/// Twenty tokens behind eighty cached ones, or thirty of a prompt of their own: the first are
/// fewer, and attend to more (PrefillOnly §6.3: `jct(n_input, n_cached)` in place of its proxy).
#[test]
fn shortest_job_first_orders_by_time_where_it_is_known() {
    let order = |service| {
        let mut rig = srjf(service);
        let shared = prompt(0, 80);
        rig.submit(classify(0, [&shared[..], &[1]].concat()));
        rig.drain();
        rig.submit(classify(1, [&shared[..], &prompt(7, 20)].concat()));
        rig.submit(classify(2, prompt(9, 30)));
        rig.drain();
        rig.order()
    };
    assert_eq!(order(None), [0, 1, 2]);
    assert_eq!(order(Some(TOKENS)), [0, 1, 2]);
    let attention = ServiceTime {
        per_pair_ms: 0.01,
        ..TOKENS
    };
    assert_eq!(order(Some(attention)), [0, 2, 1]);
    let memory = ServiceTime {
        per_cached_ms: 0.1,
        ..TOKENS
    };
    assert_eq!(order(Some(memory)), [0, 2, 1]);
}

/// A prompt of 104 tokens waits, and one of 4 comes later: it overtakes if the first has waited for
/// less than `(M - m) / λ`, where times make of both what a full step makes of a token.
#[test]
fn one_setting_says_how_fast_waiting_makes_requests_urgent() {
    let first = |service: Option<ServiceTime>, late: u64| {
        let mut rig = srjf(service);
        let mut long = classify(0, prompt(0, 104));
        let mut short = classify(1, prompt(1, 4));
        let late = Duration::from_millis(late);
        (long.arrival, short.arrival) = (Timestamp::ZERO, Timestamp::ZERO.saturating_add(late));
        rig.now = short.arrival;
        rig.submit(long);
        rig.submit(short);
        rig.drain();
        rig.order()[0]
    };
    // A hundred tokens at 500 a second; the same where each token takes the same time.
    for service in [None, Some(TOKENS)] {
        assert_eq!(first(service, 199), 1);
        assert_eq!(first(service, 201), 0);
    }
    // Where the first token takes as long as twenty further ones, so does one second of waiting:
    // a step of one token takes 2 ms, so 10 ms are made up for by 5 tokens, at 500 a second.
    let based = ServiceTime {
        base_ms: 1.9,
        ..TOKENS
    };
    assert_eq!(first(Some(based), 9), 1);
    assert_eq!(first(Some(based), 11), 0);
}

/// A prompt of 140 tokens is long as configured, and short on a device that reads its weights for
/// as long as it computes 200.
#[test]
fn the_boundary_of_laps_follows_the_time_of_steps() {
    let sizes = |service| {
        let config = SchedulerConfig {
            policy: PolicyConfig::Laps,
            max_batch_tokens: Some(512),
            enable_prefix_caching: false,
            laps: LapsConfig {
                boundary_tokens: 100,
                max_window_us: 0,
                ..LapsConfig::default()
            },
            service,
            ..SchedulerConfig::default()
        };
        let capacity = Capacity {
            max_step_tokens: 1024,
            full_step_tokens: 2048,
            max_context_len: 1024,
            num_blocks: 512,
            ..CAPACITY
        };
        let mut rig = Rig::new(config, capacity);
        for (id, tokens) in [(0, 140), (1, 4), (2, 5)] {
            rig.submit(classify(id, prompt(id as u32, tokens)));
        }
        let batches = rig.drain();
        batches
            .iter()
            .map(ForwardBatch::num_tokens)
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(None), [9, 140]);
    let reads = ServiceTime {
        floor_ms: 20.0,
        ..TOKENS
    };
    assert_eq!(sizes(Some(reads)), [149]);
    // Below the least boundary that times may give.
    let computes = ServiceTime {
        floor_ms: 1.0,
        ..TOKENS
    };
    assert_eq!(sizes(Some(computes)), [9, 140]);
}

#[test]
fn a_time_that_is_none_is_refused() {
    let config = SchedulerConfig {
        service: Some(ServiceTime {
            per_token_ms: f64::NAN,
            ..TOKENS
        }),
        ..SchedulerConfig::default()
    };
    let error = Scheduler::new(config, CAPACITY).err().expect("no time");
    assert!(error.to_string().contains("per_token_ms is NaN"), "{error}");
}
