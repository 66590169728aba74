//! Reports of the engine about itself. A new metric is a field here.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use prelude_core::{
    DeviceTime, ExecutionClass, ForwardBatch, GraphSteps, Padded, StepId, Timestamp,
};
use prelude_sched::{SchedulerStats, Usage};

use crate::{
    Histogram,
    histogram::{SECONDS, TOKENS},
};

/// Most tokens that a tiny step computes.
pub(crate) const TINY_STEP_TOKENS: usize = 32;

/// The kind of work in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Work of one-shot requests alone.
    OneShot,
    /// Work of Decode requests alone.
    Decode,
    /// Work of both classes.
    Mixed,
    /// A part of a long one-shot prompt.
    Slice,
}

impl StepKind {
    const ALL: [Self; 4] = [Self::OneShot, Self::Decode, Self::Mixed, Self::Slice];

    pub(crate) fn of(batch: &ForwardBatch) -> Self {
        match batch {
            ForwardBatch::OneShot(_) => Self::OneShot,
            ForwardBatch::Decode(_) => Self::Decode,
            ForwardBatch::Mixed { .. } => Self::Mixed,
            ForwardBatch::Slice(_) => Self::Slice,
            ForwardBatch::AfterCopies { then, .. } => Self::of(then),
        }
    }

    /// Returns the kind's name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OneShot => "oneshot",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
            Self::Slice => "slice",
        }
    }
}

/// Numbers of requests that ended, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinishedRequests {
    /// Requests with a whole answer.
    pub done: u64,
    /// Requests that were aborted.
    pub aborted: u64,
    /// Requests whose step failed, or that had a row without a finite result.
    pub failed: u64,
    /// Requests whose deadline passed before they began.
    pub deadline_expired: u64,
}

/// A report about one step that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The step.
    pub step: StepId,
    /// The kind of the step's work.
    pub kind: StepKind,
    /// Tokens computed for one-shot work: each shared prefix counts once.
    pub oneshot_tokens: usize,
    /// Tokens computed for prompts of Decode requests.
    pub prefill_tokens: usize,
    /// Sequences that advanced by one token.
    pub decode_rows: usize,
    /// Output rows of one-shot work.
    pub oneshot_rows: usize,
    /// The time at which the step was submitted.
    pub submitted: Timestamp,
    /// The time from the step's submission to its results.
    pub duration: Duration,
    /// True if the step produced results.
    pub succeeded: bool,
}

impl StepReport {
    /// Returns the number of tokens that the step computed.
    #[must_use]
    pub fn computed_tokens(&self) -> usize {
        self.oneshot_tokens + self.prefill_tokens + self.decode_rows
    }
}

/// Steps of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTotals {
    /// The kind of the steps' work.
    pub kind: StepKind,
    /// The number of steps that ran.
    pub steps: u64,
    /// Seconds from submission to results.
    pub seconds: Histogram,
}

/// Requests and work of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassTotals {
    /// The class.
    pub class: ExecutionClass,
    /// Seconds from a request's arrival to its first step.
    pub queue_time: Histogram,
    /// Seconds from a request's first step to its end.
    pub exec_time: Histogram,
    /// Rows of this class per step that had any.
    pub step_rows: Histogram,
    /// Tokens computed for this class per step that had any.
    pub step_tokens: Histogram,
}

