//! The server under load: what HTTP adds to the engine, how many requests it takes, how it does
//! beside rivals on the same machine with the same requests, and what it does when too many come.
//!
//! Everything that is compared runs in turns, round after round, and the ratio is taken within a
//! round: absolute values belong to the machine and the moment.

pub(crate) mod bodies;
pub(crate) mod cores;
pub(crate) mod folders;
mod hostile;
pub(crate) mod noop;
pub(crate) mod overhead;
mod plot;
mod report;
mod rival;
mod runner;
mod scenario;
mod texts;
mod traces;
mod value;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use indicatif::{ProgressBar, ProgressStyle};

pub use plot::draw;
pub use report::{Report, Rivalry, Row, Unit, Verdict};
pub use rival::Rival;

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// HTTP over the engine call, one connection.
    Overhead,
    /// Requests per second of a model that computes nothing.
    Noop,
    /// The time from the start of the process to its first healthy response.
    Ready,
    /// One decision with many questions against many requests.
    Decision,
    /// One-token answers, classes and decisions, beside rivals.
    Versus,
    /// Three times the load that the server can handle.
    Overload,
    /// Honest clients beside a client whose bodies are expensive or broken.
    Hostile,
    /// Decisions beside streamed chat, at several shares of the device.
    Mixed,
    /// Long prompts beside short requests, and several of them together.
    Long,
    /// Workloads of the papers under each policy that they compare.
    Workloads,
    /// Embedders and a cross-encoder of published shapes, beside libraries. Only if it is named.
    Encoders,
    /// Decision models beside their authors' packages. Only if it is named.
    Decisions,
}

/// The parts that are measured only if they are named: they write checkpoints of a gigabyte.
const ONLY_NAMED: [Part; 2] = [Part::Encoders, Part::Decisions];

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Config {
    /// Rounds of each measurement; the median counts.
    pub rounds: usize,
    /// The time of one measurement in one round.
    pub time: Duration,
    /// The parts to measure; all but the encoders and the decision models if empty.
    pub parts: Vec<Part>,
    /// The program `prelude`.
    pub program: PathBuf,
    /// The folder that holds the demo models' folders, for rivals.
    pub models: PathBuf,
    /// The folder of installed servers and of logs.
    pub out: PathBuf,
    /// The rivals to measure beside us.
    pub rivals: Vec<Rival>,
    /// The program of llama.cpp's server, if that is one of them.
    pub llama_server: Option<PathBuf>,
    /// The program of text-embeddings-inference, if that is one of them.
    pub tei: Option<PathBuf>,
    /// True to install the other servers first.
    pub install_rivals: bool,
    /// The duration of the overload part, and of each half of the hostile part.
    pub overload: Duration,
    /// Questions of each of its decisions.
    pub overload_questions: usize,
}

/// Measures the parts of the configuration, and returns the report.
///
/// # Errors
/// If a server does not start, or answers something else than was asked for.
pub fn run(config: &Config) -> Result<Report> {
    std::fs::create_dir_all(&config.out)
        .with_context(|| format!("cannot make {}", config.out.display()))?;
    let before = load_average();
    let mut session = Session {
        config,
        bar: Bar::new(),
        rivals: Vec::new(),
        skipped: Vec::new(),
    };
    session.find_rivals()?;
    let mut rows = Vec::new();
    for part in Part::value_variants() {
        let by_default = config.parts.is_empty() && !ONLY_NAMED.contains(part);
        if !by_default && !config.parts.contains(part) {
            continue;
        }
        let name = part.to_possible_value().expect("none is left out");
        rows.extend(match part {
            Part::Overhead => overhead::measure(&mut session)?,
            _ => runner::measure(&mut session, name.get_name())?,
        });
    }
    session.bar.done();
    Ok(report_since(before, config.rounds, rows, session.skipped))
}

/// Returns the report of a run, on whose machine the load average was `before` when it began.
pub(crate) fn report_since(
    before: String,
    rounds: usize,
    rows: Vec<Row>,
    skipped: Vec<String>,
) -> Report {
    Report {
        machine: machine(),
        load_average: (before, load_average()),
        date: jiff::Timestamp::now()
            .strftime("%Y-%m-%d %H:%M UTC")
            .to_string(),
        commit: commit(),
        rounds,
        rows,
        skipped,
    }
}

/// A measurement in progress.
struct Session<'a> {
    config: &'a Config,
    bar: Bar,
    /// The other servers that can be measured here.
    rivals: Vec<Rival>,
    /// The parts that were skipped, with the reason.
    skipped: Vec<String>,
}

impl Session<'_> {
    fn find_rivals(&mut self) -> Result<()> {
        for &rival in &self.config.rivals {
            if self.config.install_rivals {
                self.bar.says(&format!("installing {rival:?}"));
                rival.install(&self.config.out)?;
            }
            match rival.lacks(self.config) {
                None => self.rivals.push(rival),
                Some(why) => self.skip(&rival.about().title, &why),
            }
        }
        Ok(())
    }

    fn skip(&mut self, what: &str, why: &str) {
        self.skipped.push(format!("{what}: {why}"));
    }
}

/// Tells on a terminal what is going on and for how long it has.
pub(crate) struct Bar {
    bar: ProgressBar,
    start: Instant,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}");
        // The template is a constant that the tests draw.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            bar,
            start: Instant::now(),
        }
    }

    pub(crate) fn says(&self, what: &str) {
        // Where there is no terminal the bar draws nothing.
        if self.bar.is_hidden() {
            let at = self.start.elapsed().as_secs();
            #[expect(clippy::print_stderr, reason = "progress of a command-line program")]
            {
                eprintln!("[{at:>4} s] {what}");
            }
        }
        self.bar.set_message(what.to_owned());
    }

    /// Prints a row as soon as it is measured: a long run that is stopped has shown what it had.
    pub(crate) fn shows(&self, row: &Row) {
        let text = row.render();
        if self.bar.is_hidden() {
            #[expect(clippy::print_stderr, reason = "progress of a command-line program")]
            {
                eprint!("{text}");
            }
        }
        self.bar.println(text.trim_end());
    }

    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = about
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    format!("{cores} cores, {}", name.unwrap_or("unknown processor"))
}

pub(crate) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

fn commit() -> String {
    let output = std::process::Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let text = output.ok().filter(|o| o.status.success());
    text.and_then(|o| String::from_utf8(o.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |t| t.trim().to_owned())
}
