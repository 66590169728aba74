//! The same requests to us and to rivals, in turns.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use prelude_server::Tokenizer;
use prelude_server::{assets::Assets, demo};

use super::{
    Bar, Config, DISTINCT, DISTINCT_STATES, closed,
    process::Process,
    report::{Row, Unit, Verdict},
    rival::{Rival, Serve},
    workload::Workload,
};
use crate::load::{Arrivals, Jobs, Load, Tally, check, run as load};

/// What of a tally counts.
#[derive(Clone, Copy)]
enum Figure {
    Median,
    Rate,
}

/// One kind of request.
struct Case {
    name: String,
    jobs: Arc<Jobs>,
    connections: usize,
    arrivals: Arrivals,
    figure: Figure,
    /// How many times better than a rival we are to be.
    target: f64,
}

impl Case {
    fn closed(name: &str, jobs: Jobs, connections: usize, figure: Figure, target: f64) -> Self {
        let crowd = match connections {
            1 => "one connection".to_owned(),
            n => format!("{n} connections"),
        };
        Self {
            name: format!("{name}, {crowd}"),
            jobs: Arc::new(jobs),
            connections,
            arrivals: Arrivals::Closed,
            figure,
            target,
        }
    }

    /// Seconds, or requests per second, of one round.
    fn ask(&self, address: &str, time: Duration) -> Result<f64> {
        let plan = Load {
            arrivals: self.arrivals,
            ..closed(self.connections, time)
        };
        let tally: Tally = load(address, &self.jobs, plan)?;
        ensure!(
            tally.failures() == 0 && tally.count(429) == 0 && tally.count(200) > 0,
            "{}: not every request was answered 200: {:?}",
            self.name,
            tally.by_status.keys()
        );
        Ok(match self.figure {
            Figure::Median => tally.quantile(200, 0.5) * 1e3,
            Figure::Rate => tally.per_second(),
        })
    }

    fn unit(&self) -> Unit {
        match self.figure {
            Figure::Median => Unit::Millis,
            Figure::Rate => Unit::PerSecond,
        }
    }
}

pub(super) fn tokenizer() -> Result<Tokenizer> {
    let assets = Assets::embedded(&demo::LM).context("the demo model")?;
    Ok(assets.tokenizer)
}

pub(super) fn workload(tokenizer: &Tokenizer) -> Workload<'_> {
    Workload {
        tokenizer,
        lm: demo::LM.name,
        classifier: demo::CLASSIFIER.name,
    }
}

/// One-token answers, classes, and decisions over a fresh state of 500 tokens.
pub(super) fn measure(
    config: &Config,
    rivals: &[Rival],
    bar: &Bar,
    skipped: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let tokenizer = tokenizer()?;
    let make = workload(&tokenizer);
    let chat = "POST /v1/chat/completions, one token";
    let completion = "POST /v1/completions, one token of a chat prompt";
    let mut cases = vec![
        Case::closed(chat, make.chat(DISTINCT), 1, Figure::Median, 6.0),
        Case::closed(chat, make.chat(DISTINCT), 64, Figure::Rate, 4.0),
        Case::closed(
            completion,
            make.completion(DISTINCT),
            1,
            Figure::Median,
            6.0,
        ),
        Case::closed(completion, make.completion(DISTINCT), 64, Figure::Rate, 4.0),
    ];
    for (questions, target) in [(1, 2.0), (16, 7.0), (50, 8.0)] {
        let name = format!("POST /v1/systemone, fresh state of 500 tokens, yes/no x {questions}");
        let jobs = make.decide(DISTINCT_STATES, 500, questions);
        cases.push(Case::closed(&name, jobs, 1, Figure::Median, target));
    }
    let mut rows = beside(config, rivals, Serve::Lm, &cases, bar, skipped)?;
    drop(cases);
    let classify = "POST /classify, one message";
    let cases = [
        Case::closed(classify, make.classify(DISTINCT), 1, Figure::Median, 6.0),
        Case::closed(classify, make.classify(DISTINCT), 64, Figure::Rate, 4.0),
    ];
    rows.extend(beside(
        config,
        rivals,
        Serve::Classifier,
        &cases,
        bar,
        skipped,
    )?);
    Ok(rows)
}

