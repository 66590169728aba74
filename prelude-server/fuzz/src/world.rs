//! An app in service, asked without a connection, and what has to hold of each of its answers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prelude_engine::{EngineConfig, EngineError, ScheduledEngine};
use prelude_server::{ApiKeys, App, Limits, ServerConfig, demo};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::model::fake;

#[path = "../../src/openapi/validate.rs"]
mod validate;

/// Longest that an answer may take: everything here is small.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gauges that must be zero when no request is in progress.
const LEFT_OVER: &[&str] = &[
    "prelude:queue_rows",
    "prelude:queue_tokens",
    "prelude:body_bytes_in_flight",
    "prelude:encode_queue",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "prelude:kv_blocks_used",
    "prelude:running_rows",
];

/// Limits small enough to be met by what is sent here.
pub const LIMITS: fn() -> Limits = || Limits {
    body_bytes: 64 << 10,
    rows: 64,
    queued_rows: 128,
    queued_tokens: 16 << 10,
    grammar_bytes: 2 << 10,
    grammar_ms: 500,
    answer_numbers: 64 << 10,
    echo_bytes: 64 << 10,
    detokenize_bytes: 16 << 10,
    ..Limits::default()
};

/// Two models in service, one that speaks and one that classifies.
pub struct World {
    /// Asked by the targets.
    pub app: Arc<App>,
    /// Runs what is asked.
    pub runtime: Runtime,
    /// `/openapi.json`.
    pub document: Value,
    _engines: Vec<ScheduledEngine>,
}

impl World {
    /// Puts the models into service under `config`.
    pub fn new(config: ServerConfig) -> Self {
        Self::try_new(config, &EngineConfig::default()).expect("the engine's defaults are right")
    }

    /// Returns a world whose engines have a configuration of one's own.
    ///
    /// # Errors
    /// The reason for which the answer is wrong.
    pub fn try_new(config: ServerConfig, engine: &EngineConfig) -> Result<Self, EngineError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("threads can be had");
        let app = App::new(config, ApiKeys::default());
        let lm = fake(&demo::LM, "fake", engine)?;
        let models = [lm, fake(&demo::CLASSIFIER, "classes", engine)?];
        let (models, engines) = models.into_iter().map(|l| (l.model, l.engine)).unzip();
        app.set_models(models);
        let document = runtime.block_on(app.answer("GET", "/openapi.json", ""));
        let document = serde_json::from_slice(&document.body).expect("the document is JSON");
        Ok(Self {
            app,
            runtime,
            document,
            _engines: engines,
        })
    }

    /// Returns a world with everything on that a request may ask for: tools, reasoning.
    pub fn open() -> Self {
        Self::new(ServerConfig {
            reasoning_parser: serde_json::from_str("\"qwen3\"").ok(),
            tool_parser: serde_json::from_str("\"hermes\"").ok(),
            ..closed()
        })
    }

    /// Returns a world with everything off that a request may ask for.
    pub fn closed() -> Self {
        Self::new(ServerConfig {
            escape_special_tokens: true,
            ..closed()
        })
    }

    /// Sends a request, checks the answer, and checks that nothing of the request is left.
    pub fn ask(&self, path: &str, body: Vec<u8>) {
        let answer = async {
            let answer = self.app.answer("POST", path, body);
            tokio::time::timeout(PATIENCE, answer).await
        };
        let answer = self.runtime.block_on(answer);
        let answer = answer.unwrap_or_else(|_| panic!("{path} is not answered"));
        check_answer(&self.document, path, answer.status, &answer.body);
        self.settle();
    }

    /// Waits until nothing is reserved, queued, running or referenced any more.
    pub fn settle(&self) {
        let start = Instant::now();
        loop {
            let page = self
                .runtime
                .block_on(self.app.answer("GET", "/metrics", ""));
            let page = std::str::from_utf8(&page.body).expect("metrics are text");
            let left = page.lines().find(|line| {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                LEFT_OVER.contains(&name) && !line.ends_with(" 0")
            });
            let Some(left) = left else {
                return;
            };
            assert!(start.elapsed() < PATIENCE, "left behind: {left}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn closed() -> ServerConfig {
    ServerConfig {
        port: 0,
        access_log: false,
        seed: Some(1),
        encode_inline_bytes: 64,
        limits: LIMITS(),
        ..ServerConfig::default()
    }
}

/// Returns true if an answer of `POST path` is of the caller's making and as the document says.
///
/// # Panics
/// If it is not.
pub fn check_answer(document: &Value, path: &str, status: u16, body: &[u8]) {
    let shown = || String::from_utf8_lossy(body);
    assert!(
        matches!(status, 200 | 400 | 404 | 413 | 422 | 429),
        "{path}: {status} {}",
        shown()
    );
    if status == 200 && body.starts_with(b"data: ") {
        return check_stream(path, &shown());
    }
    let json = serde_json::from_slice(body);
    let json: Value = json.unwrap_or_else(|e| panic!("{path}: {status}: {e} in {}", shown()));
    if let Err(what) = validate::check(document, "POST", path, status, &json) {
        panic!("{what}: {json}");
    }
    if status != 200 {
        check_refusal(path, status, &json);
    }
}

fn check_refusal(path: &str, status: u16, body: &Value) {
    let error = &body["error"];
    let has_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let is_teis = has_text(error) && has_text(&body["error_type"]);
    let is_ours = has_text(&error["message"])
        && has_text(&error["type"])
        && has_text(&error["reason"])
        && (error["param"].is_null() || error["param"].is_string())
        && error["code"] == status;
    assert!(is_ours || is_teis, "{path}: {status} {body}");
}

/// Events one after the other, each a line of JSON, the last one `[DONE]`.
fn check_stream(path: &str, body: &str) {
    let events = body.strip_suffix("data: [DONE]\n\n");
    let events = events.unwrap_or_else(|| panic!("{path}: no end in {body}"));
    for event in events.split_terminator("\n\n") {
        let data = event.strip_prefix("data: ");
        let json = data.and_then(|data| serde_json::from_str::<Value>(data).ok());
        let json = json.unwrap_or_else(|| panic!("{path}: {event} in {body}"));
        let status = json["error"]["code"].as_u64().unwrap_or(200);
        assert!(status < 500, "{path}: {json}");
    }
}
