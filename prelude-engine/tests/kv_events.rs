//! Events of the KV cache, from a real executor to a reader.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use prelude_core::{Generate, Head, KvEvent, PromptTree, RowSpec, SamplingParams, TokenId};
use prelude_engine::{EngineConfig, KvEventStream, RequestSpec, ScheduledEngine};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuDtype, CpuExecutor};

const BLOCK: usize = 4;

fn engine(kv_events: bool) -> ScheduledEngine {
    let executor_config = CpuConfig {
        dtype: Some(CpuDtype::F32),
        block_size: BLOCK as u32,
        num_blocks: Some(16),
        max_step_tokens: 512,
        ..CpuConfig::default()
    };
    let pool = Arc::new(ComputePool::new(1));
    let executor = CpuExecutor::new(&support::checkpoint(7), executor_config, pool).unwrap();
    let config = EngineConfig {
        kv_events,
        ..EngineConfig::default()
    };
    ScheduledEngine::spawn("events", config, Box::new(executor)).unwrap()
}

fn generate(engine: &ScheduledEngine, prompt: Vec<TokenId>, salt: Option<&str>) {
    let tree = PromptTree::single(prompt);
    let node = tree.last_node();
    let head = Head::Generate(Generate {
        max_tokens: 3,
        n: 1,
        sampling: Arc::new(SamplingParams::default()),
        top_logprobs: None,
        constraint: None,
    });
    let mut spec = RequestSpec::new(tree, vec![RowSpec { node, head }]);
    spec.cache_salt = salt.map(Arc::from);
    let answer = engine.handle().submit(spec).unwrap();
    answer.blocking_collect().unwrap();
}

/// Returns the events that have come.
fn now(stream: &mut KvEventStream) -> Vec<KvEvent> {
    let mut next = pin!(stream.next());
    match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(events) => events.expect("the engine runs"),
        Poll::Pending => Vec::new(),
    }
}

fn apply(known: &mut BTreeSet<u64>, events: Vec<KvEvent>) {
    for event in events {
        match event {
            KvEvent::Stored(stored) => known.extend(stored.hashes),
            KvEvent::Removed(hashes) => hashes.iter().for_each(|hash| {
                assert!(known.remove(hash), "it was stored");
            }),
            KvEvent::Cleared => known.clear(),
        }
    }
}

#[test]
fn no_events_unless_they_are_asked_for() {
    assert!(engine(false).handle().kv_events().is_none());
}

#[test]
fn a_reader_knows_the_cache_after_each_answer() {
    let engine = engine(true);
    let mut stream = engine.handle().kv_events().unwrap();
    assert_eq!(now(&mut stream), [KvEvent::Cleared]);
    generate(&engine, (1..10).collect(), Some("tenant"));
    let events = now(&mut stream);
    let [KvEvent::Stored(first), ..] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(first.parent, None);
    assert_eq!(first.salt.as_deref(), Some("tenant"));
    assert_eq!(first.block_size(), BLOCK);
    assert_eq!(first.tokens[..8], (1..9).collect::<Vec<_>>());
    let mut known = BTreeSet::new();
    apply(&mut known, events);
    let mut removed = false;
    for seed in 2..12 {
        generate(&engine, (seed..seed + 18).collect(), None);
        let events = now(&mut stream);
        removed |= events
            .iter()
            .any(|event| matches!(event, KvEvent::Removed(_)));
        apply(&mut known, events);
        let cached = engine.handle().snapshot().scheduler.cached_blocks;
        assert_eq!(known.len() as u64, cached);
    }
    assert!(removed, "more prompts than the pool holds");
    // A reader that was away gets what is cached, not all that happened.
    for seed in 20..40 {
        generate(&engine, (seed..seed + 18).collect(), None);
    }
    let events = now(&mut stream);
    assert!(events.contains(&KvEvent::Cleared));
    apply(&mut known, events);
    let cached = engine.handle().snapshot().scheduler.cached_blocks;
    assert_eq!(known.len() as u64, cached);
    drop(engine);
    let mut next = pin!(stream.next());
    let ended = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(ended, Poll::Ready(None));
}
