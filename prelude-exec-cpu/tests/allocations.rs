//! A step takes hardly any memory from the system: what it returns, and a few lists of rows.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, OutputHead, SeqId, StepId,
    TokenSource,
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

fn oneshot(len: u32) -> ForwardBatch {
    let tokens: Vec<u32> = (0..len).collect();
    let head = OutputHead::Sample(greedy(None));
    ForwardBatch::OneShot(prompt(&tokens, vec![(len - 1..len, head)]))
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

#[test]
fn steps_take_little_memory_whatever_their_length() {
    let demo = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-lm"
    );
    let checkpoint = Checkpoint::open(demo.as_ref()).unwrap();
    let pool = Arc::new(ComputePool::new(2));
    let mut executor = CpuExecutor::new(&checkpoint, CpuConfig::default(), pool).unwrap();
    let (short, long) = (
        taken(&mut executor, &oneshot(10)),
        taken(&mut executor, &oneshot(900)),
    );
    // One row: a few lists and its token. Neither layers nor tokens cost anything.
    assert_eq!(short, long);
    assert!(short.0 <= 16 && short.1 <= 4096, "{short:?}");
    let rows = taken(&mut executor, &decode(32));
    assert!(rows.0 <= 16 + 2 * 32 && rows.1 <= 32 * 1024, "{rows:?}");
}
