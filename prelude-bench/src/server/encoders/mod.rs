//! Embedders and a cross-encoder of published shapes, with random weights, beside the libraries and
//! servers that they are usually run by.
//!
//! Ours and other servers are asked over HTTP. The libraries have no server, so they are called in
//! process: a text alone, or 64 texts at once where servers have 64 connections. So they alone do not
//! pay for HTTP and for putting requests together. All have the same checkpoint and the same texts,
//! and work in turns.

mod models;
mod peer;
mod texts;

use std::{process::Command, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde_json::json;

use super::{
    Session,
    report::{Row, Unit},
};
use crate::{
    load::{Arrivals, Job, Jobs, Load, check, run as load},
    process::Process,
};
use models::{MODELS, Model, Task};
use peer::Peer;
use texts::Texts;

/// Tokens of a text, or of a pair.
const LENGTHS: [usize; 3] = [16, 128, 512];

/// Connections of a crowd, and texts that a library gets at once.
const CROWD: usize = 64;

/// Longest start of a server or of a library, which reads up to a gigabyte.
const START_WITHIN: Duration = Duration::from_secs(300);

/// Measures each model in turn.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for model in &MODELS {
        rows.extend(of_model(session, model)?);
    }
    Ok(rows)
}

fn of_model(session: &mut Session<'_>, model: &Model) -> Result<Vec<Row>> {
    let config = session.config;
    session.bar.says(&format!("{}: random weights", model.name));
    let folder = model.make(&config.out)?;
    let mut command = Command::new(&config.program);
    command.args(["serve", "--port", "0"]).arg(&folder);
    let server = Process::start(command, None, START_WITHIN)?;
    let mut peers = Vec::new();
    for rival in session.rivals.clone() {
        for way in peer::ways(rival) {
            let what = format!("{}: {} {}", model.name, rival.title(), way.title);
            session.bar.says(&format!("starting {what}"));
            match Peer::start(config, rival, way, model, &folder) {
                Ok(peer) => peers.push(peer),
                Err(why) => session.skip(&what, &format!("{why:#}")),
            }
        }
    }
    let mut rows = Vec::new();
    for tokens in LENGTHS {
        let texts = Texts::make(&folder, model.task, tokens)?;
        for connections in [1, CROWD] {
            let row = case(session, model, &texts, connections, &server, &mut peers)?;
            session.bar.shows(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Measures one length in turns, alone or with a crowd.
fn case(
    session: &Session<'_>,
    model: &Model,
    texts: &Texts,
    connections: usize,
    server: &Process,
    peers: &mut [Peer],
) -> Result<Row> {
    let (rounds, time) = (session.config.rounds, session.config.time);
    let (unit, crowd) = match connections {
        1 => (Unit::Millis, "one connection".to_owned()),
        n => (Unit::PerSecond, format!("{n} connections")),
    };
    let name = format!("{}, {} tokens, {crowd}", model.name, texts.tokens);
    let jobs = Arc::new(jobs(texts, ["/rerank", "documents"], None));
    check(&server.address, &jobs.first(2))?;
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); peers.len()];
    for round in 0..rounds {
        session.bar.says(&format!("{name}: round {}", round + 1));
        // One request on each connection, then the next ones, as a library gets texts at once. However
        // slow, there is one such round: a crowd's 512 tokens may take half a minute.
        let plan = Load {
            connections,
            arrivals: Arrivals::Together,
            warm_up: if round == 0 { time / 5 } else { Duration::ZERO },
            time,
        };
        ours.push(speed(&name, &server.address, &jobs, &plan)?);
        for (peer, values) in peers.iter_mut().zip(&mut theirs) {
            values.push(peer.measure(texts, &plan)?);
        }
    }
    let mut row = Row::new(name, unit, ours);
    for (peer, values) in peers.iter().zip(&theirs) {
        row.against(peer.title(), values, None);
    }
    Ok(row)
}

/// Loads a server, and returns the median of milliseconds for a text alone, or the texts per second
/// over several connections.
fn speed(name: &str, address: &str, jobs: &Arc<Jobs>, plan: &Load) -> Result<f64> {
    let tally = load(address, jobs, *plan)?;
    ensure!(
        tally.failures() == 0 && tally.count(429) == 0 && tally.count(200) > 0,
        "{name}: not every request was answered 200: {:?}",
        tally.by_status.keys()
    );
    let seconds = tally.quantile(200, 0.5);
    Ok(match plan.connections {
        1 => seconds * 1e3,
        n => n as f64 / seconds,
    })
}

/// Returns a request for each text, to a server that reranks at the path `rerank` the texts in the
/// field `field`.
fn jobs(texts: &Texts, [rerank, field]: [&'static str; 2], model: Option<&str>) -> Jobs {
    let job = |[query, text]: &[String; 2]| {
        let (path, mut body) = match texts.task {
            // As OpenAI's clients ask.
            Task::Embed => (
                "/v1/embeddings",
                json!({ "input": text, "encoding_format": "base64" }),
            ),
            Task::Rank => (rerank, json!({ "query": query, field: [text] })),
        };
        if let Some(model) = model {
            body["model"] = json!(model);
        }
        Job {
            path,
            body: Bytes::from(body.to_string()),
        }
    };
    Jobs::new(texts.pairs.iter().map(job).collect())
}
