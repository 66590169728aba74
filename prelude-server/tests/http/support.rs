//! A server in the process, raw bytes in, raw bytes out, and an executor that does as it is told.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use prelude_core::{
    Capacity, Executor, ExecutorError, ForwardBatch, LabelScores, OneShotBatch, OutputHead,
    PositionLogprobs, RowOutput, SampleHead, SampledToken, StepId, StepOutput, TokenLogprob,
};
use prelude_engine::{EngineConfig, ScheduledEngine};
use prelude_server::{
    ApiKeys, App, Ended, Limits, Server, ServerConfig,
    assets::{Assets, EmbeddedModel},
    demo,
    executor::Devices,
    load::{LoadOptions, Loaded, load},
};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::validate;

/// A running server. Dropping it stops everything.
pub(crate) struct TestServer {
    pub(crate) app: Arc<App>,
    pub(crate) addr: SocketAddr,
    pub(crate) running: Option<JoinHandle<Ended>>,
    pub(crate) runtime: tokio::runtime::Runtime,
    _engines: Vec<ScheduledEngine>,
}

/// A configuration for tests: any port, no log.
pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        port: 0,
        access_log: false,
        ..ServerConfig::default()
    }
}

pub(crate) fn with_limits(limits: Limits) -> ServerConfig {
    ServerConfig { limits, ..config() }
}

impl TestServer {
    /// A server without models: loading for ever.
    pub(crate) fn loading(config: ServerConfig, keys: ApiKeys) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let app = App::new(config, keys);
        let server = runtime.block_on(Server::bind(&app)).unwrap();
        Self {
            addr: server.local_addr().unwrap(),
            running: Some(runtime.spawn(server.run())),
            app,
            runtime,
            _engines: Vec::new(),
        }
    }

    pub(crate) fn with(config: ServerConfig, keys: ApiKeys, models: Vec<Loaded>) -> Self {
        let mut server = Self::loading(config, keys);
        let (models, engines) = models.into_iter().map(|l| (l.model, l.engine)).unzip();
        server.app.set_models(models);
        server._engines = engines;
        server
    }

    /// The two demo models.
    pub(crate) fn demo() -> Self {
        let models = vec![demo_model(&demo::LM), demo_model(&demo::CLASSIFIER)];
        Self::with(config(), ApiKeys::default(), models)
    }

    /// A model whose steps may be told to fail.
    pub(crate) fn faulty() -> Self {
        let fake = Fake {
            faults: true,
            ..Fake::default()
        };
        Self::fake(config(), &fake)
    }

    /// A model of the fake executor's.
    pub(crate) fn fake(config: ServerConfig, fake: &Fake) -> Self {
        Self::with(config, ApiKeys::default(), vec![fake_model(fake)])
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Response {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: \
             application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let response = Response::parse(&self.exchange(request.as_bytes()));
        self.check_described("POST", path, &response);
        response
    }

    /// Whatever a transcript holds is as `/openapi.json` says. Streams are described as text alone.
    fn check_described(&self, method: &str, path: &str, response: &Response) {
        static DOCUMENT: OnceLock<Value> = OnceLock::new();
        let document = DOCUMENT.get_or_init(|| {
            // On a thread of its own: the one that asks may be inside a runtime.
            std::thread::scope(|scope| {
                let ask = || {
                    let runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = { runtime }.enable_all().build().unwrap();
                    runtime.block_on(self.app.answer("GET", "/openapi.json", ""))
                };
                let answered = scope.spawn(ask).join().unwrap();
                serde_json::from_slice(&answered.body).unwrap()
            })
        });
        let path = path.split('?').next().unwrap();
        let is_json = response.header("content-type") == Some("application/json");
        // A path or method that there is not has no description.
        if is_json && !matches!(response.status, 404 | 405) {
            let body = response.json();
            validate::check(document, method, path, response.status, &body).unwrap();
        }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let response = Response::parse(&self.exchange(request.as_bytes()));
        self.check_described("GET", path, &response);
        response
    }

    /// Sends bytes and reads until the server closes.
    pub(crate) fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // A server that refuses early may close before it has read everything.
        let _ = stream.write_all(request);
        read_all(&mut stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// The value of a line of `/metrics` that begins with `name`, labels included.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        on_page(&page, name).unwrap_or_else(|| panic!("no {name} in\n{page}"))
    }

    /// Returns what [`Self::metric`] does, inside the runtime; `None` if there is no such line.
    pub(crate) async fn metric_now(&self, name: &str) -> Option<f64> {
        let page = self.app.answer("GET", "/metrics", "").await.body;
        let page = std::str::from_utf8(&page).unwrap();
        on_page(page, name)
    }

    /// Waits until nothing is reserved, queued, running or referenced any more.
    pub(crate) fn settle(&self) {
        let names = [
            "prelude:queue_rows",
            "prelude:queue_tokens",
            "prelude:body_bytes_in_flight",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "prelude:kv_blocks_used",
        ];
        wait_for(|| {
            let left: Vec<_> = names.iter().filter(|n| self.metric(n) != 0.0).collect();
            left.is_empty()
                .then_some(())
                .ok_or_else(|| format!("{left:?}"))
        });
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.get("/health").status == 200
    }
}

