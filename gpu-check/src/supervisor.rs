//! Starts parts, and ends those that do not end by themselves.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    ops::RangeInclusive,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_measure::process::{Ended, GONE_WITHIN, Output, Process};

use crate::{
    Common, parts,
    results::{self, Document, State, Verdict},
    session::{self, SECONDS, clocks},
};

/// Time for a part to end after its deadline: it looks at the clock between measurements.
const GRACE: Duration = Duration::from_secs(20);
/// Bounds of `--total`: one part at least can begin and be ended.
pub(crate) const TOTAL: RangeInclusive<u64> = 60..=86_400;
/// Longest silence of a part. Those that work long without a result say that they do.
const SILENCE: Duration = Duration::from_secs(120);
/// Bytes of a part's last line that are kept.
const MAX_LINE_BYTES: usize = 400;
/// The file, among the results, of what the part at work says.
const OUTPUT: &str = "output.txt";

/// Runs the parts named, or all, in `total` seconds if that is given. Whether each of them ended
/// by itself and found nothing wrong.
pub(crate) fn run(names: &[String], total: Option<u64>, common: &Common) -> Result<bool> {
    let end = total.map(|total| Instant::now() + Duration::from_secs(total));
    let names: Vec<&str> = match names {
        [] => results::part_names(),
        some => some.iter().map(String::as_str).collect(),
    };
    for (i, name) in names.iter().enumerate() {
        if !results::part_names().contains(name) {
            bail!(
                "no part `{name}`; there are: {}",
                results::part_names().join(", ")
            );
        }
        if names[..i].contains(name) {
            bail!("part `{name}` is named twice");
        }
    }
    apart(common)?;
    let mut described = session::describe(common)?;
    described.clocks_before = clocks();
    results::open(&common.out, described)?;
    let program = env::current_exe().context("this program has no path")?;
    each(&names, end, common, |name, seconds| {
        let mut command = Command::new(&program);
        command.args(session::arguments(name, seconds, common));
        command
    })
}

/// Checks that checkpoints are not in the folder of results: results are carried home, checkpoints
/// of 14 GB are not.
fn apart(common: &Common) -> Result<()> {
    let Some(models) = &common.models else {
        return Ok(());
    };
    let absolute = |path: &Path| {
        std::path::absolute(path).with_context(|| format!("{} has no place", path.display()))
    };
    ensure!(
        !absolute(models)?.starts_with(absolute(&common.out)?),
        "--models must be outside the folder of results, and {} is within {}",
        models.display(),
        common.out.display()
    );
    Ok(())
}

/// Returns the seconds for a part, of the `rest` of the run's time, if that has an end: the part's
/// share among it and those behind it, by what they wish for, so that what one leaves goes to the
/// others. None if there is too little left for any part.
fn share(name: &str, later: &[&str], most: u64, rest: Option<Duration>) -> Option<u64> {
    let Some(rest) = rest else { return Some(most) };
    // A part that does not end must still be ended in time.
    let rest = rest.checked_sub(GRACE + GONE_WITHIN)?.as_secs();
    if rest < *SECONDS.start() {
        return None;
    }
    let wish = |name: &str| u64::from(parts::wish(name));
    let all = wish(name) + later.iter().map(|name| wish(name)).sum::<u64>();
    let share = rest * wish(name) / all;
    Some(share.max(*SECONDS.start()).min(most))
}

/// Returns the time after which a part of these seconds is ended. One with a small share may have
/// begun something long (compiling kernels where no image fits, say): it may go on for as long as
/// it may be silent, at the cost of the parts behind it, and of none that were done.
fn patience(seconds: u64, most: u64, rest: Option<Duration>) -> Duration {
    let seconds = Duration::from_secs(seconds.max(SILENCE.as_secs()).min(most));
    let there_is = rest.map(|rest| rest.saturating_sub(GRACE + GONE_WITHIN));
    there_is.map_or(seconds, |there_is| seconds.min(there_is)) + GRACE
}

/// Runs each part by the command that `command` makes for it and its seconds.
fn each(
    names: &[&str],
    end: Option<Instant>,
    common: &Common,
    command: impl Fn(&str, u64) -> Command,
) -> Result<bool> {
    let mut ended = true;
    for (i, name) in names.iter().enumerate() {
        // Or a part that does not start would seem to have ended as it did in an earlier run.
        results::forget(&common.out, name)?;
        let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
        let Some(seconds) = share(name, &names[i + 1..], common.seconds, rest) else {
            let why = "no time left of --total";
            println!("SKIP {name} {why}");
            results::mark(&common.out, name, State::NotStarted, 0.0, why)?;
            continue;
        };
        let limits = Limits {
            whole: patience(seconds, common.seconds, rest),
            silence: SILENCE,
            shown: true,
        };
        ended = supervise(&common.out, name, command(name, seconds), limits)?;
        if !ended {
            break;
        }
    }
    let mut document = results::read(&common.out)?;
    document.run.clocks_after = clocks();
    results::write(&common.out, &document)?;
    print!("{}", results::table::render(&document));
    Ok(ended && is_well(&document, names))
}

