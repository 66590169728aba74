//! Passes in slices: when they begin, what they hold, and what they leave.

use std::collections::BTreeMap;

use prelude_core::{PassCapacity, PassId, PassSlice};

use super::*;
use crate::PolicyConfig;

const LAYERS: u32 = 3;

/// Steps of 32 tokens, and passes of at most 4,000 in sum, in slices of a millisecond.
fn rig(config: SchedulerConfig) -> Rig {
    let capacity = Capacity {
        max_step_tokens: 32,
        full_step_tokens: 2048,
        max_context_len: 4000,
        passes: Some(PassCapacity {
            layers: LAYERS,
            tokens: 4000,
            passes: 4,
            outputs: 8,
            slice_ms: 1,
        }),
        ..CAPACITY
    };
    let config = SchedulerConfig {
        max_batch_tokens: Some(32),
        ..config
    };
    Rig::new(config, capacity)
}

fn without_cache() -> SchedulerConfig {
    SchedulerConfig {
        enable_prefix_caching: false,
        ..SchedulerConfig::default()
    }
}

/// One whole step that takes a microsecond for each layer token of a slice.
fn timed(rig: &mut Rig) -> Option<ForwardBatch> {
    let batch = rig.start()?;
    let tokens = match &batch {
        ForwardBatch::Slice(slice) => u64::from(slice.layer_tokens),
        batch => batch.num_tokens() as u64,
    };
    rig.now = rig.now.saturating_add(Duration::from_micros(tokens));
    rig.finish_step();
    Some(batch)
}

fn slice(batch: &ForwardBatch) -> Option<&PassSlice> {
    match batch {
        ForwardBatch::Slice(slice) => Some(slice),
        _ => None,
    }
}

