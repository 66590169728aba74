//! Several engines behind Envoy: with the endpoint picker, and in turns without it.
//!
//! Real processes on one machine: stock Envoy, `prelude-epp`, and engines that are `prelude serve`
//! with a KV cache that cannot hold all states. Decisions of one question each about shared states
//! arrive apart, in an open loop. The same requests at the same times go through Envoy and the
//! picker (E2 with service times that are measured first), and through Envoy's own round robin over engines of the same
//! kind. The two run in turns, each time with new processes, so that no cache is warm but by the
//! workload itself, and a ratio is taken of the two runs of a seed.

mod outcome;
mod setup;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use prelude_text::Tokenizer;

use crate::{
    load::{Arrivals, Jobs, Load, run as load},
    server::{
        Bar, Report, Row, Unit, load_average, report_since,
        versus::{tokenizer, workload},
    },
};
use outcome::{Outcome, pair_rows};
pub use setup::Programs;
use setup::{Cluster, Setup};

/// The variable that names Envoy's program to those who read it. Engines do not get it: they refuse
/// variables that they do not know.
pub const ENVOY_VARIABLE: &str = "PRELUDE_ENVOY";

/// Tokens of a KV block.
const BLOCK: usize = 16;
/// Tokens that a prompt has beside its state and that belong to the shared part: the template, the
/// case's number, and the end of the state's last message.
const BESIDE_STATE: usize = 40;
/// Fewest KV blocks of an engine: a few prompts must fit while they are computed.
const LEAST_BLOCKS: usize = 128;
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

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Config {
    /// The programs.
    pub programs: Programs,
    /// Number of engines.
    pub engines: usize,
    /// Number of seeds. Each has its own states, order and arrivals, and runs through both set-ups.
    pub seeds: u64,
    /// States of a run.
    pub states: usize,
    /// Questions about each state, at most 120.
    pub questions: usize,
    /// Tokens of a state.
    pub tokens: usize,
    /// The share of the states that the cache of an engine holds.
    pub cached_share: f64,
    /// The offered load, as a share of what round robin answers in a closed loop.
    pub load: f64,
    /// The folder for logs and Envoy's configurations.
    pub out: PathBuf,
}

/// Measures both set-ups in turns.
///
/// # Errors
/// If a program does not start, or a run cannot send all of its requests.
pub fn run(config: &Config) -> Result<Report> {
    config.check()?;
    std::fs::create_dir_all(&config.out)?;
    let before = load_average();
    let session = Session {
        config,
        tokenizer: tokenizer()?,
        bar: Bar::new(),
    };
    session.bar.says("service times of an engine");
    setup::measure(config)?;
    let capacity = session.capacity()?;
    let rate = config.load * capacity.value;
    let (mut picked, mut in_turn) = (Vec::new(), Vec::new());
    for seed in 1..=config.seeds {
        let mut order = [Setup::Picker, Setup::RoundRobin];
        if seed.is_multiple_of(2) {
            order.reverse();
        }
        for setup in order {
            let what = format!("{}: seed {seed} of {}", setup.title(), config.seeds);
            session.bar.says(&what);
            let outcome = session.open(setup, seed, rate)?;
            match setup {
                Setup::Picker => picked.push(outcome),
                Setup::RoundRobin => in_turn.push(outcome),
            }
        }
    }
    session.bar.done();
    let offered = Row::one("offered in an open loop", Unit::PerSecond, rate);
    let mut rows = vec![
        capacity.noting(config.about()),
        offered.noting(format!("{} of that", config.load)),
    ];
    rows.extend(pair_rows(&picked, &in_turn));
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
        for (what, share) in [("cache", self.cached_share), ("load", self.load)] {
            ensure!(
                share > 0.0 && share <= 10.0,
                "a {what} of {share} times the whole, not more than 0 and at most 10"
            );
        }
        Ok(())
    }

    /// Returns the KV blocks of an engine.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a number of blocks, within the bounds that are checked"
    )]
    fn kv_blocks(&self) -> usize {
        let state = (self.tokens + BESIDE_STATE).div_ceil(BLOCK);
        let blocks = (self.cached_share * (self.states * state) as f64).ceil();
        (blocks as usize).max(LEAST_BLOCKS)
    }

    /// Describes the workload and the engines.
    fn about(&self) -> String {
        let places = match setup::cores(self.engines) {
            Some(cores) => format!("engines on cores {cores:?}"),
            None => "engines share the cores".to_owned(),
        };
        format!(
            "{BUSY} connections; {} states of {} tokens x {} questions; {} engines, {} KV blocks \
             of {BLOCK} each, which hold {:.0} % of the states; {places}",
            self.states,
            self.tokens,
            self.questions,
            self.engines,
            self.kv_blocks(),
            100.0 * self.cached_share,
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
    /// Returns what round robin answers in a closed loop.
    fn capacity(&self) -> Result<Row> {
        let mut rates = Vec::new();
        for run in 1..=CAPACITY_RUNS {
            self.bar
                .says(&format!("capacity of round robin: run {run}"));
            let closed = Load {
                connections: BUSY,
                arrivals: Arrivals::Closed,
                warm_up: Duration::ZERO,
                time: CLOSED_WITHIN,
            };
            // Other states than those of the open loops.
            let outcome = self.load(Setup::RoundRobin, 1_000_000 + run, closed)?;
            ensure!(
                outcome.refused_or_broken() == 0,
                "requests failed in a closed loop: {:?}",
                outcome.tally
            );
            rates.push(outcome.tally.per_second());
        }
        let name = "round robin's capacity in a closed loop";
        Ok(Row::new(name, Unit::PerSecond, rates))
    }

    /// Sends a seed's requests in an open loop.
    #[expect(clippy::cast_precision_loss, reason = "a number of requests")]
    fn open(&self, setup: Setup, seed: u64, per_second: f64) -> Result<Outcome> {
        let arriving = (self.config.states * self.config.questions) as f64 / per_second;
        let open = Load {
            connections: CONNECTIONS,
            arrivals: Arrivals::Open { per_second, seed },
            warm_up: Duration::ZERO,
            time: Duration::from_secs(10) + Duration::from_secs_f64(PATIENCE * arriving),
        };
        self.load(setup, seed, open)
    }

    /// Sends a seed's requests, once each, to a new cluster.
    fn load(&self, setup: Setup, seed: u64, plan: Load) -> Result<Outcome> {
        let config = self.config;
        let make = workload(&self.tokenizer);
        let kinds = (config.states, config.questions);
        let jobs = make.decide_mixed(seed, kinds, config.tokens);
        let count = jobs.len() as u64;
        let jobs = Arc::new(Jobs::once(jobs));
        let blocks = config.kv_blocks();
        let cluster = Cluster::start(config, setup, blocks, blocks * BLOCK)?;
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

    fn config() -> Config {
        Config {
            programs: Programs {
                envoy: "envoy".into(),
                prelude: "prelude".into(),
                picker: "prelude-epp".into(),
            },
            engines: 2,
            seeds: 5,
            states: 50,
            questions: 40,
            tokens: 400,
            cached_share: 0.6,
            load: 0.7,
            out: "out".into(),
        }
    }

    #[test]
    fn caches_hold_their_share_of_the_states() {
        // 440 tokens take 28 blocks.
        assert_eq!(config().kv_blocks(), 840);
        let few = Config {
            states: 2,
            ..config()
        };
        assert_eq!(few.kv_blocks(), LEAST_BLOCKS);
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
            (|c| c.cached_share = 0.0, "a cache of 0"),
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
