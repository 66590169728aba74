//! `GET /metrics`: Prometheus text 0.0.4.
//!
//! Names other tools know come first, under `vllm:`; ours follow under `prelude:`. A name that
//! cannot be filled yet is absent: a zero would be a claim.
//!
//! Every line has `model_name`. What belongs to no model (requests that named none, bodies, queues
//! in front of the engines) has the names of all that the process serves, joined by commas: of one
//! model, just its name.

use std::fmt::{Display, Write as _};

use prelude_engine::{ClassTotals, EngineSnapshot, Histogram};

use crate::{
    App,
    endpoint::{Access, Call, Endpoint, Reply},
    metrics::Counters,
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

/// All metrics of the process.
pub(crate) fn metrics(call: &Call) -> Reply {
    let app = &call.app;
    let snapshots: Vec<(&ServedModel, EngineSnapshot)> = app
        .models()
        .iter()
        .map(|model| (&**model, model.engine.snapshot()))
        .collect();
    let mut page = Page::default();
    engine_gauges(&mut page, &snapshots);
    engine_counters(&mut page, &snapshots);
    engine_histograms(&mut page, &snapshots);
    let names: Vec<&str> = snapshots.iter().map(|(model, _)| &*model.name).collect();
    let all = model_label(&names.join(","));
    queues(&mut page, app, &all);
    edge(&mut page, &app.metrics.snapshot(), &all);
    Reply::Text {
        content_type: "text/plain; version=0.0.4; charset=utf-8",
        body: page.0.into(),
    }
}

fn queues(page: &mut Page, app: &App, all: &str) {
    let waiting = app.admission.waiting();
    let name = "prelude:queue_rows";
    page.family(name, "gauge", "Rows waiting for their first result.");
    for (class, rows, _) in waiting {
        page.line(name, &format!("class=\"{class}\",{all}"), rows);
    }
    let name = "prelude:queue_tokens";
    page.family(name, "gauge", "Prompt tokens waiting for a first result.");
    for (class, _, tokens) in waiting {
        page.line(name, &format!("class=\"{class}\",{all}"), tokens);
    }
    let (.., bytes) = app.admission.reserved();
    let name = "prelude:body_bytes_in_flight";
    page.family(name, "gauge", "Bytes of bodies being read or parsed.");
    page.line(name, all, bytes);
    let name = "prelude:encode_queue";
    page.family(name, "gauge", "Texts waiting for a thread to be encoded.");
    page.line(name, all, app.encoder.waiting());
}

type Snapshots<'a> = [(&'a ServedModel, EngineSnapshot)];

fn engine_gauges(page: &mut Page, snapshots: &Snapshots<'_>) {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let ratio = |part: u64, whole: u64| part as f64 / (whole.max(1) as f64);
    page.each(
        ("vllm:num_requests_running", "gauge"),
        "Requests being computed.",
        snapshots,
        running,
    );
    page.each(
        ("vllm:num_requests_waiting", "gauge"),
        "Rows and sequences waiting for their first step.",
        snapshots,
        |s| s.scheduler.waiting_oneshot_rows + s.scheduler.waiting_decode_seqs,
    );
    page.each(
        ("vllm:kv_cache_usage_perc", "gauge"),
        "KV blocks referenced by sequences and steps, from 0 to 1.",
        snapshots,
        |s| {
            let s = &s.scheduler;
            ratio(
                s.used_blocks,
                s.used_blocks + s.cached_blocks + s.free_blocks,
            )
        },
    );
    let name = "vllm:cache_config_info";
    page.family(name, "gauge", "The shape of the KV pool.");
    for (model, _) in snapshots {
        let capacity = model.engine.capacity();
        let labels = format!(
            "{},block_size=\"{}\",num_gpu_blocks=\"{}\"",
            engine_labels(model),
            capacity.block_size,
            capacity.num_blocks
        );
        page.line(name, &labels, 1);
    }
    // Gateways read it of every server that calls itself by these names. Adapters there are none.
    let name = "vllm:lora_requests_info";
    page.family(name, "gauge", "Adapters in use; none are served.");
    for (model, _) in snapshots {
        let labels = format!(
            "{},max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"",
            engine_labels(model)
        );
        page.line(name, &labels, model.created);
    }
    page.each_own(
        ("prelude:kv_blocks_used", "gauge"),
        "KV blocks referenced by sequences and steps.",
        snapshots,
        |s| s.scheduler.used_blocks,
    );
    page.each_own(
        ("prelude:kv_blocks_cached", "gauge"),
        "KV blocks that only the prefix cache holds.",
        snapshots,
        |s| s.scheduler.cached_blocks,
    );
    let name = "prelude:running_rows";
    page.family(name, "gauge", "Rows and sequences being computed.");
    for (model, snapshot) in snapshots {
        let s = &snapshot.scheduler;
        for (class, rows) in [
            ("oneshot", s.running_chunked_rows + s.running_oneshot_rows),
            ("decode", s.running_decode_seqs),
        ] {
            page.line(
                name,
                &format!("{},class=\"{class}\"", own_labels(model)),
                rows,
            );
        }
    }
}

