//! The overhead of HTTP: the same classification over a connection, and by the engine alone.
//!
//! The engine is called as the server calls it for a client that is alone: the step runs on the
//! caller's thread, so that no call waits for another thread to wake. And it is called at the same
//! pace: before each call the caller is busy for as long as HTTP takes beside the step, because
//! threads and caches are warmer the sooner steps follow each other.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use prelude_core::{Head, PromptTree, RowSpec, TokenId};
use prelude_engine::{EngineHandle, RequestSpec};
use prelude_measure::{http::Client, stats::median};
use prelude_server::{ServerConfig, demo};

use super::{
    Config, Session,
    noop::{Here, demo as demo_model, idle},
    report::{Row, Unit},
};

/// 16 tokens of the demo's tokenizer.
const MESSAGE: &str = "I still have not received my new card, I ordered over a week ago.";

/// Most that HTTP, JSON and tokenizing may add at the median.
const TARGET_US: f64 = 60.0;

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
        let mut found = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            let [http, alone, machine, step] = asked.turns(time)?;
            let of_round = [http, step, alone, http - alone];
            found
                .iter_mut()
                .zip(of_round)
                .for_each(|(rounds, value)| rounds.push(value));
            echo.push(machine);
        }
        let [http, steps, alone, added] = found;
        let row = |what_of_it: &str, rounds| {
            let name = format!("POST /classify, {what}, {what_of_it}");
            Row::new(name, Unit::Micros, rounds)
        };
        rows.extend([
            row("one connection", http),
            row("of which its step, by the server's headers", steps),
            row("the engine call alone, as often", alone),
            row("what HTTP and tokenizing add", added).at_most(TARGET_US),
        ]);
    }
    let name = "the machine: the same bytes over TCP";
    rows.push(Row::new(name, Unit::Micros, echo));
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

    /// Classifies over HTTP. Returns the microseconds of the engine's step.
    fn http_call(&mut self) -> Result<f64> {
        let answer = self.client.post("/classify", &self.body)?.ok()?;
        let ms = answer.header("x-prelude-exec-ms");
        Ok(1e3 * ms.context("no x-prelude-exec-ms")?.parse::<f64>()?)
    }

    /// Medians in microseconds of each kind of call, made in turns so that they share whatever
    /// else the machine does; the last is of the steps of the first.
    fn turns(&mut self, round: Duration) -> Result<[f64; 4]> {
        let mut times = [const { Vec::new() }; 3];
        let mut steps = Vec::new();
        let start = Instant::now();
        while times[0].is_empty() || start.elapsed() < round {
            // The microseconds that HTTP took beside the step in the latest turn.
            let mut between = 0.0;
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
                    times.push(1e6 * call.elapsed().as_secs_f64());
                }
                if kind == 0 {
                    let latest = |all: &[f64]| median(&all[all.len() - TURN..]);
                    between = latest(times) - latest(&steps);
                }
            }
        }
        let [http, alone, echo] = times;
        Ok([http, alone, echo, steps].map(|times| median(&times)))
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

/// Keeps this thread busy for so many microseconds, as reading, parsing and answering do.
fn stay_busy(us: f64) {
    let since = Instant::now();
    while 1e6 * since.elapsed().as_secs_f64() < us {
        std::hint::spin_loop();
    }
}

/// A loopback connection whose other end answers so many bytes with so many: the part of a server's
/// latency that no server can avoid unless its threads busy-poll.
pub(crate) struct Echo {
    stream: TcpStream,
    question: Vec<u8>,
    answer: Vec<u8>,
}

impl Echo {
    pub(crate) fn start(question: usize, answer: usize) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("a loopback port")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        let (mut other, _) = listener.accept()?;
        other.set_nodelay(true)?;
        let (mut read, written) = (vec![0; question], vec![b'a'; answer]);
        thread::spawn(move || {
            // Ends with its connection, by any error.
            while other.read_exact(&mut read).is_ok() && other.write_all(&written).is_ok() {}
        });
        Ok(Self {
            stream,
            question: vec![b'q'; question],
            answer: vec![0; answer],
        })
    }

    /// Sends a request, and waits for the answer.
    pub(crate) fn ask(&mut self) -> Result<()> {
        self.stream.write_all(&self.question)?;
        Ok(self.stream.read_exact(&mut self.answer)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_answered() {
        let mut echo = Echo::start(300, 2_000).unwrap();
        for _ in 0..3 {
            echo.answer.fill(0);
            echo.ask().unwrap();
            assert!(echo.answer.iter().all(|&b| b == b'a'));
        }
    }
}
