//! The papers' tables over HTTP on this machine: the program `prelude`, as operators start it.

use std::{path::PathBuf, process::Command, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use prelude_bench::{
    client::Client,
    load::{Arrivals, Job, Jobs, Load, run as load},
    process::Process,
};
use prelude_exec_cuda::CudaConfig;
use serde_json::{Value, json};

use super::checkpoint;
use crate::{
    batches::tokens,
    make_model,
    results::Outcome,
    session::{Figure, Session, at_least, at_most, median},
};

/// Longest start: weights are read, kernels perhaps compiled. Less than a part may be silent.
const READY_WITHIN: Duration = Duration::from_secs(100);
/// Longest wait for one answer: less than a part may be silent.
const SILENCE: Duration = Duration::from_secs(60);
const PATH: &str = "/v1/completions";
/// Ids of prompts: those that the tokenizer has too.
const IDS: u32 = 4000;

pub(super) fn run(session: &mut Session) -> Result<()> {
    let small = session.pick("qwen3-0.6b", "tiny-served");
    session.attempt(small, |s| small_model(s, small))?;
    let large = session.pick("qwen3-4b", "tiny-served");
    session.attempt_within(large, 60.0, |s| large_model(s, large))?;
    let reason = "this part loads a server in a closed loop and with one kind of request only";
    session.skip("open-loop rates", reason)?;
    session.skip("mixed one-shot and chat", reason)
}

fn small_model(session: &mut Session, name: &str) -> Result<()> {
    checkpoint(session, name, None)?;
    let server = start(session, name)?;
    engine(session, name, &server)?;
    let ready = server.ready_after.as_secs_f64();
    let label = format!("{name}: start to ready");
    session.figure(Figure::wall(&label, &[ready], at_most(2000.0)))?;
    let (input, requests) = session.pick((128, 100), (12, 3));
    // Warm-up, and one answer is looked at.
    answers(session, &server, input)?;
    let load = Requests {
        input,
        output: 1,
        count: requests,
        connections: 1,
        seed: 1,
    };
    let label = format!("{name}: {input}/1 at 1, p50");
    let Some(one) = load.run(session, &server)? else {
        return session.out_of_time(&label);
    };
    report(session, &label, &one, at_most(2.0))?;
    let (output, requests, connections) = session.pick((32, 400, 4), (4, 4, 2));
    let many = Requests {
        output,
        count: requests,
        connections,
        seed: 2,
        ..load
    };
    let label = format!("{name}: {input}/{output} at {connections}, p50");
    let Some(times) = many.run(session, &server)? else {
        return session.out_of_time(&label);
    };
    report(session, &label, &times, None)?;
    // What a token takes behind the first, from whole answers.
    let each: Vec<f64> = times
        .seconds
        .iter()
        .map(|s| (s - median(&one.seconds)).max(0.0) / (output - 1) as f64)
        .collect();
    let label = format!("{name}: {input}/{output} at {connections}, a token");
    session.figure(Figure {
        reason: "(whole answer − one token) / tokens behind it".to_owned(),
        ..Figure::wall(&label, &each, at_most(1.2))
    })?;
    server.stop()?;
    session.pass(
        &format!("{name}: served and stopped"),
        "every answer was whole",
    )
}

/// Closed loop at several numbers of connections, all of them twice, so that drift shows.
fn large_model(session: &mut Session, name: &str) -> Result<()> {
    checkpoint(session, name, None)?;
    let server = start(session, name)?;
    engine(session, name, &server)?;
    let (input, requests) = session.pick((512, 200), (20, 4));
    answers(session, &server, input)?;
    let connections: &[usize] = session.pick(&[1, 4, 16, 64, 96, 128], &[1, 3]);
    let mut rates = vec![Vec::new(); connections.len()];
    for round in 0..2u64 {
        for (i, &connections) in connections.iter().enumerate() {
            let what = format!("{name}: {input}/1 at {connections}");
            if !session.has_time(&what, 5.0)? {
                continue;
            }
            let load = Requests {
                input,
                output: 1,
                count: requests,
                connections,
                seed: 100 + round * 10 + i as u64,
            };
            let Some(times) = load.run(session, &server)? else {
                session.out_of_time(&what)?;
                continue;
            };
            rates[i].push(times.rate);
            report(
                session,
                &format!("{what}, round {round}, p50"),
                &times,
                None,
            )?;
        }
    }
    let best = rates.iter().map(|r| median(r)).filter(|r| r.is_finite());
    let best = best.fold(f64::NAN, f64::max);
    rate(
        session,
        &format!("{name}: {input}/1 alone"),
        median(&rates[0]),
        110.0,
    )?;
    rate(
        session,
        &format!("{name}: {input}/1 saturated"),
        best,
        175.0,
    )?;
    server.stop()
}

fn rate(session: &mut Session, name: &str, value: f64, must: f64) -> Result<()> {
    let mut outcome = Outcome::figure(name, (value, "req/s"), at_least(must));
    outcome.repetitions = Some(2);
    session.timed(outcome)
}

fn report(
    session: &mut Session,
    name: &str,
    times: &Times,
    goal: Option<crate::results::Goal>,
) -> Result<()> {
    let last = (times.seconds.len() - 1) as f64;
    let at = |share: f64| 1e3 * times.seconds[(last * share) as usize];
    session.figure(Figure {
        reason: format!(
            "p95 {:.2}, p99 {:.2}; {:.1} req/s",
            at(0.95),
            at(0.99),
            times.rate
        ),
        ..Figure::wall(name, &times.seconds, goal)
    })
}

/// Checks that a prompt of ids is answered with as many tokens as were asked for.
fn answers(session: &Session, server: &Process, input: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Less than a part may be silent that waits for an answer.
    let limit = SILENCE.min(session.left());
    runtime.block_on(async {
        let mut client = Client::connect(&server.address).await?;
        for seed in 0..3 {
            let body = completion(seed, input, 2);
            let answer = client.post(PATH, &body);
            let answer = tokio::time::timeout(limit, answer).await??;
            let usage = &answer["usage"];
            ensure!(
                usage["prompt_tokens"] == input && usage["completion_tokens"] == 2,
                "{input} tokens in and 2 out were asked for: {usage}"
            );
        }
        Ok(())
    })
}

/// The body of a request for `output` tokens.
fn completion(seed: u64, input: usize, output: usize) -> Value {
    json!({
        "model": "made",
        "prompt": tokens(seed, input, IDS),
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": true,
    })
}

/// Requests that follow one another on each of some connections.
#[derive(Clone, Copy)]
struct Requests {
    input: usize,
    output: usize,
    count: usize,
    connections: usize,
    seed: u64,
}

/// The times of answers.
struct Times {
    /// Seconds of each request, sorted.
    seconds: Vec<f64>,
    /// Requests a second over all connections.
    rate: f64,
}

impl Requests {
    /// Returns `None` if the part's time ends before the last request.
    fn run(self, session: &Session, server: &Process) -> Result<Option<Times>> {
        // Fresh prompts: none begins as another does.
        let seeds = (0..self.count as u64).map(|i| (self.seed << 20) + i);
        let bodies = seeds.map(|seed| completion(seed, self.input, self.output));
        let jobs = bodies.map(|body| Job {
            path: PATH,
            body: body.to_string().into(),
        });
        let jobs = Arc::new(Jobs::once(jobs.collect()));
        let closed = Load {
            connections: self.connections,
            arrivals: Arrivals::Closed,
            warm_up: Duration::ZERO,
            time: session.left(),
        };
        let tally = load(&server.address, &jobs, closed)?;
        let failures = tally.failures() + tally.count(429);
        ensure!(failures == 0, "{failures} requests were not answered");
        let seconds = tally.seconds(200);
        Ok((seconds.len() == self.count).then(|| Times {
            seconds,
            rate: tally.per_second(),
        }))
    }
}

/// Starts the program `prelude` with a made model.
fn start(session: &Session, name: &str) -> Result<Process> {
    let program = session.home.join("prelude");
    let model = make_model::folder(&session.models, name, None);
    let log = session.out.join(format!("server-{name}.txt"));
    let mut command = Command::new(&program);
    command.arg("serve").arg(&model);
    command.args(["--port", "0", "--served-model-name", "made"]);
    command.args(["--max-model-len", session.pick("2048", "256")]);
    match session.target.is_gpu() {
        true => command
            .args(["--device", &format!("cuda:{}", session.common.device)])
            .envs(settings(&session.config)),
        // The emulation is not in that program.
        false => command.args(["--device", "cpu", "--kv-blocks", "64"]),
    };
    Process::start(command, Some(&log), READY_WITHIN.min(session.left()))
}

/// Settings by which the server finds the libraries, kernels and plans that this program does.
fn settings(config: &CudaConfig) -> Vec<(&'static str, String)> {
    // An array of JSON's is one of TOML's, as these settings are.
    let list = |folders: &[PathBuf]| json!(folders).to_string();
    let one = |folder: &PathBuf| json!(folder).to_string();
    // The server looks into the same Python's packages and toolkits as this program.
    let mut settings = vec![("PRELUDE_CUDA__LIBRARY_DIRS", list(&config.library_dirs))];
    let images = config.image_dir.as_ref().map(one);
    settings.extend(images.map(|text| ("PRELUDE_CUDA__IMAGE_DIR", text)));
    let cache = config.cache_dir.as_ref().map(one);
    settings.extend(cache.map(|text| ("PRELUDE_CUDA__CACHE_DIR", text)));
    settings
}

/// Notes what the server's matrix products run on: figures of the fallback are not this machine's
/// best.
fn engine(session: &mut Session, name: &str, server: &Process) -> Result<()> {
    let name = format!("{name}: products");
    let products = server.start_log.iter().rev().find_map(|line| {
        let at = line.find("products by ")?;
        Some(&line[at..])
    });
    match products {
        Some(line) => session.note(&name, line),
        None if session.is_smoke() => session.skip(&name, "the server is on the CPU"),
        None => session.fail(&name, "the server did not say what they run on"),
    }
}
