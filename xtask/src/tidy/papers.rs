//! Compares `docs/papers.md` with the repository: the tests, commands and files that it names exist,
//! and each row has what its state asks for.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use super::rust_files;
use crate::{Args, bench};

const PAGE: &str = "docs/papers.md";

/// Checks the page.
pub(super) fn check(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    for (number, line) in (1..).zip(text.lines()) {
        for name in names(line) {
            if let Some(fault) = fault(root, name)? {
                faults.push(format!("{PAGE}:{number}: `{name}`: {fault}"));
            }
        }
        let fault = state_fault(line);
        faults.extend(fault.map(|fault| format!("{PAGE}:{number}: {fault}")));
    }
    Ok(())
}

/// Returns what stands between backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns whether [`fault`] looks at a name.
fn is_checked(name: &str) -> bool {
    let is_place = !name.starts_with('/') && !name.contains(' ');
    name.starts_with("cargo xtask ") || (is_place && name.contains('/'))
}

/// Returns what is wrong with the state of a row, if the line is one: a name, what a paper says, the
/// state, and what shows it or is missing.
fn state_fault(line: &str) -> Option<&'static str> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let [name, _, state, shown] = row.split(" | ").collect::<Vec<_>>()[..] else {
        return Some("a row has four cells");
    };
    let mut words = shown.split('`').step_by(2).flat_map(str::split_whitespace);
    match state {
        _ if name == "#" || name == "---" => None,
        "yes" | "more" if names(shown).any(is_checked) => None,
        "yes" | "more" => Some("no test, command or file shows it"),
        "partly" | "no" if words.any(|word| word.len() > 3) => None,
        "partly" | "no" => Some("there is no reason"),
        _ => Some("the state is none of yes, more, partly and no"),
    }
}

/// Returns what is wrong with a name between backticks: a command of ours, a file or folder, or a
/// test as `FOLDER/NAME`. Other names are not checked.
fn fault(root: &Path, name: &str) -> Result<Option<String>> {
    if let Some(command) = name.strip_prefix("cargo xtask ") {
        return Ok(command_fault(command));
    }
    let Some((folder, last)) = name.rsplit_once('/').filter(|_| is_checked(name)) else {
        return Ok(None);
    };
    if root.join(name).exists() {
        return Ok(None);
    }
    let is_test = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if last.is_empty() || !last.chars().all(is_test) || !root.join(folder).is_dir() {
        return Ok(Some("there is no such file or folder".to_owned()));
    }
    for part in ["src", "tests"] {
        let part = root.join(folder).join(part);
        for file in if part.is_dir() {
            rust_files(&part)?
        } else {
            Vec::new()
        } {
            if has_test(&fs::read_to_string(&file)?, last) {
                return Ok(None);
            }
        }
    }
    Ok(Some(format!("{folder} has no such test")))
}

fn command_fault(command: &str) -> Option<String> {
    let mut words = command.split(' ');
    let name = words.next().unwrap_or_default();
    if Args::command().find_subcommand(name).is_none() {
        return Some(format!("cargo xtask has no command {name}"));
    }
    let part = words.next().filter(|word| !word.starts_with('-'));
    let part = part.filter(|part| name == "bench" && !bench::PARTS.contains(part));
    part.map(|part| format!("cargo xtask bench has no {part}"))
}

/// Returns whether a source has a function of this name with the attribute of a test.
fn has_test(source: &str, name: &str) -> bool {
    let mut is_test = false;
    source.lines().map(str::trim).any(|line| {
        let function = line.strip_prefix("async ").unwrap_or(line);
        let found = function
            .strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('('));
        if found && is_test {
            return true;
        }
        // Attributes and comments stand between the attribute and the function.
        let goes_on = line.starts_with('#') || line.starts_with("//") || line.ends_with(")]");
        is_test = line.starts_with("#[test]")
            || line.starts_with("#[tokio::test")
            || (is_test && goes_on);
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    #[test]
    fn names_that_are_not_there_are_faults() {
        let check = |name: &str, expected: Option<&str>| {
            let found = fault(&run::root(), name).unwrap();
            assert_eq!(found.as_deref(), expected, "{name}");
        };
        check("xtask/names_that_are_not_there_are_faults", None);
        check("xtask/no_such_test", Some("xtask has no such test"));
        // A function that is no test.
        check("xtask/has_test", Some("xtask has no such test"));
        check("xtask/src/tidy/papers.rs", None);
        check("xtask/src/", None);
        let missing = Some("there is no such file or folder");
        check("xtask/src/tidy/nothing.rs", missing);
        check("nothing/at_all", missing);
        check("cargo xtask tidy", None);
        check("cargo xtask bench --plot", None);
        check("cargo xtask bench papers --only laps", None);
        check(
            "cargo xtask dance",
            Some("cargo xtask has no command dance"),
        );
        check(
            "cargo xtask bench dance",
            Some("cargo xtask bench has no dance"),
        );
        check("/v1/completions", None);
        check("max_wait_ms", None);
    }

    #[test]
    fn a_row_has_what_its_state_asks_for() {
        let check = |row: &str, expected: Option<&str>| {
            assert_eq!(state_fault(row), expected, "{row}");
        };
        check("| # | the paper says | state | shown by |", None);
        check("| --- | --- | --- | --- |", None);
        check("Words, and no row.", None);
        check("| A1 | a | yes | b: `xtask/src/` |", None);
        check("| A1 | a | more | `cargo xtask tidy` |", None);
        check("| A1 | a | no | no such model |", None);
        let nothing = Some("no test, command or file shows it");
        check("| A1 | a | yes | the field `max_wait_ms` |", nothing);
        let reason = Some("there is no reason");
        check("| A1 | a | partly | `xtask/src/`, .5, 1 of 2 |", reason);
        let state = Some("the state is none of yes, more, partly and no");
        check("| A1 | a | perhaps | `xtask/src/` |", state);
        check("| A1 | a | yes |", Some("a row has four cells"));
    }

    #[test]
    fn attributes_between_do_not_hide_a_test() {
        let source = "#[test]\n#[expect(\n    lint,\n    reason = \"r\"\n)]\n/// d\nfn a() {\n}\n\
                      fn b() {\n}\n#[tokio::test(x)]\nasync fn c() {\n}\n#[test]\nfn d_e() {}\n";
        let found = |name| has_test(source, name);
        assert!(found("c") && found("d_e"));
        assert!(!found("b") && !found("d") && !found("e"));
    }
}
