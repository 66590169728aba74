//! Measurements of the same requests to us and to rivals, in turns.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use prelude_server::{assets::Assets, demo};
use prelude_text::Tokenizer;

use super::{
    DISTINCT, DISTINCT_STATES, Session,
    report::{Row, Unit},
    rival::Serve,
    turns::{Case, Figure, Rivals},
    workload::Workload,
};
use crate::{load::Arrivals, process::Process};

pub(crate) fn tokenizer() -> Result<Tokenizer> {
    let assets = Assets::embedded(&demo::LM).context("the demo model")?;
    Ok(assets.tokenizer)
}

pub(crate) fn workload(tokenizer: &Tokenizer) -> Workload<'_> {
    Workload {
        tokenizer,
        lm: demo::LM.name,
        classifier: demo::CLASSIFIER.name,
    }
}

/// Measures one-token answers, fifty prompts that share most of their tokens, vectors, classes, and
/// decisions over a fresh state of 500 tokens.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    let tokenizer = tokenizer()?;
    let make = workload(&tokenizer);
    let alone = |name: &str, jobs, target| {
        let case = Case::closed(name, jobs, 1, Figure::Median);
        case.aiming(target)
    };
    let crowd = |name: &str, jobs, target| {
        let case = Case::closed(name, jobs, 64, Figure::Rate);
        case.aiming(target)
    };
    let chat = "POST /v1/chat/completions, one token";
    let completion = "POST /v1/completions, one token of a chat prompt";
    let mut cases = vec![
        alone(chat, make.chat(DISTINCT), 6.0),
        crowd(chat, make.chat(DISTINCT), 4.0),
        alone(completion, make.completion(DISTINCT), 6.0),
        crowd(completion, make.completion(DISTINCT), 4.0),
    ];
    let ids = "POST /v1/completions, one token of 128 token ids";
    cases.push(alone(ids, make.ids(DISTINCT / 10, 128), 3.0));
    cases.push(crowd(ids, make.ids(DISTINCT / 10, 128), 3.0));
    let forest = "POST /v1/completions, 50 prompts of 600 shared and 24 own token ids";
    let prompts = make.forest(DISTINCT_STATES / 10, 50, (600, 24));
    cases.push(alone(forest, prompts, 10.0));
    for (questions, target) in [(1, 5.0), (16, 9.0), (50, 12.0)] {
        let name = format!("POST /v1/systemone, fresh state of 500 tokens, yes/no x {questions}");
        let jobs = make.decide(DISTINCT_STATES, 500, questions);
        cases.push(alone(&name, jobs, target));
    }
    let mut rows = beside(session, Serve::Lm, &cases)?;
    drop(cases);
    let embed = "POST /v1/embeddings, one message";
    let cases = [
        Case::closed(embed, make.embed(DISTINCT), 1, Figure::Median),
        Case::closed(embed, make.embed(DISTINCT), 64, Figure::Rate),
    ];
    rows.extend(beside(session, Serve::Embedder, &cases)?);
    drop(cases);
    let classify = "POST /classify, one message";
    let cases = [
        alone(classify, make.classify(DISTINCT), 6.0),
        crowd(classify, make.classify(DISTINCT), 4.0),
    ];
    rows.extend(beside(session, Serve::Classifier, &cases)?);
    Ok(rows)
}

/// Measures fifty questions about one state of 2,000 tokens: as one request and as fifty at once.
pub(super) fn decision(session: &mut Session<'_>) -> Result<Vec<Row>> {
    const ASK: usize = 50;
    let tokenizer = tokenizer()?;
    let make = workload(&tokenizer);
    let whole = "50 yes/no questions, fresh state of 2,000 tokens, one request";
    let jobs = make.decide_for_ever(2_000, ASK);
    let mut cases = vec![Case::closed(whole, jobs, 1, Figure::Median).aiming(8.0)];
    cases.push(Case {
        name: "the same as 50 requests at once, until the last is answered".to_owned(),
        jobs: Arc::new(make.decide_apart(2_000, ASK)),
        connections: ASK,
        arrivals: Arrivals::Together,
        figure: Figure::Median,
        target: Some(1.0),
    });
    let mut rows = beside(session, Serve::Lm, &cases)?;
    let ratios = rows[1].rounds.iter().zip(&rows[0].rounds);
    let ratios: Vec<f64> = ratios.map(|(apart, whole)| apart / whole).collect();
    let gain = Row::new("one request is faster than 50 by", Unit::Ratio, ratios);
    rows.push(gain.at_least(1.0));
    Ok(rows)
}

/// Asks us and the rivals in turns, and says how long rivals took to start.
fn beside(session: &mut Session<'_>, serve: Serve, cases: &[Case]) -> Result<Vec<Row>> {
    let config = session.config;
    let ours = match serve {
        Serve::Embedder => {
            let model = config.models.join(demo::LM.name);
            Process::prelude_embedding(&config.program, &model)?
        }
        Serve::Lm | Serve::Classifier => Process::prelude(&config.program)?,
    };
    let rivals = Rivals::start(session, serve);
    let mut rows = Vec::new();
    for case in cases {
        rows.extend(rivals.beside(session, &[("", &ours.address)], case)?);
    }
    rows.extend(rivals.starts(config));
    Ok(rows)
}
