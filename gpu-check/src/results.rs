//! Results, written down as they are found: `gpu.json`, `table.txt`, `log.txt`.
//!
//! `gpu.json` is replaced as a whole after every result, so that a part that is killed leaves what
//! it had. Parts run one after the other, each as a process of its own that reads the file, adds to
//! it and replaces it.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
pub(crate) use prelude_measure::record::{Better, Verdict, replace};
use serde::{Deserialize, Serialize};

use crate::clocks::Series;

pub(crate) mod table;

/// Format of `gpu.json`.
pub(crate) const SCHEMA: u32 = 1;
/// Results that are kept: far more than all parts have, so that a loop gone wrong fills no disk.
const RESULTS_MAX: usize = 5_000;
/// Characters of a reason that are kept.
const REASON_MAX: usize = 1_000;
/// Longest silence of a part that is at work: the supervisor ends one that says nothing at all.
const BEAT: Duration = Duration::from_secs(20);

/// Returns the names of all parts, in the order in which a run goes through them.
pub(crate) fn part_names() -> Vec<&'static str> {
    include_str!("../parts.txt").lines().collect()
}

/// The results of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) schema: u32,
    pub(crate) run: Run,
    pub(crate) parts: BTreeMap<String, PartState>,
    pub(crate) results: Vec<Outcome>,
}

/// The machine, the build and the time of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// The sources' commit, with `+` behind it if they were changed.
    pub(crate) commit: String,
    /// Hash of the program.
    pub(crate) build: String,
    /// The time at which the run began, UTC.
    pub(crate) date: String,
    /// `gpu`, or what stood in for one.
    pub(crate) target: String,
    pub(crate) device: Option<String>,
    pub(crate) driver: Option<String>,
    /// A line for each library and what else `prelude cuda info` says.
    pub(crate) libraries: Vec<String>,
    pub(crate) command: String,
    pub(crate) processors: usize,
    pub(crate) clocks_before: Option<String>,
    pub(crate) clocks_after: Option<String>,
    /// Samples of the GPU's clock and power while parts worked, by the part's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) clocks: BTreeMap<String, Series>,
}

/// The progress of a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartState {
    pub(crate) state: State,
    pub(crate) seconds: f64,
    /// The reason why the part did not end well.
    pub(crate) why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// The part is running, or was when the machine went away.
    Running,
    Done,
    /// The part ended by itself and skipped what it had no time for.
    OutOfTime,
    /// The part did not end by itself.
    Killed,
    /// The part ended with an error or by a signal.
    Broken,
    /// The run's time was over before it.
    NotStarted,
}

/// The target of a figure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Goal {
    pub(crate) must: f64,
    pub(crate) better: Better,
}

/// A line of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcome {
    pub(crate) part: String,
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    pub(crate) value: Option<f64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) unit: String,
    /// The bound by the machine's ceilings, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bound: Option<f64>,
    /// Percent of the bound; 100 is the bound, for times and rates alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<Goal>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repetitions: Option<usize>,
    /// (largest − smallest) / median of what was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<f64>,
    /// True for a line in `gpu.json` only: the table shows what matters first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) detail: bool,
    /// Seconds after the part began.
    pub(crate) at_s: f64,
}

impl Outcome {
    pub(crate) fn new(name: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            part: String::new(),
            name: name.into(),
            verdict,
            value: None,
            unit: String::new(),
            bound: None,
            percent: None,
            goal: None,
            reason: String::new(),
            repetitions: None,
            spread: None,
            detail: false,
            at_s: 0.0,
        }
    }

    /// Makes a figure with a value, whose verdict is that of its goal if it has one.
    pub(crate) fn figure(
        name: impl Into<String>,
        (value, unit): (f64, &str),
        goal: Option<Goal>,
    ) -> Self {
        let verdict = goal.map_or(Verdict::Note, |goal| {
            let is_met = match goal.better {
                Better::Lower => value <= goal.must,
                Better::Higher => value >= goal.must,
            };
            if is_met { Verdict::Pass } else { Verdict::Miss }
        });
        Self {
            value: Some(value),
            unit: unit.to_owned(),
            goal,
            ..Self::new(name, verdict)
        }
    }

    pub(crate) fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

