//! Requests per second where there is next to nothing to compute: what is left is the server.
//!
//! Rivals have no model that computes nothing. They get the demo model, of four megabytes, and
//! prompts of one token; ours is measured with that too, and with nothing at all.

use std::sync::Arc;

use anyhow::{Result, ensure};
use prelude_server::{ServerConfig, assets::EmbeddedModel, demo};

use super::{
    Bar, Config, closed, noop,
    process::Process,
    report::{Row, Unit},
    rival::{Rival, Serve},
    versus::{tokenizer, workload},
};
use crate::load::{Jobs, check, run as load};

const CONNECTIONS: usize = 64;

/// One kind of request, and who is to answer it.
struct Case {
    what: &'static str,
    jobs: Arc<Jobs>,
    files: EmbeddedModel,
    serve: Serve,
}

/// Our rates beside those of rivals; nothing if there are none.
pub(super) fn measure(
    config: &Config,
    rivals: &[Rival],
    bar: &Bar,
    skipped: &mut Vec<String>,
) -> Result<Vec<Row>> {
    if rivals.is_empty() {
        return Ok(Vec::new());
    }
    let tokenizer = tokenizer()?;
    let make = workload(&tokenizer);
    let cases = [
        Case {
            what: "POST /v1/completions, one word, one token",
            jobs: Arc::new(make.complete_a_word()),
            files: demo::LM,
            serve: Serve::Lm,
        },
        Case {
            what: "POST /classify, one word",
            jobs: Arc::new(make.classify_a_word()),
            files: demo::CLASSIFIER,
            serve: Serve::Classifier,
        },
    ];
    let mut rows = Vec::new();
    for case in &cases {
        rows.extend(rates(config, rivals, bar, skipped, case)?);
    }
    Ok(rows)
}

fn rates(
    config: &Config,
    rivals: &[Rival],
    bar: &Bar,
    skipped: &mut Vec<String>,
    case: &Case,
) -> Result<Vec<Row>> {
    let nothing = noop::Here::serve(ServerConfig::default(), vec![noop::idle(&case.files)?])?;
    let demo = Process::prelude(&config.program)?;
    let mut addresses = vec![nothing.address.to_string(), demo.address.clone()];
    let mut servers = Vec::new();
    for &rival in rivals {
        bar.says(&format!("starting {}", rival.title()));
        let started = rival.start(&config.out, &config.models, case.serve);
        let answers = started.and_then(|server| {
            check(&server.address, &case.jobs.first(2))?;
            Ok(server)
        });
        match answers {
            Ok(server) => {
                addresses.push(server.address.clone());
                servers.push((rival, server));
            }
            Err(why) => skipped.push(format!("{}: {}: {why:#}", case.what, rival.title())),
        }
    }
    let mut rates = vec![Vec::new(); addresses.len()];
    for round in 0..config.rounds {
        bar.says(&format!("{}: round {}", case.what, round + 1));
        for (address, rates) in addresses.iter().zip(&mut rates) {
            let tally = load(address, &case.jobs, closed(CONNECTIONS, config.time))?;
            let all_well = tally.failures() == 0 && tally.count(429) == 0 && tally.count(200) > 0;
            ensure!(all_well, "{}: {:?}", case.what, tally.by_status.keys());
            rates.push(tally.per_second());
        }
    }
    let mut theirs = rates.split_off(2);
    let ours = [("no-op model", 0), ("demo model", 1)];
    let row = |(model, at): (&str, usize)| {
        let name = format!("{}, {model}, 64 connections", case.what);
        let mut row = Row::new(name, Unit::PerSecond, rates[at].clone());
        for ((rival, _), rates) in servers.iter().zip(&mut theirs) {
            row.against(&format!("{}, demo model", rival.title()), rates, None);
        }
        row
    };
    let rows = ours.map(row);
    drop(servers);
    Ok(rows.into())
}
