//! Workloads of papers as loads: their requests come at the workload's own times.

#![expect(clippy::cast_precision_loss, reason = "counts of a run")]

use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use clap::ValueEnum as _;
use prelude_core::Timestamp;

use super::{
    folders,
    scenario::{Phase, Values},
};
use crate::{
    replay::{
        Fate, Shape,
        requests::of as requests_of,
        send::{Replayed, Sent, replay},
    },
    sim::{Kind, Order, Setting, Workload},
};

/// Longest wait for an answer: an overloaded server answers late.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Most requests at the same time: more than come.
const CONNECTIONS: usize = 2_048;

/// Sends a workload's requests to a server, all at once unless the phase has a rate.
pub(super) fn ask(address: &str, phase: &Phase, values: &mut Values, round: usize) -> Result<()> {
    let rate = phase.rate.as_ref();
    let rate = rate.map(|rate| values.compute(rate, round)).transpose()?;
    let limit = phase.limit.as_deref().unwrap_or("0");
    let limit = values.compute(limit, round)?;
    let workload = workload(&phase.body, rate)?;
    let requests = requests_of(&workload, &Shape::one_token(folders::VOCABULARY))?;
    let sent = Sent {
        address: address.to_owned(),
        connections: CONNECTIONS,
        timeout: TIMEOUT,
    };
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let replayed = runtime.block_on(replay(&sent, &requests, |_| {}))?;
    ensure!(!replayed.is_cut, "interrupted");
    for (name, value) in figures(&workload, replayed, limit)? {
        values.push(&format!("{}.{name}", phase.id), value);
    }
    Ok(())
}

/// Makes a workload: its kind, order, prefixes, requests (0 for as many as it has) and the share of the
/// paper's lengths.
fn workload(body: &str, rate: Option<f64>) -> Result<Workload> {
    let [_, kind, order, prefixes, requests, lengths] = &*body.split(' ').collect::<Vec<_>>()
    else {
        bail!("`{body}` is no workload");
    };
    let kind = Kind::from_str(kind, true).map_err(|why| anyhow!("{kind}: {why}"))?;
    let setting = Setting {
        engines: 1,
        rate: Some(rate.unwrap_or(1.0)),
        requests: Some(requests.parse()?).filter(|&requests| requests > 0),
        prefixes: Some(prefixes.parse()?),
        order: Order::from_str(order, true).map_err(|why| anyhow!("{order}: {why}"))?,
        seed: 1,
        ..Setting::default()
    };
    let mut workload = kind.generate(&setting)?;
    let lengths: f64 = lengths.parse()?;
    for arrival in &mut workload.arrivals {
        arrival.prompt = arrival.prompt.scaled(lengths);
        if rate.is_none() {
            arrival.at = Timestamp::ZERO;
        }
    }
    Ok(workload)
}

/// Returns what a run found; times are in milliseconds from each request's arrival. The requests of
/// the warm-up do not count, but for the rate.
fn figures(
    workload: &Workload,
    replayed: Replayed,
    limit: f64,
) -> Result<[(&'static str, f64); 5]> {
    let (mut times, mut tokens, mut cached) = (Vec::new(), 0.0, 0.0);
    for answer in replayed.answers {
        ensure!(
            answer.fate == Fate::Answered,
            "a request failed: {answer:?}"
        );
        if answer.request < workload.warm_up {
            continue;
        }
        // An answer has one token, which may be one without text.
        times.push(1e3 * answer.end.as_secs_f64());
        tokens += f64::from(workload.arrivals[answer.request].prompt.len());
        cached += f64::from(answer.cached_tokens.unwrap_or(0));
    }
    ensure!(!times.is_empty(), "no request counts");
    times.sort_unstable_by(f64::total_cmp);
    let count = times.len() as f64;
    let in_time = times.partition_point(|&ms| ms <= limit) as f64;
    Ok([
        (
            "rate",
            workload.arrivals.len() as f64 / replayed.elapsed.as_secs_f64(),
        ),
        ("mean", times.iter().sum::<f64>() / count),
        ("p99", times[(times.len() - 1) * 99 / 100]),
        ("in_time", in_time / count),
        ("cached", cached / tokens),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        replay::Answer,
        server::scenario::cases,
        sim::{Arrival, Prompt, Run},
    };

    fn replayed(ends_ms: &[(usize, u64)]) -> Replayed {
        let answer = |&(request, ms): &(usize, u64)| Answer {
            request,
            fate: Fate::Answered,
            sent: Duration::ZERO,
            first: None,
            end: Duration::from_millis(ms),
            tokens: 1,
            cached_tokens: Some(100),
        };
        Replayed {
            answers: ends_ms.iter().map(answer).collect(),
            is_cut: false,
            elapsed: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_run_counts_what_comes_after_the_warm_up() {
        let arrival = |len| Arrival {
            at: Timestamp::ZERO,
            prompt: Prompt::new([Run {
                stream: 1,
                start: 0,
                len,
            }]),
            output_tokens: 1,
            key: 0,
            user: 0,
            root: 0,
        };
        let lens = [100, 200, 300, 500];
        let mut workload = Workload::new("w", lens.map(arrival).to_vec());
        workload.warm_up = 1;
        let ends = [(0, 900), (3, 30), (1, 10), (2, 20)];
        let found = figures(&workload, replayed(&ends), 20.0).unwrap();
        let [rate, mean, p99, in_time, cached] = found.map(|(_, value)| value);
        assert_eq!((rate, mean, p99, cached), (4.0, 20.0, 20.0, 0.3));
        assert!((in_time - 2.0 / 3.0).abs() < 1e-9, "{in_time}");
        let mut failed = replayed(&ends);
        failed.answers[0].fate = Fate::Refused(429, String::new());
        assert!(figures(&workload, failed, 20.0).is_err());
        assert!(figures(&workload, replayed(&ends[..1]), 20.0).is_err());
    }

    #[test]
    fn prompts_fit_their_models() {
        for case in cases("workloads", 1).unwrap() {
            let context = case.servers[0].model.rsplit('-').next().unwrap();
            let context: u32 = context.parse().unwrap();
            for phase in &case.phases {
                let workload = workload(&phase.body, Some(10.0)).unwrap();
                let longest = workload.arrivals.iter().map(|a| a.prompt.len()).max();
                let longest = longest.unwrap();
                assert!(
                    longest < context && longest > context / 4,
                    "{}: {longest}",
                    phase.body
                );
            }
        }
    }
}