/// Writes results of one part of a run.
#[derive(Debug)]
pub(crate) struct Report {
    folder: PathBuf,
    document: Document,
    part: String,
    start: Instant,
    /// The time at which the part last said something.
    said: Cell<Instant>,
}

impl Report {
    /// Begins a part; what an earlier run of it found is forgotten.
    pub(crate) fn begin(folder: &Path, part: &str) -> Result<Self> {
        let mut document = read(folder)?;
        document.results.retain(|r| r.part != part);
        let state = PartState {
            state: State::Running,
            seconds: 0.0,
            why: None,
        };
        document.parts.insert(part.to_owned(), state);
        let this = Self {
            folder: folder.to_owned(),
            document,
            part: part.to_owned(),
            start: Instant::now(),
            said: Cell::new(Instant::now()),
        };
        this.write()?;
        this.log(&format!("--- {part}"))?;
        Ok(this)
    }

    pub(crate) const fn run(&mut self) -> &mut Run {
        &mut self.document.run
    }

    pub(crate) fn results(&self) -> &[Outcome] {
        &self.document.results
    }

    /// Writes a result down.
    pub(crate) fn add(&mut self, mut outcome: Outcome) -> Result<()> {
        ensure!(
            self.document.results.len() < RESULTS_MAX,
            "more than {RESULTS_MAX} results"
        );
        outcome.part.clone_from(&self.part);
        outcome.at_s = round(self.start.elapsed().as_secs_f64());
        if outcome.reason.chars().count() > REASON_MAX {
            outcome.reason = outcome.reason.chars().take(REASON_MAX).collect();
        }
        if outcome.value.is_some_and(|v| !v.is_finite()) {
            outcome.value = None;
            outcome.verdict = Verdict::Fail;
            outcome.reason = format!("not a finite number; {}", outcome.reason);
        }
        self.log(&table::line(&outcome))?;
        self.document.results.push(outcome);
        self.write()
    }

    /// Ends the part.
    pub(crate) fn end(mut self, state: State, why: Option<String>) -> Result<()> {
        let seconds = round(self.start.elapsed().as_secs_f64());
        let ended = PartState {
            state,
            seconds,
            why,
        };
        self.log(&format!("--- {}: {state:?}, {seconds} s", self.part))?;
        self.document.parts.insert(self.part.clone(), ended);
        self.write()
    }

    /// Writes a line to `log.txt` and the screen if there was none for a while: it says that a long
    /// piece of work goes on, and how far it is.
    pub(crate) fn beat(&self, line: impl FnOnce() -> String) -> Result<()> {
        match self.said.get().elapsed() >= BEAT {
            true => self.log(&format!("     {}", line())),
            false => Ok(()),
        }
    }