/// Live requests beyond those that wait.
fn running(snapshot: &EngineSnapshot) -> u64 {
    let s = &snapshot.scheduler;
    s.running_decode_seqs + s.running_chunked_rows + s.running_oneshot_rows
}

fn engine_counters(page: &mut Page, snapshots: &Snapshots<'_>) {
    type Counter = (&'static str, &'static str, fn(&EngineSnapshot) -> u64);
    let known: [Counter; 5] = [
        (
            "vllm:prefix_cache_queries_total",
            "Prompt tokens looked up in the prefix cache.",
            |s| s.scheduler.prefix_query_tokens,
        ),
        (
            "vllm:prefix_cache_hits_total",
            "Prompt tokens found in the prefix cache.",
            |s| s.scheduler.prefix_hit_tokens,
        ),
        (
            "vllm:prompt_tokens_total",
            "Prompt tokens of finished requests.",
            |s| whole(s.prompt_tokens.sum()),
        ),
        (
            "vllm:generation_tokens_total",
            "Generated tokens of finished requests.",
            |s| whole(s.generation_tokens.sum()),
        ),
        (
            "vllm:num_preemptions_total",
            "Sequences that lost their blocks and were recomputed.",
            |s| s.scheduler.preemptions,
        ),
    ];
    for (name, help, value) in known {
        page.each((name, "counter"), help, snapshots, value);
    }
    let name = "vllm:request_success_total";
    page.family(name, "counter", "Finished requests by outcome.");
    for (model, snapshot) in snapshots {
        let finished = snapshot.finished;
        for (outcome, count) in [
            ("done", finished.done),
            ("aborted", finished.aborted),
            ("failed", finished.failed),
            ("deadline_expired", finished.deadline_expired),
        ] {
            let labels = format!("{},finished_reason=\"{outcome}\"", engine_labels(model));
            page.line(name, &labels, count);
        }
    }
    let own: [Counter; 4] = [
        (
            "prelude:srjf_recalibrations_total",
            "Times a waiter's place changed because more or less of it is cached.",
            |s| s.scheduler.srjf_recalibrations,
        ),
        (
            "prelude:deferrals_total",
            "Times a waiter was held back for another that computes its prefix.",
            |s| s.scheduler.deferrals,
        ),
        (
            "prelude:evicted_blocks_total",
            "Cached KV blocks evicted.",
            |s| s.scheduler.evicted_blocks,
        ),
        (
            "prelude:failed_steps_total",
            "Steps that produced no results.",
            |s| s.failed_steps,
        ),
    ];
    for (name, help, value) in own {
        page.each_own((name, "counter"), help, snapshots, value);
    }
    type OfClass = (&'static str, &'static str, fn(&EngineSnapshot) -> [u64; 2]);
    let of_class: [OfClass; 3] = [
        ("prelude:computed_tokens_total", "Tokens computed.", |s| {
            let s = &s.scheduler;
            [s.oneshot_tokens, s.prefill_tokens + s.decode_tokens]
        }),
        (
            "prelude:shared_tokens_total",
            "Prompt tokens that another row of the same step computed.",
            // Prompts of generations share over time alone, through the cache.
            |s| [s.scheduler.shared_tokens, 0],
        ),
        (
            "prelude:padded_tokens_total",
            "Tokens computed for nobody, to fill a shape.",
            |s| [s.padded.oneshot, s.padded.decode],
        ),
    ];
    for (name, help, value) in of_class {
        page.family(name, "counter", help);
        for (model, snapshot) in snapshots {
            for (class, tokens) in ["oneshot", "decode"].iter().zip(value(snapshot)) {
                let labels = format!("{},class=\"{class}\"", own_labels(model));
                page.line(name, &labels, tokens);
            }
        }
    }
    let name = "prelude:steps_total";
    page.family(name, "counter", "Steps by what was in them.");
    for (model, snapshot) in snapshots {
        for totals in &snapshot.steps {
            let labels = format!("{},kind=\"{}\"", own_labels(model), totals.kind.as_str());
            page.line(name, &labels, totals.steps);
        }
    }
}