#[test]
fn long_prompts_together_hold_no_block_and_are_computed_once() {
    let mut rig = rig(without_cache());
    for id in 0..8 {
        rig.submit(classify(id, prompt(id as u32, 1000)));
    }
    let mut work: BTreeMap<PassId, u32> = BTreeMap::new();
    while let Some(batch) = timed(&mut rig) {
        assert_eq!(rig.scheduler.stats().used_blocks, 0);
        let slice = slice(&batch).expect("there is nothing but long prompts");
        *work.entry(slice.pass).or_default() += slice.layer_tokens;
    }
    assert_eq!(rig.order(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(
        work.values().copied().collect::<Vec<_>>(),
        [1000 * LAYERS; 8]
    );
}

#[test]
fn short_requests_wait_for_one_slice() {
    // A slice a millisecond of the 12,000 layer tokens, each of which takes a microsecond.
    check_waits(None, 1300, 5..20);
    // A setting goes before what the executor says.
    check_waits(Some(3), 3900, 2..8);
}

/// Computes a long prompt and, one after the other, as many short ones beside it as come meanwhile.
fn check_waits(slice_ms: Option<u32>, longest_us: u64, short: std::ops::Range<u64>) {
    let config = SchedulerConfig {
        slice_ms,
        ..without_cache()
    };
    let mut rig = rig(config);
    rig.submit(classify(0, prompt(0, 4000)));
    // Until the time of a slice is known.
    (0..8).for_each(|_| drop(timed(&mut rig)));
    let mut longest = Duration::ZERO;
    let mut id = 1;
    while rig.outcome(0).is_none() {
        rig.submit(Request {
            arrival: rig.now,
            ..classify(id, prompt(id as u32, 8))
        });
        let before = rig.now;
        while rig.outcome(id).is_none() {
            timed(&mut rig).expect("something waits");
        }
        longest = longest.max(rig.now.saturating_since(before));
        id += 1;
    }
    assert!(longest < Duration::from_micros(longest_us), "{longest:?}");
    let is_cut = slice_ms.is_none() || longest > Duration::from_micros(1300);
    assert!(is_cut, "{longest:?}");
    assert!(short.contains(&id), "{id} short requests");
}

/// A chat that never ends, a long prompt and short requests: one-shot work sits steps out for the
/// chat, and the long prompt does not take all the others.
#[test]
fn short_requests_come_between_slices_beside_a_chat() {
    let mut rig = rig(without_cache());
    rig.submit(generate(1000, prompt(7, 4), 150, 1));
    (0..8).for_each(|_| drop(timed(&mut rig)));
    rig.submit(classify(0, prompt(0, 3000)));
    (0..8).for_each(|_| drop(timed(&mut rig)));
    for id in 1..4 {
        rig.submit(classify(id, prompt(id as u32, 8)));
        let mut slices = 0;
        while rig.outcome(id).is_none() {
            let batch = timed(&mut rig).expect("something waits");
            slices += u32::from(slice(&batch).is_some());
        }
        assert!(rig.outcome(0).is_none(), "the long prompt goes on");
        assert!(slices <= 1, "{slices} slices before request {id}");
    }
}

#[test]
fn an_abandoned_pass_leaves_nothing_and_the_executor_is_told() {
    let mut rig = rig(SchedulerConfig::default());
    rig.submit(classify(0, prompt(0, 200)));
    rig.submit(classify(1, prompt(1, 200)));
    let first = timed(&mut rig).unwrap();
    let first = slice(&first).unwrap().pass;
    // What is kept lies in blocks that were free.
    assert!(rig.scheduler.stats().used_blocks > 0);
    assert!(rig.scheduler.abort(rig.now, RequestId(0), &mut rig.events));
    rig.scheduler.check_invariants();
    assert_eq!(rig.scheduler.stats().used_blocks, 0);
    let next = timed(&mut rig).unwrap();
    assert_eq!(slice(&next).unwrap().abandoned, [first]);
    rig.drain();
    assert_eq!(rig.outcome(0), Some(&Outcome::Aborted));
    assert_eq!(rig.outcome(1), Some(&Outcome::Done));
}

#[test]
fn a_generation_takes_the_blocks_that_a_pass_keeps() {
    let mut rig = rig(SchedulerConfig::default());
    // The pool has 256 positions.
    rig.submit(classify(0, prompt(0, 400)));
    timed(&mut rig);
    assert_eq!(rig.scheduler.stats().free_blocks, 0);
    rig.submit(generate(1, prompt(1, 20), 30, 1));
    let mut slices = 0;
    while rig.outcome(1).is_none() {
        let batch = timed(&mut rig).expect("something waits");
        slices += usize::from(slice(&batch).is_some_and(|slice| !slice.keeps));
    }
    assert!(slices > 0);
    rig.drain();
    assert_eq!(rig.outcome(0), Some(&Outcome::Done));
    assert_eq!(rig.tokens(1, 0).len(), 30);
}

#[test]
fn blocks_that_a_pass_keeps_are_found_by_later_requests() {
    let mut rig = rig(SchedulerConfig::default());
    let shared = prompt(0, 160);
    rig.submit(classify(0, suffixed(&shared, 1)));
    rig.drain();
    rig.submit(classify(1, suffixed(&shared, 2)));
    let batches = rig.drain();
    assert_eq!(rig.usage(1).cached_tokens, 160);
    assert!(slice(&batches[0]).is_none());
}

/// A suffix may only fill free blocks, but what a waiting request shares may push older blocks out.
#[test]
fn a_pass_keeps_what_a_waiting_request_shares_in_a_full_pool() {
    let mut rig = rig(SchedulerConfig::default());
    rig.submit(classify(0, prompt(9, 400)));
    rig.drain();
    assert_eq!(rig.scheduler.stats().free_blocks, 0);
    let shared = prompt(0, 160);
    rig.submit(classify(1, suffixed(&shared, 1)));
    rig.submit(classify(2, suffixed(&shared, 2)));
    rig.drain();
    assert_eq!(rig.usage(1).cached_tokens, 0);
    assert_eq!(rig.usage(2).cached_tokens, 160);
}

#[test]
fn rows_of_a_request_share_their_pass() {
    let mut rig = rig(without_cache());
    let shared = prompt(0, 100);
    let prompts: Vec<Vec<u32>> = (1..=6).map(|id| suffixed(&shared, id)).collect();
    let prompts: Vec<&[u32]> = prompts.iter().map(|p| &**p).collect();
    let (tree, nodes) = PromptTree::from_prompts(&prompts).unwrap();
    let rows = nodes.into_iter().map(|node| RowSpec {
        node,
        head: Head::Classify,
    });
    let rows = rows.collect();
    rig.submit(Request::new(RequestId(0), tree, rows, Timestamp::ZERO));
    let batches = rig.drain();
    let begun = batches
        .iter()
        .filter_map(|batch| slice(batch)?.begin.as_ref());
    let begun: Vec<usize> = begun.map(|batch| batch.tokens.len()).collect();
    assert_eq!(begun, [106]);
}

#[test]
fn more_urgent_and_much_shorter_prompts_go_first() {
    let order = |policy, urgent| {
        let mut rig = rig(SchedulerConfig {
            policy,
            ..without_cache()
        });
        rig.submit(classify(0, prompt(0, 2000)));
        timed(&mut rig);
        rig.submit(Request {
            priority: if urgent { -1 } else { 0 },
            ..classify(1, prompt(1, 100))
        });
        rig.drain();
        rig.order()
    };
    assert_eq!(order(PolicyConfig::Fcfs, false), [0, 1]);
    assert_eq!(order(PolicyConfig::Fcfs, true), [1, 0]);
    assert_eq!(order(PolicyConfig::Srjf, false), [1, 0]);
}

#[test]
fn shorter_prompts_do_not_keep_a_pass_from_ending() {
    let mut rig = rig(SchedulerConfig {
        policy: PolicyConfig::Srjf,
        max_wait_ms: 2,
        ..without_cache()
    });
    rig.submit(classify(0, prompt(0, 2000)));
    let mut id = 1;
    while rig.outcome(0).is_none() {
        rig.submit(Request {
            arrival: rig.now,
            ..classify(id, prompt(id as u32, 100))
        });
        timed(&mut rig);
        id += 1;
        assert!(id < 100, "shorter prompts always go first");
    }
}

#[test]
fn a_failed_slice_ends_the_request() {
    let mut rig = rig(SchedulerConfig::default());
    rig.submit(classify(0, prompt(0, 200)));
    timed(&mut rig);
    rig.start();
    let step = rig.running.pop_front().unwrap();
    let _ = rig.executor.collect(step);
    rig.complete(step, Err(ExecutorError::Step("broken".to_owned())));
    assert!(matches!(rig.outcome(0), Some(Outcome::Failed(_))));
    assert_eq!(rig.scheduler.stats().used_blocks, 0);
}

#[test]
fn prompts_beyond_the_pool_are_accepted_for_passes() {
    let mut rig = rig(SchedulerConfig::default());
    rig.submit(classify(0, prompt(0, 4000)));
    // A pass reads few output positions.
    let scored = Head::PromptLogprobs {
        positions: 1..4000,
        top: 0,
    };
    let refused = rig
        .scheduler
        .submit(rig.now, request(1, prompt(1, 4000), scored));
    assert!(matches!(refused, Err(Reject::NeverFits { .. })));
    while timed(&mut rig).is_some() {}
    assert_eq!(rig.outcome(0), Some(&Outcome::Done));
}
