//! One classification over HTTP, and the same request through the engine alone.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use prelude_core::{Head, PromptTree, RowSpec};
use prelude_engine::RequestSpec;
use prelude_server::{
    ApiKeys, App, Server, ServerConfig, assets::Assets, demo, executor::Devices, load,
};

use super::{Row, TableConfig, in_turns, row};

const MESSAGE: &str = "I still have not received my new card, I ordered over a week ago.";

pub(super) fn measure(config: TableConfig) -> Result<Vec<Row>> {
    let assets = Assets::embedded(&demo::CLASSIFIER).context("the demo classifier")?;
    let loaded = load::load(
        assets,
        &load::LoadOptions::default(),
        &Devices::of_machine(),
    )
    .context("the demo classifier")?;
    let engine = loaded.engine;
    let ids = loaded.model.tokenizer.encode(MESSAGE, true);

    let server_config = ServerConfig {
        port: 0,
        access_log: false,
        ..ServerConfig::default()
    };
    let threads = server_config.worker_threads;
    let app = App::new(server_config, ApiKeys::default());
    app.set_models(vec![loaded.model]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .enable_all()
        .build()?;
    let server = runtime
        .block_on(Server::bind(&app))
        .context("a loopback port")?;
    let address = server.local_addr()?;
    let serving = runtime.spawn(server.run());

    let mut client = Client::connect(address)?;
    let body = serde_json::json!({ "input": MESSAGE }).to_string();
    client.post("/classify", &body)?;
    let mut failure = None;
    let mut over_http = || {
        if let Err(error) = client.post("/classify", &body) {
            failure.get_or_insert(error);
        }
    };
    let handle = engine.handle();
    let mut engine_alone = || {
        let tree = PromptTree::single(ids.clone());
        let rows = vec![RowSpec {
            node: tree.last_node(),
            head: Head::Classify,
        }];
        // A failed answer shows in the HTTP half as well, which reports it.
        let _ = handle
            .submit(RequestSpec::new(tree, rows))
            .map(|a| a.blocking_collect());
    };
    let mut seconds = in_turns(config, &mut [&mut over_http, &mut engine_alone]);
    if let Some(error) = failure {
        return Err(error);
    }
    serving.abort();
    let micros = |s: Vec<f64>| s.into_iter().map(|s| s * 1e6).collect();
    let alone = row(
        "the same through the engine alone",
        "µs",
        micros(seconds.remove(1)),
    );
    let http = row(
        "POST /classify, 65 bytes, keep-alive",
        "µs",
        micros(seconds.remove(0)),
    );
    let overhead = http.value - alone.value;
    let ratio = alone.value / http.value;
    let rival = format!("the engine alone ({overhead:.0} µs of HTTP and tokenizing)");
    Ok(vec![http.against(rival, ratio), alone])
}

/// A client of one connection that does no more than it must.
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
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().context("a content length")?;
            }
        }
        let mut answer = vec![0; length];
        self.reader.read_exact(&mut answer)?;
        Ok(())
    }
}
