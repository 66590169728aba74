//! Bodies that are small on the wire and large in memory, one after the other and eight at once; and
//! the memory that is left when they are gone.

use std::{sync::Arc, thread, time::Duration};

use anyhow::Result;
use bytes::Bytes;

use super::super::{
    Session,
    report::{Row, Unit},
};
use crate::{
    load::{Arrivals, Job, Jobs, Load, Tally, run as load},
    process::Process,
};

/// Bytes of a body: a little less than a server takes.
const BODY_BYTES: usize = 9_500_000;
/// Bodies at once.
const TOGETHER: usize = 8;
/// Longest time for one of them, or for all at once.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which memory is to be given back.
const LATER: Duration = Duration::from_secs(10);
/// Upper bound of the growth at its peak: what bodies in flight may take, by default.
const PEAK_MAX_MIB: f64 = 512.0;
/// Upper bound of what is held later, beyond what idle servers hold and the server says it uses.
const LEFT_MAX_MIB: f64 = 64.0;

/// The memory of a server in MiB: at its peak and ten seconds later, both above idle, and the
/// answers.
struct Seen {
    peak: f64,
    left: f64,
    answers: Tally,
}

/// Measures the server's memory with each body alone, and with several at once.
pub(super) fn measure(session: &Session<'_>) -> Result<Vec<Row>> {
    let Session { config, bar, .. } = session;
    let server = Process::prelude(&config.program)?;
    let idle = server.resident_bytes()?;
    let mut alone = Vec::new();
    for (name, job) in bodies() {
        bar.says(&format!("hostile: {name}"));
        alone.push((name, ask(&server, idle, vec![job])?));
    }
    bar.says("hostile: eight bodies at once");
    let many = bodies().into_iter().map(|(_, job)| job).cycle();
    let together = ask(&server, idle, many.take(TOGETHER).collect())?;
    Ok(rows(&alone, &together))
}

/// Sends bodies at once.
fn ask(server: &Process, idle: u64, jobs: Vec<Job>) -> Result<Seen> {
    server.forget_peak()?;
    let once = Load {
        connections: jobs.len(),
        arrivals: Arrivals::Closed,
        warm_up: Duration::ZERO,
        time: PATIENCE,
    };
    let answers = load(&server.address, &Arc::new(Jobs::once(jobs)), once)?;
    let peak = server.peak_bytes()?;
    thread::sleep(LATER);
    let left = server.resident_bytes()?;
    let above = |bytes: u64| mebibytes(bytes.saturating_sub(idle));
    Ok(Seen {
        peak: above(peak),
        left: above(left) - in_use(server)?,
        answers,
    })
}