/// Gauges, counters and histograms of one engine.
#[derive(Clone, Debug)]
pub struct EngineSnapshot {
    /// True if the engine still serves.
    pub alive: bool,
    /// Queues, blocks, cache counters.
    pub scheduler: SchedulerStats,
    /// The steps, by their kind.
    pub steps: [StepTotals; 4],
    /// Tokens computed to fill shapes.
    pub padded: Padded,
    /// Steps that ran as captured graphs, and others.
    pub graphs: GraphSteps,
    /// Time of the device in steps and between them.
    pub device: DeviceTime,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Tokens computed per step.
    pub iteration_tokens: Histogram,
    /// Requests that ended.
    pub finished: FinishedRequests,
    /// Requests that the scheduler did not accept.
    pub rejected: u64,
    /// Seconds from arrival to the first token of a generation.
    pub time_to_first_token: Histogram,
    /// Seconds between tokens of one sequence.
    pub inter_token_latency: Histogram,
    /// Seconds from arrival to the end.
    pub e2e_latency: Histogram,
    /// Seconds from arrival to the first step.
    pub queue_time: Histogram,
    /// Seconds from the first step to the end.
    pub exec_time: Histogram,
    /// Seconds from the first step of a generation to its first token.
    pub prefill_time: Histogram,
    /// Seconds from the first token of a generation to its last.
    pub decode_time: Histogram,
    /// Mean seconds between a generation's tokens, per request of two tokens or more.
    pub time_per_output_token: Histogram,
    /// Waiting and execution times of each class's requests, and their tokens in steps.
    pub classes: [ClassTotals; 2],
    /// Prompt tokens per request.
    pub prompt_tokens: Histogram,
    /// Generated tokens per request.
    pub generation_tokens: Histogram,
}

impl EngineSnapshot {
    fn new() -> Self {
        let kind = |kind| StepTotals {
            kind,
            steps: 0,
            seconds: Histogram::new(SECONDS),
        };
        Self {
            alive: true,
            scheduler: SchedulerStats::default(),
            steps: StepKind::ALL.map(kind),
            padded: Padded::default(),
            graphs: GraphSteps::default(),
            device: DeviceTime::default(),
            failed_steps: 0,
            iteration_tokens: Histogram::new(TOKENS),
            finished: FinishedRequests::default(),
            rejected: 0,
            time_to_first_token: Histogram::new(SECONDS),
            inter_token_latency: Histogram::new(SECONDS),
            e2e_latency: Histogram::new(SECONDS),
            queue_time: Histogram::new(SECONDS),
            exec_time: Histogram::new(SECONDS),
            prefill_time: Histogram::new(SECONDS),
            decode_time: Histogram::new(SECONDS),
            time_per_output_token: Histogram::new(SECONDS),
            classes: [ExecutionClass::OneShot, ExecutionClass::Decode].map(|class| ClassTotals {
                class,
                queue_time: Histogram::new(SECONDS),
                exec_time: Histogram::new(SECONDS),
                step_rows: Histogram::new(TOKENS),
                step_tokens: Histogram::new(TOKENS),
            }),
            prompt_tokens: Histogram::new(TOKENS),
            generation_tokens: Histogram::new(TOKENS),
        }
    }
}

/// An estimate of the prompt tokens that an engine can compute in a second. Cached tokens and idle
/// time do not count. Admission refuses requests by this estimate, and a wrong refusal is worse
/// than a late answer, so the estimate errs to the high side:
/// - A tiny step, or one that is mostly about decode rows, takes its time for other reasons than
///   its few prompt tokens and says nothing.
/// - The decode rows of the others count as tokens: a prompt's could have been in their place.
/// - The best of late is remembered, since there need not have been enough prompts to fill steps.
#[derive(Debug, Default)]
pub(crate) struct PromptRate {
    tokens: usize,
    busy: Duration,
    /// The time at which the last step ended: steps in flight at once overlap.
    free_from: Timestamp,
    /// `None` until there was a second of steps that say something.
    pub(crate) per_second: Option<f64>,
}

impl PromptRate {
    /// The part of the known rate that remains after a slower second: half of it after about
    /// eleven.
    const FADING: f64 = 15.0 / 16.0;

    fn step(&mut self, report: &StepReport) {
        let began = report.submitted.max(self.free_from);
        let ended = report.submitted.saturating_add(report.duration);
        self.free_from = ended.max(self.free_from);
        let prompt = report.oneshot_tokens + report.prefill_tokens;
        let says_nothing = prompt <= TINY_STEP_TOKENS || prompt < report.decode_rows;
        if says_nothing || !report.succeeded {
            return;
        }
        self.tokens += report.computed_tokens();
        self.busy += ended.saturating_since(began);
        if self.busy >= Duration::from_secs(1) {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let measured = self.tokens as f64 / self.busy.as_secs_f64();
            let known = self.per_second.unwrap_or(0.0);
            self.per_second = Some(measured.max(known * Self::FADING));
            (self.tokens, self.busy) = (0, Duration::ZERO);
        }
    }
}

