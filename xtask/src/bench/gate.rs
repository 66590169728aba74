//! The benchmark gate: what the hot paths cost may not grow unnoticed.
//!
//! Times on shared machines are noise, so none are compared. Simulations run in virtual time: their
//! tables are compared to the digit. Instructions of fixed pieces of work are counted by Callgrind,
//! and may grow by 2 % at most. Both baselines are files in `bench/gate/`, which `--update` writes
//! anew: a change of theirs shows in review.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;

use crate::run;

/// Pieces of work by the name that `prelude-bench work` knows; how often each is done: once and
/// twice that number of times, so that the difference is without the program's start; and the number
/// of runs of which the median counts: one of ten runs of `request` has some 0.5 % more or fewer.
const PARTS: [(&str, u64, usize); 4] = [
    ("tokenizer", 10, 1),
    ("step", 100, 1),
    ("planning", 10, 1),
    ("request", 2000, 3),
];

/// Settings of the C library that make it copy memory in the same way on every processor. By default
/// it copies more than some kilobytes by `rep movsb` where the processor does that well, from a size
/// that depends on its caches, and Callgrind counts an instruction for each byte of it.
const C_LIBRARY: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.hwcaps=-ERMS,-FSRM:glibc.cpu.x86_non_temporal_threshold=0x40000000",
);

/// The share by which instructions may grow.
const TOLERANCE: f64 = 0.02;

/// Commands of `prelude-bench` whose tables must not change, by the name of their file. The papers'
/// tables are those of a part of their requests, which takes seconds and not minutes.
const SIMULATIONS: [(&str, &str); 4] = [
    ("routers", "sim --workload toolbench --route round-robin,e2"),
    (
        "policies",
        "sim --workload posts --policy fcfs,srjf,auto --engines 1",
    ),
    (
        "laps",
        "sim --workload conversation --policy fcfs,laps,auto --engines 1",
    ),
    (
        "papers",
        "papers --seeds 1 --share 0.1 --out bench/out/gate",
    ),
];

/// The benchmark gate.
#[derive(Parser)]
#[command(name = "cargo xtask bench gate", max_term_width = 100)]
struct Args {
    /// Write the baselines anew in place of comparing with them.
    #[arg(long)]
    update: bool,
    /// Do this much more work than the baseline, in percent, to see that the gate notices.
    #[arg(long, default_value_t = 0)]
    plant: u64,
}

/// Runs the gate as `cargo xtask bench gate`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let name = "cargo xtask bench gate".to_owned();
    let args = Args::parse_from([name].into_iter().chain(args.iter().cloned()));
    println!("{}", check(args.update, args.plant)?);
    Ok(())
}

/// Runs the gate as a step of `ci`; returns what was checked and what could not be.
pub(crate) fn ci() -> Result<String> {
    check(false, 0)
}

fn check(update: bool, plant: u64) -> Result<String> {
    run::build_programs()?;
    let program = run::root().join("target/release/prelude-bench");
    let mut faults = simulations(&program, update)?;
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if has_valgrind {
        faults.extend(instructions(&program, update, plant)?);
    }
    for fault in &faults {
        println!("gate: {fault}");
    }
    ensure!(
        faults.is_empty(),
        "{} figure(s) of the benchmark gate changed; if that is meant, `cargo xtask bench gate \
         --update` writes the baselines anew",
        faults.len()
    );
    Ok(match has_valgrind {
        true => "simulations and instructions".to_owned(),
        false => {
            "SKIP gate: no valgrind to count instructions; simulations are unchanged".to_owned()
        }
    })
}

fn folder() -> PathBuf {
    run::root().join("bench/gate")
}

/// Compares the tables of simulations with their files.
fn simulations(program: &Path, update: bool) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (name, args) in SIMULATIONS {
        println!("gate: simulating {name}");
        // The table names the folder of its plots, which is relative.
        let mut command = Command::new(program);
        let output = command
            .args(args.split(' '))
            .current_dir(run::root())
            .output()?;
        ensure!(
            output.status.success(),
            "the simulation {name} failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let found = String::from_utf8(output.stdout).context("a table is text")?;
        let path = folder().join(format!("{name}.txt"));
        if update {
            write(&path, &found)?;
            continue;
        }
        let expected =
            fs::read_to_string(&path).with_context(|| format!("no baseline {}", path.display()))?;
        let differ = expected.lines().zip(found.lines()).find(|(a, b)| a != b);
        if let Some((expected, found)) = differ {
            faults.push(format!(
                "simulation {name}:\n  was {expected}\n  is  {found}"
            ));
        } else if expected != found {
            faults.push(format!("simulation {name}: it has another number of lines"));
        }
    }
    Ok(faults)
}

/// Instructions of one piece of work, by part.
type Counts = BTreeMap<String, u64>;

/// Compares instruction counts with their file.
fn instructions(program: &Path, update: bool, plant: u64) -> Result<Vec<String>> {
    let mut counts = Counts::new();
    for (part, times, runs) in PARTS {
        let planted = times * (100 + plant) / 100;
        let median = |times| -> Result<u64> {
            let counts = (0..runs).map(|_| count(program, part, times));
            let mut counts = counts.collect::<Result<Vec<_>>>()?;
            counts.sort_unstable();
            counts.get(runs / 2).copied().context("a run")
        };
        let each = median(2 * planted)?.saturating_sub(median(planted)?) / times;
        println!("gate: {part}: {each} instructions");
        counts.insert(part.to_owned(), each);
    }
    let path = folder().join("instructions.json");
    if update {
        write(&path, &(serde_json::to_string_pretty(&counts)? + "\n"))?;
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path);
    let text = text.with_context(|| format!("no baseline {}", path.display()))?;
    let expected: Counts = serde_json::from_str(&text)?;
    Ok(compare(&expected, &counts))
}

/// Returns what differs by more than the tolerance. A piece that got cheaper is a change too: the
/// baseline would hide the next loss.
fn compare(expected: &Counts, found: &Counts) -> Vec<String> {
    let change = |(part, &now): (&String, &u64)| {
        let Some(&was) = expected.get(part) else {
            return Some(format!("{part} has no baseline"));
        };
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let ratio = now as f64 / was.max(1) as f64;
        let percent = 100.0 * (ratio - 1.0);
        ((ratio - 1.0).abs() > TOLERANCE)
            .then(|| format!("{part}: {now} instructions, {percent:+.1} % of {was}"))
    };
    found.iter().filter_map(change).collect()
}

/// Counts the instructions of a whole run.
fn count(program: &Path, part: &str, times: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .env(C_LIBRARY.0, C_LIBRARY.1)
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["work", part, "--times", &times.to_string()])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{part} failed under Callgrind: {log}"
    );
    let Some(at) = log.find("Collected : ") else {
        bail!("Callgrind said no count: {log}");
    };
    let digits = log[at + "Collected : ".len()..].split_whitespace().next();
    Ok(digits.context("a count follows")?.parse()?)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(folder())?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_beyond_the_tolerance_are_told() {
        let counts = |step: u64| Counts::from([("step".to_owned(), step)]);
        let check = |now, expected: usize| {
            assert_eq!(
                compare(&counts(1_000), &counts(now)).len(),
                expected,
                "{now}"
            );
        };
        check(1_000, 0);
        check(1_019, 0);
        check(981, 0);
        check(1_021, 1);
        check(1_100, 1);
        check(900, 1);
        let other = Counts::from([("new".to_owned(), 1)]);
        assert_eq!(compare(&counts(1), &other), ["new has no baseline"]);
    }
}
