//! Equal rows in different batches: equal bits where they are promised, a measured difference
//! elsewhere; and memory that does not grow.

use anyhow::{Result, ensure};
use prelude_core::{
    BlockId, Executor, ForwardBatch, OutputHead, PassId, PassSlice, Pooling, RowOutput,
};
use prelude_exec_cuda::{CudaConfig, CudaExecutor};
use prelude_models::Checkpoint;

use super::{checkpoint, mode};
use crate::{
    batches::{
        Forest, Generation, Sequence, Wanted, all_sampled, count, decode, embed, greedy, mix, rows,
        scores, step, tokens,
    },
    same::{bits, same},
    session::Session,
};

/// KV blocks of 16 of the executors here.
const BLOCKS: u32 = 256;

pub(super) fn run(session: &mut Session) -> Result<()> {
    let checkpoint = checkpoint(session, session.pick("qwen3-0.6b", "tiny"), None)?;
    let len = session.pick(700, 70);
    for deterministic in [true, false] {
        session.attempt(&format!("company{}", mode(deterministic)), |s| {
            let mut executor = open(s, &checkpoint, deterministic)?;
            company(s, &mut executor, len, deterministic)
        })?;
    }
    let batches = session.pick(200, 4);
    let what = format!("{batches} random batches, deterministic");
    for deterministic in [true, false] {
        session.check(&format!("graph and eager{}", mode(deterministic)), |s| {
            let mut executor = open(s, &checkpoint, deterministic)?;
            let mut started = open_with(s, &checkpoint, deterministic, |config| {
                config.graph_start_ms = s.pick(10_000, 200);
            })?;
            captured(s, &mut executor, &mut started)
        })?;
    }
    session.check_within(&what, 20.0, |s| {
        let mut executor = open(s, &checkpoint, true)?;
        random_batches(s, &mut executor, batches)
    })?;
    session.attempt("decode rows alone and together", |s| {
        let mut executor = open(s, &checkpoint, true)?;
        decode_rows(s, &mut executor)
    })?;
    session.check("decode rows over the same blocks and over copies", |s| {
        let mut executor = open(s, &checkpoint, false)?;
        shared_blocks(s, &mut executor)
    })?;
    let steps = session.pick(10_000, 4);
    let what = format!("device memory over {steps} steps");
    session.attempt_within(&what, 30.0, |s| memory(s, &checkpoint, steps, &what))?;
    session.check("depth 1 and 2", |s| {
        let mut one = open(s, &checkpoint, true)?;
        let mut two = open_with(s, &checkpoint, true, |config| config.pipeline_depth = 2)?;
        depths(s, &mut one, &mut two)
    })
}

fn open(session: &Session, checkpoint: &Checkpoint, deterministic: bool) -> Result<CudaExecutor> {
    open_with(session, checkpoint, deterministic, |_| ())
}

/// Opens an executor whose graphs are captured behind their first use, and not at start.
fn open_with(
    session: &Session,
    checkpoint: &Checkpoint,
    deterministic: bool,
    change: impl FnOnce(&mut CudaConfig),
) -> Result<CudaExecutor> {
    session.executor(checkpoint, |config| {
        config.graph_start_ms = 0;
        config.num_blocks = Some(BLOCKS);
        config.max_step_tokens = session.pick(4096, 512);
        config.chunk_tokens = session.pick(1024, 64);
        config.max_context_len = Some(session.pick(4096, 1024));
        config.logits_rows_max = session.pick(64, 8);
        config.deterministic = deterministic;
        change(config);
    })
}

/// Labels whose logits are compared: as many as a spread can be told from.
const LABELS: u32 = 48;

/// Returns the results that are computed at a position.
fn heads(at: usize, vocab: u32) -> Vec<Wanted> {
    let at = count(at);
    let labels: Vec<u32> = (0..LABELS).map(|i| i * (vocab / LABELS) + i % 7).collect();
    vec![
        (at..at + 1, embed(Pooling::Last)),
        (at..at + 1, scores(&labels)),
        (at..at + 1, OutputHead::Sample(greedy(Some(3)))),
    ]
}

