//! Whole models: the golden ones against what was recorded, large random ones against
//! `transformers` on this machine, else against the CPU executor.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuDtype, CpuExecutor};
use prelude_models::Checkpoint;

use super::{NO_FP8, checkpoint, has_fp8, mode};
use crate::{
    batches::{count, tokens},
    golden::{self, Mode},
    make_model,
    reference::{self, Answers, Compared, Questions, Tolerance, compare},
    session::Session,
};

/// A large model: its shape and layers, prompts by length, how many are continued by how many.
#[derive(Clone, Copy)]
struct Case {
    shape: &'static str,
    layers: Option<usize>,
    /// Against `transformers`.
    lengths: &'static [usize],
    /// Against the CPU executor, which is slower.
    lengths_cpu: &'static [usize],
    continued: usize,
    tokens: usize,
    seconds: f64,
}

const FULL: [Case; 2] = [
    Case {
        shape: "qwen3-0.6b",
        layers: None,
        lengths: &[32, 1, 17, 128, 512, 1000, 2048, 4000],
        lengths_cpu: &[32, 1, 17, 128],
        continued: 2,
        tokens: 64,
        seconds: 45.0,
    },
    Case {
        shape: "qwen3-4b",
        layers: Some(12),
        lengths: &[32, 1, 130, 1000],
        lengths_cpu: &[32, 64],
        continued: 1,
        tokens: 64,
        seconds: 40.0,
    },
];

const SMOKE: [Case; 1] = [Case {
    shape: "tiny",
    layers: None,
    lengths: &[20, 33, 1, 70],
    lengths_cpu: &[20, 33, 1, 70],
    continued: 2,
    tokens: 5,
    seconds: 0.0,
}];

pub(super) fn run(session: &mut Session) -> Result<()> {
    let (longest, step, most) = session.pick((1500, 2048, usize::MAX), (40, 64, 60));
    for name in golden::names(&session.home)? {
        let what = format!("golden {name}");
        // One mode each where an emulation computes; the crate's tests run them all.
        let modes: &[bool] = session.pick(&[false, true], &[false]);
        for &deterministic in modes {
            let what = format!("{what}{}", mode(deterministic));
            session.check_within(&what, 3.0, |s| {
                let mode = Mode {
                    deterministic,
                    fp8: false,
                };
                golden::check(s, &name, longest, step, most, mode)
            })?;
        }
    }
    in_fp8(session, (longest, step, most))?;
    // Texts whose tokens lead: of these models all, where an emulation computes a few tokens.
    let texts: &[&str] = session.pick(&golden::TEXTS, &golden::TEXTS[..1]);
    let (texts_max, tokens_max) = session.pick((usize::MAX, usize::MAX), (1, 2));
    for name in texts {
        let what = format!("golden {name}: greedy text");
        session.check_within(&what, 3.0, |s| {
            golden::check_texts(s, name, longest, texts_max, tokens_max)
        })?;
    }
    for case in session.pick(FULL.to_vec(), SMOKE.to_vec()) {
        let what = match case.layers {
            Some(layers) => format!("{}, {layers} layers", case.shape),
            None => case.shape.to_owned(),
        };
        session.attempt_within(&what, case.seconds, |s| large(s, &what, case))?;
    }
    Ok(())
}

/// Checks the trained golden model with the matrices of its layers in fp8, within a tolerance of
/// its own.
fn in_fp8(session: &mut Session, (longest, step, most): (usize, usize, usize)) -> Result<()> {
    let name = golden::IN_FP8;
    if !has_fp8(session) {
        return session.skip(&format!("golden {name} in fp8"), NO_FP8);
    }
    for &deterministic in session.pick(&[false, true][..], &[false][..]) {
        let what = format!("golden {name} in fp8{}", mode(deterministic));
        let mode = Mode {
            deterministic,
            fp8: true,
        };
        session.check_within(&what, 3.0, |s| {
            golden::check(s, name, longest, step, most, mode)
        })?;
    }
    Ok(())
}