fn engine_histograms(page: &mut Page, snapshots: &Snapshots<'_>) {
    type Field = (
        &'static str,
        &'static str,
        fn(&EngineSnapshot) -> &Histogram,
    );
    let known: [Field; 10] = [
        (
            "vllm:time_to_first_token_seconds",
            "From arrival at the engine to the first token.",
            |s| &s.time_to_first_token,
        ),
        (
            "vllm:inter_token_latency_seconds",
            "Between tokens of one sequence.",
            |s| &s.inter_token_latency,
        ),
        (
            "vllm:e2e_request_latency_seconds",
            "From arrival at the engine to the end.",
            |s| &s.e2e_latency,
        ),
        (
            "vllm:request_queue_time_seconds",
            "From arrival at the engine to the first step.",
            |s| &s.queue_time,
        ),
        (
            "vllm:request_inference_time_seconds",
            "From the first step to the end.",
            |s| &s.exec_time,
        ),
        (
            "vllm:request_prefill_time_seconds",
            "From a generation's first step to its first token.",
            |s| &s.prefill_time,
        ),
        (
            "vllm:request_decode_time_seconds",
            "From a generation's first token to its last.",
            |s| &s.decode_time,
        ),
        (
            "vllm:request_time_per_output_token_seconds",
            "Mean time between a generation's tokens.",
            |s| &s.time_per_output_token,
        ),
        (
            "vllm:request_prompt_tokens",
            "Prompt tokens per request.",
            |s| &s.prompt_tokens,
        ),
        (
            "vllm:request_generation_tokens",
            "Generated tokens per request.",
            |s| &s.generation_tokens,
        ),
    ];
    for (name, help, histogram) in known {
        page.family(name, "histogram", help);
        for (model, snapshot) in snapshots {
            page.histogram(name, &engine_labels(model), histogram(snapshot));
        }
    }
    type OfClass = (&'static str, &'static str, fn(&ClassTotals) -> &Histogram);
    let of_class: [OfClass; 4] = [
        (
            "prelude:queue_seconds",
            "From a request's arrival at the engine to its first step.",
            |c| &c.queue_time,
        ),
        (
            "prelude:exec_seconds",
            "From a request's first step to its end.",
            |c| &c.exec_time,
        ),
        (
            "prelude:step_rows",
            "Rows per step that had any of the class.",
            |c| &c.step_rows,
        ),
        (
            "prelude:step_tokens",
            "Tokens computed per step that had any of the class.",
            |c| &c.step_tokens,
        ),
    ];
    for (name, help, histogram) in of_class {
        page.family(name, "histogram", help);
        for (model, snapshot) in snapshots {
            for totals in &snapshot.classes {
                let labels = format!("{},class=\"{}\"", own_labels(model), totals.class.as_str());
                page.histogram(name, &labels, histogram(totals));
            }
        }
    }
    let name = "vllm:iteration_tokens_total";
    page.family(name, "histogram", "Tokens computed per step.");
    for (model, snapshot) in snapshots {
        page.histogram(name, &engine_labels(model), &snapshot.iteration_tokens);
    }
    let name = "prelude:step_seconds";
    page.family(
        name,
        "histogram",
        "From a step's submission to its results.",
    );
    for (model, snapshot) in snapshots {
        for totals in &snapshot.steps {
            let labels = format!("{},kind=\"{}\"", own_labels(model), totals.kind.as_str());
            page.histogram(name, &labels, &totals.seconds);
        }
    }
}