/// Checks one prompt alone, in a tree, behind cached blocks, in a crowd, and in several chunks.
fn company(
    session: &mut Session,
    executor: &mut CudaExecutor,
    len: usize,
    deterministic: bool,
) -> Result<()> {
    let vocab = executor.capacity().vocab_size;
    let prompt = tokens(1, len, vocab);
    let wanted = heads(len - 1, vocab);
    let alone = rows(executor, Forest::prompt(&prompt, wanted.clone()))?;
    let cut = len * 3 / 7;
    let mut tree = Forest::default();
    let root = tree.root(&prompt[..cut]);
    tree.child(root, &tokens(2, 30, vocab));
    let rest = tree.child(root, &prompt[cut..]);
    tree.read(rest, wanted.clone());
    let kept = len * 4 / 7;
    let blocks = (0..count(kept.div_ceil(16))).map(|b| BlockId(3 * b + 5));
    let table = &blocks.collect::<Vec<_>>()[..];
    let mut first = Forest::default();
    first.kept_root(&prompt[..kept], table);
    let mut cached = Forest::default();
    let rest = cached.behind(kept, table, &prompt[kept..], None);
    cached.read(rest, wanted.clone());
    let mut crowd = Forest::default();
    crowd.root(&tokens(4, 50, vocab));
    let rest = crowd.behind(kept, table, &prompt[kept..], None);
    crowd.root(&tokens(5, 77, vocab));
    crowd.read(rest, wanted);
    for (how, before, forest) in [
        ("in a tree", None, tree),
        ("behind cached blocks", Some(first.clone()), cached),
        ("in a crowd", Some(first), crowd),
    ] {
        session.check(
            &format!("{len} tokens {how}{}", mode(deterministic)),
            |_| {
                if let Some(before) = before {
                    rows(executor, before)?;
                }
                let got = rows(executor, forest)?;
                same(&got, &alone, deterministic)
            },
        )?;
    }
    session.check(
        &format!("{len} tokens in slices{}", mode(deterministic)),
        |_| {
            let pass = Forest::prompt(&prompt, heads(len - 1, vocab));
            let beside = Forest::prompt(&tokens(6, 40, vocab), heads(39, vocab));
            let got = slices(executor, pass, &beside)?;
            same(&got, &alone, deterministic)
        },
    )
}

/// Computes a pass in slices of a third of a layer and more, with a step after each slice.
fn slices(executor: &mut CudaExecutor, pass: Forest, beside: &Forest) -> Result<Vec<RowOutput>> {
    let size = count(pass.tokens() * 3 / 8);
    let mut begin = Some(pass.0);
    loop {
        let slice = PassSlice {
            pass: PassId(1),
            begin: begin.take(),
            layer_tokens: size,
            keeps: true,
            abandoned: Vec::new(),
        };
        let got = step(executor, ForwardBatch::Slice(slice))?.oneshot;
        if !got.is_empty() {
            return Ok(got);
        }
        rows(executor, beside.clone())?;
    }
}

/// Compares steps, each run several times in turn with the others: launched one by one, and run as what
/// was captured behind that. In between other contents run through the same graphs. `started`: captured
/// its first graphs before any step.
fn captured(
    session: &mut Session,
    executor: &mut CudaExecutor,
    started: &mut CudaExecutor,
) -> Result<String> {
    let vocab = executor.capacity().vocab_size;
    let groups: Vec<Vec<usize>> = session.pick(
        vec![
            vec![128],
            vec![1],
            vec![17, 40, 3],
            vec![300],
            vec![500, 200],
            vec![60; 8],
        ],
        vec![vec![20], vec![3, 17]],
    );
    let forest = |group: &[usize], seed: u64| {
        let mut forest = Forest::default();
        for (i, &len) in group.iter().enumerate() {
            let prompt = tokens(700 + seed * 100 + i as u64, len, vocab);
            let root = forest.root(&prompt);
            forest.read(root, heads(len - 1, vocab));
        }
        forest
    };
    let mut first: Vec<Vec<String>> = Vec::new();
    let mut compared = 0;
    for round in 0..6u64 {
        for (i, group) in groups.iter().enumerate() {
            let got = bits(&rows(executor, forest(group, 0))?);
            while executor.prepare(true) {}
            match first.get(i) {
                None => first.push(got),
                Some(first) => {
                    ensure!(
                        got == *first,
                        "prompts of {group:?}, round {round}: other bits"
                    );
                    compared += 1;
                }
            }
            let other = bits(&rows(executor, forest(group, 1 + round))?);
            ensure!(other != first[i], "other prompts have the same bits");
        }
    }
    let stats = executor.graphs();
    ensure!(
        stats.replays > stats.eager && stats.captures >= groups.len() as u64,
        "{stats:?}"
    );
    for (group, first) in groups.iter().zip(&first) {
        for _ in 0..2 {
            let got = bits(&rows(started, forest(group, 0))?);
            ensure!(
                got == *first,
                "prompts of {group:?}, graphs of the start: other bits"
            );
            while started.prepare(true) {}
        }
    }
    let of_start = started.graphs();
    ensure!(of_start.replays > 0, "{of_start:?}");
    let refused = stats.refused + of_start.refused;
    ensure!(refused == 0, "{refused} shapes could not be captured");
    Ok(format!(
        "{compared} steps, equal bits; {} graphs, {} with those of the start",
        stats.kept, of_start.kept
    ))
}

