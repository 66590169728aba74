//! `GET /metrics`: Prometheus text 0.0.4.
//!
//! Names other tools know come first, under `vllm:`; ours follow under `prelude:`. A name that
//! cannot be filled yet is absent: a zero would be a claim.
//!
//! Every line has `model_name`. Counts that belong to no model (requests that named none, bodies,
//! queues in front of the engines) have the names of all served models, joined by commas: with one
//! model, just its name.

use std::fmt::Write as _;

use prelude_engine::{self as engine, ClassTotals, EngineSnapshot, SchedulerStats as Stats};

use crate::{
    App,
    endpoint::{Access, Call, Endpoint, Reply},
    log,
    metrics::Counters,
    process,
    served_model::ServedModel,
};

/// `GET /metrics`.
pub(crate) const METRICS: Endpoint = Endpoint {
    group: "state",
    summary: "Metrics as Prometheus text",
    responses: |_| vec![("text/plain", schemars::json_schema!({ "type": "string" }))],
    access: Access::Metrics,
    ..Endpoint::get(&["/metrics"], |call, _| {
        Box::pin(async { Ok(metrics(call)) })
    })
};

/// Answers with all metrics of the process.
pub(crate) fn metrics(call: &Call) -> Reply {
    let app = &call.app;
    let engines = app.models().iter().map(|model| Engine {
        model,
        snapshot: model.engine.snapshot(),
    });
    let engines: Vec<Engine<'_>> = engines.collect();
    let names: Vec<&str> = engines.iter().map(|e| &*e.model.name).collect();
    let all = model_label(&names.join(","));
    let counters = app.metrics.snapshot();
    let mut text = String::new();
    for (kind, name, help, read) in FAMILIES {
        let kind = kind.as_str();
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        match read {
            Engines(read) => {
                for engine in &engines {
                    let labels = labels_of(name, &engine.model.name);
                    for (more, value) in read(engine) {
                        let comma = if more.is_empty() { "" } else { "," };
                        write_series(&mut text, name, &format!("{labels}{comma}{more}"), &value);
                    }
                }
            }
            Edge(read) => {
                for (more, value) in read(app, &counters) {
                    let comma = if more.is_empty() { "" } else { "," };
                    write_series(&mut text, name, &format!("{more}{comma}{all}"), &value);
                }
            }
            Models(read) => {
                for (model, histogram) in read(&counters) {
                    let labels = labels_of(name, model);
                    write_series(&mut text, name, &labels, &Value::Histogram(histogram));
                }
            }
        }
    }
    Reply::Text {
        content_type: "text/plain; version=0.0.4; charset=utf-8",
        body: text.into(),
    }
}

use Kind::{Counter, Gauge, Histogram};
use Read::{Edge, Engines, Models};

/// A served model and the counts of its engine.
struct Engine<'a> {
    model: &'a ServedModel,
    snapshot: EngineSnapshot,
}

impl Engine<'_> {
    fn scheduler(&self) -> &Stats {
        &self.snapshot.scheduler
    }

    /// Returns a histogram of each class.
    fn classes(&self, read: fn(&ClassTotals) -> &engine::Histogram) -> Series<'_> {
        let classes = self.snapshot.classes.iter();
        by(
            "class",
            classes.map(|c| (c.class.as_str(), Value::Histogram(read(c)))),
        )
    }
}

/// The type of a family of series, as Prometheus names it.
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

impl Kind {
    fn as_str(&self) -> &'static str {
        match self {
            Gauge => "gauge",
            Counter => "counter",
            Histogram => "histogram",
        }
    }
}

/// The value of one series.
enum Value<'a> {
    Count(u64),
    Number(f64),
    Histogram(&'a engine::Histogram),
}

/// Series of one family: further labels, and the value.
type Series<'a> = Vec<(String, Value<'a>)>;

/// Returns one series without further labels.
fn one(value: Value<'_>) -> Series<'_> {
    vec![(String::new(), value)]
}

/// Returns a count without further labels.
fn count<'a>(count: u64) -> Series<'a> {
    one(Value::Count(count))
}

/// Returns a count that not every system tells.
fn counts_if<'a>(count: Option<u64>) -> Series<'a> {
    count
        .map(|n| (String::new(), Value::Count(n)))
        .into_iter()
        .collect()
}

/// Returns a series for each value of a label.
fn by<'a, L: std::fmt::Display>(
    label: &str,
    values: impl IntoIterator<Item = (L, Value<'a>)>,
) -> Series<'a> {
    let values = values.into_iter();
    let series = values.map(|(name, value)| (format!("{label}=\"{name}\""), value));
    series.collect()
}

