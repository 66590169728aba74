//! NVIDIA's compute-sanitizer over part `kernels`, as far as it gets.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    process::{self, Ended},
    results::{self, State, Verdict},
    session::Session,
};

/// Cheapest first.
const TOOLS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];
/// What a tool says where it is not permitted or does not know the GPU.
const REFUSALS: [&str; 2] = ["Device not supported", "Unable to"];
/// Where the program usually lies.
const PLACES: [&str; 2] = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"];

pub(super) fn run(session: &mut Session) -> Result<()> {
    if session.is_smoke() {
        // What the tools would watch, started as they would start it.
        session.check("the watched program", |s| {
            let output = watched(s, None, s.left())?;
            ensure!(output.success, "{}", output.last);
            Ok("part kernels, ended well".to_owned())
        })?;
    }
    let Some(tool) = find() else {
        for name in TOOLS {
            session.skip(name, "compute-sanitizer is not on this machine")?;
        }
        return Ok(());
    };
    for (i, name) in TOOLS.into_iter().enumerate() {
        let share = session.left() / u32::try_from(TOOLS.len() - i).unwrap_or(1);
        let output = watched(session, Some((&tool, name)), share)?;
        match judge(&output) {
            Judgement::Clean(text) => session.pass(name, text)?,
            Judgement::Findings(text) => session.fail(name, text)?,
            Judgement::Unusable(text) => session.skip(name, text)?,
        }
    }
    Ok(())
}

fn find() -> Option<PathBuf> {
    let works = |program: &&str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|o| o.status.success())
    };
    PLACES.into_iter().find(works).map(PathBuf::from)
}

/// What a watched program left.
struct Output {
    success: bool,
    in_time: bool,
    /// Whether it came to check anything.
    checked: bool,
    text: String,
    last: String,
}

/// Runs part `kernels --small`, into results of its own, under a tool if one is named.
fn watched(session: &Session, tool: Option<(&Path, &str)>, limit: Duration) -> Result<Output> {
    let name = tool.map_or("plain", |(_, name)| name);
    let folder = session.models.join(format!("sanitize-{name}"));
    let _ = fs::remove_dir_all(&folder);
    results::open(&folder, results::Run::default())?;
    let program = env::current_exe()?;
    let mut command = match tool {
        None => Command::new(program),
        Some((tool, name)) => {
            let mut command = Command::new(tool);
            command
                .args(["--tool", name, "--print-limit", "20"])
                .arg(program);
            command
        }
    };
    command
        .args(["part", "kernels", "--small", "--tied", "--out"])
        .arg(&folder);
    command.arg("--home").arg(&session.home);
    command.arg("--models").arg(&session.models);
    command.args(["--device", &session.common.device.to_string()]);
    // The program sees the same end as this part does.
    let seconds = limit.as_secs().clamp(5, 600);
    command.args(["--seconds", &seconds.to_string()]);
    if session.is_smoke() {
        command.arg("--smoke");
        if let Some(cache) = &session.common.emu_cache {
            command.arg("--emu-cache").arg(cache);
        }
    }
    let log = folder.join("output.txt");
    let file = fs::File::create(&log)?;
    let mut child = process::grouped(&mut command)
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("cannot start the watched program")?;
    let status = match process::wait(&mut child, limit)? {
        Ended::Itself(status) => Some(status),
        Ended::Killed => None,
        Ended::Stuck => bail!("the watched program was killed and is still there"),
    };
    let text = fs::read_to_string(&log).unwrap_or_default();
    let document = results::read(&folder)?;
    // What a part says of itself, that it could not start, is no check.
    let checked = document
        .results
        .iter()
        .any(|r| matches!(r.verdict, Verdict::Pass | Verdict::Fail) && r.name != "the part itself");
    if status.is_some() {
        let state = document.parts.get("kernels").map(|p| p.state);
        if state == Some(State::Done) && document.results.iter().all(|r| r.verdict != Verdict::Pass)
        {
            bail!("the watched program passed nothing");
        }
    }
    Ok(Output {
        success: status.is_some_and(|s| s.success()),
        in_time: status.is_some(),
        checked,
        last: text.lines().last().unwrap_or("it said nothing").to_owned(),
        text,
    })
}