/// Checks that prompts of random lengths in random groups have the results that each has alone.
fn random_batches(
    session: &mut Session,
    executor: &mut CudaExecutor,
    batches: usize,
) -> Result<String> {
    let vocab = executor.capacity().vocab_size;
    let lengths: Vec<usize> = session.pick(
        vec![1, 2, 15, 16, 63, 64, 65, 128, 200, 333],
        vec![1, 16, 33, 65],
    );
    let prompts: Vec<Vec<u32>> = lengths
        .iter()
        .enumerate()
        .map(|(i, &len)| tokens(300 + i as u64, len, vocab))
        .collect();
    let mut alone = Vec::new();
    for prompt in &prompts {
        let forest = Forest::prompt(prompt, heads(prompt.len() - 1, vocab));
        alone.push(bits(&rows(executor, forest)?));
    }
    let mut compared = 0;
    for batch in 0..batches as u64 {
        session.beat(|| format!("batch {batch} of {batches}"))?;
        let mut forest = Forest::default();
        let mut members = Vec::new();
        for place in 0..1 + mix(batch) % 7 {
            let i = mix(batch * 31 + place + 1000) as usize % prompts.len();
            let prompt = &prompts[i];
            if forest.tokens() + prompt.len() > executor.capacity().max_step_tokens as usize {
                break;
            }
            let root = forest.root(prompt);
            forest.read(root, heads(prompt.len() - 1, vocab));
            members.push(i);
        }
        let got = bits(&rows(executor, forest)?);
        for (place, (&i, got)) in members.iter().zip(got.chunks(3)).enumerate() {
            ensure!(
                got == alone[i],
                "batch {batch}: the prompt of {} tokens in place {place} of {} has other bits",
                prompts[i].len(),
                members.len()
            );
            compared += 1;
        }
        ensure!(
            !session.left().is_zero(),
            "no time left after {batch} batches"
        );
    }
    Ok(format!("{compared} prompts, equal bits"))
}

/// Checks that texts generated together are those generated one by one.
fn decode_rows(session: &mut Session, executor: &mut CudaExecutor) -> Result<()> {
    let steps = session.pick(32, 3);
    let members = session.pick(8, 3);
    let vocab = executor.capacity().vocab_size;
    let prompts: Vec<Vec<u32>> = (0..members)
        .map(|i| tokens(400 + i as u64, 5 + 13 * i, vocab))
        .collect();
    let together = texts(executor, &prompts, steps)?;
    let mut alone = Vec::new();
    for prompt in &prompts {
        alone.extend(texts(executor, std::slice::from_ref(prompt), steps)?);
    }
    session.check("decode rows alone and together", |_| {
        ensure!(together == alone, "{together:?} together, {alone:?} alone");
        Ok(format!("{members} texts of {steps} tokens"))
    })
}

