//! `gpu.json`, as `gpu-check` writes it: the part of it that is looked at here.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

/// Format of `gpu.json` that is understood.
const SCHEMA: u32 = 1;
/// Largest file that is read: all parts together have some hundred kilobytes.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct Results {
    schema: u32,
    pub(super) run: Run,
    pub(super) parts: BTreeMap<String, Part>,
    pub(super) results: Vec<Outcome>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Run {
    pub(super) date: String,
    pub(super) target: String,
    pub(super) device: Option<String>,
    pub(super) commit: String,
    #[serde(default)]
    command: String,
}

impl Run {
    /// Returns the folders that the command names, longest first, and what to call them.
    pub(super) fn folders(&self) -> Vec<(String, &'static str)> {
        let words: Vec<&str> = self.command.split_whitespace().collect();
        let mut folders: Vec<(String, &str)> = words
            .windows(2)
            .filter_map(|pair| match pair[0] {
                "--home" => Some((pair[1].to_owned(), "BUNDLE")),
                "--out" => Some((pair[1].to_owned(), "OUT")),
                "--models" => Some((pair[1].to_owned(), "MODELS")),
                _ => None,
            })
            // Replacing a relative folder would replace parts of other words.
            .filter(|(folder, _)| folder.starts_with('/') && folder.len() > 1)
            .collect();
        folders.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.len()));
        folders
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Part {
    pub(super) state: String,
    pub(super) why: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Outcome {
    pub(super) part: String,
    pub(super) name: String,
    pub(super) verdict: String,
    #[serde(default)]
    pub(super) reason: String,
    pub(super) value: Option<f64>,
    #[serde(default)]
    pub(super) unit: String,
}

/// Reads a file that a run left. A link could name any file of this machine.
///
/// # Errors
/// If there is no such file, or it is too large or no text.
pub(super) fn text(folder: &Path, name: &str) -> Result<String> {
    let path = folder.join(name);
    let about = fs::symlink_metadata(&path).with_context(|| {
        let folder = folder.display();
        format!("{folder} has no {name}: it is not what `run.sh --out` named")
    })?;
    ensure!(about.is_file(), "{} is no file", path.display());
    let bytes = about.len();
    ensure!(bytes <= BYTES_MAX, "{} has {bytes} bytes", path.display());
    fs::read_to_string(&path).with_context(|| format!("{} is no text", path.display()))
}

/// Reads the results in a folder.
///
/// # Errors
/// Names the file that is missing or malformed, and the place in it.
pub(super) fn read(folder: &Path) -> Result<Results> {
    ensure!(folder.is_dir(), "{} is no folder", folder.display());
    let path = folder.join("gpu.json");
    let path = path.display();
    let results: Results = serde_json::from_str(&text(folder, "gpu.json")?)
        .with_context(|| format!("{path} is not what gpu-check writes"))?;
    let schema = results.schema;
    ensure!(
        schema == SCHEMA,
        "{path} is of format {schema}, not {SCHEMA}"
    );
    ensure!(!results.results.is_empty(), "{path} has no results");
    let is_orphan = |r: &&Outcome| !results.parts.contains_key(&r.part);
    if let Some(Outcome { part, name, .. }) = results.results.iter().find(is_orphan) {
        bail!("{path}: `{name}` is of part `{part}`, which did not run");
    }
    Ok(results)
}

impl Results {
    fn count(&self, verdict: &str) -> usize {
        self.results.iter().filter(|r| r.verdict == verdict).count()
    }

    /// Returns the counts of verdicts: `n PASS, n MISS, …`.
    pub(super) fn summary(&self) -> String {
        let count = |verdict| format!("{} {verdict}", self.count(verdict));
        ["PASS", "MISS", "FAIL", "SKIP"].map(count).join(", ")
    }

    /// Checks that the sources are known, and all parts.
    pub(super) fn check_baseline(&self, parts: &[&str]) -> Result<()> {
        let commit = &self.run.commit;
        ensure!(
            !commit.is_empty() && commit != "unknown" && !commit.ends_with('+'),
            "a run of `{commit}`, which is no commit, cannot be a baseline"
        );
        self.check(parts, &["done", "out_of_time"])
            .context("it cannot be a baseline")
    }

    /// Checks all parts, which have time enough.
    pub(super) fn check_smoke(&self, parts: &[&str]) -> Result<String> {
        self.check(parts, &["done"])?;
        Ok(self.summary())
    }

    /// Checks that every part ended in one of some states, nothing failed, and something was checked.
    fn check(&self, parts: &[&str], states: &[&str]) -> Result<()> {
        for name in parts {
            let part = self.parts.get(*name);
            let Part { state, why } = part.with_context(|| format!("part {name} did not run"))?;
            let why = why.as_deref().unwrap_or("no reason given");
            ensure!(states.contains(&&**state), "part {name} is {state}: {why}");
        }
        if let Some(failed) = self.results.iter().find(|r| r.verdict == "FAIL") {
            let Outcome {
                part, name, reason, ..
            } = failed;
            bail!("there are failures: {part}: {name}: {reason}");
        }
        ensure!(self.count("PASS") > 0, "nothing was checked");
        Ok(())
    }
}
