//! Starts parts, and ends those that do not end by themselves.

use std::{
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    Common, parts,
    process::{self, Ended},
    results::{self, Document, State, Verdict},
    session::{self, clocks},
};

/// What a part that should have ended gets to do so: it looks at the clock between measurements.
const GRACE: Duration = Duration::from_secs(20);

/// Runs the parts named, or all. Whether each of them ended by itself and found nothing wrong.
pub(crate) fn run(names: &[String], common: &Common) -> Result<bool> {
    let names: Vec<&str> = match names {
        [] => parts::NAMES.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    for (i, name) in names.iter().enumerate() {
        if !parts::NAMES.contains(name) {
            bail!("no part `{name}`; there are: {}", parts::NAMES.join(", "));
        }
        if names[..i].contains(name) {
            bail!("part `{name}` is named twice");
        }
    }
    let mut described = session::describe(common)?;
    described.clocks_before = clocks();
    results::open(&common.out, described)?;
    let program = env::current_exe().context("this program has no path")?;
    each(&names, common, |name| {
        let mut command = Command::new(&program);
        command.args(arguments(name, common));
        command
    })
}

/// Runs each part by the command that `command` makes for it.
fn each(names: &[&str], common: &Common, command: impl Fn(&str) -> Command) -> Result<bool> {
    let mut ended = true;
    for name in names {
        // Or a part that does not start would seem to have ended as it did in an earlier run.
        results::forget(&common.out, name)?;
        let limit = Duration::from_secs(common.seconds) + GRACE;
        ended = supervise(&common.out, name, command(name), limit)?;
        if !ended {
            break;
        }
    }
    let mut document = results::read(&common.out)?;
    document.run.clocks_after = clocks();
    results::write(&common.out, &document)?;
    print!("{}", crate::table::render(&document));
    Ok(ended && is_well(&document, names))
}

/// Whether each of these parts ended by itself and found nothing wrong.
fn is_well(document: &Document, names: &[&str]) -> bool {
    let of_this_run = |part: &str| names.contains(&part);
    let mut results = document.results.iter();
    let ended = |name: &&str| {
        let part = document.parts.get(*name);
        part.is_some_and(|p| matches!(p.state, State::Done | State::OutOfTime))
    };
    names.iter().all(ended) && !results.any(|r| of_this_run(&r.part) && r.verdict == Verdict::Fail)
}

/// The same options for the process of one part.
fn arguments(name: &str, common: &Common) -> Vec<std::ffi::OsString> {
    let mut list: Vec<std::ffi::OsString> =
        vec!["part".into(), name.into(), "--tied".into(), "--out".into()];
    list.push(common.out.clone().into());
    list.push("--seconds".into());
    list.push(common.seconds.to_string().into());
    list.push("--device".into());
    list.push(common.device.to_string().into());
    for (flag, set) in [("--smoke", common.smoke), ("--small", common.small)] {
        list.extend(set.then(|| flag.into()));
    }
    let paths = [
        ("--home", &common.home),
        ("--models", &common.models),
        ("--emu-cache", &common.emu_cache),
    ];
    for (flag, path) in paths {
        if let Some(path) = path {
            list.push(flag.into());
            list.push(path.clone().into());
        }
    }
    list
}

/// Runs one part's process and writes down how it ended, where it could not itself. False if it
/// is still there: the GPU is not free then.
fn supervise(out: &Path, name: &str, mut command: Command, limit: Duration) -> Result<bool> {
    let start = Instant::now();
    let mut child = process::grouped(&mut command)
        .spawn()
        .with_context(|| format!("cannot start part {name}"))?;
    let ended = process::wait(&mut child, limit)?;
    let seconds = start.elapsed().as_secs_f64();
    let late = format!("it did not end within {} s and was ended", limit.as_secs());
    let (state, why) = match ended {
        Ended::Itself(status) => {
            let document = results::read(out)?;
            let state = document.parts.get(name).map(|part| part.state);
            if matches!(state, Some(State::Done | State::OutOfTime | State::Broken)) {
                return Ok(true);
            }
            (State::Broken, format!("its process ended early: {status}"))
        }
        Ended::Killed => (State::Killed, late),
        Ended::Stuck => (
            State::Killed,
            format!("{late}, but is still there; no part after it was started"),
        ),
    };
    results::mark(out, name, state, seconds, &why)?;
    Ok(ended != Ended::Stuck)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        results::{Outcome, Report, Run, tests::Folder},
        session::Session,
    };

    /// A part that got as far as one result, then does `script`.
    fn part(name: &str, script: &str, limit: Duration) -> Document {
        let folder = Folder::new(name);
        results::open(&folder.0, Run::default()).unwrap();
        let mut report = Report::begin(&folder.0, "env").unwrap();
        report.add(Outcome::new("first", Verdict::Pass)).unwrap();
        drop(report);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        supervise(&folder.0, "env", command, limit).unwrap();
        results::read(&folder.0).unwrap()
    }

    #[test]
    fn a_part_that_hangs_is_ended_and_leaves_what_it_had() {
        let document = part("hangs", "sleep 60", Duration::from_millis(200));
        assert_eq!(document.parts["env"].state, State::Killed);
        let verdicts: Vec<_> = document.results.iter().map(|r| r.verdict).collect();
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Fail]);
    }

    #[test]
    fn a_part_that_crashes_is_told_from_one_that_ended() {
        let limit = Duration::from_secs(30);
        let document = part("crashes", "kill -9 $$", limit);
        assert_eq!(document.parts["env"].state, State::Broken);
        let why = document.parts["env"].why.clone().unwrap();
        assert!(why.contains("signal: 9"), "{why}");
        assert_eq!(document.results[0].name, "first");
    }
    fn common(out: &Path) -> Common {
        Common {
            out: out.to_owned(),
            home: Some(out.to_owned()),
            seconds: 30,
            smoke: false,
            small: false,
            tied: false,
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
        let failed = |_: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "exit 2"]);
            command
        };
        assert!(!each(&["gemm"], &common(&folder.0), failed).unwrap());
        let document = results::read(&folder.0).unwrap();
        assert_eq!(document.parts["gemm"].state, State::Broken);
        assert!(is_well(&document, &["env"]));
    }
}
