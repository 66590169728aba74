//! Executors alone: what a step costs without scheduler and server.

use std::time::Instant;

use anyhow::{Result, ensure};
use prelude_core::{Executor as _, OutputHead};
use prelude_exec_cuda::{
    CudaConfig, CudaExecutor, CudaLoader, CudaOps, Error, PromptAttention, StepPlan, Weight,
    measure::{Device, Times, WeightCycle, times},
};
use prelude_measure::stats::median;
use prelude_models::{Checkpoint, Ops as _, QkNorm};

use super::{
    Layer, NO_FP8, checked, checkpoint, gemm::ROTATION_BYTES, has_fp8, hopper::HOPPER, host_copies,
};
use crate::{
    batches::{Forest, Generation, all_sampled, count, greedy, sampled, step, tokens},
    results::{Goal, Outcome},
    session::{Figure, Session, at_least, at_most},
    values,
};

/// Tokens of a block.
const BLOCK: usize = 16;
/// Steps before those that are timed: shapes are captured behind them.
const WARM_UP: usize = 4;
/// Upper bound of the time of a step in deterministic mode, in times of the usual mode's.
const DETERMINISTIC_TIMES_MAX: f64 = 2.0;
/// A kernel of one row and the gap to the next, launched one by one.
const GAP: &str = "launch gap: norms of one row, back to back";

pub(super) fn run(session: &mut Session) -> Result<()> {
    session.say_ceilings()?;
    let small = session.pick("qwen3-0.6b", "tiny");
    session.attempt(small, |s| small_model(s, small))?;
    session.attempt("one layer", |s| one_layer(s, small, s.pick(128, 8)))?;
    session.attempt("one layer of few tokens", |s| {
        one_layer(s, small, s.pick(4, 2))
    })?;
    let large = session.pick("qwen3-4b", "tiny");
    session.attempt_within(large, 45.0, |s| large_model(s, large))?;
    if has_fp8(session) {
        session.attempt_within("fp8", 45.0, |s| in_fp8(s, small, large))?;
        session.attempt_within("fp8 blocks", 25.0, |s| {
            in_blocks(s, s.pick("qwen3-4b-fp8", "tiny-fp8"))
        })?;
        session.attempt("one layer of many tokens, fp8", |s| {
            one_layer_in(s, large, s.pick(4096, 8), true)
        })?;
    } else {
        session.skip("fp8", NO_FP8)?;
    }
    session.attempt("one layer of many tokens", |s| {
        one_layer(s, large, s.pick(4096, 8))
    })
}

/// Measures captures of graphs, those of the start among them.
fn captures(session: &mut Session, name: &str, executor: &CudaExecutor) -> Result<()> {
    let stats = executor.graphs();
    if stats.captures == 0 {
        return session.fail(&format!("{name}: graphs"), format!("none: {stats:?}"));
    }
    if stats.refused > 0 {
        let what = format!("{} shapes could not be captured", stats.refused);
        session.fail(&format!("{name}: captures"), what)?;
    }
    let each = stats.capture_time.as_secs_f64() / stats.captures as f64;
    let what = format!("{name}: capture of a graph");
    session.figure(Figure {
        reason: format!("mean of {}", stats.captures),
        ..Figure::wall(&what, &[each], at_most(200.0))
    })?;
    let bytes = stats.bytes as f64 / stats.kept as f64 / 1e6;
    let what = format!("{name}: memory of a graph");
    session.timed(Outcome::figure(what, (bytes, "MB"), at_most(32.0)))?;
    session.note(
        &format!("{name}: steps"),
        format!(
            "{} by {} graphs, {} kernel by kernel, {} tokens of padding",
            stats.replays, stats.kept, stats.eager, stats.padding
        ),
    )
}

/// Opens an executor with room for prompts of a length and for sequences of a context.
fn open(
    session: &Session,
    checkpoint: &Checkpoint,
    step_tokens: usize,
    blocks: usize,
    context: usize,
    change: impl FnOnce(&mut CudaConfig),
) -> Result<CudaExecutor> {
    session.executor(checkpoint, |config| {
        config.num_blocks = Some(count(blocks));
        config.max_step_tokens = count(step_tokens);
        config.max_context_len = Some(count(context));
        config.chunk_tokens = session.pick(4096, 64);
        config.logits_rows_max = session.pick(256, 8);
        change(config);
    })
}