/// Polls until `check` is content, for at most ten seconds.
pub(crate) fn wait_for(mut check: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    loop {
        match check() {
            Ok(()) => return,
            Err(what) if start.elapsed() > Duration::from_secs(10) => panic!("still {what}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

pub(crate) fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the response is as good as an end.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

/// A response taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no response in {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_lowercase();
        let body = if head.contains("transfer-encoding: chunked") {
            dechunk(body)
        } else {
            body.to_owned()
        };
        Self { status, head, body }
    }

    /// Reads one response of known length from a connection that goes on.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            bytes.extend(byte);
        }
        let mut response = Self::parse(std::str::from_utf8(&bytes).unwrap());
        let length = response.header("content-length").unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        response.body = String::from_utf8(body).unwrap();
        response
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {:?}", self.body))
    }

    /// The `reason` of an error.
    pub(crate) fn reason(&self) -> String {
        self.json()["error"]["reason"].as_str().unwrap().to_owned()
    }

    /// Returns the events of a stream, `[DONE]` checked and left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self.body.split("\n\n").filter(|e| !e.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{}", self.body);
        let events = events.into_iter().filter(|e| !e.starts_with(':'));
        events
            .map(|e| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}

fn dechunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&rest[..size]);
        text = rest[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    out
}

/// The demo models, the language model serving whatever one can: it embeds and ranks as well.
pub(crate) fn every_task() -> TestServer {
    let lm = model_with(&demo::LM, &every_task_options());
    let models = vec![lm, demo_model(&demo::CLASSIFIER)];
    TestServer::with(config(), ApiKeys::default(), models)
}

fn every_task_options() -> LoadOptions {
    LoadOptions {
        pooling: Some(prelude_core::Pooling::Last),
        rerank_template: Some("qwen3".into()),
        ..LoadOptions::default()
    }
}

pub(crate) fn devices() -> &'static Devices {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    DEVICES.get_or_init(Devices::of_machine)
}

pub(crate) fn demo_model(files: &EmbeddedModel) -> Loaded {
    model_with(files, &LoadOptions::default())
}

fn model_with(files: &EmbeddedModel, options: &LoadOptions) -> Loaded {
    let assets = Assets::embedded(files).unwrap();
    load(assets, options, devices()).unwrap()
}

/// The behaviour of the fake executor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake {
    /// Time a step takes.
    pub(crate) step: Duration,
    /// Steps run.
    pub(crate) steps: Arc<AtomicU64>,
    /// Steps that another thread than the engine's ran.
    pub(crate) inline_steps: Arc<AtomicU64>,
    /// True if other threads may run steps.
    pub(crate) at_once: bool,
    pub(crate) engine: EngineConfig,
    /// True if [`FAILS`] and [`LOSES`] are obeyed.
    pub(crate) faults: bool,
    /// Longest sequence; 512 if zero.
    pub(crate) context: u32,
}

/// A step whose batch holds this token fails, if faults are on.
pub(crate) const FAILS: u32 = 4000;
/// A step whose batch holds this token loses the device, if faults are on.
pub(crate) const LOSES: u32 = 4001;

/// `demo-lm` with the fake executor in place of its own, under the name `fake`.
pub(crate) fn fake_model(fake: &Fake) -> Loaded {
    let mut loaded = model_with(&demo::LM, &every_task_options());
    let context = if fake.context == 0 { 512 } else { fake.context };
    let executor = FakeExecutor {
        fake: fake.clone(),
        capacity: Capacity {
            block_size: 16,
            num_blocks: 1024,
            max_step_tokens: 4096,
            full_step_tokens: 2048,
            max_context_len: context,
            vocab_size: 4096,
            pipeline_depth: 1,
            passes: None,
            attention: prelude_core::Attention::Causal,
            host_blocks: 0,
        },
        done: None,
    };
    let engine = ScheduledEngine::spawn("fake", fake.engine.clone(), Box::new(executor)).unwrap();
    loaded.model.name = "fake".to_owned();
    loaded.model.max_model_len = context;
    loaded.model.engine = engine.handle();
    loaded.engine = engine;
    loaded
}

struct FakeExecutor {
    fake: Fake,
    capacity: Capacity,
    done: Option<Result<StepOutput, ExecutorError>>,
}