/// Returns a count for each value of a label.
fn counts<'a, L: std::fmt::Display>(
    label: &str,
    values: impl IntoIterator<Item = (L, u64)>,
) -> Series<'a> {
    let values = values.into_iter();
    by(label, values.map(|(name, n)| (name, Value::Count(n))))
}

/// Returns the counts of one-shot requests and of generations.
fn by_class<'a>(oneshot: u64, decode: u64) -> Series<'a> {
    counts("class", [("oneshot", oneshot), ("decode", decode)])
}

/// Returns the sum of token counts, which is a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a sum of counts, below 2^53"
)]
fn whole(histogram: &engine::Histogram) -> u64 {
    histogram.sum() as u64
}

/// Returns the share of KV blocks that sequences and steps refer to.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn used_share(s: &Stats) -> f64 {
    let all = s.used_blocks + s.cached_blocks + s.free_blocks;
    s.used_blocks as f64 / (all.max(1) as f64)
}

/// Returns the bytes of this machine's memory in KV blocks that hold something.
fn kv_bytes(engine: &Engine<'_>) -> u64 {
    let s = engine.scheduler();
    let all = u64::from(engine.model.engine.capacity().num_blocks).max(1);
    let plan = engine.model.host.memory.map_or(0, |plan| plan.kv_bytes);
    plan / all * (s.used_blocks + s.cached_blocks)
}

fn model_label(name: &str) -> String {
    format!("model_name=\"{}\"", escape(name))
}

/// Returns the labels of a model's series. Families of vLLM's have the index of the engine too,
/// which is always 0: one engine serves a model.
fn labels_of(family: &str, model: &str) -> String {
    let engine = match family.starts_with("vllm:") {
        true => "engine=\"0\",",
        false => "",
    };
    format!("{engine}{}", model_label(model))
}

fn escape(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The source of a family's series.
enum Read {
    /// Series of each engine.
    Engines(for<'e> fn(&'e Engine<'_>) -> Series<'e>),
    /// Series of the whole process.
    Edge(for<'c> fn(&App, &'c Counters) -> Series<'c>),
    /// A histogram of each model by name.
    Models(for<'c> fn(&'c Counters) -> Vec<(&'c str, &'c engine::Histogram)>),
}