/// Measures the time to the first token and between tokens.
fn small_model(session: &mut Session, name: &str) -> Result<()> {
    let start = Instant::now();
    let checkpoint = checkpoint(session, name, None)?;
    let made = start.elapsed();
    let (input, repetitions) = session.pick((128, 100), (12, 3));
    let context = session.pick(640, 64);
    let rows_max = session.pick(64, 3);
    let step_tokens = session.pick(8192, 256);
    let blocks = rows_max * context / BLOCK;
    let open = |session: &Session, change: fn(&mut CudaConfig)| {
        open(session, &checkpoint, step_tokens, blocks, context, change)
    };
    let opening = Instant::now();
    let mut executor = open(session, |_| ())?;
    let load = opening.elapsed().as_secs_f64();
    products(session, name, &executor)?;
    session.log(&format!("weights made in {:.1} s", made.as_secs_f64()))?;
    let what = format!("{name}: open, weights in the page cache");
    session.figure(Figure::wall(&what, &[load], None))?;
    let usual = oneshot(&mut executor, input, 1, repetitions)?;
    let what = format!("{name}: {input} in, 1 out");
    let label = format!("{what}, wall");
    session.figure(Figure::wall(&label, &usual, at_most(2.0)))?;
    // As many decisions as steps of 2,048 and 8,192 tokens hold.
    let decision = session.pick(300, 12);
    for many in session.pick([6, 27], [2, 3]) {
        let full = oneshot(&mut executor, decision, many, session.pick(20, 1))?;
        let what = format!("{name}: {decision} in, 1 out, {many} a step");
        rate(session, &what, &full, many, (decision, None))?;
    }
    let (steps, context_now) = session.pick((64, 512), (3, 30));
    generations(session, name, &mut executor, context_now, steps)?;
    captures(session, name, &executor)?;
    drop(executor);
    let mut executor = open(session, |config| config.pipeline_depth = 2)?;
    for rows in session.pick(vec![4, 64, 1], vec![2, 3]) {
        let times = generation(&mut executor, rows, context_now, steps)?;
        let name = format!("{name}: {rows} rows at {context_now}, a token, depth 2");
        session.figure(Figure::wall(&name, &times, None))?;
    }
    drop(executor);
    let slowest = at_most(DETERMINISTIC_TIMES_MAX * 1e3 * median(&usual));
    let mut alone = |mode: &str, change: fn(&mut CudaConfig), goal: Option<Goal>| {
        let mut executor = open(session, change)?;
        let times = oneshot(&mut executor, input, 1, repetitions)?;
        let name = format!("{what}, {mode}");
        session.figure(Figure::wall(&name, &times, goal))
    };
    alone("kernel by kernel", |config| config.graph_tokens = 0, None)?;
    alone(
        "deterministic",
        |config| config.deterministic = true,
        slowest,
    )
}

/// Measures tokens of generations of several rows whose contexts are `context` tokens.
fn generations(
    session: &mut Session,
    name: &str,
    executor: &mut CudaExecutor,
    context: usize,
    steps: usize,
) -> Result<()> {
    for (rows, must) in session.pick(
        vec![(4, 1.2), (64, 2.0), (1, f64::NAN)],
        vec![(2, 1.2), (3, 2.0)],
    ) {
        let times = generation(executor, rows, context, steps)?;
        let goal = at_most(must).filter(|goal| goal.must.is_finite());
        let what = format!("{name}: {rows} rows at {context}, a token, wall");
        session.figure(Figure::wall(&what, &times, goal))?;
    }
    Ok(())
}

/// Notes the code that runs products, and if it uses the plans that part `gemm` measured.
fn products(session: &mut Session, name: &str, executor: &CudaExecutor) -> Result<()> {
    session.note(
        &format!("{name}: products"),
        executor.products().to_string(),
    )
}

