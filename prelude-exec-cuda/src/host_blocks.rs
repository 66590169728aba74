//! Blocks that go to host memory and come back: the same bits, and the same answers of a scheduler
//! whose pool is too small for its prefixes.

use prelude_core::{
    BlockId, BlockSpan, Executor, ForwardBatch, Head, HostBlockId, KvCopies, KvLoad, KvStore,
    Normalise, OneShotBatch, OutputHead, Pooling, PromptTree, Request, RequestId, Residency,
    RowOutput, RowSpec, Segment, StepId, Timestamp,
};
use prelude_models::conformance::batches::{prompt, root};
use prelude_sched::{Event, Scheduler, SchedulerConfig, SchedulerStats};

use crate::{
    CudaConfig, CudaExecutor,
    testing::{checkpoint, emulation, small},
};

fn executor(config: &CudaConfig) -> Option<CudaExecutor> {
    let device = emulation()?;
    Some(CudaExecutor::emulated(&checkpoint("demo-lm"), config, device).unwrap())
}

fn config(host_bytes: u64) -> CudaConfig {
    CudaConfig {
        deterministic: true,
        host_bytes,
        ..small()
    }
}

fn tokens(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 997 + seed * 131) % 4096).collect()
}

fn embed() -> OutputHead {
    OutputHead::Embed {
        pooling: Pooling::Last,
        normalise: true,
        dimensions: None,
    }
}

/// Runs a step and returns its rows as bits.
fn run(executor: &mut CudaExecutor, batch: ForwardBatch) -> Vec<String> {
    executor.submit(StepId(0), batch).unwrap();
    let rows = executor.collect(StepId(0)).unwrap().oneshot;
    rows.iter().map(|row| format!("{row:?}")).collect()
}

/// Returns a prompt that fills whole blocks and reads nothing.
fn filling(tokens: Vec<u32>, blocks: [u32; 3]) -> ForwardBatch {
    let kept = BlockSpan { start: 0, len: 3 };
    ForwardBatch::OneShot(OneShotBatch {
        segments: vec![Segment {
            residency: Residency::Keep(kept),
            ..root(0..48)
        }],
        tokens,
        rows: vec![],
        block_ids: blocks.map(BlockId).to_vec(),
    })
}

/// Returns the rest of a prompt of 60 tokens behind three blocks.
fn reading(tokens: &[u32], blocks: [u32; 3]) -> ForwardBatch {
    let mut batch = prompt(&tokens[48..], vec![(11..12, embed())]);
    batch.segments[0].context_len = 48;
    batch.segments[0].cached = BlockSpan { start: 0, len: 3 };
    batch.rows[0].positions = 59..60;
    batch.block_ids = blocks.map(BlockId).to_vec();
    ForwardBatch::OneShot(batch)
}

fn copies(stores: &[(u32, u32)], loads: &[(u32, u32)]) -> KvCopies {
    let store = |&(from, to): &(u32, u32)| KvStore {
        from: BlockId(from),
        to: HostBlockId(to),
    };
    let load = |&(from, to): &(u32, u32)| KvLoad {
        from: HostBlockId(from),
        to: BlockId(to),
    };
    KvCopies {
        stores: stores.iter().map(store).collect(),
        loads: loads.iter().map(load).collect(),
    }
}

#[test]
fn blocks_come_back_with_the_same_bits() {
    let Some(mut executor) = executor(&config(1 << 20)) else {
        return;
    };
    assert!(executor.capacity().host_blocks >= 6);
    let (ours, others) = (tokens(1, 60), tokens(2, 60));
    let alone = |executor: &mut _, tokens: &[u32]| {
        let whole = prompt(tokens, vec![(59..60, embed())]);
        run(executor, ForwardBatch::OneShot(whole))
    };
    let (expected, of_others) = (alone(&mut executor, &ours), alone(&mut executor, &others));
    assert_ne!(expected, of_others);
    run(&mut executor, filling(ours[..48].to_vec(), [9, 3, 30]));
    // Stored before the step writes the same blocks.
    let stores = copies(&[(9, 0), (3, 1), (30, 2)], &[]);
    run(
        &mut executor,
        filling(others[..48].to_vec(), [9, 3, 30]).after(stores),
    );
    assert_eq!(
        run(&mut executor, reading(&others, [9, 3, 30])),
        of_others,
        "what was written"
    );
    // The blocks of the other prompt are stored in the step that loads over two of them.
    let swap = copies(&[(9, 5), (3, 3), (30, 4)], &[(0, 30), (1, 9), (2, 63)]);
    let got = run(&mut executor, reading(&ours, [30, 9, 63]).after(swap));
    assert_eq!(got, expected, "what was loaded");
    // A load reads what a store of the same step wrote.
    let through = copies(&[(9, 0)], &[(0, 3)]);
    let got = run(&mut executor, reading(&ours, [30, 3, 63]).after(through));
    assert_eq!(got, expected, "what was stored and loaded");
    let back = copies(&[], &[(5, 0), (3, 1), (4, 2)]);
    let got = run(&mut executor, reading(&others, [0, 1, 2]).after(back));
    assert_eq!(got, of_others, "the other prompt");
}