/// The snapshot and the latest steps, written by the engine thread once per step.
pub(crate) struct Reports {
    pub(crate) snapshot: EngineSnapshot,
    pub(crate) recent: VecDeque<StepReport>,
    pub(crate) prompt_rate: PromptRate,
    keep: usize,
}

impl Reports {
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            snapshot: EngineSnapshot::new(),
            recent: VecDeque::new(),
            prompt_rate: PromptRate::default(),
            keep,
        }
    }

    pub(crate) fn step(&mut self, report: StepReport) {
        self.prompt_rate.step(&report);
        let seconds = report.duration.as_secs_f64();
        let totals = &mut self.snapshot.steps[report.kind as usize];
        totals.steps += 1;
        totals.seconds.observe(seconds);
        self.snapshot.failed_steps += u64::from(!report.succeeded);
        #[expect(
            clippy::cast_precision_loss,
            reason = "token counts are far below 2^52"
        )]
        let observe = |histogram: &mut Histogram, count: usize| histogram.observe(count as f64);
        observe(
            &mut self.snapshot.iteration_tokens,
            report.computed_tokens(),
        );
        let [oneshot, decode] = &mut self.snapshot.classes;
        let generating = report.prefill_tokens + report.decode_rows;
        for (class, rows, tokens) in [
            (oneshot, report.oneshot_rows, report.oneshot_tokens),
            (decode, report.decode_rows, generating),
        ] {
            if tokens > 0 {
                observe(&mut class.step_rows, rows);
                observe(&mut class.step_tokens, tokens);
            }
        }
        if self.keep > 0 {
            if self.recent.len() == self.keep {
                self.recent.pop_front();
            }
            self.recent.push_back(report);
        }
    }
}

/// The times of a live request, for the histograms.
pub(crate) struct Timing {
    pub(crate) arrival: Timestamp,
    /// The times of the first and of the last token.
    pub(crate) tokens_from: Option<(Timestamp, Timestamp)>,
    /// The time at which each generation (row, choice) produced its latest token.
    pub(crate) last_token: BTreeMap<(u32, u32), Timestamp>,
}

impl Timing {
    pub(crate) const fn new(arrival: Timestamp) -> Self {
        Self {
            arrival,
            tokens_from: None,
            last_token: BTreeMap::new(),
        }
    }

    /// Notes a token and returns the time since the one before it, or since arrival for the first.
    pub(crate) fn token(&mut self, now: Timestamp, row: u32, choice: u32) -> TokenGap {
        let first = self.tokens_from.map_or(now, |(first, _)| first);
        self.tokens_from = Some((first, now));
        match self.last_token.insert((row, choice), now) {
            Some(last) => TokenGap::Later(now.saturating_since(last)),
            None => TokenGap::First(now.saturating_since(self.arrival)),
        }
    }
}

impl EngineSnapshot {
    /// Notes how long a finished request took, and where.
    pub(crate) fn observe_finished(
        &mut self,
        class: ExecutionClass,
        timing: &Timing,
        usage: &Usage,
    ) {
        let (queue, exec) = (
            usage.queue_time.as_secs_f64(),
            usage.exec_time.as_secs_f64(),
        );
        self.queue_time.observe(queue);
        self.exec_time.observe(exec);
        if let Some(totals) = self.classes.iter_mut().find(|totals| totals.class == class) {
            totals.queue_time.observe(queue);
            totals.exec_time.observe(exec);
        }
        let Some((first, last)) = timing.tokens_from else {
            return;
        };
        let started = timing.arrival.saturating_add(usage.queue_time);
        let prefill = first.saturating_since(started);
        let decode = last.saturating_since(first).as_secs_f64();
        self.prefill_time.observe(prefill.as_secs_f64());
        self.decode_time.observe(decode);
        // Continuations of one request run side by side.
        let side_by_side = timing.last_token.len().max(1) as u64;
        let later = (usage.output_tokens / side_by_side).saturating_sub(1);
        if later > 0 {
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            self.time_per_output_token.observe(decode / later as f64);
        }
    }
}

