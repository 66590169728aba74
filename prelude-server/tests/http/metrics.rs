//! `GET /metrics`: the names, kinds and labels that dashboards and routers rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
};

use regex::Regex;
use serde_json::json;

use crate::support::{Fake, TestServer, config};

const ENGINE: &[&str] = &["engine", "model_name"];
const MODEL: &[&str] = &["model_name"];
const CLASS: &[&str] = &["class", "model_name"];
const KIND: &[&str] = &["kind", "model_name"];

/// Name, kind, and labels of each line beside a histogram's `le`.
const FAMILIES: &[(&str, &str, &[&str])] = &[
    ("vllm:num_requests_running", "gauge", ENGINE),
    ("vllm:num_requests_waiting", "gauge", ENGINE),
    ("vllm:kv_cache_usage_perc", "gauge", ENGINE),
    (
        "vllm:lora_requests_info",
        "gauge",
        &[
            "engine",
            "max_lora",
            "model_name",
            "running_lora_adapters",
            "waiting_lora_adapters",
        ],
    ),
    (
        "vllm:cache_config_info",
        "gauge",
        &["block_size", "engine", "model_name", "num_gpu_blocks"],
    ),
    ("vllm:prefix_cache_queries_total", "counter", ENGINE),
    ("vllm:prefix_cache_hits_total", "counter", ENGINE),
    ("vllm:prompt_tokens_total", "counter", ENGINE),
    ("vllm:generation_tokens_total", "counter", ENGINE),
    ("prelude:rows_without_room_total", "counter", MODEL),
    ("vllm:num_preemptions_total", "counter", ENGINE),
    (
        "vllm:request_success_total",
        "counter",
        &["engine", "finished_reason", "model_name"],
    ),
    ("vllm:time_to_first_token_seconds", "histogram", ENGINE),
    ("vllm:inter_token_latency_seconds", "histogram", ENGINE),
    (
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        ENGINE,
    ),
    ("vllm:e2e_request_latency_seconds", "histogram", ENGINE),
    ("vllm:request_queue_time_seconds", "histogram", ENGINE),
    ("vllm:request_prefill_time_seconds", "histogram", ENGINE),
    ("vllm:request_decode_time_seconds", "histogram", ENGINE),
    ("vllm:request_inference_time_seconds", "histogram", ENGINE),
    ("vllm:request_prompt_tokens", "histogram", ENGINE),
    ("vllm:request_generation_tokens", "histogram", ENGINE),
    ("vllm:request_params_n", "histogram", ENGINE),
    ("vllm:request_params_max_tokens", "histogram", ENGINE),
    ("vllm:iteration_tokens_total", "histogram", ENGINE),
    ("prelude:queue_rows", "gauge", CLASS),
    ("prelude:queue_tokens", "gauge", CLASS),
    ("prelude:running_rows", "gauge", CLASS),
    ("prelude:step_rows", "histogram", CLASS),
    ("prelude:step_tokens", "histogram", CLASS),
    ("prelude:padded_tokens_total", "counter", CLASS),
    ("prelude:shared_tokens_total", "counter", CLASS),
    ("prelude:computed_tokens_total", "counter", CLASS),
    ("prelude:queue_seconds", "histogram", CLASS),
    ("prelude:exec_seconds", "histogram", CLASS),
    (
        "prelude:graph_steps_total",
        "counter",
        &["launch", "model_name"],
    ),
    ("prelude:graph_captures_total", "counter", MODEL),
    ("prelude:graphs", "gauge", MODEL),
    ("prelude:device_busy_seconds_total", "counter", MODEL),
    ("prelude:device_idle_seconds_total", "counter", MODEL),
    ("prelude:steps_total", "counter", KIND),
    ("prelude:step_seconds", "histogram", KIND),
    ("prelude:deferrals_total", "counter", MODEL),
    ("prelude:srjf_recalibrations_total", "counter", MODEL),
    (
        "prelude:requests_total",
        "counter",
        &["code", "model_name", "route"],
    ),
    (
        "prelude:rejects_total",
        "counter",
        &["model_name", "reason"],
    ),
    ("prelude:encode_seconds", "histogram", MODEL),
    ("prelude:encode_queue", "gauge", MODEL),
    ("prelude:body_bytes_in_flight", "gauge", MODEL),
    ("prelude:log_lines_dropped_total", "counter", MODEL),
    (
        "prelude:memory_plan_bytes",
        "gauge",
        &["model_name", "part"],
    ),
    ("prelude:kv_bytes", "gauge", MODEL),
    ("prelude:grammar_cache_bytes", "gauge", MODEL),
    ("prelude:word_cache_bytes", "gauge", MODEL),
    ("process_cpu_seconds_total", "counter", MODEL),
    ("process_start_time_seconds", "gauge", MODEL),
    ("prelude:deadline_missed_total", "counter", MODEL),
    (
        "prelude:unknown_fields_total",
        "counter",
        &["model_name", "route"],
    ),
    ("prelude:label_mass", "histogram", MODEL),
    ("prelude:grammar_cache_hits_total", "counter", MODEL),
];

