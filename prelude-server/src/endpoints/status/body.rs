//! The bodies of `/v1/status` and of its events.

use prelude_engine::{EngineSnapshot, Histogram, StepReport};
use schemars::JsonSchema;
use serde::Serialize;

use super::STEPS_MAX;
use crate::{app::App, served_model::ServedModel};

/// The state of the process.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Status")]
pub(super) struct Status<'a> {
    version: &'static str,
    /// `loading`, `ready`, `leaving` (health is red, work is taken), `draining` or `ending`.
    phase: &'static str,
    queues: Vec<QueueBody>,
    /// The models, in the order in which they were given; none while loading.
    models: Vec<ModelStatus<'a>>,
}

/// The changes since the event before.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StatusChanges")]
pub(super) struct Changes<'a> {
    /// `loading`, `ready` or `leaving`.
    pub(super) phase: &'static str,
    pub(super) queues: Vec<QueueBody>,
    /// The models, in the order in which they were given; none while loading.
    pub(super) models: Vec<ModelChanges<'a>>,
}

/// Requests that wait for their first result, of all models.
#[derive(Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Queue")]
pub(super) struct QueueBody {
    /// `arriving`, `oneshot` or `decode`.
    class: &'static str,
    rows: u64,
    /// Prompt tokens.
    tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ModelStatus")]
struct ModelStatus<'a> {
    id: &'a str,
    kind: &'static str,
    /// False once the model's engine is lost.
    alive: bool,
    now: Gauges,
    /// The latency of each class of requests.
    latency: Vec<ClassLatency>,
    /// Seconds from a generation's arrival to its first token.
    time_to_first_token_seconds: HistogramBody,
    /// Seconds between tokens of one generation.
    inter_token_seconds: HistogramBody,
    /// The times of each kind of step.
    steps: Vec<StepKindBody>,
    /// The latest steps, oldest first, at most 200.
    #[schemars(length(max = 200))]
    recent_steps: Vec<Step>,
}

/// A model's new steps, and its gauges.
#[derive(Serialize, JsonSchema)]
pub(super) struct ModelChanges<'a> {
    pub(super) id: &'a str,
    pub(super) now: Gauges,
    /// Steps since the event before, oldest first, at most 200.
    #[schemars(length(max = 200))]
    pub(super) steps: Vec<Step>,
    /// Steps since the event before that are not among `steps`.
    pub(super) missed_steps: u64,
}

/// Gauges and counters of one model's engine.
#[derive(Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "EngineGauges")]
pub(super) struct Gauges {
    /// Rows and generations that wait for their first step.
    waiting_rows: u64,
    /// The one-shot rows in steps.
    running_oneshot_rows: u64,
    /// Generations that run.
    running_decode_seqs: u64,
    /// KV blocks that sequences and steps use.
    used_blocks: u64,
    /// KV blocks that only the prefix cache holds.
    cached_blocks: u64,
    /// KV blocks with nothing in them.
    free_blocks: u64,
    /// Copies of evicted KV blocks in host memory.
    host_blocks: u64,
    /// Prompt tokens looked up in the prefix cache since the start.
    prefix_query_tokens: u64,
    /// Prompt tokens found there.
    prefix_hit_tokens: u64,
    /// Prompt tokens that another row of the same step computed.
    shared_tokens: u64,
    /// Tokens computed since the start.
    computed_tokens: u64,
    /// Steps that produced no results.
    failed_steps: u64,
}

#[derive(Serialize, JsonSchema)]
struct ClassLatency {
    /// `oneshot` or `decode`.
    class: &'static str,
    /// The time from a request's arrival at the engine to its first step.
    queue_seconds: HistogramBody,
    /// The time from a request's first step to its end.
    exec_seconds: HistogramBody,
}

#[derive(Serialize, JsonSchema)]
struct StepKindBody {
    /// `oneshot`, `decode`, `mixed` or `slice`.
    kind: &'static str,
    steps: u64,
    /// The time from a step's submission to its results.
    seconds: HistogramBody,
}