/// Returns what the server says that it uses beyond what it held idle, in MiB.
fn in_use(server: &Process) -> Result<f64> {
    let mut bytes = 0.0;
    for name in [
        "prelude:kv_bytes{",
        "prelude:grammar_cache_bytes{",
        "prelude:word_cache_bytes{",
    ] {
        bytes += server.metric(name)?;
    }
    Ok(bytes / f64::from(1 << 20))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn rows(alone: &[(&str, Seen)], together: &Seen) -> Vec<Row> {
    let each = |value: fn(&Seen) -> f64| {
        let values = alone.iter();
        let values: Vec<String> = values
            .map(|(name, seen)| format!("{name} {:.0}", value(seen)))
            .collect();
        values.join(", ")
    };
    let most = |value: fn(&Seen) -> f64| {
        let values = alone.iter().map(|(_, seen)| value(seen));
        values.fold(0.0, f64::max)
    };
    let row = |what: &str, value: f64| Row::one(format!("hostile: {what}"), Unit::Mebibytes, value);
    let runs = alone.iter().map(|(_, seen)| seen).chain([together]);
    let (mut faults, mut answers) = (0, Vec::new());
    for Seen { answers: tally, .. } in runs {
        let failed = tally.by_status.range(500..);
        faults += tally.broken + failed.map(|(_, l)| l.len()).sum::<u64>();
        let all = tally.by_status.iter();
        answers.extend(all.map(|(status, l)| format!("{status}: {}", l.len())));
    }
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    let faults = faults as f64;
    vec![
        row(
            "a body of 9.5 MB, growth at its peak",
            most(|seen| seen.peak),
        )
        .at_most(PEAK_MAX_MIB)
        .noting(each(|seen| seen.peak)),
        row(
            "a body of 9.5 MB, held after 10 s beyond idle and caches",
            most(|seen| seen.left),
        )
        .at_most(LEFT_MAX_MIB)
        .noting(each(|seen| seen.left)),
        row(
            "eight such bodies at once, growth at its peak",
            together.peak,
        )
        .at_most(PEAK_MAX_MIB),
        row(
            "eight such bodies at once, held after 10 s beyond idle and caches",
            together.left,
        )
        .at_most(LEFT_MAX_MIB),
        Row::one(
            "hostile: 5xx or broken connections of bodies of 9.5 MB",
            Unit::Count,
            faults,
        )
        .at_most(0.0)
        .noting(format!("answers by status: {}", answers.join(", "))),
    ]
}

/// Returns bodies that become trees, each by its name.
fn bodies() -> Vec<(&'static str, Job)> {
    let list = |value: &str| {
        let count = BODY_BYTES / (value.len() + 1);
        format!("[{}]", vec![value; count].join(","))
    };
    let messages = r#""messages": [{"role": "user", "content": "a"}], "max_tokens": 1"#;
    let tools = format!(
        r#""tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"x": {}}}}}}}]"#,
        list(r#"{"":0}"#)
    );
    let names: Vec<String> = (0..BODY_BYTES / 11)
        .map(|i| format!("\"e{i:07}\""))
        .collect();
    let format = format!(
        r#""response_format": {{"type": "json_schema", "json_schema": {{"name": "n", "schema": {{"enum": [{}]}}}}}}"#,
        names.join(",")
    );
    let strange = format!(
        r#""messages": [{{"role": "user", "content": "a", "x": {}}}], "max_tokens": 1"#,
        list(r#"{"":0}"#)
    );
    let chat = "/v1/chat/completions";
    let job = |path, body: String| Job {
        path,
        body: Bytes::from(format!("{{{body}}}")),
    };
    vec![
        ("tools", job(chat, format!("{messages}, {tools}"))),
        (
            "tools of /tokenize",
            job("/tokenize", format!("{messages}, {tools}")),
        ),
        (
            "forced tools",
            job(
                chat,
                format!("{messages}, {tools}, \"tool_choice\": \"required\""),
            ),
        ),
        ("schema", job(chat, format!("{messages}, {format}"))),
        ("member of a message", job(chat, strange)),
        (
            "numbers",
            job(chat, format!(r#"{messages}, "documents": {}"#, list("0"))),
        ),
        (
            "messages of numbers",
            job(chat, format!(r#""messages": {}"#, list("0"))),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_their_size() {
        for (name, job) in bodies() {
            let size = job.body.len();
            assert!(
                (BODY_BYTES / 100 * 99..10 << 20).contains(&size),
                "{name}: {size}"
            );
            let read = serde_json::from_slice::<serde::de::IgnoredAny>(&job.body);
            assert!(read.is_ok(), "{name}: {read:?}");
        }
    }

    #[test]
    fn each_verdict_can_fail() {
        let seen = |peak, left, broken| Seen {
            peak,
            left,
            answers: Tally {
                broken,
                ..Tally::new()
            },
        };
        let reached = |alone, together| {
            let rows = rows(&[("a", seen(1.0, -1.0, 0)), ("b", alone)], &together);
            let verdicts = rows.iter().filter_map(|row| row.verdict.as_ref());
            verdicts.map(|verdict| verdict.reached).collect::<Vec<_>>()
        };
        let fine = reached(seen(500.0, 60.0, 0), seen(500.0, 60.0, 0));
        assert_eq!(fine, [true; 5]);
        let bad = reached(seen(600.0, 70.0, 0), seen(600.0, 70.0, 1));
        assert_eq!(bad, [false; 5]);
    }
}
