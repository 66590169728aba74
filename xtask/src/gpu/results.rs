//! `gpu.json`, as `gpu-check` writes it: the part of it that is looked at here.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

/// Format of `gpu.json` that is understood.
const SCHEMA: u32 = 1;
/// Largest that is read: all parts together have some hundred kilobytes.
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

/// Reads the results in a folder.
///
/// # Errors
/// Names the file that is missing or malformed, and the place in it.
pub(super) fn read(folder: &Path) -> Result<Results> {
    ensure!(folder.is_dir(), "{} is no folder", folder.display());
    let path = folder.join("gpu.json");
    let about = fs::symlink_metadata(&path).with_context(|| {
        format!(
            "{} has no gpu.json: it is not what `run.sh --out` named",
            folder.display()
        )
    })?;
    ensure!(about.is_file(), "{} is no file", path.display());
    ensure!(
        about.len() <= BYTES_MAX,
        "{} has {} bytes",
        path.display(),
        about.len()
    );
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let results: Results = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not what gpu-check writes", path.display()))?;
    ensure!(
        results.schema == SCHEMA,
        "{} is of format {}, not {SCHEMA}",
        path.display(),
        results.schema
    );
    ensure!(
        !results.results.is_empty(),
        "{} has no results",
        path.display()
    );
    if let Some(orphan) = results
        .results
        .iter()
        .find(|r| !results.parts.contains_key(&r.part))
    {
        bail!(
            "{}: `{}` is of part `{}`, which did not run",
            path.display(),
            orphan.name,
            orphan.part
        );
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

    /// Checks that every part ended by itself, nothing failed, something was checked, and the
    /// sources are known.
    pub(super) fn check_baseline(&self, parts: &[&str]) -> Result<()> {
        let commit = &self.run.commit;
        ensure!(
            !commit.is_empty() && commit != "unknown" && !commit.ends_with('+'),
            "a run of `{commit}`, which is no commit, cannot be a baseline"
        );
        for name in parts {
            let Some(part) = self.parts.get(*name) else {
                bail!("part {name} did not run; a baseline has all parts");
            };
            let why = part.why.as_deref().unwrap_or("no reason given");
            ensure!(
                matches!(&*part.state, "done" | "out_of_time"),
                "part {name} is {}: {why}; a baseline has all parts",
                part.state
            );
        }
        ensure!(
            self.results.iter().all(|r| r.verdict != "FAIL"),
            "a run with failures cannot be a baseline"
        );
        ensure!(
            self.count("PASS") > 0,
            "a run in which nothing was checked cannot be a baseline"
        );
        Ok(())
    }

    /// Checks that every part ended by itself in time, and nothing failed.
    pub(super) fn check_smoke(&self, parts: &[&str]) -> Result<String> {
        for name in parts {
            let Some(part) = self.parts.get(*name) else {
                bail!("part {name} did not run");
            };
            let why = part.why.as_deref().unwrap_or("no reason given");
            ensure!(part.state == "done", "part {name} is {}: {why}", part.state);
        }
        if let Some(failed) = self.results.iter().find(|r| r.verdict == "FAIL") {
            bail!("{}: {}: {}", failed.part, failed.name, failed.reason);
        }
        ensure!(self.count("PASS") > 0, "nothing was checked");
        Ok(self.summary())
    }
}
