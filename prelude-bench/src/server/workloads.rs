//! Workloads of two papers against a server, under each policy that the papers compare.
//!
//! `PrefillOnly` (Du et al., SOSP 2025, §7): posts and credit histories with one token of answer,
//! first come first served against the shortest remaining job first. LAPS: conversations whose
//! short turns come between long ones, first come first served against LAPS.
//!
//! The papers' lengths belong to big models on GPUs. Here posts and histories have an eighth of
//! them, and so has the memory for KV; the model is the demo model with a longer context. Rates are
//! shares of what the server answers when all requests come at once. Each run has a server of its
//! own, so that no cache is warm but by the workload itself.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Result, ensure};
use prelude_core::Timestamp;

use super::{
    Session, folders,
    report::{Row, Unit},
};
use crate::{
    process::Process,
    replay::{
        Fate, Shape,
        requests::of as requests_of,
        send::{Replayed, Sent, replay},
    },
    sim::{Kind, Order, SHORT_TOKENS, Setting, Workload},
};

/// Longest start of a server.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for an answer: an overloaded server answers late.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Most requests at the same time: more than come.
const CONNECTIONS: usize = 2_048;
/// Tokens of a KV block.
const BLOCK: u64 = 16;

/// A workload and the server that it is for.
struct Case {
    name: &'static str,
    kind: Kind,
    order: Order,
    /// Users or histories.
    prefixes: u32,
    /// The number of requests, where the workload does not say it.
    requests: Option<u32>,
    /// Lengths of prompts, as a share of the paper's.
    lengths: f64,
    /// Tokens of the server's memory for KV; `None`: as much as it takes by itself.
    kv_tokens: Option<u64>,
    /// The policies that are compared, first the baseline, then ours.
    policies: &'static [&'static str],
    /// Arrival rates, in terms of the rate at which requests are answered that come all at once.
    loads: &'static [f64],
}

/// The length of `PrefillOnly`'s prompts here, as a share of the paper's.
const EIGHTH: f64 = 1.0 / 8.0;
/// Tokens of the longest input of chunked prefill on the paper's smallest device (table 2), an
/// eighth of them.
const EIGHTH_OF_MEMORY: u64 = 24_000 / 8;
/// Context of the model for `PrefillOnly`'s prompts, and for conversations.
const CONTEXTS: [u32; 2] = [8_192, 32_768];

/// Posts, of a user at once or of all users mixed.
const POSTS: Case = Case {
    name: "posts, users mixed",
    kind: Kind::Posts,
    order: Order::Shuffled,
    prefixes: 10,
    requests: None,
    lengths: EIGHTH,
    kv_tokens: Some(EIGHTH_OF_MEMORY),
    policies: &["fcfs", "srjf"],
    loads: &[1.0, 2.0],
};
const POSTS_AT_ONCE: Case = Case {
    name: "posts, a user's at once",
    order: Order::Grouped,
    ..POSTS
};
const CREDIT: Case = Case {
    name: "credit histories",
    kind: Kind::Credit,
    prefixes: 60,
    ..POSTS
};
const CONVERSATIONS: Case = Case {
    name: "conversations",
    kind: Kind::Conversation,
    order: Order::Shuffled,
    prefixes: 64,
    requests: Some(1_500),
    lengths: 1.0,
    kv_tokens: None,
    policies: &["fcfs", "laps", "srjf"],
    loads: &[0.5, 0.7, 0.9, 1.1],
};
/// The target of a first token, in mean service times: what LAPS's 400 ms are to the model that its
/// simulation has.
const TARGET_SERVICES: f64 = 20.0;
/// Least advantage of the shortest job first for mixed posts, in the mean at saturation.
const SRJF_GAIN: f64 = 3.0;
/// Least part of missed targets, and of the mean time to the first token, that LAPS avoids.
const LAPS_AVOIDS: [f64; 2] = [0.28, 0.30];

/// Measures all workloads.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    let [short, long] = CONTEXTS;
    let model = folders::demo_with_context(session.config, short)?;
    let mut rows = Vec::new();
    for case in [POSTS, POSTS_AT_ONCE, CREDIT] {
        rows.extend(prefill_only(session, &case, &model)?);
    }
    let model = folders::demo_with_context(session.config, long)?;
    rows.extend(laps(session, &CONVERSATIONS, &model)?);
    Ok(rows)
}

