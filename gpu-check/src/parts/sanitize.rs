//! NVIDIA's compute-sanitizer over part `kernels`, as far as it gets.

use std::{env, fs, path::Path, process::Command, time::Duration};

use anyhow::{Result, bail, ensure};

use crate::{
    Common, process,
    results::{self, State, Verdict},
    session::{self, SECONDS, Session},
};

/// Cheapest first.
const TOOLS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];
/// Start of a tool's own lines. [`REFUSALS`] are its words where it is not permitted or does not
/// know the GPU. Nothing else is a reason to pass over it.
const TOOL: &str = "=========";
const REFUSALS: [&str; 2] = ["Device not supported", "Unable to"];
/// The places in which the program is looked for.
const SANITIZER_PATHS: [&str; 2] = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"];

pub(super) fn run(session: &mut Session) -> Result<()> {
    if session.is_smoke() {
        // What the tools would watch, started as they would start it.
        session.check("the watched program", |s| {
            let output = watched(s, None, s.left())?;
            ensure!(output.success, "{}", output.last);
            Ok("part kernels, ended well".to_owned())
        })?;
    }
    let Some(tool) = prelude_measure::process::find(&SANITIZER_PATHS) else {
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

/// The output of a watched program.
struct Output {
    success: bool,
    /// The exit status, or none if the program did not end in time.
    ended: Option<String>,
    /// True if the program came to check anything.
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
    let mut command = Command::new(env::current_exe()?);
    if let Some((tool, name)) = tool {
        command = Command::new(tool);
        command.args(["--tool", name, "--print-limit", "20"]);
        command.arg(env::current_exe()?);
    }
    let common = Common {
        out: folder.clone(),
        home: Some(session.home.clone()),
        models: Some(session.models.clone()),
        small: true,
        ..session.common.clone()
    };
    // The program sees the same end as this part does.
    let seconds = limit.as_secs().clamp(*SECONDS.start(), *SECONDS.end());
    command.args(session::arguments("kernels", seconds, &common));
    let log = folder.join("output.txt");
    let beat = |line: &str| session.beat(|| line.to_owned());
    let said = process::logged(&mut command, name, &log, limit, beat)?;
    let document = results::read(&folder)?;
    // What a part says of itself, that it could not start, is no check.
    let checked = document
        .results
        .iter()
        .any(|r| matches!(r.verdict, Verdict::Pass | Verdict::Fail) && r.name != "the part itself");
    if said.status.is_some() {
        let state = document.parts.get("kernels").map(|p| p.state);
        if state == Some(State::Done) && document.results.iter().all(|r| r.verdict != Verdict::Pass)
        {
            bail!("the watched program passed nothing");
        }
    }
    Ok(Output {
        success: said.status.is_some_and(|s| s.success()),
        ended: said.status.map(|s| s.to_string()),
        checked,
        last: said.last_line().to_owned(),
        text: said.text,
    })
}

#[derive(Debug, PartialEq)]
enum Judgement {
    Clean(String),
    Findings(String),
    /// The tool did not do its work here.
    Unusable(String),
}

/// Reads what a tool said: its last line counts errors, if it came so far. Only its own words, or
/// the end of the time, excuse it: a program that crashed before its first check is a finding.
fn judge(output: &Output) -> Judgement {
    let by_tool = |line: &&str| line.starts_with(TOOL);
    let mut lines = output.text.lines().filter(by_tool);
    // Some machines permit no tool; what it counts as an error then is its own.
    if let Some(line) = lines.find(|l| REFUSALS.iter().any(|refusal| l.contains(refusal))) {
        return Judgement::Unusable(plain(line));
    }
    let summary = output
        .text
        .lines()
        .rev()
        .find(|l| l.contains("ERROR SUMMARY:") || l.contains("RACECHECK SUMMARY:"));
    let Some(ended) = &output.ended else {
        return Judgement::Unusable("no end in its share of the time".to_owned());
    };
    let Some(summary) = summary.map(plain) else {
        return Judgement::Findings(format!("no summary, {ended}: {}", output.last));
    };
    let counts = summary
        .split_once("SUMMARY:")
        .map_or("", |(_, rest)| rest.trim_start());
    if !counts.starts_with("0 ") {
        let first = output.text.lines().find(|l| by_tool(l) && l.len() > 10);
        let first = plain(first.unwrap_or_default());
        return Judgement::Findings(format!("{summary}; first: {first}; {}", output.last));
    }
    match (output.success, output.checked) {
        (true, true) => Judgement::Clean(summary),
        (_, true) => Judgement::Findings(format!("{summary}, but {ended}: {}", output.last)),
        (_, false) => Judgement::Findings(format!(
            "nothing was checked under it, {ended}: {}",
            output.last
        )),
    }
}

/// Returns a tool's line without its mark.
fn plain(line: &str) -> String {
    line.trim_start_matches('=').trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, success: bool, in_time: bool) -> Judgement {
        judge(&Output {
            success,
            ended: in_time.then(|| format!("exit status: {}", i32::from(!success))),
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
    }

    /// A crash of the watched program, or of the tool without a refusal, is a finding.
    #[test]
    fn a_crash_before_the_first_check_is_a_finding() {
        let early = |text: &str, success, ended: &str| {
            let judgement = judge(&Output {
                success,
                ended: Some(ended.to_owned()),
                checked: false,
                text: text.to_owned(),
                last: "the last line".to_owned(),
            });
            match judgement {
                Judgement::Findings(text) => text,
                other => panic!("{other:?}"),
            }
        };
        let said = early("", false, "signal: 11 (SIGSEGV)");
        assert!(said.contains("SIGSEGV") && said.contains("the last line"));
        let gone = "========= Error: Target application terminated before first instrumented call";
        early(gone, false, "exit status: 255");
        early("========= ERROR SUMMARY: 1 error", false, "exit status: 1");
        let none = "========= ERROR SUMMARY: 0 errors";
        assert!(early(none, false, "exit status: 2").contains("nothing was checked"));
        early(none, true, "exit status: 0");
    }
}
