//! The wait of a request for blocks that steady one-shot traffic reads.

use super::*;
use crate::{PolicyConfig, sim::CostModel};

const MAX_WAIT: Duration = Duration::from_millis(5_000);

/// Time from arrival to start of `request`, while one-shot requests of 24 tokens behind a shared
/// prefix of 512 arrive every 0.7 ms, so that a step always runs. `None` if that is more than four
/// times the longest wait.
fn wait_of(policy: PolicyConfig, depth: u32, mut request: Request) -> Option<Duration> {
    let capacity = Capacity {
        block_size: 16,
        num_blocks: 256,
        max_step_tokens: 2048,
        full_step_tokens: 2048,
        max_context_len: 4096,
        vocab_size: 1000,
        pipeline_depth: depth,
        passes: None,
        attention: Attention::Causal,
        host_blocks: 0,
    };
    let config = SchedulerConfig {
        policy,
        max_wait_ms: 5_000,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, capacity);
    let shared = prompt(1, 512);
    let mut ends = VecDeque::new();
    let id = request.id;
    let mut late = Some({
        // The prefix is cached and read by then.
        request.arrival = Timestamp::from_nanos(20_000_000);
        request
    });
    let began = Timestamp::from_nanos(20_000_000);
    for n in 1_u64.. {
        let arrival = Timestamp::from_nanos(n * 700_000);
        if let Some(request) = late.take_if(|_| arrival >= began) {
            rig.submit(request);
        }
        while let Some(&end) = ends.front()
            && end <= arrival
        {
            rig.now = end;
            ends.pop_front();
            rig.finish_step();
            start_all(&mut rig, &mut ends);
        }
        rig.now = arrival;
        let own = prompt(10 + (n % 100_000) as u32, 24);
        let mut oneshot = classify(100 + n, [&shared[..], &own].concat());
        oneshot.arrival = arrival;
        rig.submit(oneshot);
        start_all(&mut rig, &mut ends);
        rig.events.clear();
        let waited = arrival.saturating_since(began);
        if late.is_none() && rig.scheduler.has_started(id) == Some(true) {
            return Some(waited);
        }
        if waited > MAX_WAIT * 4 {
            return None;
        }
    }
    None
}

/// Fills the pipeline; steps run one after the other.
fn start_all(rig: &mut Rig, ends: &mut VecDeque<Timestamp>) {
    while let Some(batch) = rig.start() {
        let free_at = ends.back().map_or(rig.now, |&at| at.max(rig.now));
        ends.push_back(free_at.saturating_add(CostModel::default().duration(&batch)));
    }
}

/// The pipeline drains once for an overdue request that waits for blocks: after `max_wait_ms` it
/// waits for the steps in flight and no longer.
fn check(request: &Request) {
    // Two steps of one-shot rows, each below 2 ms, and the next arrival.
    let most = MAX_WAIT + Duration::from_millis(5);
    for policy in [
        PolicyConfig::Fcfs,
        PolicyConfig::Srjf,
        PolicyConfig::Groups,
        PolicyConfig::Laps,
        PolicyConfig::RoundRobin,
    ] {
        for depth in [1, 2, 3] {
            let waited = wait_of(policy, depth, request.clone());
            let in_time = waited.is_some_and(|waited| waited <= most);
            assert!(in_time, "{policy:?}, depth {depth}: {waited:?}");
        }
    }
}

/// A prompt of 100 tokens by 4 at a time leads a peer with a longer one, block by block.
#[test]
fn an_overdue_request_waits_for_no_leader() {
    let starts_after = |overdue: bool| {
        let config = SchedulerConfig {
            max_batch_tokens: Some(24),
            prefill_chunk_tokens: 4,
            defer_max: 4,
            ..SchedulerConfig::default()
        };
        let mut rig = Rig::new(config, CAPACITY);
        rig.submit(generate(0, prompt(1, 100), 5, 1));
        rig.step();
        if overdue {
            rig.now = rig.now.saturating_add(Duration::from_secs(31));
        }
        let peer = [prompt(1, 100), prompt(2, 3)].concat();
        rig.submit(generate(1, peer, 5, 1));
        (1..100).find(|_| {
            rig.step();
            rig.scheduler.has_started(RequestId(1)) == Some(true)
        })
    };
    assert_eq!(starts_after(false), Some(25));
    assert_eq!(starts_after(true), Some(1));
}

#[test]
fn a_generation_gets_blocks_that_steady_oneshot_traffic_reads() {
    check(&generate(0, prompt(7, 3_700), 200, 1));
}

#[test]
fn a_chunked_prompt_gets_blocks_that_steady_oneshot_traffic_reads() {
    check(&classify(0, prompt(7, 3_900)));
}