/// Measures means of arrival order and of the shortest job first, in turns.
fn prefill_only(session: &Session<'_>, case: &Case, model: &Path) -> Result<Vec<Row>> {
    let rate = case.rate_at_once(session, model, "srjf")?;
    let mut rows = vec![case.rate_row(rate)];
    for &load in case.loads {
        let runs = case.runs(session, model, load * rate, None)?;
        let name = |what: &str| format!("{}, {load} of that: {what}", case.name);
        let [fcfs, srjf] = &*runs else {
            unreachable!("two policies are compared");
        };
        for (policy, run) in case.policies.iter().zip(&runs) {
            rows.push(run.mean_row(name(&format!("{policy}, mean"))));
        }
        let gain = fcfs.mean() / srjf.mean();
        let gain = Row::one(name("fcfs in times of srjf, mean"), Unit::Ratio, gain);
        rows.push(
            match case.kind == Kind::Posts && case.order == Order::Shuffled {
                true => gain.at_least(SRJF_GAIN),
                false => gain,
            },
        );
    }
    Ok(rows)
}

/// Measures missed targets and means of arrival order, LAPS and the shortest job first, in turns.
fn laps(session: &Session<'_>, case: &Case, model: &Path) -> Result<Vec<Row>> {
    let rate = case.rate_at_once(session, model, "fcfs")?;
    let target = Duration::from_secs_f64(TARGET_SERVICES / rate);
    let mut rows = vec![case.rate_row(rate)];
    for &load in case.loads {
        let runs = case.runs(session, model, load * rate, Some(target))?;
        let name = |what: &str| format!("{}, {load} of that: {what}", case.name);
        for (policy, run) in case.policies.iter().zip(&runs) {
            let missed = 100.0 * run.share_after(target);
            let what = name(&format!("{policy}, mean to the first token"));
            let missed = format!(
                "{missed:.1} % after {:.0} ms; short turns {:.1} ms, P99 of all {:.0} ms",
                1e3 * target.as_secs_f64(),
                mean(&run.short_ms),
                run.p99()
            );
            rows.push(run.mean_row(what).noting(missed));
        }
        let [fcfs, laps] = [&runs[0], &runs[1]];
        let avoided = |of: &dyn Fn(&Run) -> f64| 1.0 - of(laps) / of(fcfs);
        let missed = avoided(&|run| run.share_after(target));
        let mean = avoided(&Run::mean);
        rows.extend([
            Row::one(name("missed targets that laps avoids"), Unit::Ratio, missed)
                .at_least(LAPS_AVOIDS[0]),
            Row::one(
                name("time to the first token that laps avoids"),
                Unit::Ratio,
                mean,
            )
            .at_least(LAPS_AVOIDS[1]),
        ]);
    }
    Ok(rows)
}

impl Case {
    fn workload(&self, rate: f64) -> Result<Workload> {
        let setting = Setting {
            engines: 1,
            rate: Some(rate),
            requests: self.requests,
            prefixes: Some(self.prefixes),
            order: self.order,
            seed: 1,
            ..Setting::default()
        };
        let mut workload = self.kind.generate(&setting)?;
        for arrival in &mut workload.arrivals {
            arrival.prompt = arrival.prompt.scaled(self.lengths);
        }
        Ok(workload)
    }

    /// Returns the answers per second if all requests come at once.
    #[expect(clippy::cast_precision_loss, reason = "a number of requests")]
    fn rate_at_once(&self, session: &Session<'_>, model: &Path, policy: &str) -> Result<f64> {
        session.bar.says(&format!("{}: all at once", self.name));
        let mut workload = self.workload(1.0)?;
        for arrival in &mut workload.arrivals {
            arrival.at = Timestamp::ZERO;
        }
        let run = self.run(session, model, policy, &workload, None)?;
        Ok(workload.arrivals.len() as f64 / run.elapsed.as_secs_f64())
    }

    fn rate_row(&self, rate: f64) -> Row {
        let name = format!("{}: answers when all come at once", self.name);
        Row::one(name, Unit::PerSecond, rate)
    }

    /// Runs the workload at `rate` under each policy.
    fn runs(
        &self,
        session: &Session<'_>,
        model: &Path,
        rate: f64,
        target: Option<Duration>,
    ) -> Result<Vec<Run>> {
        let workload = self.workload(rate)?;
        let run = |&policy: &&str| {
            session
                .bar
                .says(&format!("{}: {policy}, {rate:.0} a second", self.name));
            self.run(session, model, policy, &workload, target)
        };
        self.policies.iter().map(run).collect()
    }

