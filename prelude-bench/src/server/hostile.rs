//! Honest clients, alone and beside a client that sends bodies made to be expensive or broken.
//!
//! Both loads are open loops, so the honest clients ask for the same in both cases. Each hostile
//! body is different from all others, so that no remembered refusal makes it cheap.

mod swollen;
mod unread;

use std::{sync::Arc, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use prelude_server::demo;
use serde_json::{Value, json};

use super::{
    Session, closed,
    report::{Row, Unit},
    versus::{tokenizer, workload},
};
use crate::{
    load::{Arrivals, Job, Jobs, Load, NUMBER, Tally, run as load},
    process::Process,
};

/// Connections that find capacity.
const BUSY: usize = 16;
/// Connections of honest clients in the open loop: more than they use at a time.
const HONEST: usize = 64;
/// Connections of the hostile client.
const ATTACKERS: usize = 16;
/// The honest load, as a share of what the server can do.
const SHARE: f64 = 0.25;
/// Hostile bodies in all.
const BODIES: f64 = 1_000.0;
/// Upper bound of the honest clients' P99, in times of what it is alone.
const SLOWER_MAX: f64 = 2.0;
/// Upper bound of the server's growth at its peak: the compiles that run at the same time may take
/// 64 MiB each.
const GROWTH_MAX_MIB: f64 = 128.0;

/// Measures honest clients alone, then beside hostile bodies.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    let session = &*session;
    let Session { config, bar, .. } = session;
    let tokenizer = tokenizer()?;
    let workload = workload(&tokenizer);
    let honest = Arc::new(workload.chat(super::DISTINCT));
    let hostile = Arc::new(Jobs::numbered(bodies(demo::LM.name), 1));
    let server = Process::prelude(&config.program)?;
    bar.says("hostile: capacity of honest requests");
    let capacity = load(&server.address, &honest, closed(BUSY, config.time))?;
    ensure!(capacity.failures() == 0, "requests failed: {capacity:?}");
    let open = |connections, per_second, seed| Load {
        connections,
        arrivals: Arrivals::Open { per_second, seed },
        warm_up: Duration::ZERO,
        time: config.overload,
    };
    let honest_load = open(HONEST, SHARE * capacity.per_second(), 12);
    bar.says("hostile: honest clients alone");
    let alone = load(&server.address, &honest, honest_load)?;
    let idle = server.peak_bytes()?;
    bar.says("hostile: honest clients beside hostile bodies");
    let attack = open(ATTACKERS, BODIES / config.overload.as_secs_f64(), 13);
    let (beside, attack) = thread::scope(|scope| {
        let attack = scope.spawn(|| load(&server.address, &hostile, attack));
        let beside = load(&server.address, &honest, honest_load);
        (beside, attack.join())
    });
    let attack = attack
        .map_err(|_| ())
        .ok()
        .context("the hostile load's thread ended")??;
    let peak = server.peak_bytes()?;
    let mut rows = rows(&alone, &beside?, &attack, peak.saturating_sub(idle));
    drop(server);
    rows.extend(unread::measure(session, &honest, honest_load, &alone)?);
    rows.extend(swollen::measure(session)?);
    Ok(rows)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run")]
fn rows(alone: &Tally, beside: &Tally, attack: &Tally, growth: u64) -> Vec<Row> {
    let p99 = |tally: &Tally| tally.quantile(200, 0.99) * 1e3;
    let slower = p99(beside) / p99(alone);
    let failures = (alone.failures() + beside.failures()) as f64;
    let faults = |tally: &Tally| {
        tally
            .by_status
            .range(500..)
            .map(|(_, l)| l.len())
            .sum::<u64>()
    };
    let faults = (faults(beside) + faults(attack) + attack.broken) as f64;
    let answers = attack.by_status.iter();
    let answers: Vec<String> = answers.map(|(s, l)| format!("{s}: {}", l.len())).collect();
    let growth = growth as f64 / f64::from(1 << 20);
    let load = format!(
        "one-token chats, {:.0} requests a second, a quarter of what the server can do",
        alone.asked_per_second()
    );
    let broken = "hostile: honest requests refused or broken";
    let grown = "hostile: growth of memory at its peak";
    let statuses = format!(
        "answers to hostile bodies by status: {}",
        answers.join(", ")
    );
    vec![
        Row::one(
            "hostile: honest clients alone, P99",
            Unit::Millis,
            p99(alone),
        )
        .noting(load),
        Row::one(
            "hostile: honest clients beside, P99",
            Unit::Millis,
            p99(beside),
        ),
        Row::one(
            "hostile: P99 beside, in times of alone",
            Unit::Times,
            slower,
        )
        .at_most(SLOWER_MAX),
        Row::one(broken, Unit::Count, failures).at_most(0.0),
        Row::one("hostile: 5xx or broken connections", Unit::Count, faults)
            .at_most(0.0)
            .noting(statuses),
        Row::one(grown, Unit::Mebibytes, growth).at_most(GROWTH_MAX_MIB),
    ]
}

/// Returns one body of each kind; each has a place for its number.
fn bodies(model: &str) -> Vec<Job> {
    let job = |path, body: String| Job {
        path,
        body: Bytes::from(body),
    };
    let constrained = |constraint: Value| {
        let body = json!({"model": model, "prompt": "x", "max_tokens": 4,
            "structured_outputs": constraint});
        job("/v1/completions", body.to_string())
    };
    let properties: Value = (0..6_000).map(|i| (format!("p{i}"), json!({}))).collect();
    let enumeration: Vec<String> = (0..3_000).map(|i| format!("i{i}{NUMBER}")).collect();
    let text = |unit: &str| unit.repeat(2_000_000 / unit.len()) + NUMBER;
    vec![
        constrained(
            json!({"regex": format!("{NUMBER}{}{}", "a?".repeat(30_000), "b".repeat(1_000))}),
        ),
        constrained(
            json!({"regex": format!("{NUMBER}((((a|b){{0,1000}}){{0,1000}}){{0,1000}}){{0,1000}}")}),
        ),
        constrained(json!({"regex": format!("{NUMBER}{}", "\\w".repeat(30_000))})),
        constrained(json!({"json": {"properties": properties, "title": NUMBER}})),
        constrained(json!({"json": {"allOf": [{"enum": enumeration}, {"enum": enumeration}]}})),
        constrained(
            json!({"grammar": format!("start: A{{1,100000}} \"{NUMBER}\"\nA: /(a|ab|b){{1,1000}}/")}),
        ),
        job(
            "/v1/completions",
            json!({"model": model, "prompt": text("a\u{323}\u{301}"), "max_tokens": 1}).to_string(),
        ),
        job("/classify", json!({"input": text("\u{200d}")}).to_string()),
        job(
            "/v1/completions",
            format!("{}{NUMBER}{}", "[".repeat(50_000), "]".repeat(50_000)),
        ),
        job(
            "/v1/completions",
            format!("{{\"model\": \"{model}\", \"prompt\": \"{NUMBER}\", \"max_tokens\": 1e400}}"),
        ),
        job(
            "/v1/chat/completions",
            format!(
                "{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"{NUMBER}"
            ),
        ),
        job(
            "/v1/embeddings",
            json!({"model": model, "input": vec![NUMBER; 5_000]}).to_string(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hdrhistogram::Histogram;

    use super::*;

    fn tally(status: u16, ns: u64) -> Tally {
        let mut latencies = Histogram::new_with_max(1_000_000_000, 3).unwrap();
        latencies.record_n(ns, 100).unwrap();
        Tally {
            by_status: BTreeMap::from([(status, latencies)]),
            elapsed: Duration::from_secs(1),
            ..Tally::new()
        }
    }

    fn reached(beside: &Tally, attack: &Tally, growth: u64) -> Vec<bool> {
        let rows = rows(&tally(200, 1_000_000), beside, attack, growth);
        let verdicts = rows.iter().filter_map(|row| row.verdict.as_ref());
        verdicts.map(|verdict| verdict.reached).collect()
    }

    #[test]
    fn each_verdict_can_fail() {
        let fine = reached(&tally(200, 1_500_000), &tally(400, 1_000_000), 1 << 20);
        assert_eq!(fine, [true, true, true, true]);
        let slow = reached(&tally(200, 3_000_000), &tally(500, 1_000_000), 1 << 30);
        assert_eq!(slow, [false, true, false, false]);
        let refused = reached(&tally(400, 1_000_000), &tally(400, 1_000_000), 0);
        assert!(!refused[1]);
    }

    #[test]
    fn every_body_has_a_place_for_its_number() {
        let jobs = bodies("m");
        let count = jobs.len();
        assert_eq!(Jobs::numbered(jobs, 1).first(usize::MAX).len(), count);
    }
}
