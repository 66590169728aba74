//! `/v1/status`, its stream of events, and the page that shows them.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use prelude_server::{ApiKeys, Ended, ServerConfig};
use serde_json::{Value, json};

use crate::support::{Response, TestServer, config, demo_model};

/// A client of the stream of events.
struct Watcher(BufReader<TcpStream>);

impl Watcher {
    fn new(server: &TestServer, headers: &str) -> Self {
        let mut stream = TcpStream::connect(server.addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        write!(
            stream,
            "GET /v1/status/events HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n"
        )
        .unwrap();
        Self(BufReader::new(stream))
    }

    /// Reads on to the next event; `None` at the end.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        while self.0.read_line(&mut line).unwrap() > 0 {
            if let Some(event) = line.strip_prefix("data: {") {
                return Some(serde_json::from_str(&format!("{{{event}")).unwrap());
            }
            line.clear();
        }
        None
    }

    /// Reads on until an event has steps of a model, and returns them with the number of steps missed.
    fn steps(&mut self, model: usize) -> (Vec<Value>, u64) {
        loop {
            let event = self.next().expect("the stream goes on");
            let model = &event["models"][model];
            let steps = model["steps"].as_array().unwrap();
            if !steps.is_empty() {
                return (steps.clone(), model["missed_steps"].as_u64().unwrap());
            }
        }
    }
}