/// Returns the seconds of steps of `many` fresh prompts each, one greedy token out.
fn oneshot(executor: &mut CudaExecutor, len: usize, many: usize, steps: usize) -> Result<Vec<f64>> {
    let vocab = executor.capacity().vocab_size;
    let mut times = Vec::new();
    // The first ones warm up.
    for i in 0..steps + WARM_UP {
        let mut forest = Forest::default();
        for j in 0..many {
            let prompt = tokens((i * many + j) as u64, len, vocab);
            let root = forest.root(&prompt);
            let last = count(len) - 1;
            forest.read(
                root,
                vec![(last..last + 1, OutputHead::Sample(greedy(None)))],
            );
        }
        let start = Instant::now();
        let output = step(executor, forest.oneshot())?;
        times.push(start.elapsed().as_secs_f64());
        ensure!(output.oneshot.len() == many, "not an answer to each prompt");
        for row in &output.oneshot {
            sampled(row)?;
        }
        while i < WARM_UP && executor.prepare(true) {}
    }
    Ok(times.split_off(WARM_UP))
}

/// Returns the seconds of steps of one token for each of `rows` sequences of `context` tokens.
fn generation(
    executor: &mut CudaExecutor,
    rows: usize,
    context: usize,
    steps: usize,
) -> Result<Vec<f64>> {
    let vocab = executor.capacity().vocab_size;
    let prompts = (0..rows as u64).map(|row| tokens(row, context, vocab));
    let prompts: Vec<Vec<u32>> = prompts.collect();
    let all = steps + WARM_UP;
    let (mut generation, outputs) = Generation::start(executor, &prompts, all + 1, None)?;
    let mut next = all_sampled(&outputs, rows)?;
    let mut times = Vec::new();
    if executor.capacity().pipeline_depth > 1 {
        // From one answer to the next, with a step behind the one that is waited for: the last
        // has none.
        let mut last = Instant::now();
        generation.ahead(executor, &next, all + 1, |answers| {
            all_sampled(answers, rows)?;
            times.push(last.elapsed().as_secs_f64());
            last = Instant::now();
            Ok(())
        })?;
        times.truncate(all);
        return Ok(times.split_off(WARM_UP));
    }
    for i in 0..all {
        let batch = generation.behind(next);
        let start = Instant::now();
        let output = step(executor, batch)?;
        times.push(start.elapsed().as_secs_f64());
        next = all_sampled(&output.decode, rows)?;
        while i < WARM_UP && executor.prepare(true) {}
    }
    Ok(times.split_off(WARM_UP))
}

/// Measures requests a second at saturation, and one long prompt.
fn large_model(session: &mut Session, name: &str) -> Result<()> {
    let checkpoint = checkpoint(session, name, None)?;
    let (input, long) = session.pick((512, 32_000usize), (20, 200));
    let (rows_max, steps) = session.pick((64, 24), (3, 2));
    let mut executor = open(
        session,
        &checkpoint,
        long.next_multiple_of(64),
        rows_max * (input + steps + WARM_UP + 1).div_ceil(BLOCK),
        long,
        |config| config.host_bytes = host_copies::host_bytes(session),
    )?;
    products(session, name, &executor)?;
    host_copies::measure(session, name, &mut executor)?;
    let single = oneshot(&mut executor, input, 1, session.pick(20, 1))?;
    rate(
        session,
        &format!("{name}: {input} in, 1 out, alone"),
        &single,
        1,
        (input, Some(110.0)),
    )?;
    let many = session.pick(16, 2);
    let full = oneshot(&mut executor, input, many, session.pick(10, 1))?;
    rate(
        session,
        &format!("{name}: {input} in, 1 out, {many} a step"),
        &full,
        many,
        (input, Some(175.0)),
    )?;
    for rows in session.pick(vec![1, 4, 16, 64], vec![2, 3]) {
        let times = generation(&mut executor, rows, input, steps)?;
        let name = format!("{name}: {rows} rows at {input}, a token, wall");
        session.figure(Figure::wall(&name, &times, None))?;
    }
    let before = session.target.free_bytes()?;
    let long_name = format!("{name}: one prompt of {long}");
    if session.has_time(&long_name, 15.0)? {
        let times = oneshot(&mut executor, long, 1, session.pick(2, 1))?;
        let sustained = session.ceilings.sustained;
        let flops = Layer::of(name)?.prompt_flops(long);
        session.figure(Figure {
            bound_s: sustained.map(|sustained| flops / sustained),
            reason: "bound: sustained products".to_owned(),
            ..Figure::wall(&long_name, &times, None)
        })?;
    }
    let after = session.target.free_bytes()?;
    let what = "steps take no device memory";
    match (before, after) {
        (Some(before), Some(after)) => session.check(what, |_| {
            ensure!(before == after, "{before} bytes were free, {after} are");
            Ok(format!("{after} bytes free before and after"))
        })?,
        _ => session.skip(what, "emulated: its memory has no limit to look at")?,
    }
    drop(executor);
    on_hopper(session, name, &checkpoint)
}