#[derive(Debug, PartialEq)]
enum Judgement {
    Clean(String),
    Findings(String),
    /// The tool did not do its work here.
    Unusable(String),
}

/// Reads what a tool said: its last line counts errors, if it came so far.
fn judge(output: &Output) -> Judgement {
    // Some machines permit no tool; what it counts as an error then is its own.
    let refusal = output
        .text
        .lines()
        .find(|l| l.starts_with("=========") && REFUSALS.iter().any(|refusal| l.contains(refusal)));
    if let Some(line) = refusal {
        return Judgement::Unusable(line.trim_start_matches('=').trim().to_owned());
    }
    let summary = output
        .text
        .lines()
        .rev()
        .find(|l| l.contains("ERROR SUMMARY:") || l.contains("RACECHECK SUMMARY:"));
    let Some(summary) = summary else {
        let why = match output.in_time {
            true => output.last.clone(),
            false => "no end in its share of the time".to_owned(),
        };
        return Judgement::Unusable(why);
    };
    if !output.checked {
        return Judgement::Unusable(format!("nothing ran under it: {}", output.last));
    }
    let summary = summary.trim_start_matches('=').trim();
    let counts = summary
        .split_once("SUMMARY:")
        .map_or("", |(_, rest)| rest.trim_start());
    if !counts.starts_with("0 ") {
        let first = output
            .text
            .lines()
            .find(|l| l.starts_with("=========") && l.len() > 10);
        let first = first.unwrap_or_default().trim_start_matches('=').trim();
        return Judgement::Findings(format!("{summary}; first: {first}"));
    }
    match output.success {
        true => Judgement::Clean(summary.to_owned()),
        false => Judgement::Findings(format!("{summary}, but {}", output.last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, success: bool, in_time: bool) -> Judgement {
        judge(&Output {
            success,
            in_time,
            checked: true,
            text: text.to_owned(),
            last: text.lines().last().unwrap_or_default().to_owned(),
        })
    }

    #[test]
    fn a_summary_of_none_is_clean_and_nothing_else_is() {
        let head = "========= COMPUTE-SANITIZER\n";
        let clean = check(
            &format!("{head}x\n========= ERROR SUMMARY: 0 errors\n"),
            true,
            true,
        );
        assert_eq!(
            clean,
            Judgement::Clean("ERROR SUMMARY: 0 errors".to_owned())
        );
        let race = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)";
        assert!(matches!(check(race, true, true), Judgement::Clean(_)));
        let found = "========= Invalid __global__ read\n========= ERROR SUMMARY: 10 errors";
        let Judgement::Findings(text) = check(found, true, true) else {
            panic!("10 errors are findings");
        };
        assert!(text.contains("Invalid __global__ read"), "{text}");
        let failed = check("========= ERROR SUMMARY: 0 errors\nFAIL", false, true);
        assert!(matches!(failed, Judgement::Findings(_)));
        let denied = check("Unable to open debugger interface", false, true);
        assert!(matches!(denied, Judgement::Unusable(_)));
        assert!(matches!(check("", false, false), Judgement::Unusable(_)));
    }

    /// A machine that permits no tool has no error of ours.
    #[test]
    fn a_tool_that_is_not_permitted_finds_nothing() {
        let summary = "========= ERROR SUMMARY: 1 error";
        for refusal in ["Error: Device not supported", "Unable to attach"] {
            let text = format!("========= {refusal}\n{summary}");
            let judgement = check(&text, false, true);
            assert_eq!(judgement, Judgement::Unusable(refusal.to_owned()));
        }
        // Our own words are not the tool's.
        let ours = format!("Unable to say\n{summary}");
        assert!(matches!(check(&ours, false, true), Judgement::Findings(_)));
        let idle = judge(&Output {
            success: false,
            in_time: true,
            checked: false,
            text: summary.to_owned(),
            last: "no GPU".to_owned(),
        });
        assert!(matches!(idle, Judgement::Unusable(_)), "{idle:?}");
    }
}