/// Observations since the start.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Histogram")]
struct HistogramBody {
    /// The upper bound of each bucket but the last, which has none.
    le: Vec<f64>,
    /// Observations in each bucket.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

/// A step that has run.
#[derive(Serialize, JsonSchema)]
pub(super) struct Step {
    /// The step's number; the steps of a model are numbered without a gap.
    step: u64,
    /// `oneshot`, `decode`, `mixed` or `slice`.
    kind: &'static str,
    oneshot_rows: usize,
    /// Tokens computed for one-shot rows.
    oneshot_tokens: usize,
    /// Tokens computed for prompts of generations.
    prefill_tokens: usize,
    /// Generations that advanced by one token.
    decode_rows: usize,
    /// Milliseconds from the engine's start to the step's submission.
    at_ms: f64,
    /// Milliseconds from the step's submission to its results.
    ms: f64,
    succeeded: bool,
}

impl<'a> Status<'a> {
    pub(super) fn of(app: &'a App) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            phase: app.lifecycle.phase().as_str(),
            queues: QueueBody::all(app),
            models: { app.models().iter() }
                .map(|model| ModelStatus::of(model))
                .collect(),
        }
    }
}

impl QueueBody {
    pub(super) fn all(app: &App) -> Vec<Self> {
        let waiting = app.admission.waiting().into_iter();
        let body = |(class, rows, tokens)| Self {
            class,
            rows,
            tokens,
        };
        waiting.map(body).collect()
    }
}

impl<'a> ModelStatus<'a> {
    fn of(model: &'a ServedModel) -> Self {
        let snapshot = model.engine.snapshot();
        let recent = model.engine.recent_steps();
        let older = recent.len().saturating_sub(STEPS_MAX);
        Self {
            id: &model.name,
            kind: model.kind.as_str(),
            alive: snapshot.alive,
            now: Gauges::of(&snapshot),
            latency: { snapshot.classes.iter() }
                .map(|class| ClassLatency {
                    class: class.class.as_str(),
                    queue_seconds: HistogramBody::of(&class.queue_time),
                    exec_seconds: HistogramBody::of(&class.exec_time),
                })
                .collect(),
            time_to_first_token_seconds: HistogramBody::of(&snapshot.time_to_first_token),
            inter_token_seconds: HistogramBody::of(&snapshot.inter_token_latency),
            steps: { snapshot.steps.iter() }
                .map(|of| StepKindBody {
                    kind: of.kind.as_str(),
                    steps: of.steps,
                    seconds: HistogramBody::of(&of.seconds),
                })
                .collect(),
            recent_steps: recent[older..].iter().map(Step::of).collect(),
        }
    }
}

impl Gauges {
    pub(super) fn of(snapshot: &EngineSnapshot) -> Self {
        let s = &snapshot.scheduler;
        Self {
            waiting_rows: s.waiting_oneshot_rows + s.waiting_decode_seqs,
            running_oneshot_rows: s.running_chunked_rows + s.running_oneshot_rows,
            running_decode_seqs: s.running_decode_seqs,
            used_blocks: s.used_blocks,
            cached_blocks: s.cached_blocks,
            free_blocks: s.free_blocks,
            host_blocks: s.host_blocks,
            prefix_query_tokens: s.prefix_query_tokens,
            prefix_hit_tokens: s.prefix_hit_tokens,
            shared_tokens: s.shared_tokens,
            computed_tokens: s.oneshot_tokens + s.prefill_tokens + s.decode_tokens,
            failed_steps: snapshot.failed_steps,
        }
    }
}

impl HistogramBody {
    fn of(histogram: &Histogram) -> Self {
        let (le, at_or_below): (Vec<f64>, Vec<u64>) = histogram.cumulative().unzip();
        let ends = at_or_below.iter().copied().chain([histogram.count()]);
        let starts = [0].into_iter().chain(at_or_below.iter().copied());
        let counts = ends.zip(starts).map(|(end, start)| end - start).collect();
        Self {
            le,
            counts,
            count: histogram.count(),
            sum: histogram.sum(),
        }
    }
}

impl Step {
    pub(super) fn of(report: &StepReport) -> Self {
        let since_start = report
            .submitted
            .saturating_since(prelude_core::Timestamp::ZERO);
        Self {
            step: report.step.0,
            kind: report.kind.as_str(),
            oneshot_rows: report.oneshot_rows,
            oneshot_tokens: report.oneshot_tokens,
            prefill_tokens: report.prefill_tokens,
            decode_rows: report.decode_rows,
            at_ms: since_start.as_secs_f64() * 1e3,
            ms: report.duration.as_secs_f64() * 1e3,
            succeeded: report.succeeded,
        }
    }
}