/// A setting that an executor is measured with.
type Change = fn(&mut CudaConfig);

/// Measures full steps with attention by the kernel for Hopper, which executors do not use yet, and
/// in deterministic mode.
fn on_hopper(session: &mut Session, name: &str, checkpoint: &Checkpoint) -> Result<()> {
    let facts = session.target.facts();
    if facts.is_some_and(|facts| facts.compute_capability != HOPPER) {
        return Ok(());
    }
    let (input, many) = session.pick((512usize, 16), (20, 2));
    let blocks = many * (input + 1).div_ceil(BLOCK);
    let ways: [(&str, Change); 2] = [
        ("attention by sm90_attn", |config| {
            config.prompt_attention = PromptAttention::OfGpu;
        }),
        ("deterministic", |config| config.deterministic = true),
    ];
    for (way, change) in ways {
        let what = format!("{name}: {input} in, 1 out, {many} a step, {way}");
        if !session.has_time(&what, 6.0)? {
            continue;
        }
        let tokens = many * input;
        let mut executor = open(session, checkpoint, tokens, blocks, input + 1, change)?;
        let times = oneshot(&mut executor, input, many, session.pick(8, 1))?;
        rate(session, &what, &times, many, (input, None))?;
    }
    Ok(())
}

/// Measures both models with the matrices of their layers in fp8: single prompts, full steps,
/// tokens.
fn in_fp8(session: &mut Session, small: &str, large: &str) -> Result<()> {
    let (few, long) = session.pick((128, 512), (12, 20));
    let (rows_max, steps) = session.pick((64, 24), (3, 2));
    let many = session.pick(16, 2);
    for (name, input, must) in [(large, long, Some(250.0)), (small, few, None)] {
        let checkpoint = checkpoint(session, name, None)?;
        let opening = Instant::now();
        let context = session.pick(640, 64);
        let mut executor = open(
            session,
            &checkpoint,
            session.pick(8192, 256),
            rows_max * context / BLOCK,
            context,
            |config| config.fp8 = true,
        )?;
        let load = opening.elapsed().as_secs_f64();
        let name = format!("{name} fp8");
        products(session, &name, &executor)?;
        session.figure(Figure::wall(&format!("{name}: open"), &[load], None))?;
        let weights = executor.memory().weights_bytes as f64 / 1e9;
        let what = format!("{name}: weights");
        session.timed(Outcome::figure(what, (weights, "GB"), None))?;
        let full = oneshot(&mut executor, input, many, session.pick(10, 1))?;
        let what = format!("{name}: {input} in, 1 out, {many} a step");
        rate(session, &what, &full, many, (input, must))?;
        let single = oneshot(&mut executor, input, 1, session.pick(20, 1))?;
        let what = format!("{name}: {input} in, 1 out, wall");
        session.figure(Figure::wall(&what, &single, None))?;
        for rows in session.pick(vec![1, 4, 16, 64], vec![2]) {
            let times = generation(&mut executor, rows, input, steps)?;
            let what = format!("{name}: {rows} rows at {input}, a token, wall");
            session.figure(Figure::wall(&what, &times, None))?;
        }
    }
    Ok(())
}