pub(crate) enum TokenGap {
    First(Duration),
    Later(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a step at `at_ms` that takes `ms`.
    fn step(rate: &mut PromptRate, at_ms: u64, ms: u64, prompt: usize, rows: usize) {
        rate.step(&StepReport {
            step: StepId(0),
            kind: StepKind::Mixed,
            oneshot_tokens: prompt / 2,
            prefill_tokens: prompt - prompt / 2,
            decode_rows: rows,
            oneshot_rows: 0,
            submitted: Timestamp::from_nanos(at_ms * MS),
            duration: Duration::from_millis(ms),
            succeeded: true,
        });
    }

    #[test]
    fn prompts_are_measured_while_they_are_computed() {
        let mut rate = PromptRate::default();
        step(&mut rate, 0, 500, 997, 3);
        assert_eq!(rate.per_second, None);
        // An hour of nothing, and one of nothing but decoding.
        step(&mut rate, 3_600_000, 3_600_000, 0, 9);
        step(&mut rate, 9_000_000, 500, 3_000, 0);
        assert_eq!(rate.per_second, Some(4_000.0));
    }

    #[test]
    fn steps_that_overlap_are_not_counted_twice() {
        let mut rate = PromptRate::default();
        // Each is submitted when the one before it has run for half of its time.
        step(&mut rate, 0, 500, 100, 0);
        step(&mut rate, 250, 750, 300, 0);
        assert_eq!(rate.per_second, Some(400.0));
    }

    /// Returns the seconds that the server would predict for what is ahead.
    fn wait(rate: &PromptRate, ahead: u32) -> f64 {
        rate.per_second.map_or(0.0, |rate| f64::from(ahead) / rate)
    }

    #[test]
    fn chats_that_run_do_not_make_prompts_look_slow() {
        // A device that takes 8,000 tokens a second, and 20 ms for any step.
        let mut rate = PromptRate::default();
        // Sixty-four chats for a minute, whose turns are in the cache but for a few tokens.
        for at in 0..3_000 {
            step(&mut rate, 20 * at, 20, 2 + at as usize % 40, 64);
        }
        assert!(wait(&rate, 1_000) <= 0.125);
        // Prompts that fill steps.
        step(&mut rate, 60_000, 1_000, 7_936, 64);
        assert_eq!(wait(&rate, 1_000), 0.125);
        // Chats again, and prompts so short that each has a step to itself.
        for at in 0..3_000 {
            step(&mut rate, 61_000 + 20 * at, 20, 40, 64);
        }
        for at in 0..3_000 {
            step(&mut rate, 121_000 + 20 * at, 20, 32, 0);
        }
        assert_eq!(wait(&rate, 1_000), 0.125);
        // With as many prompt tokens as decode rows, what is in the step ahead takes one step.
        let mut rate = PromptRate::default();
        for at in 0..50 {
            step(&mut rate, 20 * at, 20, 64, 64);
        }
        assert!(wait(&rate, 64) <= 0.020);
    }

    #[test]
    fn a_slower_second_is_believed_by_and_by() {
        let mut rate = PromptRate::default();
        step(&mut rate, 0, 1_000, 8_000, 0);
        step(&mut rate, 1_000, 1_000, 2_000, 0);
        assert_eq!(rate.per_second, Some(7_500.0));
        for second in 2..40 {
            step(&mut rate, 1_000 * second, 1_000, 2_000, 0);
        }
        assert_eq!(rate.per_second, Some(2_000.0));
    }

    #[test]
    fn failed_steps_say_nothing() {
        let mut rate = PromptRate::default();
        step(&mut rate, 0, 900, 90, 0);
        rate.step(&StepReport {
            succeeded: false,
            step: StepId(1),
            kind: StepKind::OneShot,
            oneshot_tokens: 1_000_000,
            prefill_tokens: 0,
            decode_rows: 0,
            oneshot_rows: 1,
            submitted: Timestamp::from_nanos(900 * MS),
            duration: Duration::from_millis(1),
        });
        step(&mut rate, 901, 100, 110, 0);
        assert_eq!(rate.per_second, Some(200.0));
    }
}
