//! A modelled engine without the techniques of a serving engine, as the baseline of their ablation
//! (the textbook's chapter 16, §16.7.4). Nothing else uses it: it has no scheduler, no blocks and no
//! prefix cache, only slots.

use std::{collections::VecDeque, time::Duration};

use anyhow::Result;
use prelude_core::Timestamp;
use serde::Deserialize;

use super::{Arrival, Piece, Preset, Record, Route, Served, Workload, cluster, serves::Serves};

/// The order in which a baseline takes requests up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// One request after the other.
    One,
    /// Requests start together, as many as have room, and no other before all of them have ended.
    Static,
    /// As many requests run as have room; one that ends makes room for the next.
    Continuous,
}

/// The configuration of a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// The time model of its steps.
    pub preset: Preset,
    /// True if keys and values are kept; if not, each token computes all before it again.
    pub keeps_kv: bool,
    /// The order in which requests are taken up.
    pub batching: Batching,
    /// Tokens whose keys and values it holds.
    pub kv_tokens: u64,
    /// Tokens that are reserved for each request, however few it needs; at least 1.
    pub reserved_tokens: u32,
}

/// A request on the engine.
#[derive(Clone, Copy, Debug)]
struct Job {
    request: usize,
    arrival: Timestamp,
    started: Timestamp,
    first_token: Timestamp,
    prompt: u32,
    outputs: u32,
    generated: u32,
}

impl Job {
    const fn is_done(&self) -> bool {
        self.generated == self.outputs
    }

    /// Returns what a step computes of the request.
    const fn piece(&self, keeps_kv: bool) -> Piece {
        let context = self.prompt + self.generated;
        match self.generated > 0 && keeps_kv {
            true => Piece::decode(context),
            false => Piece::prompt(context, context),
        }
    }

    fn record(&self, now: Timestamp) -> Record {
        Record {
            request: self.request,
            arrival: self.arrival,
            queue: self.started.saturating_since(self.arrival),
            first_token: self.first_token.saturating_since(self.arrival),
            latency: now.saturating_since(self.arrival),
            prompt_tokens: self.prompt.into(),
            cached_tokens: 0,
            output_tokens: self.outputs.into(),
        }
    }
}

/// A baseline at work.
#[derive(Debug)]
struct BaselineEngine {
    config: Baseline,
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    step_ends: Option<Timestamp>,
    busy: Duration,
    steps: u64,
}

impl BaselineEngine {
    /// Takes up waiting requests, as the configuration says.
    fn admit(&mut self, now: Timestamp) {
        let slots = self.config.kv_tokens / u64::from(self.config.reserved_tokens);
        let most = match self.config.batching {
            Batching::One => 1,
            Batching::Static | Batching::Continuous => slots as usize,
        };
        if self.config.batching == Batching::Static && !self.running.is_empty() {
            return;
        }
        while self.running.len() < most
            && let Some(job) = self.waiting.pop_front()
        {
            self.running.push(Job {
                started: now,
                ..job
            });
        }
    }
}

impl Serves for BaselineEngine {
    fn submit(&mut self, now: Timestamp, request: usize, arrival: &Arrival, _: Vec<u32>) -> bool {
        let prompt = arrival.prompt.len();
        let needed = prompt.saturating_add(arrival.output_tokens);
        let fits = needed <= self.config.reserved_tokens
            && u64::from(self.config.reserved_tokens) <= self.config.kv_tokens;
        if fits {
            self.waiting.push_back(Job {
                request,
                arrival: now,
                started: now,
                first_token: now,
                prompt,
                outputs: arrival.output_tokens,
                generated: 0,
            });
        }
        fits
    }

    fn start(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.step_ends.is_some() {
            return None;
        }
        self.admit(now);
        if self.running.is_empty() {
            return None;
        }
        let Baseline {
            preset, keeps_kv, ..
        } = self.config;
        let going = self.running.iter().filter(|job| !job.is_done());
        let takes = preset.iteration(going.map(|job| job.piece(keeps_kv)));
        self.busy += takes;
        self.steps += 1;
        self.step_ends = Some(now.saturating_add(takes));
        self.step_ends
    }

    fn finish(&mut self, now: Timestamp, records: &mut Vec<Record>) -> Result<()> {
        if self.step_ends.take_if(|ends| *ends <= now).is_none() {
            return Ok(());
        }
        for job in self.running.iter_mut().filter(|job| !job.is_done()) {
            job.generated += 1;
            if job.generated == 1 {
                job.first_token = now;
            }
            if job.is_done() {
                records.push(job.record(now));
            }
        }
        // A static batch keeps its slots until all of it has ended.
        let ended = self.running.iter().all(Job::is_done);
        if ended || self.config.batching != Batching::Static {
            self.running.retain(|job| !job.is_done());
        }
        Ok(())
    }

