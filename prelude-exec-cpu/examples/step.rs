//! The times of steps of a model: prompts of several lengths, decode rows, and texts behind a cached
//! context.
//!
//! `cargo run --release -p prelude-exec-cpu --example step [model folder] [threads] [path] [int8|fp8]`
//!
//! The path `best` is the machine's own.
//!
//! With one thread, the time that it ran is given too, which other processes disturb less.
#![expect(clippy::print_stdout, reason = "an example reports on standard output")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, OneShotBatch, OutputHead,
    OutputRow, Pooling, Residency, SampleHead, SamplingParams, Segment, SegmentIdx, SeqId, StepId,
    TokenSource,
};
use prelude_exec_cpu::{
    ComputePool, CpuConfig, CpuExecutor, Isa, Quantization,
    measure::{handover_ns, peak_flops_per_second},
};
use prelude_models::{Checkpoint, ModelKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let demo = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-lm"
    );
    let folder = std::env::args().nth(1).unwrap_or_else(|| demo.to_owned());
    let start = Instant::now();
    let checkpoint = Checkpoint::open(folder.as_ref())?;
    let pool = match std::env::args().nth(2) {
        Some(threads) => ComputePool::new(threads.parse()?),
        None => ComputePool::for_machine(),
    };
    let path = match std::env::args().nth(3) {
        Some(name) if name != "best" => {
            let path = Isa::ALL.into_iter().find(|isa| isa.as_str() == name);
            Some(path.ok_or_else(|| format!("no path `{name}`; there are {:?}", Isa::ALL))?)
        }
        _ => None,
    };
    let quantization = match std::env::args().nth(4).as_deref() {
        Some("int8") => Some(Quantization::Int8),
        Some("fp8") => Some(Quantization::Fp8),
        Some(other) => return Err(format!("`{other}` is neither int8 nor fp8").into()),
        None => None,
    };
    let config = CpuConfig {
        path,
        quantization,
        num_blocks: matches!(checkpoint.kind(), ModelKind::CausalLm)
            .then_some(GENERATIONS * BLOCKS),
        ..CpuConfig::default()
    };
    let one = pool.threads() == 1;
    let pool = Arc::new(pool);
    let mut executor = CpuExecutor::new(&checkpoint, config, Arc::clone(&pool))?;
    println!("{executor:?}, loaded in {:.0?}", start.elapsed());
    println!("{:?}", executor.memory());
    println!(
        "a cache line to another core and back: {:.0} ns",
        handover_ns()
    );
    let (isa, dtype) = (executor.path(), executor.dtype());
    // On a virtual machine the peak changes while this runs, and times with it.
    let print_peak = || {
        if let Some(peak) = peak_flops_per_second(&pool, isa, dtype) {
            println!("peak of the units: {:.0} GFLOP/s", peak / 1e9);
        }
    };
    print_peak();
    let head = match checkpoint.kind() {
        ModelKind::CausalLm => OutputHead::Sample(greedy()),
        ModelKind::SequenceClassification { .. } => OutputHead::Classify,
        _ => OutputHead::Embed {
            pooling: Pooling::Last,
            normalise: true,
            dimensions: None,
        },
    };
    for (count, len) in [
        (1, 1),
        (1, 20),
        (1, 128),
        (1, 512),
        (4, 128),
        (16, 128),
        (64, 128),
    ] {
        let times = time(&mut executor, || prompts(count, len, &head))?;
        times.print(&format!("{count:>2} prompts of {len:>4}"), count * len, one);
    }
    if matches!(checkpoint.kind(), ModelKind::CausalLm) {
        let most = LONGEST.min(executor.capacity().max_context_len - 1);
        let cases = [(1, 30), (1, 500), (1, most), (4, 500), (4, most), (32, 30)];
        // Memory that was never written would be one page over and over.
        for at in 0..GENERATIONS {
            let batch = generation(at, most, &head);
            executor.submit(StepId(0), batch)?;
            executor.collect(StepId(0))?;
        }
        for (rows, context) in cases {
            let times = time(&mut executor, || decode(rows, context))?;
            times.print(&format!("{rows:>2} decode rows at {context:>4}"), rows, one);
        }
        for (count, len, context) in [(1, 256, 1_008), (50, 24, 496), (100, 3, 1_008)] {
            let times = time(&mut executor, || behind(count, len, context, &head))?;
            let what = format!("{count:>2} texts of {len:>3} behind {context:>4} cached");
            times.print(&what, count * len, one);
        }
    }
    print_peak();
    Ok(())
}

struct Times {
    median: Duration,
    best: Duration,
    /// Mean of what the calling thread ran.
    on_core: Option<Duration>,
}

