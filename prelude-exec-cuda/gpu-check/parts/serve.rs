//! The papers' tables over HTTP on this machine: the program `prelude`, as anybody starts it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_exec_cuda::CudaConfig;
use serde_json::json;

use super::checkpoint;
use crate::{
    batches::tokens,
    client::Client,
    make_model, process,
    results::{Outcome, Verdict},
    session::{Figure, Session, at_least, at_most, median},
};

/// Longest start: weights are read, kernels perhaps compiled. Less than a part may be silent.
const READY_WITHIN: Duration = Duration::from_secs(100);
/// Ids of prompts: those that the tokenizer has too.
const IDS: u32 = 4000;

pub(super) fn run(session: &mut Session) -> Result<()> {
    let small = session.pick("qwen3-0.6b", "tiny-served");
    session.attempt(small, |s| small_model(s, small))?;
    if session.has_time("qwen3-4b", 60.0)? {
        let large = session.pick("qwen3-4b", "tiny-served");
        session.attempt(large, |s| large_model(s, large))?;
    }
    let reason = "this program has a closed-loop client only; prelude-bench's load generator is not \
                  in the bundle";
    session.skip("open-loop rates", reason)?;
    session.skip("mixed one-shot and chat", reason)
}

fn small_model(session: &mut Session, name: &str) -> Result<()> {
    checkpoint(session, name, None)?;
    let server = Server::start(session, name)?;
    engine(session, name, &server)?;
    let ready = server.ready_s;
    session.figure(Figure {
        name: &format!("{name}: start to ready"),
        seconds: &[ready],
        ms: true,
        goal: at_most(2000.0),
        ..Figure::default()
    })?;
    let (input, requests) = session.pick((128, 100), (12, 3));
    // Warm-up, and one answer is looked at.
    answers(session, &server, input)?;
    let load = Load {
        input,
        output: 1,
        requests,
        connections: 1,
        seed: 1,
    };
    let label = format!("{name}: {input}/1 at 1, p50");
    let Some(one) = load.run(session, &server)? else {
        return session.out_of_time(&label);
    };
    report(session, &label, &one, at_most(2.0))?;
    let (output, requests, connections) = session.pick((32, 400, 4), (4, 4, 2));
    let many = Load {
        output,
        requests,
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
    session.figure(Figure {
        name: &format!("{name}: {input}/{output} at {connections}, a token"),
        seconds: &each,
        ms: true,
        goal: at_most(1.2),
        reason: "(whole answer − one token) / tokens behind it".to_owned(),
        ..Figure::default()
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
    let server = Server::start(session, name)?;
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
            let load = Load {
                input,
                output: 1,
                requests,
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
    let verdict = if value >= must {
        Verdict::Pass
    } else {
        Verdict::Miss
    };
    let mut outcome = Outcome::new(name, verdict);
    outcome.value = Some(value);
    outcome.unit = "req/s".to_owned();
    outcome.goal = at_least(must);
    outcome.repetitions = Some(2);
    session.timed(outcome)
}

fn report(
    session: &mut Session,
    name: &str,
    times: &Times,
    goal: Option<crate::results::Goal>,
) -> Result<()> {
    let mut sorted = times.seconds.clone();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| 1e3 * sorted[((sorted.len() - 1) as f64 * share) as usize];
    session.figure(Figure {
        name,
        seconds: &times.seconds,
        ms: true,
        goal,
        reason: format!(
            "p95 {:.2}, p99 {:.2}; {:.1} req/s",
            at(0.95),
            at(0.99),
            times.rate
        ),
        ..Figure::default()
    })
}

/// A prompt of ids is answered with as many tokens as were asked for.
fn answers(session: &Session, server: &Server, input: usize) -> Result<()> {
    let mut client = Client::connect(&server.address, session.left())?;
    for seed in 0..3 {
        ask(&mut client, seed, input, 2)?;
    }
    Ok(())
}

fn ask(client: &mut Client, seed: u64, input: usize, output: usize) -> Result<()> {
    let body = json!({
        "model": "made",
        "prompt": tokens(seed, input, IDS),
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": true,
    });
    let answer = client.post("/v1/completions", &body.to_string())?;
    let usage = &answer["usage"];
    ensure!(
        usage["prompt_tokens"] == input && usage["completion_tokens"] == output,
        "{input} tokens in and {output} out were asked for: {usage}"
    );
    Ok(())
}

/// Requests that follow one another on each of some connections.
#[derive(Clone, Copy)]
struct Load {
    input: usize,
    output: usize,
    requests: usize,
    connections: usize,
    seed: u64,
}

/// Seconds of each request, and requests a second over all.
struct Times {
    seconds: Vec<f64>,
    rate: f64,
}

impl Load {
    /// `None` if the part's time ends before the last request.
    fn run(self, session: &Session, server: &Server) -> Result<Option<Times>> {
        let next = AtomicUsize::new(0);
        let left = session.left();
        let start = Instant::now();
        let worker = || -> Result<Vec<f64>> {
            let mut client = Client::connect(&server.address, left)?;
            let mut seconds = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= self.requests || start.elapsed() >= left {
                    return Ok(seconds);
                }
                // Fresh prompts: nothing of one is another's prefix.
                let seed = (self.seed << 20) + i as u64;
                let asked = Instant::now();
                ask(&mut client, seed, self.input, self.output)?;
                seconds.push(asked.elapsed().as_secs_f64());
            }
        };
        let seconds = thread::scope(|scope| -> Result<Vec<f64>> {
            let workers: Vec<_> = (0..self.connections).map(|_| scope.spawn(worker)).collect();
            let mut all = Vec::new();
            for worker in workers {
                let Ok(seconds) = worker.join() else {
                    bail!("a connection's thread panicked");
                };
                all.extend(seconds?);
            }
            Ok(all)
        })?;
        let took = start.elapsed();
        if seconds.len() < self.requests && took >= left {
            return Ok(None);
        }
        ensure!(
            seconds.len() == self.requests,
            "not every request was answered"
        );
        Ok(Some(Times {
            rate: self.requests as f64 / took.as_secs_f64(),
            seconds,
        }))
    }
}

/// The program `prelude`; ended when dropped, whatever happens.
struct Server {
    child: Child,
    address: String,
    /// What its matrix products run on, as it says.
    products: Option<String>,
    /// From the start of the process.
    ready_s: f64,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is left to do if the process is gone already.
        let _ = self.child.kill();
        let _ = process::gone(&mut self.child);
    }
}

impl Server {
    fn start(session: &Session, name: &str) -> Result<Self> {
        let program = session.home.join("prelude");
        let model = make_model::folder(&session.models, name, None);
        let log = session.out.join(format!("server-{name}.txt"));
        let mut command = Command::new(&program);
        command.arg("serve").arg(&model);
        command.args(["--port", "0", "--served-model-name", "made"]);
        command.args(["--max-model-len", session.pick("2048", "256")]);
        match session.target.is_gpu() {
            true => command.args(["--device", &format!("cuda:{}", session.common.device)]),
            // The emulation is not in that program.
            false => command.args(["--device", "cpu", "--kv-blocks", "64"]),
        };
        if session.target.is_gpu() {
            command.envs(settings(&session.config));
        }
        let start = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut server = Self {
            child,
            address: String::new(),
            products: None,
            ready_s: 0.0,
        };
        let stderr = server.child.stderr.take().context("stderr is not piped")?;
        let limit = READY_WITHIN.min(session.left());
        (server.address, server.products) = address(stderr, &log, limit)?;
        server.ready_s = start.elapsed().as_secs_f64();
        Ok(server)
    }

    /// Asks it to stop, as an operator does, and waits.
    fn stop(mut self) -> Result<()> {
        let pid = self.child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &pid]).status();
        ensure!(
            asked.is_ok_and(|s| s.success()),
            "the server cannot be asked to stop"
        );
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}");
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("the server did not stop within 60 s");
    }
}

