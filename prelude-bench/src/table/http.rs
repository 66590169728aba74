//! A classification over HTTP, and the same request through the engine alone.

use anyhow::{Context as _, Result};
use prelude_core::{Head, PromptTree, RowSpec};
use prelude_engine::RequestSpec;
use prelude_server::{
    ApiKeys, App, Server, ServerConfig, assets::Assets, demo, executor::Devices, load,
};

use super::{Row, TableConfig, in_turns, row};
use crate::blocking::Client;

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