fn edge(page: &mut Page, counters: &Counters, all: &str) {
    let name = "prelude:requests_total";
    page.family(
        name,
        "counter",
        "Requests by route and status; 499 is a client that left.",
    );
    for ((route, code), count) in &counters.requests {
        page.line(
            name,
            &format!("route=\"{route}\",code=\"{code}\",{all}"),
            count,
        );
    }
    let name = "prelude:rejects_total";
    page.family(name, "counter", "Refusals and failures by reason.");
    for (reason, count) in &counters.rejects {
        page.line(name, &format!("reason=\"{reason}\",{all}"), count);
    }
    let name = "prelude:unknown_fields_total";
    page.family(name, "counter", "Request fields nobody knows, by route.");
    for (route, count) in &counters.unknown_fields {
        page.line(name, &format!("route=\"{route}\",{all}"), count);
    }
    let name = "prelude:deadline_missed_total";
    page.family(name, "counter", "Requests whose deadline passed.");
    page.line(name, all, counters.deadlines_missed);
    let name = "prelude:grammar_cache_hits_total";
    page.family(name, "counter", "Constraints that were compiled already.");
    page.line(name, all, counters.grammar_cache_hits);
    let name = "prelude:encode_seconds";
    page.family(name, "histogram", "Turning a request's texts into ids.");
    page.histogram(name, all, &counters.encode_seconds);
    let name = "vllm:request_params_n";
    page.family(name, "histogram", "`n` of generations.");
    for (model, asked) in &counters.generations {
        page.histogram(name, &engine_label(model), &asked.n);
    }
    let name = "prelude:label_mass";
    page.family(
        name,
        "histogram",
        "Probability that the model says any label of a typed decision's question.",
    );
    for (model, masses) in &counters.label_mass {
        page.histogram(name, &model_label(model), masses);
    }
    let name = "vllm:request_params_max_tokens";
    page.family(name, "histogram", "Output budget of generations.");
    for (model, asked) in &counters.generations {
        page.histogram(name, &engine_label(model), &asked.max_tokens);
    }
}

/// Sums of token counts are whole numbers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a sum of counts, below 2^53"
)]
fn whole(sum: f64) -> u64 {
    sum as u64
}

fn own_labels(model: &ServedModel) -> String {
    model_label(&model.name)
}

fn model_label(name: &str) -> String {
    format!("model_name=\"{}\"", escape(name))
}

/// One engine serves a model, so its index is always the first.
fn engine_labels(model: &ServedModel) -> String {
    engine_label(&model.name)
}

fn engine_label(name: &str) -> String {
    format!("engine=\"0\",{}", model_label(name))
}

fn escape(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The text in the making.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    /// A family with one line per engine, under another server's name.
    fn each<V: Display>(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        snapshots: &Snapshots<'_>,
        value: impl Fn(&EngineSnapshot) -> V,
    ) {
        self.family(name, kind, help);
        for (model, snapshot) in snapshots {
            self.line(name, &engine_labels(model), value(snapshot));
        }
    }

    /// The same under a name of ours.
    fn each_own<V: Display>(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        snapshots: &Snapshots<'_>,
        value: impl Fn(&EngineSnapshot) -> V,
    ) {
        self.family(name, kind, help);
        for (model, snapshot) in snapshots {
            self.line(name, &own_labels(model), value(snapshot));
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let comma = if labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket");
        for (bound, count) in histogram.cumulative() {
            self.line(&bucket, &format!("{labels}{comma}le=\"{bound}\""), count);
        }
        let count = histogram.count();
        self.line(&bucket, &format!("{labels}{comma}le=\"+Inf\""), count);
        self.line(&format!("{name}_sum"), labels, histogram.sum());
        self.line(&format!("{name}_count"), labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let mut page = Page::default();
        let mut histogram = Histogram::new(&[1.0, 2.5]);
        histogram.observe(2.0);
        page.family("a", "histogram", "Help.");
        page.histogram("a", "x=\"1\"", &histogram);
        page.line("b", "", 3);
        let expected = "# HELP a Help.\n# TYPE a histogram\na_bucket{x=\"1\",le=\"1\"} 0\n\
            a_bucket{x=\"1\",le=\"2.5\"} 1\na_bucket{x=\"1\",le=\"+Inf\"} 1\na_sum{x=\"1\"} 2\n\
            a_count{x=\"1\"} 1\nb 3\n";
        assert_eq!(page.0, expected);
        assert_eq!(escape("a\"\\\n"), "a\\\"\\\\\\n");
    }
}
