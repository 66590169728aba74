//! KV blocks that go to host memory and come back, beside the time of computing them again.

use std::time::Instant;

use anyhow::{Result, ensure};
use prelude_core::{
    BlockId, Executor as _, ForwardBatch, HostBlockId, KvCopies, KvLoad, KvStore, OutputHead,
};
use prelude_exec_cuda::CudaExecutor;
use prelude_measure::stats::median;

use crate::{
    batches::{Forest, all_sampled, count, greedy, step, tokens},
    results::Outcome,
    session::Session,
};

/// Tokens of a block.
const BLOCK: usize = 16;
/// Rounds before those that are timed.
const WARM_UP: usize = 2;

/// Returns the bytes of host memory that the executor needs for the measurement: 256 blocks of
/// Qwen3-4B.
pub(super) fn host_bytes(session: &Session) -> u64 {
    session.pick(640 << 20, 1 << 20)
}

/// The seconds of each round's steps.
#[derive(Default)]
struct Walls {
    computed: Vec<f64>,
    read: Vec<f64>,
    stored: Vec<f64>,
    loaded: Vec<f64>,
}

/// Measures the time of a token: computed in a prompt, and its keys and values stored and loaded. What
/// a copy takes is what the step of one token behind the prompt takes longer with it.
pub(super) fn measure(
    session: &mut Session,
    name: &str,
    executor: &mut CudaExecutor,
) -> Result<()> {
    let capacity = executor.capacity();
    let blocks = capacity.host_blocks.min(capacity.num_blocks);
    let blocks = blocks.min(session.pick(256, 3));
    ensure!(blocks > 0, "the executor has no host memory");
    let mut walls = Walls::default();
    let rounds = session.pick(10, 1) + WARM_UP;
    for seed in 0..rounds {
        round(executor, seed as u64, blocks, &mut walls)?;
    }
    let len = blocks as usize * BLOCK;
    let timed = |walls: &[f64]| median(&walls[WARM_UP..]);
    let read = timed(&walls.read);
    let rows = [
        ("computed again", timed(&walls.computed)),
        ("copied to host memory", timed(&walls.stored) - read),
        ("copied from host memory", timed(&walls.loaded) - read),
    ];
    for (what, seconds) in rows {
        let what = format!("{name}: a token of {len}, {what}");
        let mut outcome = Outcome::figure(what, (1e6 * seconds / len as f64, "µs"), None);
        outcome.repetitions = Some(rounds - WARM_UP);
        session.timed(outcome)?;
    }
    Ok(())
}

fn round(executor: &mut CudaExecutor, seed: u64, blocks: u32, walls: &mut Walls) -> Result<()> {
    let vocab = executor.capacity().vocab_size;
    let len = blocks as usize * BLOCK;
    let ids: Vec<BlockId> = (0..blocks).map(BlockId).collect();
    let prompt = tokens(seed, len + 1, vocab);
    let mut whole = Forest::default();
    whole.kept_root(&prompt[..len], &ids);
    let behind = || -> ForwardBatch {
        let mut forest = Forest::default();
        let last = count(len);
        let root = forest.behind(len, &ids, &prompt[len..], None);
        let head = OutputHead::Sample(greedy(None));
        forest.read(root, vec![(last..last + 1, head)]);
        forest.oneshot()
    };
    let pairs = || ids.iter().map(|&block| (block, HostBlockId(block.0)));
    let stores = KvCopies {
        stores: pairs().map(|(from, to)| KvStore { from, to }).collect(),
        loads: Vec::new(),
    };
    let loads = KvCopies {
        stores: Vec::new(),
        loads: pairs().map(|(to, from)| KvLoad { from, to }).collect(),
    };
    let mut timed = |batch: ForwardBatch, walls: &mut Vec<f64>| {
        let start = Instant::now();
        let output = step(executor, batch)?;
        walls.push(start.elapsed().as_secs_f64());
        all_sampled(&output.oneshot, output.oneshot.len())
    };
    timed(whole.oneshot(), &mut walls.computed)?;
    let expected = timed(behind(), &mut walls.read)?;
    timed(behind().after(stores), &mut walls.stored)?;
    let got = timed(behind().after(loads), &mut walls.loaded)?;
    ensure!(
        got == expected,
        "a loaded prefix gives {got:?}, not {expected:?}"
    );
    Ok(())
}