/// Checks that rows that see a prompt in the same blocks, which are read for several at once, have the
/// bits of as many rows over copies of them.
fn shared_blocks(session: &Session, executor: &mut CudaExecutor) -> Result<String> {
    const ROWS: usize = 4;
    let len = session.pick(560, 272);
    let each = len / 16;
    let vocab = executor.capacity().vocab_size;
    let prompt = tokens(600, len, vocab);
    let prompts: Vec<Vec<BlockId>> = (0..=ROWS)
        .map(|i| {
            (i * each..(i + 1) * each)
                .map(|b| BlockId(count(b)))
                .collect()
        })
        .collect();
    for blocks in &prompts {
        let mut forest = Forest::default();
        forest.kept_root(&prompt, blocks);
        rows(executor, forest)?;
    }
    let mut run = |blocks: &dyn Fn(usize) -> usize| -> Result<Vec<RowOutput>> {
        let own = count((ROWS + 1) * each);
        let sequences: Vec<Sequence> = (0..ROWS)
            .map(|i| Sequence {
                blocks: [&prompts[blocks(i)][..], &[BlockId(own + count(i))]].concat(),
                len,
                next: tokens(601 + i as u64, 1, vocab)[0],
            })
            .collect();
        Ok(step(executor, decode(&sequences, 16, Some(3), None))?.decode)
    };
    let (shared, copies) = (run(&|_| ROWS)?, run(&|i| i)?);
    ensure!(
        bits(&shared) == bits(&copies),
        "{shared:?} over the same blocks, {copies:?} over copies"
    );
    Ok(format!("{ROWS} rows over {len} tokens"))
}

/// Checks that texts of which each token is drawn while the step before it is still outstanding are
/// those of one step after the other.
fn depths(session: &Session, one: &mut CudaExecutor, two: &mut CudaExecutor) -> Result<String> {
    let steps = session.pick(128, 5);
    let members = session.pick(12, 3);
    let vocab = one.capacity().vocab_size;
    let prompts: Vec<Vec<u32>> = (0..members)
        .map(|i| tokens(500 + i as u64, 3 + 11 * i, vocab))
        .collect();
    let expected = texts(one, &prompts, steps)?;
    let (mut generation, outputs) = Generation::start(two, &prompts, steps, None)?;
    let first = all_sampled(&outputs, members)?;
    let mut texts: Vec<Vec<u32>> = first.iter().map(|&token| vec![token]).collect();
    generation.ahead(two, &first, steps - 1, |rows| {
        let tokens = all_sampled(rows, members)?;
        texts
            .iter_mut()
            .zip(tokens)
            .for_each(|(text, token)| text.push(token));
        Ok(())
    })?;
    ensure!(texts == expected, "{texts:?} at depth 2, {expected:?} at 1");
    Ok(format!("{members} texts of {steps} tokens"))
}

/// Generates greedy texts, all in the same steps.
fn texts(executor: &mut CudaExecutor, prompts: &[Vec<u32>], steps: usize) -> Result<Vec<Vec<u32>>> {
    let (mut generation, mut outputs) = Generation::start(executor, prompts, steps, None)?;
    let mut texts = vec![Vec::new(); prompts.len()];
    for _ in 0..steps {
        let tokens = all_sampled(&outputs, prompts.len())?;
        texts
            .iter_mut()
            .zip(&tokens)
            .for_each(|(text, token)| text.push(*token));
        outputs = step(executor, generation.behind(tokens))?.decode;
    }
    Ok(texts)
}

/// Checks that steps of all kinds and sizes leave the device's memory as it was.
fn memory(session: &mut Session, checkpoint: &Checkpoint, steps: usize, what: &str) -> Result<()> {
    let mut executor = open(session, checkpoint, false)?;
    let vocab = executor.capacity().vocab_size;
    let run = |executor: &mut CudaExecutor, i: usize| -> Result<()> {
        let len = 1 + mix(i as u64) as usize % 60;
        let prompt = tokens(i as u64, len, vocab);
        rows(executor, Forest::prompt(&prompt, heads(len - 1, vocab))).map(drop)
    };
    // Until every shape has its graph.
    for i in 0..steps.min(session.pick(1000, 2)) {
        run(&mut executor, i)?;
        while executor.prepare(true) {}
    }
    let before = session.target.free_bytes()?;
    let mut done = 0;
    while done < steps && !session.left().is_zero() {
        run(&mut executor, done)?;
        done += 1;
        session.beat(|| format!("step {done} of {steps}"))?;
    }
    let after = session.target.free_bytes()?;
    let (Some(before), Some(after)) = (before, after) else {
        return session.skip(what, "emulated: its memory has no limit to look at");
    };
    session.check(what, |_| {
        ensure!(before == after, "{before} bytes were free, {after} are");
        ensure!(done == steps, "only {done} steps in the time there was");
        Ok(format!("{after} bytes free throughout"))
    })
}
