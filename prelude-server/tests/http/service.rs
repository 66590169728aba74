//! The tokenizer, the models, the state of the process, its metrics and its end.

use std::{
    collections::HashSet,
    io::Write,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use prelude_server::{ApiKeys, App, Asking, Ended, Limits, ServerConfig};
use serde_json::{Value, json};

use crate::support::{
    Fake, LOSES, Response, TestServer, config, every_task, fake_model, read_all, with_limits,
};

#[test]
fn tokens_there_and_back() {
    let server = TestServer::demo();
    let one = server.post(
        "/tokenize",
        r#"{"prompt":"Where is my card?","return_token_strs":true}"#,
    );
    let one = one.json();
    let tokens = one["tokens"].as_array().unwrap();
    assert_eq!(one["count"], tokens.len());
    assert_eq!(one["max_model_len"], 4096);
    let strings: String = one["token_strs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s.as_str().unwrap())
        .collect();
    assert_eq!(strings, "Where is my card?");
    let back = server.post("/detokenize", &json!({"tokens": tokens}).to_string());
    assert_eq!(
        back.body,
        r#"{"prompt":"Where is my card?","text":"Where is my card?"}"#
    );
    let many = server.post("/tokenize", r#"{"prompt":["Where is my card?",""]}"#);
    let many = many.json();
    assert_eq!(many[0]["tokens"], one["tokens"]);
    assert_eq!(
        many[1],
        json!({"count": 0, "max_model_len": 4096, "tokens": [], "token_strs": null})
    );
    let chat = server.post(
        "/tokenize",
        r#"{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false}"#,
    );
    let ids = chat.json()["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": ids}).to_string());
    assert_eq!(text.json()["text"], "<|im_start|>user\na<|im_end|>\n");

    let check = |path: &str, body: &str, reason: &str| {
        let response = server.post(path, body);
        assert_eq!(
            (response.status, &*response.reason()),
            (400, reason),
            "{body}"
        );
    };
    check("/tokenize", "{}", "missing_field");
    check("/tokenize", r#"{"prompt":[1]}"#, "invalid_type");
    check("/tokenize", r#"{"prompt":[]}"#, "invalid_value");
    check("/detokenize", "{}", "missing_field");
    check("/detokenize", r#"{"tokens":"a"}"#, "invalid_type");
    check("/detokenize", r#"{"tokens":[4096]}"#, "token_out_of_range");
    let chat = r#""messages":[{"role":"user","content":"a"}]"#;
    for field in [r#""chat_template":"x""#, r#""return_prompt_text":true"#] {
        let body = format!("{{{chat},{field}}}");
        check("/tokenize", &body, "unsupported_parameter");
    }

    let info = server.get("/tokenizer_info").json();
    assert_eq!(info["eos_token"], "<|im_end|>");
    assert_eq!(info["tokenizer_class"], "Qwen2Tokenizer");
    assert!(info["chat_template"].as_str().unwrap().contains("im_start"));
}

#[test]
fn models_are_listed() {
    let server = TestServer::demo();
    let list = server.get("/v1/models").json();
    let names: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(names, ["demo-lm", "demo-classifier"]);
    assert_eq!(list["data"][0]["kind"], "lm");
    assert_eq!(list["data"][1]["kind"], "classifier");
    assert_eq!(list["models"][0]["name"], "demo-lm");
    let one = server.get("/v1/models/demo%2Dlm").json();
    assert_eq!(one, list["data"][0]);
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/v1/models/other").reason(), "model_not_found");
}

#[test]
fn state_while_loading_and_after() {
    let server = TestServer::loading(config(), ApiKeys::default());
    for path in ["/health", "/ping", "/ready", "/v1/models"] {
        let response = server.get(path);
        assert_eq!(
            (response.status, &*response.reason()),
            (503, "loading"),
            "{path}"
        );
        assert_eq!(response.header("retry-after"), Some("5"));
    }
    assert_eq!(server.get("/live").status, 200);
    let refused = server.post("/v1/completions", r#"{"prompt":"a"}"#);
    assert_eq!((refused.status, &*refused.reason()), (503, "loading"));
    let loaded = fake_model(&Fake::default());
    server.app.set_models(vec![loaded.model]);
    let health = server.get("/health");
    assert_eq!((health.status, &*health.body), (200, ""));
    let ready = server.get("/ready").json();
    assert_eq!(
        ready,
        json!({"status": "ready", "model": "fake", "queue_rows": 0, "models": [{"id": "fake"}]})
    );
    let head = server.exchange(b"HEAD /version HTTP/1.1\r\nconnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"));
}

#[test]
fn a_lost_device_ends_the_service() {
    let mut server = TestServer::faulty();
    let body = json!({"prompt": [LOSES], "max_tokens": 2}).to_string();
    let status = server.post("/v1/completions", &body).status;
    assert!(status == 503 || status == 500, "{status}");
    let running = server.running.take().unwrap();
    assert_eq!(server.runtime.block_on(running).unwrap(), Ended::EngineLost);
    // The port is closed; calls of clients that were connected before get an error.
    let body = json!({"prompt": [1], "max_tokens": 1}).to_string();
    for (method, path) in [
        ("POST", "/v1/completions"),
        ("GET", "/health"),
        ("GET", "/ready"),
        ("GET", "/live"),
    ] {
        let answered = server.app.answer(method, path, body.clone());
        let answered = server.runtime.block_on(answered);
        let body: Value = serde_json::from_slice(&answered.body).unwrap();
        assert_eq!(answered.status, 503, "{path} {body}");
        assert_eq!(body["error"]["reason"], "engine_dead", "{path}");
    }
}

fn draining(drain_timeout_ms: u64) -> ServerConfig {
    ServerConfig {
        drain_delay_ms: 300,
        drain_timeout_ms,
        ..config()
    }
}

/// The time of a step, so that an answer of some tokens takes a while.
const STEP: Duration = Duration::from_millis(20);

#[test]
fn draining_finishes_what_runs() {
    let fake = Fake {
        step: STEP,
        ..Fake::default()
    };
    let mut server = TestServer::fake(draining(20_000), &fake);
    let body = r#"{"prompt":[1],"max_tokens":40,"ignore_eos":true,"stream":true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut long = server.connect();
    long.write_all(request.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let app = server.app.clone();
    let start = Instant::now();
    let drain = server.runtime.spawn(async move { app.drain().await });
    std::thread::sleep(Duration::from_millis(50));
    // Health is red at once, and requests are still served.
    let health = server.get("/health");
    assert_eq!((health.status, &*health.reason()), (503, "draining"));
    assert_eq!(server.get("/live").status, 200);
    assert_eq!(
        server
            .post("/v1/completions", r#"{"prompt":[1],"max_tokens":1}"#)
            .status,
        200
    );
    std::thread::sleep(Duration::from_millis(350));
    let refused = server.post("/v1/completions", r#"{"prompt":[1],"max_tokens":1}"#);
    assert_eq!((refused.status, &*refused.reason()), (503, "draining"));
    assert_eq!(refused.header("connection"), Some("close"));
    // The running answer is whole.
    let response = Response::parse(&read_all(&mut long));
    assert_eq!(response.status, 200);
    let events = response.events();
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    server.runtime.block_on(drain).unwrap();
    let ended = server.runtime.block_on(server.running.take().unwrap());
    assert_eq!(ended.unwrap(), Ended::Drained);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn draining_ends_what_takes_too_long() {
    let fake = Fake {
        step: STEP,
        ..Fake::default()
    };
    let mut server = TestServer::fake(draining(200), &fake);
    let send = |stream: bool| {
        let body =
            format!(r#"{{"prompt":[1],"max_tokens":500,"ignore_eos":true,"stream":{stream}}}"#);
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = server.connect();
        connection.write_all(request.as_bytes()).unwrap();
        connection
    };
    let (mut streamed, mut whole) = (send(true), send(false));
    std::thread::sleep(Duration::from_millis(100));
    let app = server.app.clone();
    server.runtime.block_on(async move { app.drain().await });
    let response = Response::parse(&read_all(&mut whole));
    assert_eq!((response.status, &*response.reason()), (503, "draining"));
    let response = Response::parse(&read_all(&mut streamed));
    assert_eq!(response.status, 200);
    let events = response.events();
    assert_eq!(events.last().unwrap()["error"]["reason"], "draining");
    let ended = server.runtime.block_on(server.running.take().unwrap());
    assert_eq!(ended.unwrap(), Ended::Drained);
}

#[test]
fn metrics_name_what_happened() {
    let server = TestServer::fake(config(), &Fake::default());
    server.post(
        "/v1/completions",
        r#"{"prompt":[1,2,3],"max_tokens":4,"ignore_eos":true}"#,
    );
    server.post("/v1/completions", "{}");
    let page = server.get("/metrics");
    assert_eq!(
        page.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let check = |name: &str, expected: f64| assert_eq!(server.metric(name), expected, "{name}");
    check(
        "prelude:requests_total{route=\"/v1/completions\",code=\"200\",",
        1.0,
    );
    check(
        "prelude:requests_total{route=\"/v1/completions\",code=\"400\",",
        1.0,
    );
    check("prelude:rejects_total{reason=\"missing_field\",", 1.0);
    check(
        "vllm:prompt_tokens_total{engine=\"0\",model_name=\"fake\"}",
        3.0,
    );
    check(
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"fake\"}",
        4.0,
    );
    check(
        "vllm:request_params_max_tokens_sum{engine=\"0\",model_name=\"fake\"}",
        4.0,
    );
    check("vllm:time_to_first_token_seconds_count", 1.0);
    // Each line is a comment or `name{labels} value`, and each name has a type.
    let mut typed = HashSet::new();
    for line in page.body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(
                typed.insert(rest.split(' ').next().unwrap().to_owned()),
                "{line}"
            );
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = name.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|s| name.strip_suffix(s).filter(|b| typed.contains(*b)));
            assert!(typed.contains(base.unwrap_or(name)), "{line}");
        }
    }
    server.settle();
}

#[test]
fn tokenizer_answers_have_bounds() {
    let limits = Limits {
        rows: 2,
        detokenize_bytes: 8,
        ..Limits::default()
    };
    let server = TestServer::fake(with_limits(limits), &Fake::default());
    let check = |path: &str, body: Value, expected: Option<&str>| {
        let response = server.post(path, &body.to_string());
        let found = (response.status != 200).then(|| response.reason());
        assert_eq!(found.as_deref(), expected, "{path} {body}");
    };
    check("/tokenize", json!({"prompt": ["a", "b"]}), None);
    let three = json!({"prompt": ["a", "b", "c"]});
    check("/tokenize", three, Some("too_many_rows"));
    let ids = |text: &str| {
        let body = json!({"prompt": text}).to_string();
        server.post("/tokenize", &body).json()["tokens"].clone()
    };
    check("/detokenize", json!({"tokens": ids("12345678")}), None);
    let nine = json!({"tokens": ids("123456789")});
    check("/detokenize", nine, Some("invalid_value"));
}

/// Returns the numbers of steps and of steps on the connection's thread that 40 requests of a lone
/// client took. All are answered alike.
fn inline_steps(inline_step_us: u64, body: &str, connections: usize) -> (u64, u64) {
    let fake = Fake {
        at_once: true,
        ..Fake::default()
    };
    let config = ServerConfig {
        inline_step_us,
        ..config()
    };
    let server = TestServer::fake(config, &fake);
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut streams: Vec<_> = (0..connections).map(|_| server.connect()).collect();
    let mut answers = HashSet::new();
    for n in 0..40 {
        let stream = &mut streams[n % connections];
        stream.write_all(request.as_bytes()).unwrap();
        let response = Response::read(stream);
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-prelude-class"), Some("oneshot"));
        answers.insert(response.json()["choices"].take().to_string());
    }
    assert_eq!(answers.len(), 1);
    (
        fake.steps.load(Ordering::SeqCst),
        fake.inline_steps.load(Ordering::SeqCst),
    )
}

#[test]
fn short_steps_of_a_lone_client_are_computed_inline() {
    let body = r#"{"prompt":[1,2,3],"max_tokens":1,"temperature":0}"#;
    // A client is alone from its 17th request; the engine's thread may still be about to rest.
    let (steps, inline) = inline_steps(60_000_000, body, 1);
    assert_eq!(steps, 40);
    assert!((1..=24).contains(&inline), "{inline} of 40 inline");
    // Never with two connections, if the setting is 0, or where a step waits for masks.
    assert_eq!(inline_steps(60_000_000, body, 2), (40, 0));
    assert_eq!(inline_steps(0, body, 1), (40, 0));
    let constrained = r#"{"prompt":[1,2,3],"max_tokens":1,"temperature":0,
        "structured_outputs":{"choice":["a","b"]}}"#;
    assert_eq!(inline_steps(60_000_000, constrained, 1), (40, 0));
}

/// A thread without a connection computes its step if it says that it may, and gets the same answer.
#[test]
fn who_asks_in_process_may_compute_the_step() {
    let body = r#"{"prompt":[1,2,3],"max_tokens":1,"temperature":0}"#;
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap();
    let ask_40 = |inline: Option<Duration>| {
        let fake = Fake {
            at_once: true,
            ..Fake::default()
        };
        let loaded = fake_model(&fake);
        let app = App::new(config(), ApiKeys::default());
        app.set_models(vec![loaded.model]);
        let asking = Asking {
            inline,
            ..Asking::default()
        };
        let mut answers = HashSet::new();
        for _ in 0..40 {
            let answer = app.answer_as(asking, "POST", "/v1/completions", body);
            let answer: Value = serde_json::from_slice(&runtime.block_on(answer).body).unwrap();
            answers.insert(answer["choices"].to_string());
        }
        assert_eq!(fake.steps.load(Ordering::SeqCst), 40);
        (answers, fake.inline_steps.load(Ordering::SeqCst))
    };
    let (answers, none) = ask_40(None);
    assert_eq!((answers.len(), none), (1, 0));
    // The time of the first step is not known, and the engine's thread may still be about to rest.
    let (same, inline) = ask_40(Some(Duration::from_secs(60)));
    assert!((1..40).contains(&inline), "{inline} of 40 inline");
    assert_eq!(same, answers);
}

/// Unknown fields of the body and of the objects in it, except those whose keys are data.
#[test]
fn unknown_fields_are_counted_or_refused_at_all_depths() {
    let server = every_task();
    let count = || {
        let counted = server.metric_now("prelude:unknown_fields_total");
        server.runtime.block_on(counted).unwrap_or(0.0)
    };
    let noul = |more: Value| {
        let mut question = json!({"type": "noul", "instructions": "?"});
        question
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"state": "a", "questions": {"a": question}})
    };
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let choice = |more: Value| {
        let mut entry = json!({"value": "a"});
        entry
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let question = json!({"type": "choice", "instructions": "?",
            "choices": [entry, {"value": "b"}]});
        let part = json!({"type": "input_text", "text": "a", "nix": 1});
        json!({"input": [{"role": "user", "content": [part]}], "questions": [question]})
    };
    let cases = [
        (
            "/v1/systemone",
            noul(json!({"nix": 1})),
            1,
            "/questions/a/nix",
        ),
        ("/v1/systemone", noul(json!({})), 0, ""),
        (
            "/v1/decisions",
            choice(json!({"nix": 1})),
            2,
            "/input/0/content/0/nix",
        ),
        (
            "/v1/chat/completions",
            chat(json!({"stream": true, "stream_options": {"nix": true}})),
            1,
            "/stream_options/nix",
        ),
        #[cfg(feature = "llguidance")]
        (
            "/v1/chat/completions",
            chat(json!({"response_format": {"type": "json_schema",
                "json_schema": {"schema": {"type": "null"}, "nix": 1}}})),
            1,
            "/response_format/json_schema/nix",
        ),
        (
            "/rerank",
            json!({"query": "a", "documents": ["b", {"text": "c", "nix": 1}]}),
            1,
            "/documents/1/nix",
        ),
        (
            "/score",
            json!({"text_1": "a", "text_2": {"content": [{"type": "text", "text": "b"}], "nix": 1}}),
            1,
            "/text_2/nix",
        ),
        // Objects whose keys are data.
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a", "nix": 1}], "max_tokens": 1,
                "chat_template_kwargs": {"nix": 1}, "logit_bias": {"1": 1}}),
            0,
            "",
        ),
    ];
    for (path, body, unknown, at) in cases {
        let body = body.to_string();
        let before = count();
        let response = server.post(path, &body);
        assert_eq!(response.status, 200, "{path} {body}\n{}", response.body);
        assert_eq!(count() - before, f64::from(unknown), "{path} {body}");
        let strict = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-prelude-strict: 1\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let strict = Response::parse(&server.exchange(strict.as_bytes()));
        if unknown == 0 {
            assert_eq!(strict.status, 200, "{path} {body}\n{}", strict.body);
        } else {
            let error = &strict.json()["error"];
            let expected = (json!("unknown_field"), json!(at));
            assert_eq!((error["reason"].clone(), error["param"].clone()), expected);
        }
    }
}