/// Returns true if each of these parts ended by itself and found nothing wrong, as far as there was
/// time.
fn is_well(document: &Document, names: &[&str]) -> bool {
    let of_this_run = |part: &str| names.contains(&part);
    let mut results = document.results.iter();
    let ended = |name: &&str| {
        let part = document.parts.get(*name);
        part.is_some_and(|p| matches!(p.state, State::Done | State::OutOfTime | State::NotStarted))
    };
    names.iter().all(ended) && !results.any(|r| of_this_run(&r.part) && r.verdict == Verdict::Fail)
}

/// The longest time that a part may take, and the longest that it may say nothing.
#[derive(Clone, Copy)]
struct Limits {
    whole: Duration,
    silence: Duration,
    /// True if the part's output is shown.
    shown: bool,
}

/// Runs one part's process and writes down how it ended, where it could not itself. False if it
/// is still there: the GPU is not free then.
fn supervise(out: &Path, name: &str, mut command: Command, limits: Limits) -> Result<bool> {
    let start = Instant::now();
    let path = out.join(OUTPUT);
    let mut process = Process::start(&mut command, Output::File(&path))
        .with_context(|| format!("cannot start part {name}"))?;
    let mut said = PartOutput::open(&path, limits.shown)?;
    let ended = process.wait(limits.whole, |_| {
        said.pass()?;
        Ok(said.at.elapsed() < limits.silence)
    })?;
    let silent = said.at.elapsed() >= limits.silence;
    said.pass()?;
    let last = said.last();
    let seconds = start.elapsed().as_secs_f64();
    let late = match silent {
        true => format!(
            "it said nothing for {} s and was ended",
            limits.silence.as_secs()
        ),
        false => format!(
            "it did not end within {} s and was ended",
            limits.whole.as_secs()
        ),
    };
    let (state, why) = match ended {
        Ended::Itself(status) => {
            let document = results::read(out)?;
            let state = document.parts.get(name).map(|part| part.state);
            match state {
                // By a signal, something was wrong after its last result.
                Some(State::Done | State::OutOfTime | State::Broken) if status.code().is_some() => {
                    return Ok(true);
                }
                _ => (
                    State::Broken,
                    format!("its process ended early: {status}; {last}"),
                ),
            }
        }
        Ended::Killed => (State::Killed, format!("{late}; {last}")),
        Ended::Stuck => (
            State::Killed,
            format!("{late}, but is still there; no part after it was started; {last}"),
        ),
    };
    println!("FAIL {name} {why}");
    results::mark(out, name, state, seconds, &why)?;
    Ok(ended != Ended::Stuck)
}

/// A part's output, which goes to a file, passed on as it comes.
struct PartOutput {
    file: fs::File,
    shown: bool,
    /// The time at which the part last said something.
    at: Instant,
    /// The line that is being said, and the one before it.
    now: Vec<u8>,
    before: Vec<u8>,
}

impl PartOutput {
    fn open(path: &Path, shown: bool) -> Result<Self> {
        let file = fs::File::open(path);
        Ok(Self {
            file: file.with_context(|| format!("cannot read {}", path.display()))?,
            shown,
            at: Instant::now(),
            now: Vec::new(),
            before: Vec::new(),
        })
    }