/// Measures the large model as published checkpoints in fp8 store it, with scales of blocks: full
/// steps.
fn in_blocks(session: &mut Session, name: &str) -> Result<()> {
    let checkpoint = checkpoint(session, name, None)?;
    let (input, many) = session.pick((512, 16), (20, 2));
    let blocks = many * (input + 1usize).div_ceil(BLOCK);
    let mut executor = open(
        session,
        &checkpoint,
        many * input,
        blocks,
        input + 1,
        |config| config.fp8 = true,
    )?;
    let name = format!("{name} as stored");
    products(session, &name, &executor)?;
    let times = oneshot(&mut executor, input, many, session.pick(10, 1))?;
    let what = format!("{name}: {input} in, 1 out, {many} a step");
    rate(session, &what, &times, many, (input, None))
}

/// Measures steps of `many` prompts of `input` tokens, in requests a second, as is their goal.
fn rate(
    session: &mut Session,
    name: &str,
    times: &[f64],
    many: usize,
    (input, must): (usize, Option<f64>),
) -> Result<()> {
    let rate = many as f64 / median(times);
    let mut outcome = Outcome::figure(name, (rate, "req/s"), must.and_then(at_least));
    let model = name.split(':').next().unwrap_or(name);
    // The ceiling is of bf16.
    if let Ok(layer) = Layer::of(model) {
        outcome = outcome.because("bound: sustained products");
        session
            .ceilings
            .share(&mut outcome, layer.prompt_flops(input));
    }
    outcome.repetitions = Some(times.len());
    session.timed(outcome)
}

/// The weights of one layer.
struct LayerWeights {
    norm: Weight,
    head_norm: Weight,
    rope: Weight,
    /// Copies of each matrix, more of them than a cache holds.
    matrices: [Vec<Weight>; 4],
}

impl LayerWeights {
    fn new(
        session: &Session,
        layer: &Layer,
        loader: &mut CudaLoader,
        context: usize,
    ) -> Result<Self> {
        let [mut qkv, mut o, mut gate_up, mut down] = [const { Vec::new() }; 4];
        let copies_of = [&mut qkv, &mut o, &mut gate_up, &mut down];
        for ((_, n, k), copies) in layer.matrices().into_iter().zip(copies_of) {
            for copy in 0..session.pick(ROTATION_BYTES.div_ceil(2 * n * k), 2) as u64 {
                copies.push(values::matrix(loader, copy, n, k)?.0);
            }
        }
        Ok(Self {
            norm: values::vector(loader, 1, layer.hidden)?,
            head_norm: values::vector(loader, 2, layer.shape.head_dim)?,
            rope: super::attn::rope(loader, layer.shape.head_dim, context)?,
            matrices: [qkv, o, gate_up, down],
        })
    }
}