impl Times {
    fn print(&self, what: &str, tokens: u32, one_thread: bool) {
        let Self { median, best, .. } = self;
        let rate = f64::from(tokens) / median.as_secs_f64();
        print!("{what}: {median:>10.2?} (best {best:.2?}), {rate:>8.0} tokens/s");
        match self.on_core {
            Some(time) if one_thread => println!(", on core {time:.2?}"),
            _ => println!(),
        }
    }
}

/// Measures over half a second and at least three steps.
fn time(
    executor: &mut CpuExecutor,
    batch: impl Fn() -> ForwardBatch,
) -> Result<Times, Box<dyn std::error::Error>> {
    executor.submit(StepId(0), batch())?;
    executor.collect(StepId(0))?;
    let mut times = Vec::new();
    let start = Instant::now();
    let core_start = time_on_core();
    while times.len() < 3 || start.elapsed() < Duration::from_millis(500) {
        let batch = batch();
        let before = Instant::now();
        executor.submit(StepId(0), batch)?;
        executor.collect(StepId(0))?;
        times.push(before.elapsed());
    }
    let steps = u32::try_from(times.len())?;
    let on_core = core_start.zip(time_on_core()).map(|(a, b)| (b - a) / steps);
    times.sort();
    Ok(Times {
        median: times[times.len() / 2],
        best: times[0],
        on_core,
    })
}

/// Returns the time that this thread has run so far, if the system tells it.
fn time_on_core() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = stat.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

fn greedy() -> SampleHead {
    SampleHead {
        sampling: Arc::new(SamplingParams::default()),
        choice: 0,
        draws: 1,
        output_position: 0,
        top_logprobs: None,
        history: None,
        mask: None,
    }
}

fn prompts(count: u32, len: u32, head: &OutputHead) -> ForwardBatch {
    let segment = |at: u32| Segment {
        tokens: at * len..(at + 1) * len,
        parent: None,
        context_len: 0,
        cached: BlockSpan::EMPTY,
        residency: Residency::Transient,
    };
    let row = |at: u32| OutputRow {
        segment: SegmentIdx(at),
        positions: len - 1..len,
        head: head.clone(),
    };
    ForwardBatch::OneShot(OneShotBatch {
        tokens: (0..count * len).map(|i| i * 37 % 4000).collect(),
        segments: (0..count).map(segment).collect(),
        rows: (0..count).map(row).collect(),
        block_ids: vec![],
    })
}

/// Tokens of a KV block.
const BLOCK: u32 = 16;
/// Tokens of the longest generation.
const LONGEST: u32 = 4_000;
/// Blocks of the longest generation.
const BLOCKS: u32 = LONGEST / BLOCK + 1;
/// Generations of that length.
const GENERATIONS: u32 = 4;

/// Returns a prompt of `len` tokens, whose keys and values are kept in the blocks of generation `at`.
fn generation(at: u32, len: u32, head: &OutputHead) -> ForwardBatch {
    let ForwardBatch::OneShot(mut batch) = prompts(1, len, head) else {
        unreachable!("prompts are computed at once");
    };
    let len = len.div_ceil(BLOCK);
    batch.segments[0].residency = Residency::Keep(BlockSpan { start: 0, len });
    batch.block_ids = (at * BLOCKS..at * BLOCKS + len).map(BlockId).collect();
    ForwardBatch::OneShot(batch)
}

/// Returns prompts of `len` tokens behind the first `context` of a generation, which they share.
fn behind(count: u32, len: u32, context: u32, head: &OutputHead) -> ForwardBatch {
    let ForwardBatch::OneShot(mut batch) = prompts(count, len, head) else {
        unreachable!("prompts are computed at once");
    };
    batch.block_ids = (0..context / BLOCK).map(BlockId).collect();
    for segment in &mut batch.segments {
        segment.context_len = context;
        segment.cached = BlockSpan {
            start: 0,
            len: context / BLOCK,
        };
    }
    for row in &mut batch.rows {
        row.positions = context + len - 1..context + len;
    }
    ForwardBatch::OneShot(batch)
}

/// Returns rows that each continue `context` tokens.
fn decode(rows: u32, context: u32) -> ForwardBatch {
    let blocks = context / BLOCK + 1;
    let apart = if rows > GENERATIONS { blocks } else { BLOCKS };
    ForwardBatch::Decode(DecodeBatch {
        rows: (0..rows)
            .map(|row| DecodeRow {
                seq: SeqId(u64::from(row)),
                token: TokenSource::Known(row),
                context_len: context,
                blocks: BlockSpan {
                    start: row * blocks,
                    len: blocks,
                },
                sample: greedy(),
            })
            .collect(),
        block_ids: (0..rows)
            .flat_map(|row| (row * apart..).take(blocks as usize).map(BlockId))
            .collect(),
    })
}
