//! A step takes hardly any memory from the system: what it returns, and a few lists of rows.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, OneShotBatch, OutputHead,
    PassId, PassSlice, SeqId, StepId, TokenSource,
};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor};
use prelude_models::{
    Checkpoint,
    conformance::batches::{greedy, prompt},
};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: our caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: our caller's promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by the test that counts.
static ALONE: Mutex<()> = Mutex::new(());

fn oneshot(len: u32) -> OneShotBatch {
    let tokens: Vec<u32> = (0..len).collect();
    let head = OutputHead::Sample(greedy(None));
    prompt(&tokens, vec![(len - 1..len, head)])
}

/// A pass that begins and ends with one slice.
fn pass(len: u32) -> ForwardBatch {
    ForwardBatch::Slice(PassSlice {
        pass: PassId(0),
        begin: Some(oneshot(len)),
        layer_tokens: u32::MAX,
        keeps: true,
        abandoned: Vec::new(),
    })
}

fn decode(rows: u32) -> ForwardBatch {
    ForwardBatch::Decode(DecodeBatch {
        rows: (0..rows)
            .map(|row| DecodeRow {
                seq: SeqId(u64::from(row)),
                token: TokenSource::Known(row),
                context_len: 40,
                blocks: BlockSpan {
                    start: row * 3,
                    len: 3,
                },
                sample: greedy(None),
            })
            .collect(),
        block_ids: (0..rows * 3).map(BlockId).collect(),
    })
}

/// Least calls and bytes of a step after some like it have run: a thread makes its buffers with the
/// first step in which it has work.
fn taken(executor: &mut CpuExecutor, batch: &ForwardBatch) -> (usize, usize) {
    let mut taken = (usize::MAX, usize::MAX);
    for _ in 0..8 {
        let batch = batch.clone();
        let before = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
        executor.submit(StepId(0), batch).unwrap();
        let output = executor.collect(StepId(0)).unwrap();
        taken = taken.min((
            CALLS.load(Ordering::Relaxed) - before.0,
            BYTES.load(Ordering::Relaxed) - before.1,
        ));
        drop(output);
    }
    taken
}

fn executor() -> CpuExecutor {
    let demo = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-lm"
    );
    let checkpoint = Checkpoint::open(demo.as_ref()).unwrap();
    let pool = Arc::new(ComputePool::new(2));
    CpuExecutor::new(&checkpoint, CpuConfig::default(), pool).unwrap()
}

#[test]
fn steps_take_little_memory_whatever_their_length() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut executor = executor();
    let (short, long) = (
        taken(&mut executor, &ForwardBatch::OneShot(oneshot(10))),
        taken(&mut executor, &ForwardBatch::OneShot(oneshot(900))),
    );
    // One row: a few lists and its token. Neither layers nor tokens cost anything.
    assert_eq!(short, long);
    assert!(short.0 <= 16 && short.1 <= 4096, "{short:?}");
    let rows = taken(&mut executor, &decode(32));
    assert!(rows.0 <= 16 + 2 * 32 && rows.1 <= 32 * 1024, "{rows:?}");
}

/// Keys and values of a pass are one piece of memory and its activations another: with nearly twice
/// the tokens they are larger, and there are no more of them. Lists that double as they grow have
/// done so equally often at both lengths.
#[test]
fn a_pass_has_its_buffers_in_as_many_pieces_whatever_its_length() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut executor = executor();
    let short = taken(&mut executor, &pass(520));
    let long = taken(&mut executor, &pass(1000));
    assert_eq!(short.0, long.0);
    assert!(long.1 > short.1, "{short:?} {long:?}");
}
