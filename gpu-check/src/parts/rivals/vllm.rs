//! vLLM's server, from a folder of its packages, driven as ours is.

use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use prelude_bench::process::{Process, free_address};
use serde_json::json;

use super::{
    super::serve::{
        loads::each_once,
        requests::{add, completions, streamed},
        server::{MODEL, VLLM_FOLDER, answers},
    },
    Found, Load, compare, folder_of, python_path,
};
use crate::{
    make_model,
    session::{Session, said},
};

/// Longest start: it compiles and captures.
const READY_WITHIN: Duration = Duration::from_secs(200);
const NAME: &str = "vLLM";

pub(super) fn measure(session: &mut Session, model: &str, loads: &[Load]) -> Result<()> {
    let what = format!("{NAME}, {model}");
    let folder = match folder_of(VLLM_FOLDER, "vllm") {
        Ok(folder) => folder,
        Err(error) => return session.skip(&what, format!("{error:#}")),
    };
    if !session.has_time(&what, 60.0)? {
        return Ok(());
    }
    // Another engine that fails says nothing about ours.
    match served(session, &folder, model, loads) {
        Ok(()) => Ok(()),
        Err(error) => session.skip(&what, format!("{error:#}")),
    }
}

fn served(session: &mut Session, folder: &Path, model: &str, loads: &[Load]) -> Result<()> {
    let server = start(session, folder, model)?;
    let ready = server.ready_after.as_secs_f64();
    let label = format!("{NAME}, {model}: start to ready");
    let outcome = crate::results::Outcome::figure(label, (ready, "s"), None);
    session.timed(outcome)?;
    for load in loads {
        answers(session, &server.address, load.input)?;
        let shape = (load.input, 0, load.output);
        // Tokens without text are events by their ids.
        let mut more = streamed();
        add(&mut more, &json!({"return_token_ids": true}));
        if load.output == 1 {
            more = json!({});
        }
        let warm_up = completions(41, 3 * load.at_once, shape, &more);
        each_once(session, &server.address, warm_up, load.at_once)?;
        let jobs = completions(42, load.requests, shape, &more);
        let measured = each_once(session, &server.address, jobs, load.at_once)?;
        let found = Found {
            seconds: measured.tally.seconds(200),
            per_second: measured.per_second,
            reason: format!("{}, HTTP, ids", measured.times()),
        };
        compare(session, NAME, model, load, &found)?;
    }
    // It is asked to stop; with which status it does is its own affair.
    drop(server);
    Ok(())
}

/// Starts the server, and says meanwhile that this goes on.
fn start(session: &Session, folder: &Path, model: &str) -> Result<Process> {
    let address = free_address()?;
    let port = address
        .rsplit(':')
        .next()
        .context("an address has a port")?;
    let mut command = Command::new("python3");
    command
        .args(["-m", "vllm.entrypoints.cli.main", "serve"])
        .arg(make_model::folder(&session.models, model, None))
        .args(["--host", "127.0.0.1", "--port", port])
        .args(["--served-model-name", MODEL, "--dtype", "bfloat16"])
        .args(["--no-enable-prefix-caching", "--generation-config", "vllm"])
        .args([
            "--max-model-len",
            "2048",
            "--max-num-batched-tokens",
            "8192",
        ])
        .args(["--max-num-seqs", "256", "--gpu-memory-utilization", "0.8"])
        .args(["--disable-log-stats", "--no-enable-log-requests"])
        .arg("--disable-uvicorn-access-log")
        .env("PYTHONPATH", python_path(folder)?)
        .envs([("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1")])
        .envs([("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")])
        // Its packages need not be there; greedy answers need none of them.
        .env("VLLM_USE_FLASHINFER_SAMPLER", "0");
    let log = session.out.join(format!("rival-{NAME}-{model}.txt"));
    let limit = READY_WITHIN.min(session.left());
    let begin = Instant::now();
    thread::scope(|scope| {
        let starting = scope.spawn(|| Process::rival(&mut command, address.clone(), &log, limit));
        while !starting.is_finished() {
            let so_far = begin.elapsed().as_secs();
            session.beat(|| format!("{NAME} is starting, {so_far} s"))?;
            thread::sleep(Duration::from_millis(50));
        }
        match starting.join() {
            Ok(started) => started,
            Err(panic) => bail!("{}", said(panic.as_ref())),
        }
    })
}