/// All families, in the order of the page: type, name, help, series.
#[rustfmt::skip]
static FAMILIES: &[(Kind, &str, &str, Read)] = &[
    (Gauge, "vllm:num_requests_running", "Requests being computed.", Engines(|e| {
        let s = e.scheduler();
        count(s.running_decode_seqs + s.running_chunked_rows + s.running_oneshot_rows)
    })),
    (Gauge, "vllm:num_requests_waiting", "Rows and sequences waiting for their first step.",
        Engines(|e| count(e.scheduler().waiting_oneshot_rows + e.scheduler().waiting_decode_seqs))),
    (Gauge, "vllm:kv_cache_usage_perc", "KV blocks referenced by sequences and steps, from 0 to 1.",
        Engines(|e| one(Value::Number(used_share(e.scheduler()))))),
    (Gauge, "vllm:cache_config_info", "The shape of the KV pool.", Engines(|e| {
        let capacity = e.model.engine.capacity();
        let (size, blocks) = (capacity.block_size, capacity.num_blocks);
        let labels = format!("block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"");
        vec![(labels, Value::Count(1))]
    })),
    // Gateways read this metric of every server whose metrics have vLLM's names.
    (Gauge, "vllm:lora_requests_info", "Adapters in use; none are served.", Engines(|e| {
        let labels = "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"";
        vec![(labels.to_owned(), Value::Count(e.model.created))]
    })),
    (Gauge, "prelude:kv_blocks_used", "KV blocks referenced by sequences and steps.",
        Engines(|e| count(e.scheduler().used_blocks))),
    (Gauge, "prelude:kv_blocks_cached", "KV blocks that only the prefix cache holds.",
        Engines(|e| count(e.scheduler().cached_blocks))),
    (Gauge, "prelude:host_blocks_used", "Blocks of host memory with a copy of an evicted KV block.",
        Engines(|e| count(e.scheduler().host_blocks))),
    (Gauge, "prelude:running_rows", "Rows and sequences being computed.", Engines(|e| {
        let s = e.scheduler();
        by_class(s.running_chunked_rows + s.running_oneshot_rows, s.running_decode_seqs)
    })),

    (Counter, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
        Engines(|e| count(e.scheduler().prefix_query_tokens))),
    (Counter, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
        Engines(|e| count(e.scheduler().prefix_hit_tokens))),
    (Counter, "vllm:prompt_tokens_total", "Prompt tokens of finished requests.",
        Engines(|e| count(whole(&e.snapshot.prompt_tokens)))),
    (Counter, "vllm:generation_tokens_total", "Generated tokens of finished requests.",
        Engines(|e| count(whole(&e.snapshot.generation_tokens)))),
    (Counter, "prelude:rows_without_room_total",
        "One-shot rows whose output had no room in their step and that were computed again.",
        Engines(|e| count(e.scheduler().rows_without_room))),
    (Counter, "vllm:num_preemptions_total", "Sequences that lost their blocks and were recomputed.",
        Engines(|e| count(e.scheduler().preemptions))),
    (Counter, "vllm:request_success_total", "Finished requests by outcome.",
        Engines(|e| {
            let n = e.snapshot.finished;
            counts("finished_reason", [
                ("done", n.done), ("aborted", n.aborted), ("failed", n.failed),
                ("deadline_expired", n.deadline_expired),
            ])
        })),
    (Counter, "prelude:srjf_recalibrations_total",
        "Times a waiter's place changed because more or less of it is cached.",
        Engines(|e| count(e.scheduler().srjf_recalibrations))),
    (Counter, "prelude:passes_total",
        "Long one-shot prompts that were computed in slices.",
        Engines(|e| count(e.scheduler().passes))),
    (Counter, "prelude:deferrals_total",
        "Times a waiter was held back for another that computes its prefix.",
        Engines(|e| count(e.scheduler().deferrals))),
    (Counter, "prelude:evicted_blocks_total", "Cached KV blocks evicted.",
        Engines(|e| count(e.scheduler().evicted_blocks))),
    (Counter, "prelude:stored_blocks_total", "Evicted KV blocks copied to host memory.",
        Engines(|e| count(e.scheduler().stored_blocks))),
    (Counter, "prelude:loaded_blocks_total", "KV blocks copied back from host memory.",
        Engines(|e| count(e.scheduler().loaded_blocks))),
    (Counter, "prelude:failed_steps_total", "Steps that produced no results.",
        Engines(|e| count(e.snapshot.failed_steps))),
    (Counter, "prelude:computed_tokens_total", "Tokens computed.", Engines(|e| {
        let s = e.scheduler();
        by_class(s.oneshot_tokens, s.prefill_tokens + s.decode_tokens)
    })),
    // Prompts of generations share tokens only over time, through the cache.
    (Counter, "prelude:shared_tokens_total",
        "Prompt tokens that another row of the same step computed.",
        Engines(|e| by_class(e.scheduler().shared_tokens, 0))),
    (Counter, "prelude:padded_tokens_total", "Tokens computed to fill a shape, without a result.",
        Engines(|e| by_class(e.snapshot.padded.oneshot, e.snapshot.padded.decode))),
    (Counter, "prelude:graph_steps_total",
        "Steps by how they were launched: as a captured graph, or kernel by kernel. 0 on the CPU.",
        Engines(|e| {
            let graphs = e.snapshot.graphs;
            counts("launch", [("graph", graphs.replayed), ("eager", graphs.eager)])
        })),
    (Counter, "prelude:graph_captures_total", "Shapes of steps that were captured as graphs.",
        Engines(|e| count(e.snapshot.graphs.captures))),
    (Gauge, "prelude:graphs", "Captured graphs that are kept.",
        Engines(|e| count(e.snapshot.graphs.kept))),
    (Counter, "prelude:device_busy_seconds_total",
        "Time of the GPU in steps, by its own clock. 0 on the CPU.",
        Engines(|e| one(Value::Number(e.snapshot.device.busy.as_secs_f64())))),
    (Counter, "prelude:device_idle_seconds_total",
        "Time of the GPU between steps, up to the last one, by its own clock. 0 on the CPU.",
        Engines(|e| one(Value::Number(e.snapshot.device.idle.as_secs_f64())))),
    (Counter, "prelude:steps_total", "Steps by what was in them.",
        Engines(|e| counts("kind", e.snapshot.steps.iter().map(|s| (s.kind.as_str(), s.steps))))),

    (Histogram, "vllm:time_to_first_token_seconds",
        "From arrival at the engine to the first token.",
        Engines(|e| one(Value::Histogram(&e.snapshot.time_to_first_token)))),
    (Histogram, "vllm:inter_token_latency_seconds", "Between tokens of one sequence.",
        Engines(|e| one(Value::Histogram(&e.snapshot.inter_token_latency)))),
    (Histogram, "vllm:e2e_request_latency_seconds", "From arrival at the engine to the end.",
        Engines(|e| one(Value::Histogram(&e.snapshot.e2e_latency)))),
    (Histogram, "vllm:request_queue_time_seconds", "From arrival at the engine to the first step.",
        Engines(|e| one(Value::Histogram(&e.snapshot.queue_time)))),
    (Histogram, "vllm:request_inference_time_seconds", "From the first step to the end.",
        Engines(|e| one(Value::Histogram(&e.snapshot.exec_time)))),
    (Histogram, "vllm:request_prefill_time_seconds",
        "From a generation's first step to its first token.",
        Engines(|e| one(Value::Histogram(&e.snapshot.prefill_time)))),
    (Histogram, "vllm:request_decode_time_seconds", "From a generation's first token to its last.",
        Engines(|e| one(Value::Histogram(&e.snapshot.decode_time)))),
    (Histogram, "vllm:request_time_per_output_token_seconds",
        "Mean time between a generation's tokens.",
        Engines(|e| one(Value::Histogram(&e.snapshot.time_per_output_token)))),
    (Histogram, "vllm:request_prompt_tokens", "Prompt tokens per request.",
        Engines(|e| one(Value::Histogram(&e.snapshot.prompt_tokens)))),
    (Histogram, "vllm:request_generation_tokens", "Generated tokens per request.",
        Engines(|e| one(Value::Histogram(&e.snapshot.generation_tokens)))),
    (Histogram, "prelude:queue_seconds",
        "From a request's arrival at the engine to its first step.",
        Engines(|e| e.classes(|c| &c.queue_time))),
    (Histogram, "prelude:exec_seconds", "From a request's first step to its end.",
        Engines(|e| e.classes(|c| &c.exec_time))),
    (Histogram, "prelude:step_rows", "Rows per step that had any of the class.",
        Engines(|e| e.classes(|c| &c.step_rows))),
    (Histogram, "prelude:step_tokens", "Tokens computed per step that had any of the class.",
        Engines(|e| e.classes(|c| &c.step_tokens))),
    (Histogram, "vllm:iteration_tokens_total", "Tokens computed per step.",
        Engines(|e| one(Value::Histogram(&e.snapshot.iteration_tokens)))),
    (Histogram, "prelude:step_seconds", "From a step's submission to its results.",
        Engines(|e| {
            let steps = e.snapshot.steps.iter();
            by("kind", steps.map(|s| (s.kind.as_str(), Value::Histogram(&s.seconds))))
        })),

    (Gauge, "prelude:memory_plan_bytes",
        "Memory of this machine that a model was planned to take. None on a GPU.", Engines(|e| {
            let parts = e.model.host.memory.map(|plan| [
                ("weights", plan.weights_bytes), ("kv_blocks", plan.kv_bytes),
                ("activations", plan.arena_bytes), ("buffers", plan.scratch_bytes),
            ]);
            counts("part", parts.into_iter().flatten())
        })),
    (Gauge, "prelude:kv_bytes", "Memory of this machine in KV blocks that are used or cached.",
        Engines(|e| count(kv_bytes(e)))),
    (Gauge, "prelude:grammar_cache_bytes", "Memory in compiled grammars that are kept.",
        Engines(|e| count(e.model.words().map_or(0, |words| words.grammars.bytes()) as u64))),
    (Gauge, "prelude:word_cache_bytes", "Memory in words whose tokens are kept, of all models.",
        Edge(|_, _| count(fasttoken::word_cache_bytes() as u64))),
    (Gauge, "process_resident_memory_bytes", "Memory that the process holds.",
        Edge(|_, _| counts_if(process::resident_bytes()))),
    (Gauge, "process_open_fds", "Open files.", Edge(|_, _| counts_if(process::open_files()))),
    (Counter, "process_cpu_seconds_total", "Time for which the process has had a core.",
        Edge(|_, _| one(Value::Number(process::cpu_seconds())))),
    (Gauge, "process_start_time_seconds", "Start of the process, in seconds since 1970.",
        Edge(|app, _| one(Value::Number(process::unix_seconds(app.started))))),

    (Gauge, "prelude:queue_rows", "Rows waiting for their first result.", Edge(|app, _|
        counts("class", app.admission.waiting().map(|(class, rows, _)| (class, rows))))),
    (Gauge, "prelude:queue_tokens", "Prompt tokens waiting for a first result.", Edge(|app, _|
        counts("class", app.admission.waiting().map(|(class, _, tokens)| (class, tokens))))),
    (Gauge, "prelude:body_bytes_in_flight", "Bytes of bodies being read or parsed, and of what they become.",
        Edge(|app, _| { let (.., bytes) = app.admission.reserved(); count(bytes) })),
    (Gauge, "prelude:encode_queue", "Texts waiting for a thread to be encoded.",
        Edge(|app, _| count(app.encoder.waiting() as u64))),

    (Counter, "prelude:requests_total", "Requests by route and status; 499 is a client that left.",
        Edge(|_, c| {
            let labels = |(route, code): &_| format!("route=\"{route}\",code=\"{code}\"");
            c.requests.iter().map(|(key, &n)| (labels(key), Value::Count(n))).collect()
        })),
    (Counter, "prelude:rejects_total", "Refusals and failures by reason.",
        Edge(|_, c| counts("reason", c.rejects.iter().map(|(reason, &n)| (reason, n))))),
    (Counter, "prelude:unknown_fields_total", "Unknown request fields, by route.",
        Edge(|_, c| counts("route", c.unknown_fields.iter().map(|(route, &n)| (route, n))))),
    (Counter, "prelude:log_lines_dropped_total",
        "Lines of the log that nobody took in time, or that could not be written.",
        Edge(|_, _| count(log::dropped()))),
    #[cfg(feature = "otlp")]
    (Counter, "prelude:trace_spans_total",
        "Spans by what became of them: taken by the collector, refused by it, or without room.",
        Edge(|app, _| {
            let outcomes = app.traces.counts().map(|n| {
                [("exported", n.exported), ("failed", n.failed), ("dropped", n.dropped)]
            });
            counts("outcome", outcomes.into_iter().flatten())
        })),
    (Counter, "prelude:deadline_missed_total", "Requests whose deadline passed.",
        Edge(|_, c| count(c.deadlines_missed))),
    (Counter, "prelude:grammar_cache_hits_total", "Constraints that were compiled already.",
        Edge(|_, c| count(c.grammar_cache_hits))),
    (Histogram, "prelude:encode_seconds", "Turning a request's texts into ids.",
        Edge(|_, c| one(Value::Histogram(&c.encode_seconds)))),
    (Histogram, "vllm:request_params_n", "`n` of generations.",
        Models(|c| c.generations.iter().map(|(model, asked)| (&**model, &asked.n)).collect())),
    (Histogram, "prelude:label_mass",
        "Probability that the model says any label of a typed decision's question.",
        Models(|c| c.label_mass.iter().map(|(model, masses)| (&**model, masses)).collect())),
    (Histogram, "vllm:request_params_max_tokens", "Output budget of generations.", Models(|c|
        c.generations.iter().map(|(model, asked)| (&**model, &asked.max_tokens)).collect())),
];

/// Writes the lines of one series.
fn write_series(text: &mut String, name: &str, labels: &str, value: &Value<'_>) {
    let _ = match value {
        Value::Count(count) => writeln!(text, "{name}{{{labels}}} {count}"),
        Value::Number(ratio) => writeln!(text, "{name}{{{labels}}} {ratio}"),
        Value::Histogram(histogram) => {
            for (bound, count) in histogram.cumulative() {
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let (sum, count) = (histogram.sum(), histogram.count());
            writeln!(
                text,
                "{name}_bucket{{{labels},le=\"+Inf\"}} {count}\n\
                 {name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}"
            )
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_have_the_format_of_prometheus() {
        let mut histogram = engine::Histogram::new(&[1.0, 2.5]);
        histogram.observe(2.0);
        let mut text = String::new();
        write_series(&mut text, "a", "x=\"1\"", &Value::Histogram(&histogram));
        write_series(&mut text, "b", "x=\"1\"", &Value::Count(3));
        let expected = "a_bucket{x=\"1\",le=\"1\"} 0\n\
            a_bucket{x=\"1\",le=\"2.5\"} 1\na_bucket{x=\"1\",le=\"+Inf\"} 1\na_sum{x=\"1\"} 2\n\
            a_count{x=\"1\"} 1\nb{x=\"1\"} 3\n";
        assert_eq!(text, expected);
        assert_eq!(escape("a\"\\\n"), "a\\\"\\\\\\n");
    }
}