#[test]
fn copies_are_made_though_their_step_fails() {
    let Some(mut executor) = executor(&config(1 << 20)) else {
        return;
    };
    let ours = tokens(1, 60);
    run(&mut executor, filling(ours[..48].to_vec(), [0, 1, 2]));
    let expected = run(&mut executor, reading(&ours, [0, 1, 2]));
    let stores = copies(&[(0, 0), (1, 1), (2, 2)], &[(0, 10), (1, 11), (2, 12)]);
    let mut bad = tokens(1, 60);
    bad[7] = u32::MAX;
    let bad = ForwardBatch::OneShot(prompt(&bad, vec![(59..60, embed())])).after(stores);
    executor.submit(StepId(0), bad).unwrap_err();
    assert_eq!(run(&mut executor, reading(&ours, [10, 11, 12])), expected);
}

#[test]
fn bad_copies_and_too_little_memory_are_refused() {
    let Some(mut executor) = executor(&config(1 << 20)) else {
        return;
    };
    let blocks = executor.capacity().host_blocks;
    let beyond = copies(&[(0, blocks)], &[]);
    let batch = filling(tokens(1, 48), [0, 1, 2]).after(beyond);
    let error = executor.submit(StepId(0), batch).unwrap_err().to_string();
    assert!(error.contains("outside host memory"), "{error}");
    let device = emulation().unwrap();
    let tiny = CudaExecutor::emulated(&checkpoint("demo-lm"), &config(100), device);
    let error = tiny.err().unwrap().to_string();
    assert!(error.contains("host_bytes"), "{error}");
}

/// Asks for scores of prompts with three long prefixes, in turns, with a pool that holds one of them.
fn serve(host_bytes: u64) -> Option<(Vec<String>, SchedulerStats)> {
    let config = CudaConfig {
        num_blocks: Some(5),
        ..config(host_bytes)
    };
    let mut executor = executor(&config)?;
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), executor.capacity()).unwrap();
    let (mut answers, mut events) = (Vec::new(), Vec::new());
    for (turn, which) in (0..).zip([1, 2, 3, 1, 2, 3, 1]) {
        let now = Timestamp::from_nanos(turn * 1000);
        // Two at once, which is why the step keeps what they share.
        for id in [2 * turn, 2 * turn + 1] {
            let mut prompt = tokens(which, 64);
            prompt.push(u32::try_from(id).unwrap());
            let tree = PromptTree::single(prompt);
            let rows = vec![RowSpec {
                node: tree.last_node(),
                head: Head::LabelScores {
                    labels: [7, 4000, 9].into(),
                    normalise: Normalise::OverVocab,
                },
            }];
            let request = Request::new(RequestId(id), tree, rows, now);
            scheduler.submit(now, request).unwrap();
        }
        while let Some((step, batch)) = scheduler.next_batch(now, &mut events) {
            executor.submit(step, batch).unwrap();
            let output = executor.collect(step);
            scheduler.complete(now, step, output, &mut events).unwrap();
        }
        for event in events.drain(..) {
            if let Event::Output { output, .. } = event {
                assert!(!matches!(output, RowOutput::Failed(_)), "{output:?}");
                answers.push(format!("{output:?}"));
            }
        }
    }
    Some((answers, scheduler.stats()))
}

#[test]
fn a_small_pool_with_host_memory_answers_as_without() {
    let Some((expected, without)) = serve(0) else {
        return;
    };
    let (got, with) = serve(1 << 20).unwrap();
    assert_eq!(expected.len(), 14);
    assert_eq!(got, expected);
    assert_eq!((without.stored_blocks, without.loaded_blocks), (0, 0));
    assert!(
        with.stored_blocks >= 8 && with.loaded_blocks >= 12,
        "{with:?}"
    );
    assert!(
        with.oneshot_tokens + 150 < without.oneshot_tokens,
        "{with:?}"
    );
}