#[test]
fn the_state_of_every_model() {
    let server = TestServer::demo();
    let before = server.get("/v1/status").json();
    assert_eq!(before["phase"], "ready");
    assert_eq!(before["models"][0]["recent_steps"], json!([]));
    let body = json!({"state": "a", "questions": {"q": {"type": "noul", "instructions": "b"}}});
    let answer = server.post("/v1/systemone", &body.to_string());
    let computed = answer.header("x-prelude-computed-tokens").unwrap();
    let status = server.get("/v1/status").json();
    let model = &status["models"][0];
    assert_eq!(
        (&model["id"], &model["kind"], &model["alive"]),
        (&json!("demo-lm"), &json!("lm"), &json!(true))
    );
    let steps = model["recent_steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "{model}");
    assert_eq!(steps[0]["kind"], "oneshot");
    assert_eq!(steps[0]["oneshot_tokens"].to_string(), computed);
    assert_eq!(model["now"]["computed_tokens"].to_string(), computed);
    assert_eq!(model["latency"][0]["exec_seconds"]["count"], 1);
    assert_eq!(model["steps"][0]["steps"], 1);
    assert_eq!(status["models"][1]["recent_steps"], json!([]));
    let classes: Vec<&str> = { status["queues"].as_array().unwrap().iter() }
        .map(|queue| queue["class"].as_str().unwrap())
        .collect();
    assert_eq!(classes, ["arriving", "oneshot", "decode"]);
}

#[test]
fn steps_are_told_as_they_run() {
    let server = TestServer::demo();
    let mut watcher = Watcher::new(&server, "");
    let first = watcher.next().unwrap();
    assert_eq!(first["models"][1]["steps"], json!([]));
    let body = json!({"input": "Where is my card?", "model": "demo-classifier"}).to_string();
    assert_eq!(server.post("/classify", &body).status, 200);
    let (one, missed) = watcher.steps(1);
    assert_eq!((one.len(), missed), (1, 0));
    // More steps than the engine remembers, unread meanwhile: each is told once, or counted as missed.
    let asked = 300;
    for _ in 0..asked {
        assert_eq!(server.post("/classify", &body).status, 200);
    }
    let mut last = one[0]["step"].as_u64().unwrap();
    let (end, mut seen) = (last + asked, 0);
    while last < end {
        let (steps, missed) = watcher.steps(1);
        assert!(steps.len() <= 200);
        let first = steps[0]["step"].as_u64().unwrap();
        assert_eq!(first, last + missed + 1, "steps are told once, in order");
        last += missed + steps.len() as u64;
        seen += missed + steps.len() as u64;
        assert_eq!(steps.last().unwrap()["step"], last);
    }
    assert_eq!(seen, asked);
}

/// A client that watches does not count as in flight: the process ends without waiting for it, or this
/// test would take an hour.
#[test]
fn watching_does_not_delay_the_end() {
    let config = ServerConfig {
        drain_delay_ms: 0,
        drain_timeout_ms: 3_600_000,
        ..config()
    };
    let models = vec![demo_model(&prelude_server::demo::LM)];
    let mut server = TestServer::with(config, ApiKeys::default(), models);
    let mut watcher = Watcher::new(&server, "");
    watcher.next().unwrap();
    let app = std::sync::Arc::clone(&server.app);
    server.runtime.block_on(app.drain());
    let ended = server.runtime.block_on(server.running.take().unwrap());
    assert!(matches!(ended.unwrap(), Ended::Drained));
    while watcher.next().is_some() {}
}

const PAGE: [(&str, &str); 3] = [
    ("/ui", "text/html; charset=utf-8"),
    ("/ui/style.css", "text/css; charset=utf-8"),
    ("/ui/script.js", "text/javascript; charset=utf-8"),
];

#[test]
fn the_page_runs_nothing_but_its_own_script() {
    let server = TestServer::loading(config(), ApiKeys::default());
    for (path, media) in PAGE {
        let response = server.get(path);
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.header("content-type"), Some(media));
        let policy = response.header("content-security-policy").unwrap();
        let parts = "default-src 'none'; script-src 'self'; style-src 'self'; \
                     connect-src 'self'; img-src 'self' data:;";
        assert!(policy.starts_with(parts), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("referrer-policy"), Some("no-referrer"));
    }
    let page = server.get("/ui").body;
    // What the policy forbids would be dead.
    for forbidden in ["style=", "onclick=", "<style", "http://www.w3.org/1999"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    let inline = page.split("<script").skip(1);
    assert!(inline.clone().count() == 1 && inline.clone().all(|tag| tag.contains("src=\"ui/")));
    // Nothing is loaded from elsewhere.
    for (path, _) in PAGE {
        let text = server.get(path).body;
        let text = text.replace("http://www.w3.org/", "");
        assert!(
            !text.contains("http://") && !text.contains("https://"),
            "{path}"
        );
    }
}

#[test]
fn the_page_needs_no_key_and_its_data_do() {
    let models = vec![demo_model(&prelude_server::demo::LM)];
    let server = TestServer::with(config(), ApiKeys::new(["secret"]), models);
    for (path, _) in PAGE {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in ["/v1/status", "/v1/status/events", "/v1/models"] {
        let refused = server.get(path);
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.reason(), "invalid_api_key", "{path}");
    }
    let mut watcher = Watcher::new(&server, "authorization: Bearer secret\r\n");
    assert_eq!(watcher.next().unwrap()["phase"], "ready");
    let asked = "GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 x-api-key: secret\r\n\r\n";
    let status = Response::parse(&server.exchange(asked.as_bytes()));
    assert_eq!(status.json()["models"][0]["id"], "demo-lm");
}

/// The stream begins before there is a model, and tells of the models when they are there.
#[test]
fn a_client_may_watch_a_server_that_loads() {
    let server = TestServer::loading(config(), ApiKeys::default());
    let mut watcher = Watcher::new(&server, "");
    let first = watcher.next().unwrap();
    assert_eq!(
        (&first["phase"], &first["models"]),
        (&json!("loading"), &json!([]))
    );
    let loaded = demo_model(&prelude_server::demo::CLASSIFIER);
    server.app.set_models(vec![loaded.model]);
    let next = watcher.next().unwrap();
    assert_eq!(next["phase"], "ready");
    assert_eq!(next["models"][0]["id"], "demo-classifier");
    drop(watcher);
    // The server takes requests as before.
    let mut rest = String::new();
    let mut stream = TcpStream::connect(server.addr).unwrap();
    write!(
        stream,
        "GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("HTTP/1.1 200"), "{rest}");
}