    /// Runs a workload against a new server. `target` is LAPS's.
    fn run(
        &self,
        session: &Session<'_>,
        model: &Path,
        policy: &str,
        workload: &Workload,
        target: Option<Duration>,
    ) -> Result<Run> {
        let mut command = Command::new(&session.config.program);
        command
            .args(["serve", "--port", "0", "--policy", policy])
            .arg(model);
        // The papers have no other bound on waiting than their policies.
        command.env("PRELUDE_SCHEDULER__MAX_WAIT_MS", "0");
        if let Some(tokens) = self.kv_tokens {
            command.args(["--kv-blocks", &(tokens / BLOCK).to_string()]);
        }
        if let Some(target) = target {
            let ms = target.as_millis().max(1).to_string();
            command.env("PRELUDE_SCHEDULER__LAPS__TTFT_TARGET_MS", ms);
        }
        let server = Process::start(command, None, READY_WITHIN)?;
        let shape = Shape::one_token(folders::VOCABULARY);
        let requests = requests_of(workload, &shape)?;
        let sent = Sent {
            address: server.address.clone(),
            connections: CONNECTIONS,
            timeout: TIMEOUT,
        };
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build()?;
        let replayed = runtime.block_on(replay(&sent, &requests, |_| {}))?;
        ensure!(!replayed.is_cut, "interrupted");
        Run::new(workload, replayed)
    }
}

/// The times of a run's requests: milliseconds from each request's arrival, in ascending order.
struct Run {
    first_ms: Vec<f64>,
    /// The times of the requests whose last run of tokens is short: new turns of conversations.
    short_ms: Vec<f64>,
    /// The share of the prompts' tokens that were in the server's cache.
    cached: f64,
    elapsed: Duration,
}

impl Run {
    /// Fails unless all requests were answered. The requests of the warm-up do not count.
    fn new(workload: &Workload, replayed: Replayed) -> Result<Self> {
        let (mut first_ms, mut short_ms) = (Vec::new(), Vec::new());
        let (mut tokens, mut cached) = (0.0, 0.0);
        for answer in replayed.answers {
            ensure!(
                answer.fate == Fate::Answered,
                "a request failed: {answer:?}"
            );
            if answer.request < workload.warm_up {
                continue;
            }
            // An answer has one token, which may be one without text.
            let ms = 1e3 * answer.end.as_secs_f64();
            first_ms.push(ms);
            let prompt = &workload.arrivals[answer.request].prompt;
            if prompt
                .runs()
                .last()
                .is_some_and(|run| run.len <= SHORT_TOKENS)
            {
                short_ms.push(ms);
            }
            tokens += f64::from(prompt.len());
            cached += f64::from(answer.cached_tokens.unwrap_or(0));
        }
        ensure!(!first_ms.is_empty(), "no request counts");
        first_ms.sort_unstable_by(f64::total_cmp);
        short_ms.sort_unstable_by(f64::total_cmp);
        Ok(Self {
            first_ms,
            short_ms,
            cached: cached / tokens,
            elapsed: replayed.elapsed,
        })
    }

    fn mean(&self) -> f64 {
        mean(&self.first_ms)
    }

    fn p99(&self) -> f64 {
        self.first_ms[(self.first_ms.len() - 1) * 99 / 100]
    }

    /// Returns the share of answers that came after `target`.
    #[expect(clippy::cast_precision_loss, reason = "a number of requests")]
    fn share_after(&self, target: Duration) -> f64 {
        let target = 1e3 * target.as_secs_f64();
        let in_time = self.first_ms.partition_point(|&ms| ms <= target);
        1.0 - in_time as f64 / self.first_ms.len() as f64
    }

    fn mean_row(&self, name: String) -> Row {
        let (p99, cached) = (self.p99(), 100.0 * self.cached);
        let note = format!("P99 {p99:.1} ms; {cached:.0} % of the tokens were cached");
        Row::one(name, Unit::Millis, self.mean()).noting(note)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of requests")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        replay::Answer,
        sim::{Arrival, Prompt, Run as TokenRun},
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
            prompt: Prompt::new([TokenRun {
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
        let run = Run::new(&workload, replayed(&ends)).unwrap();
        assert_eq!(
            (&*run.first_ms, &*run.short_ms),
            (&[10.0, 20.0, 30.0][..], &[10.0][..])
        );
        assert_eq!((run.mean(), run.p99(), run.cached), (20.0, 20.0, 0.3));
        let missed = run.share_after(Duration::from_millis(20));
        assert!((missed - 1.0 / 3.0).abs() < 1e-9, "{missed}");
        let mut failed = replayed(&ends);
        failed.answers[0].fate = Fate::Refused(429, String::new());
        assert!(Run::new(&workload, failed).is_err());
        assert!(Run::new(&workload, replayed(&ends[..1])).is_err());
    }

    #[test]
    fn prompts_fit_their_models() {
        let cases = [
            (POSTS, 0),
            (POSTS_AT_ONCE, 0),
            (CREDIT, 0),
            (CONVERSATIONS, 1),
        ];
        for (case, context) in cases {
            let workload = case.workload(10.0).unwrap();
            let longest = workload.arrivals.iter().map(|a| a.prompt.len()).max();
            let longest = longest.unwrap();
            assert!(longest < CONTEXTS[context], "{}: {longest}", case.name);
            assert!(longest > CONTEXTS[context] / 4, "{}: {longest}", case.name);
        }
    }
}
