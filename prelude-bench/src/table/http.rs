//! A classification over HTTP, and the same request through the engine alone.

use anyhow::Result;
use prelude_core::{Head, PromptTree, RowSpec};
use prelude_engine::RequestSpec;
use prelude_measure::{
    clock::{Rounds, in_turns},
    http::Client,
    record::Row,
    stats::median,
};
use prelude_server::{ServerConfig, demo};

use super::{against, micros};
use crate::server::{noop, overhead::Echo};

const MESSAGE: &str = "I still have not received my new card, I ordered over a week ago.";

pub(super) fn measure(rounds: Rounds) -> Result<Vec<Row>> {
    let model = noop::demo(&demo::CLASSIFIER)?;
    let ids = model.model.tokenizer.encode(MESSAGE, true);
    let server = noop::Here::serve(ServerConfig::default(), vec![model])?;
    let mut client = Client::connect(&server.address.to_string())?;
    let body = serde_json::json!({ "input": MESSAGE }).to_string();
    let first = client.post("/classify", &body)?.ok()?;
    let mut echo = Echo::start(first.sent, first.received)?;
    let failure = std::cell::RefCell::new(None);
    let note = |result: Result<()>| {
        if let Err(error) = result {
            failure.borrow_mut().get_or_insert(error);
        }
    };
    let mut over_http = || {
        let answer = client
            .post("/classify", &body)
            .and_then(|answer| answer.ok());
        note(answer.map(|_| ()));
    };
    let engine = server.engine();
    let mut engine_alone = || {
        let tree = PromptTree::single(ids.clone());
        let rows = vec![RowSpec {
            node: tree.last_node(),
            head: Head::Classify,
        }];
        let answer = engine.submit(RequestSpec::new(tree, rows));
        let collected = answer.map_err(anyhow::Error::from);
        note(collected.and_then(|a| Ok(a.blocking_collect().map(|_| ())?)));
    };
    let mut same_bytes = || note(echo.ask());
    let seconds = in_turns(
        rounds,
        &mut [&mut over_http, &mut engine_alone, &mut same_bytes],
    );
    if let Some(error) = failure.take() {
        return Err(error);
    }
    let alone = micros("the same through the engine alone", &seconds[1]);
    let http = micros("POST /classify, 65 bytes, keep-alive", &seconds[0]);
    let [http_us, alone_us, echo_us] = [0, 1, 2].map(|i| 1e6 * median(&seconds[i]));
    let rival = format!(
        "the engine alone ({:.0} µs of HTTP and tokenizing); limit: the engine and the same bytes \
         over TCP",
        http_us - alone_us
    );
    let http = against(http.bound(alone_us + echo_us), &alone, &rival);
    Ok(vec![http, alone])
}
