//! Hugging Face transformers' continuous batching, called from Python: no HTTP on its side.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::json;

use super::{super::serve::requests::IDS, Found, Load, compare};
use crate::{make_model, process, session::Session};

/// Longest that one model may take: it is read, warmed up and asked.
const WITHIN: Duration = Duration::from_secs(75);
const NAME: &str = "transformers";

/// A load that was done, as the script writes it.
#[derive(Deserialize)]
struct Done {
    name: String,
    seconds: Vec<f64>,
    all: f64,
}

pub(super) fn measure(session: &mut Session, model: &str, loads: &[Load]) -> Result<()> {
    let what = format!("{NAME}, {model}");
    if !session.has_time(&what, 20.0)? {
        return Ok(());
    }
    match ask(session, model, loads) {
        Ok(found) => {
            for load in loads {
                let label = format!("{what}: {}", load.name());
                match found.iter().find(|done| done.name == load.name()) {
                    Some(done) => {
                        let found = Found {
                            seconds: done.seconds.clone(),
                            per_second: done.seconds.len() as f64 / done.all.max(1e-9),
                            reason: "continuous batching, paged sdpa, without HTTP".to_owned(),
                        };
                        compare(session, NAME, model, load, &found)?;
                    }
                    None => session.skip(&label, "it was not done in its time")?,
                }
            }
            Ok(())
        }
        // Another engine that is not there, or fails, says nothing about ours.
        Err(error) => session.skip(&what, format!("{error:#}")),
    }
}

fn ask(session: &Session, model: &str, loads: &[Load]) -> Result<Vec<Done>> {
    let device = match session.target.is_gpu() {
        true => format!("cuda:{}", session.common.device),
        false => "cpu".to_owned(),
    };
    let limit = WITHIN.min(session.left());
    let scratch = session.models.join("rivals");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let answers = scratch.join("answers.json");
    let list: Vec<_> = loads
        .iter()
        .map(|load| {
            json!({
                "name": load.name(),
                "input": load.input,
                "output": load.output,
                "at_once": load.at_once,
                "requests": load.requests,
            })
        })
        .collect();
    let questions = json!({
        "model": make_model::folder(&session.models, model, None),
        "device": device,
        "ids": IDS,
        "seconds": limit.as_secs().saturating_sub(5),
        "loads": list,
        "out": answers,
    });
    let request = scratch.join("questions.json");
    fs::write(&request, questions.to_string())?;
    let _ = fs::remove_file(&answers);
    let mut command = Command::new("python3");
    command.arg(session.home.join("rivals.py")).arg(&request);
    let log = session.out.join(format!("rival-{NAME}-{model}.txt"));
    let beat = |line: &str| session.beat(|| line.to_owned());
    let said = process::logged(&mut command, NAME, &log, limit, beat)?;
    // What was done before the time was over counts.
    let Ok(text) = fs::read(&answers) else {
        bail!("{}", said.last_line());
    };
    serde_json::from_slice(&text).context("the answers of rivals.py")
}
