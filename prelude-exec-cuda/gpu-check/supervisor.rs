//! Starts parts, and ends those that do not end by themselves.

use std::{
    env,
    path::Path,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    Common, parts,
    results::{self, State, Verdict},
    session::{self, clocks},
};

/// What a part that should have ended gets to do so: it looks at the clock between measurements.
const GRACE: Duration = Duration::from_secs(20);
/// How often a running part is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the parts named, or all. Whether none was wrong or ended badly.
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
    for &name in &names {
        let mut command = Command::new(&program);
        command.args(arguments(name, common));
        let limit = Duration::from_secs(common.seconds) + GRACE;
        supervise(&common.out, name, command, limit)?;
    }
    let mut document = results::read(&common.out)?;
    document.run.clocks_after = clocks();
    results::write(&common.out, &document)?;
    print!("{}", crate::table::render(&document));
    let of_this_run = |part: &str| names.contains(&part);
    let fails = document.results.iter().filter(|r| of_this_run(&r.part));
    let wrong = fails.filter(|r| r.verdict == Verdict::Fail).count();
    Ok(wrong == 0)
}

/// The same options for the process of one part.
fn arguments(name: &str, common: &Common) -> Vec<std::ffi::OsString> {
    let mut list: Vec<std::ffi::OsString> = vec!["part".into(), name.into(), "--out".into()];
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

/// Runs one part's process and writes down how it ended, where it could not itself.
fn supervise(out: &Path, name: &str, mut command: Command, limit: Duration) -> Result<()> {
    let start = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start part {name}"))?;
    let ended = wait(&mut child, limit)?;
    let seconds = start.elapsed().as_secs_f64();
    let Some(status) = ended else {
        let why = format!("it did not end within {} s and was ended", limit.as_secs());
        return results::mark(out, name, State::Killed, seconds, &why);
    };
    let document = results::read(out)?;
    let state = document.parts.get(name).map(|part| part.state);
    if !matches!(state, Some(State::Done | State::OutOfTime | State::Broken)) {
        let why = format!("its process ended early: {status}");
        return results::mark(out, name, State::Broken, seconds, &why);
    }
    Ok(())
}

/// Waits for a process, and ends it when it takes longer. `None` if it had to be ended.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a part")? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            child.kill().context("cannot end a part")?;
            child.wait().context("cannot wait for a part")?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Outcome, Report, Run, tests::Folder};

    /// A part that got as far as one result, then does `script`.
    fn part(name: &str, script: &str, limit: Duration) -> results::Document {
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
}
