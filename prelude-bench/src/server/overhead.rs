//! The overhead of HTTP: the same classification over a connection, and by the engine alone.
//!
//! The engine is called as the server calls it for a client that is alone: the step runs on the
//! caller's thread, so that no call waits for another thread to wake. And it is called at the same
//! pace: before each call the caller is busy for as long as HTTP takes beside the step, because
//! threads and caches are warmer the sooner steps follow each other.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use prelude_core::{Head, PromptTree, RowSpec, TokenId};
use prelude_engine::{EngineHandle, RequestSpec};
use prelude_measure::http::Client;
use prelude_server::{ServerConfig, demo};

use super::{
    Config, Session,
    floor::Echo,
    noop::{Here, demo as demo_model, idle},
    report::{Row, Unit},
};

/// 16 tokens of the demo's tokenizer.
const MESSAGE: &str = "I still have not received my new card, I ordered over a week ago.";

/// Most that HTTP, JSON and tokenizing may add at the median.
pub(super) const TARGET_US: f64 = 60.0;

/// Calls of one kind before it is the other's turn.
const TURN: usize = 50;

/// Measures with the demo classifier and with a model that computes nothing; and the machine, in
/// the same turns.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    session.bar.says("HTTP over the engine call");
    let Config { rounds, time, .. } = *session.config;
    let mut rows = Vec::new();
    let mut echo = Vec::new();
    for (what, loaded) in [
        ("demo classifier", demo_model(&demo::CLASSIFIER)?),
        ("no-op model", idle(&demo::CLASSIFIER)?),
    ] {
        let ids = loaded.model.tokenizer.encode(MESSAGE, true);
        let config = ServerConfig::default();
        let inline = Duration::from_micros(config.inline_step_us);
        let server = Here::serve(config, vec![loaded])?;
        let mut asked = Asked::new(&server, ids, inline)?;
        let (mut http, mut steps) = (Vec::new(), Vec::new());
        let (mut alone, mut added) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let [h, e, machine, step] = asked.turns(time)?;
            http.push(h);
            steps.push(step);
            alone.push(e);
            added.push(h - e);
            echo.push(machine);
        }
        let name = |what_of_it: &str| format!("POST /classify, {what}, {what_of_it}");
        rows.push(Row::new(name("one connection"), Unit::Micros, http));
        let of_it = name("of which its step, by the server's headers");
        rows.push(Row::new(of_it, Unit::Micros, steps));
        let at_pace = name("the engine call alone, as often");
        rows.push(Row::new(at_pace, Unit::Micros, alone));
        let added = Row::new(name("what HTTP and tokenizing add"), Unit::Micros, added);
        rows.push(added.at_most(TARGET_US));
    }
    let name = "the machine: the same bytes over TCP";
    rows.push(Row::new(name.to_owned(), Unit::Micros, echo));
    Ok(rows)
}

/// The targets that are measured in turns.
struct Asked {
    client: Client,
    body: String,
    engine: EngineHandle,
    /// Longest step on the caller's thread.
    inline: Duration,
    ids: Vec<TokenId>,
    echo: Echo,
}

impl Asked {
    fn new(server: &Here, ids: Vec<TokenId>, inline: Duration) -> Result<Self> {
        let mut client = Client::connect(&server.address.to_string())?;
        let body = serde_json::json!({ "input": MESSAGE }).to_string();
        let answer = client.post("/classify", &body)?.ok()?;
        Ok(Self {
            client,
            body,
            engine: server.engine(),
            inline,
            ids,
            echo: Echo::start(answer.sent, answer.received)?,
        })
    }

    /// Classifies over HTTP. Returns the time of the engine's step.
    fn http_call(&mut self) -> Result<Duration> {
        let answer = self.client.post("/classify", &self.body)?.ok()?;
        let ms = answer.header("x-prelude-exec-ms");
        let ms: f64 = ms.context("no x-prelude-exec-ms")?.parse()?;
        Ok(Duration::try_from_secs_f64(ms / 1e3)?)
    }

    /// Medians in microseconds of each kind of call, made in turns so that they share whatever
    /// else the machine does; the last is of the steps of the first.
    fn turns(&mut self, round: Duration) -> Result<[f64; 4]> {
        let mut times = [const { Vec::new() }; 3];
        let mut steps = Vec::new();
        let start = Instant::now();
        while times[0].is_empty() || start.elapsed() < round {
            // The time that HTTP took beside the step in the latest turn.
            let mut between = Duration::ZERO;
            for (kind, times) in times.iter_mut().enumerate() {
                for _ in 0..TURN {
                    if kind == 1 {
                        stay_busy(between);
                    }
                    let call = Instant::now();
                    match kind {
                        0 => steps.push(self.http_call()?),
                        1 => self.engine_call()?,
                        _ => self.echo.ask()?,
                    }
                    times.push(call.elapsed());
                }
                if kind == 0 {
                    let steps = steps[steps.len() - TURN..].to_vec();
                    let calls = times[times.len() - TURN..].to_vec();
                    between = median(calls).saturating_sub(median(steps));
                }
            }
        }
        let [http, alone, echo] = times;
        Ok([http, alone, echo, steps].map(median_us))
    }

    fn engine_call(&self) -> Result<()> {
        let tree = PromptTree::single(self.ids.clone());
        let rows = vec![RowSpec {
            node: tree.last_node(),
            head: Head::Classify,
        }];
        let spec = RequestSpec::new(tree, rows);
        let answer = self.engine.submit_inline(spec, self.inline)?;
        answer.blocking_collect()?;
        Ok(())
    }
}

/// Keeps this thread busy for `time`, as reading, parsing and answering do.
fn stay_busy(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn median_us(times: Vec<Duration>) -> f64 {
    median(times).as_secs_f64() * 1e6
}