/// Fifty questions about one state of 2,000 tokens: as one request and as fifty at once.
pub(super) fn decision(
    config: &Config,
    rivals: &[Rival],
    bar: &Bar,
    skipped: &mut Vec<String>,
) -> Result<Vec<Row>> {
    const ASK: usize = 50;
    let tokenizer = tokenizer()?;
    let make = workload(&tokenizer);
    let whole = "50 yes/no questions, fresh state of 2,000 tokens, one request";
    let jobs = make.decide_for_ever(2_000, ASK);
    let mut cases = vec![Case::closed(whole, jobs, 1, Figure::Median, 8.0)];
    cases.push(Case {
        name: "the same as 50 requests at once, until the last is answered".to_owned(),
        jobs: Arc::new(make.decide_apart(2_000, ASK)),
        connections: ASK,
        arrivals: Arrivals::Together,
        figure: Figure::Median,
        target: 1.0,
    });
    let mut rows = beside(config, rivals, Serve::Lm, &cases, bar, skipped)?;
    let ratios = rows[1].rounds.iter().zip(&rows[0].rounds);
    let ratios: Vec<f64> = ratios.map(|(apart, whole)| apart / whole).collect();
    let gain = Row::new("one request is faster than 50 by", Unit::Ratio, ratios);
    let verdict = Verdict::at_least(gain.value, 1.0);
    rows.push(gain.with(verdict));
    Ok(rows)
}

/// Asks us and the rivals in turns.
fn beside(
    config: &Config,
    rivals: &[Rival],
    serve: Serve,
    cases: &[Case],
    bar: &Bar,
    skipped: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let ours = Process::prelude(&config.program)?;
    let mut servers = Vec::new();
    for &rival in rivals {
        bar.says(&format!(
            "starting {} (takes a minute or more)",
            rival.title()
        ));
        match rival.start(&config.out, &config.models, serve) {
            Ok(server) => servers.push((rival, server)),
            Err(why) => skipped.push(format!("{} did not start: {why:#}", rival.title())),
        }
    }
    let mut rows = Vec::new();
    for case in cases {
        check(&ours.address, &case.jobs.first(2)).context("prelude")?;
        let mut mine = Vec::new();
        // Who cannot answer a kind of request sits it out.
        let mut theirs: Vec<(&(Rival, Process), Vec<f64>)> = Vec::new();
        for server in &servers {
            match check(&server.1.address, &case.jobs.first(2)) {
                Ok(()) => theirs.push((server, Vec::new())),
                Err(why) => {
                    skipped.push(format!("{}: {}: {why:#}", server.0.title(), case.name));
                }
            }
        }
        for round in 0..config.rounds {
            bar.says(&format!("{}: round {}", case.name, round + 1));
            mine.push(case.ask(&ours.address, config.time)?);
            for ((rival, server), values) in &mut theirs {
                let value = case.ask(&server.address, config.time);
                values.push(value.with_context(|| rival.title())?);
            }
        }
        let mut row = Row::new(case.name.clone(), case.unit(), mine);
        if case.jobs.taken() > case.jobs.distinct() {
            let distinct = case.jobs.distinct();
            row = row.noting(format!("requests came again after {distinct}"));
        }
        for ((rival, _), values) in &theirs {
            let target = rival.is_aimed_at().then_some(case.target);
            row.against(rival.title(), values, target);
        }
        rows.push(row);
    }
    for (rival, server) in &servers {
        let seconds = server.ready_after.as_secs_f64();
        let name = format!("{}, from start to healthy", rival.title());
        rows.push(Row::new(name, Unit::Seconds, vec![seconds]));
    }
    Ok(rows)
}