/// Settings by which the server finds the libraries, kernels and plans that this program does.
fn settings(config: &CudaConfig) -> Vec<(&'static str, String)> {
    // An array of JSON's is one of TOML's, as these settings are.
    let list = |folders: &[PathBuf]| json!(folders).to_string();
    let one = |folder: &PathBuf| json!(folder).to_string();
    let mut settings = vec![
        ("PRELUDE_CUDA__LIBRARY_DIRS", list(&config.library_dirs)),
        ("PRELUDE_CUDA__FALLBACK_DIRS", list(&config.fallback_dirs)),
    ];
    let images = config.image_dir.as_ref().map(one);
    settings.extend(images.map(|text| ("PRELUDE_CUDA__IMAGE_DIR", text)));
    let cache = config.cache_dir.as_ref().map(one);
    settings.extend(cache.map(|text| ("PRELUDE_CUDA__CACHE_DIR", text)));
    settings
}

/// What the server's products run on: figures of another engine are none of this machine's best.
fn engine(session: &mut Session, name: &str, server: &Server) -> Result<()> {
    let name = format!("{name}: products");
    match &server.products {
        Some(line) => session.note(&name, line),
        None if session.is_smoke() => session.skip(&name, "the server is on the CPU"),
        None => session.fail(&name, "the server did not say what they run on"),
    }
}

/// Where a server says that it listens, and what it says of products before. All that it says goes
/// to a file.
fn address(stderr: ChildStderr, log: &Path, limit: Duration) -> Result<(String, Option<String>)> {
    let (send, receive) = std::sync::mpsc::channel();
    let mut file = fs::File::create(log).with_context(|| format!("{}", log.display()))?;
    // Reads until the server ends, or its pipe would fill up one day.
    thread::spawn(move || {
        use std::io::Write as _;

        for line in BufReader::new(stderr).lines() {
            let Ok(line) = line else { break };
            let _ = writeln!(file, "{line}");
            let _ = send.send(line);
        }
    });
    let start = Instant::now();
    let mut last = String::new();
    let mut products = None;
    while let Ok(line) = receive.recv_timeout(limit.saturating_sub(start.elapsed())) {
        let place = line
            .split("http://")
            .nth(1)
            .filter(|_| line.contains("ready"));
        if let Some(rest) = place {
            let is_address = |c: &char| c.is_ascii_digit() || ".:".contains(*c);
            return Ok((rest.chars().take_while(is_address).collect(), products));
        }
        if let Some(at) = line.find("products by ") {
            products = Some(line[at..].to_owned());
        }
        last = line;
    }
    bail!(
        "the server was not ready within {} s; it said: {last}",
        limit.as_secs()
    )
}
