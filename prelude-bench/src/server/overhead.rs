//! What HTTP adds: the same classification over a connection, and by the engine alone.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use prelude_core::{Head, PromptTree, RowSpec, TokenId};
use prelude_engine::{EngineHandle, RequestSpec};
use prelude_server::{ServerConfig, demo};

use super::{
    noop::{Here, demo as demo_model, idle},
    report::{Row, Unit, Verdict},
};

/// 16 tokens of the demo's tokenizer.
const MESSAGE: &str = "I still have not received my new card, I ordered over a week ago.";

/// Most that HTTP, JSON and tokenizing may add at the median.
pub(super) const TARGET_US: f64 = 60.0;

/// Calls of one kind before it is the other's turn.
const TURN: usize = 50;

/// Measures with the demo classifier and with a model that computes nothing.
pub(super) fn measure(rounds: usize, round: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (what, loaded) in [
        ("demo classifier", demo_model(&demo::CLASSIFIER)?),
        ("no-op model", idle(&demo::CLASSIFIER)?),
    ] {
        let ids = loaded.model.tokenizer.encode(MESSAGE, true);
        let server = Here::serve(ServerConfig::default(), vec![loaded])?;
        let mut client = Client::connect(server.address)?;
        let engine = server.engine();
        let (mut http, mut alone, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (h, e) = turns(round, &mut client, &engine, &ids)?;
            http.push(h);
            alone.push(e);
            added.push(h - e);
        }
        let name = |what_of_it: &str| format!("POST /classify, {what}, {what_of_it}");
        rows.push(Row::new(name("one connection"), Unit::Micros, http));
        rows.push(Row::new(name("the engine call alone"), Unit::Micros, alone));
        let added = Row::new(name("what HTTP and tokenizing add"), Unit::Micros, added);
        let verdict = Verdict::at_most(added.value, TARGET_US);
        rows.push(added.with(verdict));
    }
    Ok(rows)
}

/// Medians in microseconds of both kinds of call, made in turns so that they share whatever else
/// the machine does.
fn turns(
    round: Duration,
    client: &mut Client,
    engine: &EngineHandle,
    ids: &[TokenId],
) -> Result<(f64, f64)> {
    let body = serde_json::json!({ "input": MESSAGE }).to_string();
    let (mut http, mut alone) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while http.is_empty() || start.elapsed() < round {
        for _ in 0..TURN {
            let call = Instant::now();
            client.post("/classify", &body)?;
            http.push(call.elapsed());
        }
        for _ in 0..TURN {
            let call = Instant::now();
            let tree = PromptTree::single(ids.to_vec());
            let rows = vec![RowSpec {
                node: tree.last_node(),
                head: Head::Classify,
            }];
            engine
                .submit(RequestSpec::new(tree, rows))?
                .blocking_collect()?;
            alone.push(call.elapsed());
        }
    }
    Ok((median_us(http), median_us(alone)))
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// A client of one connection that does no more than it must, so that what is timed is the
/// server.
struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("the server just started")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    fn post(&mut self, path: &str, body: &str) -> Result<()> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.reader.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        ensure!(line.starts_with("HTTP/1.1 200"), "{path} answered {line}");
        let mut length = 0;
        loop {
            line.clear();
            ensure!(
                self.reader.read_line(&mut line)? > 0,
                "the connection closed"
            );
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().context("a content length")?;
            }
        }
        let mut answer = vec![0; length];
        self.reader.read_exact(&mut answer)?;
        Ok(())
    }
}