    fn busy(&self) -> Duration {
        self.busy
    }

    fn steps_and_preemptions(&self) -> (u64, u64) {
        (self.steps, 0)
    }
}

/// Sends every request to the one engine there is.
struct OneEngine;

impl Route for OneEngine {
    fn route(&mut self, _: Timestamp, _: usize, _: &Arrival, _: &[u32]) -> Result<usize> {
        Ok(0)
    }

    fn finished(&mut self, _: Timestamp, _: usize, _: &Record) {}

    fn refused(&mut self, _: Timestamp, _: usize, _: usize) {}
}

/// Runs a workload on one baseline engine until all of it is done. `done` is called for each
/// request that ends. Requests beyond the reserved tokens are refused.
///
/// # Errors
/// None that is known.
pub fn run_baseline(workload: &Workload, baseline: Baseline, done: impl FnMut()) -> Result<Served> {
    let engine = BaselineEngine {
        config: baseline,
        waiting: VecDeque::new(),
        running: Vec::new(),
        step_ends: None,
        busy: Duration::ZERO,
        steps: 0,
    };
    cluster::drive(workload, vec![engine], &mut OneEngine, done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Prompt, Run};

    const PRESET: Preset = Preset::Mistral7bA6000;

    /// Returns requests that come at once, with prompts of 10 tokens.
    fn workload(outputs: &[u32]) -> Workload {
        let arrival = |(n, &output_tokens): (usize, &u32)| Arrival {
            at: Timestamp::ZERO,
            prompt: Prompt::new([Run {
                stream: n as u64,
                start: 0,
                len: 10,
            }]),
            output_tokens,
            key: 0,
            user: 0,
            root: 0,
        };
        Workload::new("test", outputs.iter().enumerate().map(arrival).collect())
    }

    fn baseline(keeps_kv: bool, batching: Batching) -> Baseline {
        Baseline {
            preset: PRESET,
            keeps_kv,
            batching,
            kv_tokens: 200,
            reserved_tokens: 100,
        }
    }

    /// Checks the steps, by what they compute of each of their requests: new tokens and context.
    fn check(config: Baseline, outputs: &[u32], steps: &[&[(u32, u32)]]) {
        let served = run_baseline(&workload(outputs), config, || ()).unwrap();
        let pieces = |step: &&[(u32, u32)]| {
            let pieces = step
                .iter()
                .map(|&(new, context)| Piece::prompt(new, context));
            PRESET.iteration(pieces)
        };
        let expected: Duration = steps.iter().map(pieces).sum();
        assert_eq!(served.busy, [expected], "{config:?}");
        assert_eq!(served.steps, steps.len() as u64, "{config:?}");
        assert_eq!(served.records.len(), outputs.len());
        assert_eq!(served.end.saturating_since(Timestamp::ZERO), expected);
    }

    #[test]
    fn each_technique_changes_the_steps() {
        let outputs = [3, 1, 2];
        check(
            baseline(false, Batching::One),
            &outputs,
            &[
                &[(10, 10)],
                &[(11, 11)],
                &[(12, 12)],
                &[(10, 10)],
                &[(10, 10)],
                &[(11, 11)],
            ],
        );
        check(
            baseline(true, Batching::One),
            &outputs,
            &[
                &[(10, 10)],
                &[(1, 11)],
                &[(1, 12)],
                &[(10, 10)],
                &[(10, 10)],
                &[(1, 11)],
            ],
        );
        // Two slots: the third request waits for both, or for the one that ends first.
        check(
            baseline(true, Batching::Static),
            &outputs,
            &[
                &[(10, 10), (10, 10)],
                &[(1, 11)],
                &[(1, 12)],
                &[(10, 10)],
                &[(1, 11)],
            ],
        );
        check(
            baseline(true, Batching::Continuous),
            &outputs,
            &[
                &[(10, 10), (10, 10)],
                &[(1, 11), (10, 10)],
                &[(1, 12), (1, 11)],
            ],
        );
    }

    #[test]
    fn a_request_beyond_its_reservation_is_refused() {
        let served = run_baseline(
            &workload(&[90, 91]),
            baseline(true, Batching::Static),
            || (),
        );
        let served = served.unwrap();
        assert_eq!((served.records.len(), served.refused), (1, 1));
    }
}