/// The times of an operation, by its name.
type OperationTimes = Vec<(&'static str, Times)>;

/// Measures the nine operations of one layer, one by one, and the gap behind a kernel.
fn layer_times(
    session: &Session,
    layer: &Layer,
    tokens: usize,
    fp8: bool,
) -> Result<OperationTimes> {
    let shape = layer.shape;
    let widths = 3 * layer.hidden + shape.qkv_width() + shape.out_width() + 3 * layer.mlp;
    let mut room = layer.room(tokens, 4, tokens.max(64), tokens * widths)?;
    room.fp8 = fp8;
    let mut device = Device::open(&session.target, &room, false)?;
    let context = room.context_len as usize;
    let on = LayerWeights::new(session, layer, &mut device.loader()?, context)?;
    let repetitions = session.pick(20, 2);
    let batch = checked(Forest::prompt(&vec![1; tokens], vec![]).oneshot(), &room)?;
    let (table, _) = device.step(batch, |ops, plan| {
        operation_times(ops, plan, layer, &on, tokens, repetitions)
    })?;
    Ok(table)
}

/// Measures what [`layer_times`] shows of a step of `t` tokens, each operation by `n` repetitions.
fn operation_times(
    ops: &mut CudaOps,
    plan: &StepPlan,
    layer: &Layer,
    on: &LayerWeights,
    t: usize,
    n: usize,
) -> Result<OperationTimes, Error> {
    let shape = layer.shape;
    let mut h = ops.filled(t, layer.hidden, &values::values(5, t * layer.hidden))?;
    let mut x = ops.alloc(t, layer.hidden)?;
    let mut qkv = ops.alloc(t, shape.qkv_width())?;
    let mut out = ops.alloc(t, shape.out_width())?;
    let mut gate_up = ops.alloc(t, 2 * layer.mlp)?;
    let mut a = ops.alloc(t, layer.mlp)?;
    let [wqkv, wo, wgu, wd] = &on.matrices;
    let mut turn = WeightCycle::default();
    Ok(vec![
        (
            // As short as a kernel may be: mostly the gap behind it.
            GAP,
            times(ops, n, |o, _| o.rms_norm(&h, 0..1, &on.norm, 1e-6, &mut x))?,
        ),
        (
            "rms_norm",
            times(ops, n, |o, _| o.rms_norm(&h, 0..t, &on.norm, 1e-6, &mut x))?,
        ),
        (
            "qkv",
            times(ops, n, |o, _| o.linear(&x, t, turn.next(wqkv), &mut qkv))?,
        ),
        (
            "qk_norm_rope_store",
            times(ops, n, |o, _| {
                o.qk_norm_rope_store(
                    plan,
                    0,
                    0..t,
                    shape,
                    Some(QkNorm {
                        q: &on.head_norm,
                        k: &on.head_norm,
                        eps: 1e-6,
                    }),
                    Some(&on.rope),
                    &mut qkv,
                )
            })?,
        ),
        (
            "attention",
            times(ops, n, |o, _| {
                o.attention(plan, 0, 0..t, shape, &qkv, &mut out)
            })?,
        ),
        (
            "o",
            times(ops, n, |o, _| {
                o.linear_add(&out, 0..t, turn.next(wo), &mut h)
            })?,
        ),
        (
            "gate-up",
            times(ops, n, |o, _| o.linear(&x, t, turn.next(wgu), &mut gate_up))?,
        ),
        (
            "silu_mul",
            times(ops, n, |o, _| o.silu_mul(&gate_up, t, &mut a))?,
        ),
        (
            "down",
            times(ops, n, |o, _| o.linear_add(&a, 0..t, turn.next(wd), &mut h))?,
        ),
    ])
}

/// Writes down the operations of one layer, one by one: a step cannot be faster than their sum.
fn one_layer(session: &mut Session, name: &str, tokens: usize) -> Result<()> {
    one_layer_in(session, name, tokens, false)
}

/// Writes down the operations of one layer, one by one, with products in fp8 or not; rounding their
/// rows is in their times.
fn one_layer_in(session: &mut Session, name: &str, tokens: usize, fp8: bool) -> Result<()> {
    let layer = Layer::of(name)?;
    let table = layer_times(session, &layer, tokens, fp8)?;
    let name = &format!("{name}{}", if fp8 { " fp8" } else { "" });
    let mut sum = 0.0;
    let mut is_host_bound = false;
    for (op, times) in &table {
        let name = match *op {
            GAP => format!("{name}, {tokens} tokens: {GAP}"),
            op => format!("{name}, {tokens} tokens: {op}"),
        };
        session.figure(Figure {
            detail: *op != GAP,
            ..Figure::of(&name, times)
        })?;
        // The norm runs twice in a layer.
        let often = match *op {
            GAP => 0.0,
            "rms_norm" => 2.0,
            _ => 1.0,
        };
        sum += often * median(&times.seconds);
        is_host_bound |= times.is_host_bound;
    }
    let flops: usize = layer
        .matrices()
        .iter()
        .map(|(_, n, k)| 2 * tokens * n * k)
        .sum();
    let ceiling = session.ceilings.flops;
    session.figure(Figure {
        name: &format!("{name}, {tokens} tokens: sum over {} layers", layer.layers),
        seconds: &[sum * layer.layers as f64],
        bound_s: ceiling.map(|ceiling| flops as f64 * layer.layers as f64 / ceiling),
        ms: true,
        is_host_bound,
        ..Figure::default()
    })
}