    /// Writes a line to `log.txt` and the screen.
    pub(crate) fn log(&self, line: &str) -> Result<()> {
        self.said.set(Instant::now());
        println!("{line}");
        let path = self.folder.join("log.txt");
        let file = fs::OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
        writeln!(file, "{:8.2} {line}", self.start.elapsed().as_secs_f64())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn write(&self) -> Result<()> {
        write(&self.folder, &self.document)
    }
}

fn round(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// Returns the run in a folder.
pub(crate) fn read(folder: &Path) -> Result<Document> {
    let path = folder.join("gpu.json");
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let document: Document = serde_json::from_slice(&text)
        .with_context(|| format!("{} holds no results of this program", path.display()))?;
    if document.schema != SCHEMA {
        bail!(
            "{} is of format {}, not {SCHEMA}; choose another --out",
            path.display(),
            document.schema
        );
    }
    Ok(document)
}

/// Begins a run in a folder, or goes on with the one that is there, if it is of this program and
/// this device.
pub(crate) fn open(folder: &Path, run: Run) -> Result<Document> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let document = if folder.join("gpu.json").exists() {
        let mut document = read(folder)?;
        let there = &document.run;
        if (&there.build, &there.target, &there.device) != (&run.build, &run.target, &run.device) {
            bail!(
                "{} holds a run of build {} on {} ({}); choose another --out",
                folder.display(),
                there.build,
                there.device.as_deref().unwrap_or("no GPU"),
                there.target
            );
        }
        document.run.command = run.command;
        document
    } else {
        Document {
            schema: SCHEMA,
            run,
            parts: BTreeMap::new(),
            results: Vec::new(),
        }
    };
    write(folder, &document)?;
    Ok(document)
}

/// Forgets what an earlier run of a part found.
pub(crate) fn forget(folder: &Path, part: &str) -> Result<()> {
    let mut document = read(folder)?;
    document.results.retain(|r| r.part != part);
    document.parts.remove(part);
    write(folder, &document)
}

/// Says how a part ended that could not say so itself: FAIL, or SKIP of one that never began.
pub(crate) fn mark(folder: &Path, part: &str, state: State, seconds: f64, why: &str) -> Result<()> {
    let mut document = read(folder)?;
    let ended = PartState {
        state,
        seconds: round(seconds),
        why: Some(why.to_owned()),
    };
    document.parts.insert(part.to_owned(), ended);
    let verdict = match state {
        State::NotStarted => Verdict::Skip,
        _ => Verdict::Fail,
    };
    let why: String = why.chars().take(REASON_MAX).collect();
    let mut outcome = Outcome::new("the part itself", verdict).because(why);
    part.clone_into(&mut outcome.part);
    outcome.at_s = round(seconds);
    document.results.push(outcome);
    write(folder, &document)
}

/// Replaces `gpu.json`, then `table.txt`. Who reads meanwhile sees the old or the new one.
pub(crate) fn write(folder: &Path, document: &Document) -> Result<()> {
    let json = serde_json::to_vec_pretty(document).context("results are plain data")?;
    replace(&folder.join("gpu.json"), &json)?;
    replace(
        &folder.join("table.txt"),
        table::render(document).as_bytes(),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A folder of its own for each test, removed at its end.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("gpu-check-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn run(build: &str) -> Run {
        Run {
            build: build.to_owned(),
            target: "emulated".to_owned(),
            ..Run::default()
        }
    }

    #[test]
    fn every_result_is_on_the_disk_at_once() {
        let folder = Folder::new("at-once");
        open(&folder.0, run("a")).unwrap();
        let mut report = Report::begin(&folder.0, "env").unwrap();
        for n in 1..4 {
            report
                .add(Outcome::new(format!("r{n}"), Verdict::Pass))
                .unwrap();
            // As another process sees it while the part runs, or after it was killed.
            let seen = read(&folder.0).unwrap();
            assert_eq!(seen.results.len(), n);
            assert_eq!(seen.parts["env"].state, State::Running);
            let table = fs::read_to_string(folder.0.join("table.txt")).unwrap();
            assert!(table.contains(&format!("r{n}")), "{table}");
        }
        mark(&folder.0, "env", State::Killed, 3.0, "no end in 3 s").unwrap();
        let seen = read(&folder.0).unwrap();
        assert_eq!(seen.parts["env"].state, State::Killed);
        assert_eq!(seen.results.len(), 4);
        assert!(!folder.0.join("gpu.json.partial").exists());
    }

    #[test]
    fn a_part_that_runs_again_replaces_its_results_alone() {
        let folder = Folder::new("again");
        open(&folder.0, run("a")).unwrap();
        for part in ["env", "gemm", "env"] {
            let mut report = Report::begin(&folder.0, part).unwrap();
            report.add(Outcome::new("r", Verdict::Note)).unwrap();
            report.end(State::Done, None).unwrap();
        }
        let seen = read(&folder.0).unwrap();
        let parts: Vec<_> = seen.results.iter().map(|r| r.part.as_str()).collect();
        assert_eq!(parts, ["gemm", "env"]);
        open(&folder.0, run("a")).unwrap();
        let other = open(&folder.0, run("b")).unwrap_err().to_string();
        assert!(other.contains("choose another --out"), "{other}");
        fs::write(folder.0.join("gpu.json"), "{").unwrap();
        assert!(open(&folder.0, run("a")).is_err());
    }

    #[test]
    fn a_value_that_is_no_number_fails() {
        let folder = Folder::new("nan");
        open(&folder.0, run("a")).unwrap();
        let mut report = Report::begin(&folder.0, "env").unwrap();
        let mut outcome = Outcome::new("r", Verdict::Pass);
        outcome.value = Some(f64::NAN);
        report.add(outcome).unwrap();
        let seen = &read(&folder.0).unwrap().results[0];
        assert_eq!((seen.verdict, seen.value), (Verdict::Fail, None));
    }
}
