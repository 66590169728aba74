//! Long prompts beside short requests, and several long prompts together (`PrefillOnly`, §4 and
//! §6.1).
//!
//! A one-shot prompt that is longer than a step runs as a *pass in slices*: it holds no KV block,
//! and between its slices the server computes what others ask for. Three measurements show what
//! that promises:
//!
//! - a prompt of 60,000 tokens on the demo model, with short requests at a tenth of what the server
//!   can do: how long they wait, and how much later the long prompt is;
//! - eight prompts of 3,500 tokens together: the blocks that they hold, and the device's time
//!   beside that of one after another;
//! - a prompt of 32,768 tokens on a model of Qwen3-0.6B's shape while 32 short requests come at
//!   once; and the process's memory beside its plan.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use prelude_server::demo;
use serde_json::json;

use super::{
    Session, closed, folders, noop,
    report::{Row, Unit},
};
use crate::{
    load::{Arrivals, Job, Jobs, Load, Tally, check, run as load},
    process::{Process, metrics},
    random::Random,
};

/// Context of the demo model, in tokens: the longest prompt fits.
const CONTEXT: u32 = 65_536;
/// Tokens of the longest prompt.
const LONGEST: usize = 60_000;
/// Tokens of each prompt of those that come together, and their number.
const TOGETHER: (usize, usize) = (3_500, 8);
/// Layers of the model in Qwen3-0.6B's shape. All 28 take seven times as long and show the same.
const LAYERS: u32 = 4;
/// Context of that model, and tokens of its long prompt.
const SHAPE_CONTEXT: u32 = 32_768;
/// Short requests that come at once beside it.
const BURST: usize = 32;
/// Bursts while the long prompt is computed.
const BURSTS: usize = 3;
/// Tokens of a short prompt.
const SHORT: usize = 64;
/// Connections that find the capacity for short requests.
const BUSY: usize = 16;
/// The load of short requests beside the long prompt, as a share of capacity.
const OTHER_LOAD: f64 = 0.1;
/// Most slices that a short request waits for.
const SLICES: f64 = 3.0;
/// The time between the arrival of the long prompt and the first burst, and between bursts.
const PAUSE: Duration = Duration::from_secs(1);
/// Memory of the process beside what the server plans: the program, its tokenizer, connections.
const BESIDE_PLAN_MIB: f64 = 96.0;
/// Longest start of a server: it reads a few hundred megabytes.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Measures all three cases.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    let folder = folders::demo_with_context(session.config, CONTEXT)?;
    let mut server = Server::start(session, &folder, &[])?;
    let mut rows = beside_short_requests(session, &mut server)?;
    drop(server);
    // With a prefix cache a pass fills blocks that are free, for later requests.
    let mut server = Server::start(session, &folder, &["--no-enable-prefix-caching"])?;
    rows.extend(together(session, &mut server)?);
    drop(server);
    let folder = folders::qwen3_0_6b(session.config, LAYERS, SHAPE_CONTEXT)?;
    let mut server = Server::start(session, &folder, &[])?;
    rows.extend(beside_bursts(session, &mut server)?);
    Ok(rows)
}

/// A server of one model, and the prompts that it is sent.
struct Server {
    process: Process,
    model: String,
    random: Random,
    /// The longest time of a slice, in milliseconds.
    slice_ms: f64,
}

impl Server {
    fn start(session: &Session<'_>, folder: &Path, flags: &[&str]) -> Result<Self> {
        let name = folder.file_name().context("a folder has a name")?;
        let mut command = Command::new(&session.config.program);
        command
            .args(["serve", "--port", "0"])
            .args(flags)
            .arg(folder);
        let passes = noop::demo(&demo::LM)?.engine.handle().capacity().passes;
        let slice_ms = passes
            .context("the executor has passes in slices")?
            .slice_ms;
        Ok(Self {
            process: Process::start(command, None, READY_WITHIN)?,
            model: name.to_string_lossy().into_owned(),
            random: Random::new(3),
            slice_ms: f64::from(slice_ms),
        })
    }