    /// Reads and shows what the part said since the last call.
    fn pass(&mut self) -> Result<()> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes)?;
        if self.shown {
            // Nothing may read what this program says; the part's results count.
            let mut to = io::stdout();
            let _ = to.write_all(&bytes).and_then(|()| to.flush());
        }
        self.add(&bytes);
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.at = Instant::now();
        }
        for &byte in bytes {
            if byte == b'\n' {
                if !self.now.is_empty() {
                    self.before = std::mem::take(&mut self.now);
                }
            } else if self.now.len() < MAX_LINE_BYTES {
                self.now.push(byte);
            }
        }
    }

    fn last(&self) -> String {
        let line = match self.now.is_empty() {
            true => &self.before,
            false => &self.now,
        };
        match line.is_empty() {
            true => "it said nothing".to_owned(),
            false => format!("its last line: {}", String::from_utf8_lossy(line).trim()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        results::{Outcome, Report, Run, tests::Folder},
        session::Session,
    };

    /// Returns a part that got as far as one result, then does `script`.
    fn part(name: &str, script: &str, whole: Duration, silence: Duration) -> Document {
        let folder = Folder::new(name);
        results::open(&folder.0, Run::default()).unwrap();
        let mut report = Report::begin(&folder.0, "env").unwrap();
        report.add(Outcome::new("first", Verdict::Pass)).unwrap();
        drop(report);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let limits = Limits {
            whole,
            silence,
            shown: false,
        };
        supervise(&folder.0, "env", command, limits).unwrap();
        results::read(&folder.0).unwrap()
    }

    #[test]
    fn a_part_that_hangs_is_ended_and_leaves_what_it_had() {
        let document = part("hangs", "sleep 60", Duration::from_millis(200), SILENCE);
        assert_eq!(document.parts["env"].state, State::Killed);
        let why = document.parts["env"].why.clone().unwrap();
        assert!(why.contains("did not end within"), "{why}");
        let verdicts: Vec<_> = document.results.iter().map(|r| r.verdict).collect();
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Fail]);
    }

    #[test]
    fn a_part_that_says_nothing_is_ended_and_its_last_line_kept() {
        let silence = Duration::from_secs(2);
        // It speaks in time for longer than it may be silent, then no more.
        let script = "for i in 1 2 3 4 5 6; do echo at $i; sleep 0.4; done; \
                      printf 'then\\n\\nthe last one' >&2; sleep 60";
        let document = part("silent", script, Duration::from_secs(50), silence);
        assert_eq!(document.parts["env"].state, State::Killed);
        let verdicts: Vec<_> = document.results.iter().map(|r| r.verdict).collect();
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Fail]);
        let why = &document.results[1].reason;
        assert!(why.contains("said nothing for"), "{why}");
        assert!(why.ends_with("its last line: the last one"), "{why}");
    }

    #[test]
    fn lines_are_bounded_and_the_last_one_is_known() {
        let folder = Folder::new("latest");
        let path = folder.0.join(OUTPUT);
        fs::write(&path, "").unwrap();
        let mut latest = PartOutput::open(&path, false).unwrap();
        latest.add(b"one\n\ntw");
        latest.add(b"o\n");
        assert_eq!((&*latest.before, &*latest.now), (&b"two"[..], &b""[..]));
        latest.add(&vec![b'x'; 10 * MAX_LINE_BYTES]);
        assert_eq!(latest.now.len(), MAX_LINE_BYTES);
    }

    #[test]
    fn parts_share_the_time_there_is() {
        let at =
            |rest, name, later: &[&str]| share(name, later, 540, Some(Duration::from_secs(rest)));
        assert_eq!(share("env", &["gemm"], 540, None), Some(540));
        // 10, 60 and 100 are wished for of 560.
        assert_eq!(at(590, "env", &["kernels", "parity"]), Some(32));
        assert_eq!(at(590, "parity", &[]), Some(540));
        assert_eq!(at(35, "parity", &[]), Some(5));
        assert_eq!(at(34, "parity", &[]), None);
        assert_eq!(at(0, "env", &[]), None);
        // However long a part takes that does not end, there is no more than the whole.
        for rest in 35..2000 {
            let seconds = at(rest, "gemm", &["attn"]).unwrap();
            let rest = Duration::from_secs(rest);
            let whole = patience(seconds, 540, Some(rest));
            assert!(whole + GONE_WITHIN <= rest);
            assert!(whole >= Duration::from_secs(seconds) + GRACE);
        }
        // A small share is no reason to end what is at work, unless that was asked for.
        let rest = Some(Duration::from_secs(590));
        assert_eq!(patience(37, 540, rest), SILENCE + GRACE);
        assert_eq!(patience(300, 540, rest), Duration::from_secs(300) + GRACE);
        assert_eq!(patience(90, 90, None), Duration::from_secs(90) + GRACE);
        let most = Duration::from_secs(*SECONDS.end()) + GRACE + GONE_WITHIN;
        assert!(most <= Duration::from_secs(595));
    }

    #[test]
    fn parts_without_time_are_skipped_and_said() {
        let folder = Folder::new("no-time");
        results::open(&folder.0, Run::default()).unwrap();
        let never = |_: &str, _| -> Command { panic!("there is no time to start it") };
        let end = Some(Instant::now() + GRACE);
        assert!(each(&["env", "gemm"], end, &common(&folder.0), never).unwrap());
        let document = results::read(&folder.0).unwrap();
        assert_eq!(document.parts["gemm"].state, State::NotStarted);
        let seen: Vec<_> = document.results.iter().map(|r| r.verdict).collect();
        assert_eq!(seen, [Verdict::Skip; 2]);
    }

    #[test]
    fn checkpoints_are_kept_out_of_the_results() {
        let folder = Folder::new("apart");
        let mut common = common(&folder.0);
        let error = apart(&common).unwrap_err().to_string();
        assert!(error.contains("outside the folder of results"), "{error}");
        common.models = Some(folder.0.with_extension("models"));
        apart(&common).unwrap();
        common.models = None;
        apart(&common).unwrap();
    }

    #[test]
    fn a_part_that_crashes_is_told_from_one_that_ended() {
        let limit = Duration::from_secs(30);
        let script = "echo going on; echo 'a panic of sorts' >&2; kill -9 $$";
        let document = part("crashes", script, limit, SILENCE);
        assert_eq!(document.parts["env"].state, State::Broken);
        let why = document.parts["env"].why.clone().unwrap();
        assert!(why.contains("signal: 9"), "{why}");
        assert_eq!(document.results[0].name, "first");
        assert_eq!(document.results[1].verdict, Verdict::Fail);
    }

    /// Neither before the first check nor after the last one.
    #[test]
    fn a_crash_is_a_failure_wherever_it_is() {
        let limits = Limits {
            whole: Duration::from_secs(30),
            silence: SILENCE,
            shown: false,
        };
        for (name, ended) in [("crash-first", None), ("crash-last", Some(State::Done))] {
            let folder = Folder::new(name);
            results::open(&folder.0, Run::default()).unwrap();
            if let Some(state) = ended {
                let report = Report::begin(&folder.0, "env").unwrap();
                report.end(state, None).unwrap();
            }
            let mut command = Command::new("sh");
            command.args(["-c", "kill -s SEGV $$"]);
            assert!(supervise(&folder.0, "env", command, limits).unwrap());
            let document = results::read(&folder.0).unwrap();
            assert_eq!(document.parts["env"].state, State::Broken, "{name}");
            assert_eq!(document.results[0].verdict, Verdict::Fail, "{name}");
            assert!(!is_well(&document, &["env"]), "{name}");
        }
    }

    fn common(out: &Path) -> Common {
        Common {
            out: out.to_owned(),
            home: Some(out.to_owned()),
            seconds: 30,
            smoke: false,
            small: false,
            // No machine has so many.
            device: 999,
            models: Some(out.join("models")),
            emu_cache: None,
        }
    }

    #[test]
    fn a_part_without_a_target_fails() {
        let folder = Folder::new("no-target");
        results::open(&folder.0, Run::default()).unwrap();
        let Err(error) = Session::open("env", &common(&folder.0)) else {
            panic!("there is no GPU 999");
        };
        let document = results::read(&folder.0).unwrap();
        assert_eq!(document.parts["env"].state, State::Broken);
        let [only] = &document.results[..] else {
            panic!("{:?}", document.results)
        };
        assert_eq!(
            (&*only.name, only.verdict),
            ("the part itself", Verdict::Fail)
        );
        assert_eq!(only.reason, format!("{error:#}"));
        assert!(!is_well(&document, &["env"]));
    }

    #[test]
    fn a_run_is_well_if_every_part_of_it_is() {
        let folder = Folder::new("every-part");
        results::open(&folder.0, Run::default()).unwrap();
        let ended = |part: &str, state| {
            let report = Report::begin(&folder.0, part).unwrap();
            report.end(state, None).unwrap();
            results::read(&folder.0).unwrap()
        };
        let document = ended("env", State::Done);
        assert!(is_well(&document, &["env"]));
        assert!(!is_well(&document, &["env", "gemm"]), "gemm did not run");
        assert!(is_well(&ended("gemm", State::OutOfTime), &["env", "gemm"]));
        for state in [State::Running, State::Killed, State::Broken] {
            let document = ended("gemm", state);
            assert!(!is_well(&document, &["env", "gemm"]), "{state:?}");
            assert!(is_well(&document, &["env"]));
        }
        // Nothing of an earlier run counts for a part that does not start.
        ended("gemm", State::Done);
        let failed = |_: &str, _| {
            let mut command = Command::new("sh");
            command.args(["-c", "exit 2"]);
            command
        };
        assert!(!each(&["gemm"], None, &common(&folder.0), failed).unwrap());
        let document = results::read(&folder.0).unwrap();
        assert_eq!(document.parts["gemm"].state, State::Broken);
        assert!(is_well(&document, &["env"]));
    }
}
