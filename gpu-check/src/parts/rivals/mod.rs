//! The same loads by other engines on the same GPU, and how ours compares: transformers' continuous
//! batching, which images with a GPU often have, and vLLM where a folder of it is named.

mod transformers;
mod vllm;

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use prelude_measure::stats::median;

use super::checkpoint;
use crate::{results::Outcome, session::Session};

/// A load that every engine gets: requests over a number of connections, one after another on each.
#[derive(Clone, Copy, Debug)]
struct Load {
    input: usize,
    output: usize,
    at_once: usize,
    requests: usize,
    measure: Measure,
    /// The row of part `serve` that has our result, if it is not named as the load is.
    ours: Option<&'static str>,
}

/// The measure of a load: a latency or a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// The median of the answers' times, in milliseconds.
    Median,
    /// Requests a second.
    Rate,
}

impl Load {
    fn name(&self) -> String {
        format!("{}/{} at {}", self.input, self.output, self.at_once)
    }
}

/// The result of an engine under a load.
struct Found {
    /// Seconds of each answer.
    seconds: Vec<f64>,
    per_second: f64,
    reason: String,
}

/// Names a model that both sides have and the loads that it gets.
type Loads = (&'static str, Vec<Load>);

fn loads(session: &Session) -> Vec<Loads> {
    let load = |(input, output, at_once), requests, measure| Load {
        input,
        output,
        at_once,
        requests,
        measure,
        ours: None,
    };
    let decisions = Load {
        ours: Some("decisions, 120+180 tokens, apart"),
        ..load((300, 1, 128), 2_000, Measure::Rate)
    };
    let small = session.pick(
        vec![
            load((128, 1, 1), 60, Measure::Median),
            load((128, 32, 4), 80, Measure::Median),
            decisions,
        ],
        vec![load((12, 4, 2), 4, Measure::Median)],
    );
    let large = session.pick(
        vec![load((512, 1, 64), 320, Measure::Rate)],
        vec![load((20, 1, 3), 6, Measure::Rate)],
    );
    vec![
        (session.pick("qwen3-0.6b", "tiny-served"), small),
        (session.pick("qwen3-4b", "tiny-served"), large),
    ]
}

pub(super) fn run(session: &mut Session) -> Result<()> {
    let loads = loads(session);
    for rival in [vllm::measure, transformers::measure] {
        for (model, loads) in &loads {
            checkpoint(session, model, None)?;
            rival(session, model, loads)?;
        }
    }
    Ok(())
}

/// Writes down what another engine made of a load, and how many times as fast ours was in part
/// `serve`.
fn compare(
    session: &mut Session,
    rival: &str,
    model: &str,
    load: &Load,
    found: &Found,
) -> Result<()> {
    let name = format!("{model}: {}", load.name());
    let (value, unit, ours_name) = match load.measure {
        Measure::Median => (1e3 * median(&found.seconds), "ms", format!("{name}, p50")),
        Measure::Rate => (found.per_second, "req/s", name.clone()),
    };
    let ours_name = match load.ours {
        Some(row) => format!("{model}: {row}"),
        None => ours_name,
    };
    let theirs = Outcome::figure(format!("{rival}, {name}"), (value, unit), None);
    session.timed(theirs.because(found.reason.clone()))?;
    let label = format!("ours to {rival}, {name}");
    let Some(ours) = session.found("serve", &ours_name) else {
        let why = format!("part serve has no figure `{ours_name}` in this gpu.json");
        return session.skip(&label, why);
    };
    let ratio = match load.measure {
        Measure::Median => value / ours,
        Measure::Rate => ours / value,
    };
    let outcome = Outcome::figure(label, (ratio, "times"), None);
    session.timed(outcome.because(format!("as fast: {ours:.2} {unit} to {value:.2}")))
}

/// Returns the folder that a variable names, in which a package of Python's is to be.
fn folder_of(variable: &str, package: &str) -> Result<PathBuf> {
    let folder = env::var_os(variable).map(PathBuf::from);
    let folder = folder.with_context(|| format!("{variable} names no folder"))?;
    ensure!(
        folder.join(package).is_dir(),
        "{}, which {variable} names, has no {package}",
        folder.display()
    );
    Ok(folder)
}

/// Returns a `PYTHONPATH` that begins with a folder.
fn python_path(folder: &Path) -> Result<OsString> {
    let more = env::var_os("PYTHONPATH").unwrap_or_default();
    let folders = [folder.to_owned()]
        .into_iter()
        .chain(env::split_paths(&more));
    Ok(env::join_paths(folders)?)
}