/// A page's families: their kinds, and the labels of their lines.
#[derive(Default)]
struct Page {
    kinds: BTreeMap<String, String>,
    labels: BTreeMap<String, BTreeSet<Vec<String>>>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                let twice = page.kinds.insert(name.to_owned(), kind.to_owned());
                assert_eq!(twice, None, "{name} twice");
                continue;
            }
            if line.starts_with('#') {
                continue;
            }
            let (line, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let (name, labels) = line.split_once('{').unwrap_or((line, "}"));
            let labels = labels.strip_suffix('}').unwrap();
            let names = labels.split(',').filter_map(|l| Some(l.split_once('=')?.0));
            let mut names: Vec<String> = names.map(str::to_owned).collect();
            names.retain(|name| name != "le");
            names.sort();
            let name = page.family(name);
            page.labels.entry(name).or_default().insert(names);
        }
        page
    }

    /// The family of a line: a histogram's lines have endings of their own.
    fn family(&self, name: &str) -> String {
        let endings = ["_bucket", "_sum", "_count"];
        let base = endings.iter().find_map(|end| name.strip_suffix(end));
        let is_histogram = |base: &&str| self.kinds.get(*base).is_some_and(|k| k == "histogram");
        base.filter(is_histogram).unwrap_or(name).to_owned()
    }
}

#[test]
fn names_kinds_and_labels() {
    let server = TestServer::demo();
    // Something of every kind, so that every family has a line.
    let bodies = [
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 2, "new": 1}),
        ),
        (
            "/v1/systemone",
            json!({"state": "a", "questions": {"q": {"type": "noul", "instructions": "b"}}}),
        ),
        ("/classify", json!({"input": "a"})),
    ];
    for (path, body) in bodies {
        assert_eq!(server.post(path, &body.to_string()).status, 200, "{path}");
    }
    assert_eq!(server.post("/v1/completions", "{}").status, 400);
    let page = Page::read(&server.get("/metrics").body);
    for (name, kind, labels) in FAMILIES {
        assert_eq!(
            page.kinds.get(*name).map(String::as_str),
            Some(*kind),
            "{name}"
        );
        let labels: Vec<String> = labels.iter().map(|&l| l.to_owned()).collect();
        let found = page.labels.get(*name);
        assert_eq!(found, Some(&BTreeSet::from([labels])), "{name}");
    }
    // Whatever else there is says which model it is about, too.
    for (name, labels) in &page.labels {
        let named = labels.iter().all(|l| l.iter().any(|l| l == "model_name"));
        assert!(named, "{name}: {labels:?}");
    }
}

/// Every metric that the Grafana dashboard names is one that `/metrics` prints, with the labels by
/// which the dashboard sums and selects.
#[test]
fn the_dashboard_names_metrics_that_there_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/deploy/grafana.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        // Past the harness, which shows what is printed only where a test fails.
        let _ = writeln!(
            std::io::stderr(),
            "SKIP: docs/deploy is part of the workspace"
        );
        return;
    };
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let server = TestServer::demo();
    let page = Page::read(&server.get("/metrics").body);
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables = variables.iter().filter_map(|v| v["definition"].as_str());
    let name = Regex::new("(?:vllm|prelude):[a-z0-9_]+").unwrap();
    let grouped = Regex::new(r"by \(([a-z_, ]+)\)").unwrap();
    let selected = Regex::new("([a-z_]+)=~?\"").unwrap();
    let mut found = BTreeSet::new();
    for query in queries.chain(variables) {
        let names: Vec<&str> = name.find_iter(query).map(|m| m.as_str()).collect();
        assert!(!names.is_empty(), "{query}");
        for name in names {
            let family = page.family(name);
            let kind = page.kinds.get(&family);
            assert!(kind.is_some(), "/metrics has no {name}: {query}");
            // Prometheus knows a histogram by its parts alone.
            assert_eq!(kind.unwrap() == "histogram", family != name, "{query}");
            let by = grouped.captures_iter(query).flat_map(|c| {
                let (_, [names]) = c.extract();
                names.split(", ")
            });
            let selected = selected.captures_iter(query).map(|c| c.extract::<1>().1[0]);
            let labels: &[&str] = FAMILIES
                .iter()
                .find(|f| f.0 == family)
                .map_or(MODEL, |f| f.2);
            for label in by.chain(selected) {
                // Prometheus adds `instance`.
                let is_known = matches!(label, "le" | "instance") || labels.contains(&label);
                assert!(is_known, "{name} has no {label}: {query}");
            }
            found.insert(family);
        }
    }
    assert!(found.len() > 25, "{found:?}");
}

/// A metric of no one model has the names of all.
#[test]
fn queues_of_one_model_have_its_name() {
    let one = TestServer::fake(config(), &Fake::default());
    assert_eq!(one.metric("prelude:encode_queue{model_name=\"fake\"}"), 0.0);
    let two = TestServer::demo();
    let names = "prelude:encode_queue{model_name=\"demo-lm,demo-classifier\"}";
    assert_eq!(two.metric(names), 0.0);
}