    /// Makes requests of `tokens` tokens and one token of answer, which share nothing.
    fn jobs(&mut self, count: usize, tokens: usize) -> Vec<Job> {
        let job = |_| {
            // Ordinary tokens of the demo's vocabulary.
            let ids: Vec<usize> = (0..tokens)
                .map(|_| 300 + self.random.below(3_700))
                .collect();
            let body =
                json!({"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0});
            Job {
                path: "/v1/completions",
                body: Bytes::from(body.to_string()),
            }
        };
        (0..count).map(job).collect()
    }

    /// Returns the seconds until a new prompt of `tokens` tokens is answered, and the result of
    /// what is done meanwhile.
    fn time_one<T>(
        &mut self,
        tokens: usize,
        meanwhile: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(f64, T)> {
        let jobs = Arc::new(Jobs::once(self.jobs(1, tokens)));
        let address = self.process.address.clone();
        // It is sent at once, and counts whenever it ends.
        let one = Load {
            connections: 1,
            arrivals: Arrivals::Closed,
            warm_up: Duration::ZERO,
            time: Duration::from_secs(5),
        };
        let long = thread::spawn(move || load(&address, &jobs, one));
        let result = meanwhile(self)?;
        let tally = long
            .join()
            .map_err(|_| anyhow::anyhow!("the sender ended"))??;
        ensure!(tally.count(200) == 1, "the long prompt failed: {tally:?}");
        Ok((tally.seconds(200)[0], result))
    }

    fn metrics<const N: usize>(&self, names: [&str; N]) -> Result<[f64; N]> {
        metrics(&self.process.address, names)
    }

    /// Returns the seconds of all steps so far.
    fn step_seconds(&self) -> Result<f64> {
        let [seconds] = self.metrics(["prelude:step_seconds_sum{"])?;
        Ok(seconds)
    }
}

/// Measures short requests in an open loop while a long prompt is computed.
fn beside_short_requests(session: &Session<'_>, server: &mut Server) -> Result<Vec<Row>> {
    let time = session.config.time;
    let short = Arc::new(Jobs::new(server.jobs(20_000, SHORT)));
    session.bar.says("long: capacity of short requests");
    let capacity = answered(load(&server.process.address, &short, closed(BUSY, time))?)?;
    let open = |time| Load {
        connections: BUSY,
        arrivals: Arrivals::Open {
            per_second: OTHER_LOAD * capacity.per_second(),
            seed: 5,
        },
        warm_up: Duration::ZERO,
        time,
    };
    session.bar.says("long: short requests alone");
    let alone = answered(load(&server.process.address, &short, open(4 * time))?)?;
    session.bar.says("long: a long prompt alone");
    let (long_alone, ()) = server.time_one(LONGEST, |_| Ok(()))?;
    session.bar.says("long: both");
    let span = Duration::from_secs_f64(long_alone);
    let (long_beside, beside) = server.time_one(LONGEST, |server| {
        answered(load(&server.process.address, &short, open(span))?)
    })?;
    let what = |what: &str| format!("long: {LONGEST} tokens beside short requests: {what}");
    let p99 = |tally: &Tally| 1e3 * tally.quantile(200, 0.99);
    let slices = SLICES * server.slice_ms;
    Ok(vec![
        Row::one(what("the long prompt alone"), Unit::Seconds, long_alone),
        Row::one(
            what("the long prompt beside, in times of alone"),
            Unit::Times,
            long_beside / long_alone,
        )
        .at_most(1.1),
        Row::one(what("short requests alone, P99"), Unit::Millis, p99(&alone)).noting(format!(
            "{SHORT} tokens, {:.0} a second, a tenth of what the server can do",
            OTHER_LOAD * capacity.per_second()
        )),
        Row::one(
            what("short requests beside, P99"),
            Unit::Millis,
            p99(&beside),
        )
        .at_most(slices)
        .noting(format!(
            "{SLICES} slices of {} ms; median {:.2} ms",
            server.slice_ms,
            1e3 * beside.quantile(200, 0.5)
        )),
    ])
}

/// Measures several long prompts at once against one after another.
fn together(session: &Session<'_>, server: &mut Server) -> Result<Vec<Row>> {
    let (tokens, count) = TOGETHER;
    let (mut held, mut apart, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=session.config.rounds {
        session
            .bar
            .says(&format!("long: several long prompts: round {round}"));
        let jobs = server.jobs(count, tokens);
        let before = server.step_seconds()?;
        check(&server.process.address, &jobs)?;
        let one_by_one = server.step_seconds()? - before;
        let (most, at_once) = all_at_once(server)?;
        held.push(most);
        apart.push(1e3 * one_by_one);
        times.push(at_once / one_by_one);
    }
    let what = |what: &str| format!("long: {count} x {tokens} tokens together: {what}");
    let most_held = held.iter().copied().fold(0.0, f64::max);
    Ok(vec![
        Row::one(what("most KV blocks held"), Unit::Count, most_held).at_most(0.0),
        Row::new(
            what("time of steps, one after another"),
            Unit::Millis,
            apart,
        ),
        Row::new(
            what("time of steps, in times of one after another"),
            Unit::Times,
            times,
        )
        .at_most(1.03),
    ])
}

/// Sends the long prompts at once. Returns the most KV blocks that were held, and the seconds of all
/// steps.
fn all_at_once(server: &mut Server) -> Result<(f64, f64)> {
    let (tokens, count) = TOGETHER;
    let jobs = Arc::new(Jobs::once(server.jobs(count, tokens)));
    let at_once = Load {
        connections: count,
        arrivals: Arrivals::Closed,
        warm_up: Duration::ZERO,
        time: Duration::from_secs(5),
    };
    let before = server.step_seconds()?;
    let is_done = AtomicBool::new(false);
    let (tally, held) = thread::scope(|scope| {
        let watch = scope.spawn(|| most_blocks_held(server, &is_done));
        let tally = load(&server.process.address, &jobs, at_once);
        is_done.store(true, Ordering::Relaxed);
        (tally, watch.join())
    });
    let held = held.map_err(|_| anyhow::anyhow!("the thread that reads metrics ended"))??;
    let tally = answered(tally?)?;
    ensure!(
        tally.count(200) == count as u64,
        "not all were answered: {tally:?}"
    );
    Ok((held, server.step_seconds()? - before))
}

/// Returns the most KV blocks that requests held at any time until `is_done`, as the server tells
/// it every few milliseconds.
fn most_blocks_held(server: &Server, is_done: &AtomicBool) -> Result<f64> {
    let mut most = 0f64;
    while !is_done.load(Ordering::Relaxed) {
        let [held] = server.metrics(["prelude:kv_blocks_used{"])?;
        most = most.max(held);
        thread::sleep(Duration::from_millis(3));
    }
    Ok(most)
}

/// Measures short requests that come at once while a long prompt is computed on a bigger model.
fn beside_bursts(session: &Session<'_>, server: &mut Server) -> Result<Vec<Row>> {
    let tokens = SHAPE_CONTEXT as usize - 1;
    let mut bursts = Vec::new();
    for _ in 0..2 * BURSTS {
        bursts.push(Arc::new(Jobs::once(server.jobs(BURST, SHORT))));
    }
    let (first, second) = bursts.split_at(BURSTS);
    session.bar.says("long: bursts of short requests alone");
    let alone = last_answers(server, first)?;
    session
        .bar
        .says("long: a long prompt alone, Qwen3-0.6B's shape");
    let (long_alone, ()) = server.time_one(tokens, |_| Ok(()))?;
    session
        .bar
        .says("long: bursts beside a long prompt, Qwen3-0.6B's shape");
    let (long_beside, beside) = server.time_one(tokens, |server| last_answers(server, second))?;
    let what = |what: &str| {
        format!("long: {tokens} tokens, Qwen3-0.6B's shape in {LAYERS} layers: {what}")
    };
    let (plan, peak) = (
        planned_mib(&server.process.start_log)?,
        peak_mib(&server.process)?,
    );
    let wait = Row::new(
        what("what the long prompt adds to that"),
        Unit::Millis,
        beside
            .iter()
            .zip(&alone)
            .map(|(b, a)| 1e3 * (b - a))
            .collect(),
    );
    Ok(vec![
        Row::one(what("alone"), Unit::Seconds, long_alone),
        Row::one(
            what("beside short requests, in times of alone"),
            Unit::Times,
            long_beside / long_alone,
        )
        .at_most(1.1),
        Row::new(
            what("32 short requests at once, until the last is answered, alone"),
            Unit::Millis,
            alone.iter().map(|seconds| 1e3 * seconds).collect(),
        ),
        wait.at_most(SLICES * server.slice_ms)
            .noting(format!("{SLICES} slices of {} ms", server.slice_ms)),
        Row::one(what("memory at its peak"), Unit::Mebibytes, peak)
            .at_most(plan + BESIDE_PLAN_MIB)
            .noting(format!(
                "{plan:.0} MiB planned, {BESIDE_PLAN_MIB} for the program"
            )),
    ])
}

/// Sends bursts one after another, and returns for each the seconds until its last answer.
fn last_answers(server: &Server, bursts: &[Arc<Jobs>]) -> Result<Vec<f64>> {
    let at_once = Load {
        connections: BURST,
        arrivals: Arrivals::Closed,
        warm_up: Duration::ZERO,
        time: Duration::from_secs(5),
    };
    let burst = |jobs: &Arc<Jobs>| {
        thread::sleep(PAUSE);
        let tally = answered(load(&server.process.address, jobs, at_once)?)?;
        Ok(tally.quantile(200, 1.0))
    };
    bursts.iter().map(burst).collect()
}

/// Returns the tally if all of its requests were answered.
fn answered(tally: Tally) -> Result<Tally> {
    ensure!(
        tally.count(200) > 0 && tally.asked() == tally.count(200),
        "requests failed: {tally:?}"
    );
    Ok(tally)
}

/// Returns the mebibytes that a server says it plans, by the lines that it wrote at its start.
fn planned_mib(start_log: &[String]) -> Result<f64> {
    let plan = |line: &String| {
        let words = line.strip_prefix("memory: ")?.split(' ');
        let before = words.take_while(|word| *word != "MiB").last()?;
        before.parse::<f64>().ok()
    };
    let plans: Vec<f64> = start_log.iter().filter_map(plan).collect();
    ensure!(!plans.is_empty(), "the server tells no plan: {start_log:?}");
    Ok(plans.iter().sum())
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a process")]
fn peak_mib(process: &Process) -> Result<f64> {
    Ok(process.peak_bytes()? as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_off_the_log() {
        let log = [
            "memory: demo-lm: 250 MiB planned: weights 5, 16384 KV blocks of 16 tokens 192",
            "memory: b: 1024 MiB planned: weights 5",
            "ready: demo-lm (lm)",
        ];
        let log = log.map(str::to_owned);
        assert_eq!(planned_mib(&log).unwrap(), 1_274.0);
        assert!(planned_mib(&log[2..]).is_err());
    }

    #[test]
    fn a_failed_request_is_no_answer() {
        let mut tally = Tally::new();
        assert!(answered(tally).is_err());
        tally = Tally::new();
        tally.broken = 1;
        assert!(answered(tally).is_err());
    }
}