fn large(session: &mut Session, what: &str, case: Case) -> Result<()> {
    let checkpoint = checkpoint(session, case.shape, case.layers)?;
    let folder = make_model::folder(&session.models, case.shape, case.layers);
    let vocab = count(checkpoint.config().vocab_size);
    let questions = |lengths: &[usize]| Questions {
        prompts: (50..)
            .zip(lengths)
            .map(|(seed, &len)| tokens(seed, len, vocab))
            .collect(),
        vocab,
        continued: case.continued,
        tokens: case.tokens,
    };
    // The reference first: it leaves the GPU's memory when its process ends.
    let asked = questions(case.lengths);
    let limit = session.left().mul_f64(0.6).max(Duration::from_secs(5));
    let scratch = session.models.join(format!("{}-parity", case.shape));
    let script = reference::script(&session.home);
    let beat = |line: &str| session.beat(|| line.to_owned());
    let device = format!("cuda:{}", session.common.device);
    let device = session.pick(device, "cpu".to_owned());
    let answer = reference::transformers(&script, &folder, &device, &asked, &scratch, limit, &beat);
    let (asked, exact, rounded, who) = match answer {
        Ok([exact, rounded]) => (asked, exact, Some(rounded), "transformers"),
        Err(error) => {
            session.skip(&format!("{what}: transformers"), format!("{error:#}"))?;
            let asked = questions(case.lengths_cpu);
            let exact = on_the_cpu(session, &checkpoint, &asked)?;
            (asked, exact, None, "the CPU executor in f32")
        }
    };
    let got = on_the_gpu(session, &checkpoint, &asked, &exact)?;
    let layers = Tolerance::Layers(checkpoint.config().num_hidden_layers);
    let tolerance = rounded.as_ref().map_or(layers, Tolerance::Rounded);
    for (name, line) in compare(&got, &exact, &tolerance) {
        let name = format!("{what}: {name}");
        match line {
            Ok(Compared::Nothing(reason)) => session.skip(&name, reason)?,
            Ok(Compared::Right(text)) => session.pass(&name, format!("{text}; against {who}"))?,
            Err(error) => session.fail(&name, format!("{error:#}"))?,
        }
    }
    Ok(())
}

/// Returns the number of blocks of 16 for the longest prompt and its continuation.
fn blocks(questions: &Questions) -> u32 {
    let longest = questions.prompts.iter().map(Vec::len).max().unwrap_or(0);
    count((longest + questions.tokens).div_ceil(16) + 1)
}

fn on_the_gpu(
    session: &Session,
    checkpoint: &Checkpoint,
    asked: &Questions,
    exact: &Answers,
) -> Result<Answers> {
    let longest = asked.prompts.iter().map(Vec::len).max().unwrap_or(1);
    let mut executor = session.executor(checkpoint, |config| {
        config.num_blocks = Some(blocks(asked));
        config.max_step_tokens = count(longest.max(64));
        config.chunk_tokens = session.pick(1024, 64);
        config.max_context_len = Some(count(longest + asked.tokens));
        config.logits_rows_max = session.pick(256, 16);
    })?;
    asked.ask(&mut executor, &exact.texts, &|line| {
        session.beat(|| line.to_owned())
    })
}

fn on_the_cpu(session: &Session, checkpoint: &Checkpoint, asked: &Questions) -> Result<Answers> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Arc::new(ComputePool::new(session.pick(threads, 1)));
    let longest = asked.prompts.iter().map(Vec::len).max().unwrap_or(1);
    let config = CpuConfig {
        dtype: Some(CpuDtype::F32),
        num_blocks: Some(blocks(asked)),
        max_context_len: Some(count(longest + asked.tokens)),
        ..CpuConfig::default()
    };
    let mut executor = CpuExecutor::new(checkpoint, config, pool)?;
    let beat = |line: &str| session.beat(|| format!("the CPU executor: {line}"));
    asked
        .ask(&mut executor, &[], &beat)
        .context("the CPU executor")
}