impl Executor for FakeExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        batch.validate(&self.capacity).unwrap();
        std::thread::sleep(self.fake.step);
        self.fake.steps.fetch_add(1, Ordering::SeqCst);
        let is_inline = std::thread::current().name() != Some("prelude-fake");
        let inline = u64::from(is_inline);
        self.fake.inline_steps.fetch_add(inline, Ordering::SeqCst);
        let (oneshot, prefill, decode) = batch.parts();
        let faults = self.fake.faults;
        let has = |id| faults && (oneshot.tokens.contains(&id) || prefill.tokens.contains(&id));
        self.done = Some(if has(LOSES) {
            Err(ExecutorError::Lost("told to".to_owned()))
        } else if has(FAILS) {
            Err(ExecutorError::Step("told to".to_owned()))
        } else {
            Ok(StepOutput {
                oneshot: rows(oneshot),
                prefill: rows(prefill),
                decode: decode
                    .rows
                    .iter()
                    .map(|row| {
                        let prelude_core::TokenSource::Known(token) = row.token else {
                            panic!("the pipeline is one step deep");
                        };
                        RowOutput::Sampled(sample(token, row.context_len, &row.sample))
                    })
                    .collect(),
                step,
            })
        });
        Ok(())
    }

    fn collect(&mut self, _step: StepId) -> Result<StepOutput, ExecutorError> {
        self.done.take().expect("a step was submitted")
    }

    fn computes_at_once(&self) -> bool {
        self.fake.at_once
    }
}

fn rows(batch: &OneShotBatch) -> Vec<RowOutput> {
    let row = |row: &prelude_core::OutputRow| {
        let segment = &batch.segments[row.segment.index()];
        let position = row.positions.end - 1;
        let last = segment.tokens.start + (position - segment.context_len.min(position));
        let token = batch.tokens[last.min(segment.tokens.end - 1) as usize];
        match &row.head {
            OutputHead::Sample(head) => RowOutput::Sampled(sample(token, position, head)),
            OutputHead::LabelScores { labels, .. } => RowOutput::LabelScores(LabelScores {
                logits: labels
                    .iter()
                    .map(|&l| hash(l, position) as f32 / 1e3)
                    .collect(),
                log_sum_exp: Some(9.0),
            }),
            OutputHead::Logprobs { targets, top } => RowOutput::Logprobs {
                first_position: row.positions.start + 1,
                entries: (row.positions.start..)
                    .zip(targets)
                    .map(|(position, &token)| PositionLogprobs {
                        token,
                        logprob: -(hash(token, position) as f32) / 1e3,
                        rank: 1 + hash(token, position) % 7,
                        top: likeliest(token, *top),
                    })
                    .collect(),
            },
            OutputHead::Embed { .. } => RowOutput::Embedding(vec![0.6, 0.8]),
            OutputHead::Classify => RowOutput::Classes(vec![0.0; 77]),
            OutputHead::Tokens(_) | OutputHead::States(_) => RowOutput::Tokens {
                first_position: row.positions.start,
                rows: vec![vec![0.0; 77]; row.num_outputs()],
            },
        }
    };
    batch.rows.iter().map(row).collect()
}

/// A token that follows from the one before it, its place, and what makes draws differ.
fn sample(token: u32, position: u32, head: &SampleHead) -> Vec<SampledToken> {
    (head.choice..head.choice + head.draws)
        .map(|choice| {
            let noise = match head.sampling.temperature {
                0.0 => 0,
                _ => choice + 1 + head.sampling.seed as u32,
            };
            let next = match &head.sampling.allowed_token_ids {
                Some(ids) => ids[hash(token, position) as usize % ids.len()],
                // Ordinary tokens: above 4063 come the special ones.
                None => hash(token ^ noise, position),
            };
            let top = likeliest(next, head.top_logprobs.unwrap_or(0));
            SampledToken {
                token: next,
                logprob: head.top_logprobs.map(|_| -0.25),
                top,
            }
        })
        .collect()
}

fn likeliest(token: u32, top: u32) -> Vec<TokenLogprob> {
    (0..top)
        .map(|i| TokenLogprob {
            token: (token + i) % 4000,
            logprob: -0.25 - i as f32,
        })
        .collect()
}

fn hash(token: u32, position: u32) -> u32 {
    let mixed = token.wrapping_mul(0x9e37_79b1) ^ position.wrapping_mul(0x85eb_ca6b);
    (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d) % 4000
}

/// The value of the first line of a page of metrics that begins with `name`; the sum of all if
/// that is the whole name of several.
fn on_page(page: &str, name: &str) -> Option<f64> {
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    let is_of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
    let all: Vec<&str> = page.lines().filter(is_of_name).collect();
    match &*all {
        [] => value(page.lines().find(|l| l.starts_with(name))?),
        all => all.iter().map(|line| value(line)).sum(),
    }
}
