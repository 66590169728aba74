//! Streams of events: silence, failures, clients that leave or do not read.

use std::time::Duration;

use prelude_server::Limits;
use serde_json::json;

use crate::support::{FAILS, Fake, TestServer, with_limits};

const PATH: &str = "/v1/completions";

fn slow(limits: Limits) -> TestServer {
    let fake = Fake {
        step: Duration::from_millis(250),
        faults: true,
        ..Fake::default()
    };
    TestServer::fake(with_limits(limits), &fake)
}

#[test]
fn silence_is_filled_with_comments() {
    let server = slow(Limits {
        keep_alive_comment_ms: 60,
        ..Limits::default()
    });
    let body = json!({"prompt": [1], "max_tokens": 3, "ignore_eos": true, "stream": true});
    let response = server.post(PATH, &body.to_string());
    let comments = response.body.matches(": keep-alive\n\n").count();
    assert!((2..=12).contains(&comments), "{}", response.body);
    assert!(!response.events().is_empty());
}

#[test]
fn a_failure_after_the_headers_is_an_event() {
    let server = slow(Limits {
        first_event_ms: 20,
        ..Limits::default()
    });
    let body = json!({"prompt": [FAILS], "max_tokens": 3, "stream": true});
    let response = server.post(PATH, &body.to_string());
    assert_eq!(response.status, 200);
    let events = response.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["error"]["reason"], "step_failed");
    assert_eq!(events[0]["error"]["code"], 500);
    server.settle();
}

#[test]
fn an_http2_stream_that_is_reset_is_aborted() {
    use http_body_util::{BodyExt, Full};
    use hyper::{Request, client::conn::http2};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let server = slow(Limits::default());
    let addr = server.addr;
    server.runtime.block_on(async move {
        let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let io = TokioIo::new(stream);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let ask = |stream: bool| {
            let body = json!({"prompt": [1], "max_tokens": 400, "ignore_eos": true,
                "stream": stream});
            let body = Full::new(bytes::Bytes::from(body.to_string()));
            Request::post(format!("http://{addr}{PATH}"))
                .body(body)
                .unwrap()
        };
        // One before its answer, one in the middle of it.
        let unanswered = sender.send_request(ask(false));
        let waited = tokio::time::timeout(Duration::from_millis(50), unanswered).await;
        assert!(waited.is_err());
        let mut begun = sender.send_request(ask(true)).await.unwrap();
        assert_eq!(begun.status(), 200);
        assert!(begun.frame().await.is_some());
        drop(begun);
        // The connection outlives its streams.
        let version = Request::get(format!("http://{addr}/version"));
        let version = version.body(Full::new(bytes::Bytes::new())).unwrap();
        assert_eq!(sender.send_request(version).await.unwrap().status(), 200);
    });
    server.settle();
    let gone = "prelude:requests_total{route=\"/v1/completions\",code=\"499\",";
    assert_eq!(server.metric(gone), 2.0);
}

/// A client reads nothing of one answer and all of the others of the same connection.
#[test]
fn an_http2_stream_that_is_not_read_is_given_up_alone() {
    use http_body_util::{BodyExt, Full};
    use hyper::{Request, client::conn::http2};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let check = |limits: Limits, unread: serde_json::Value, is_stream: bool| {
        let fake = Fake {
            step: Duration::from_millis(2),
            context: 4_096,
            ..Fake::default()
        };
        let server = TestServer::fake(with_limits(limits), &fake);
        let addr = server.addr;
        server.runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
            let mut client = http2::Builder::new(TokioExecutor::new());
            client.initial_stream_window_size(1024);
            let io = TokioIo::new(stream);
            let (mut sender, connection) = client.handshake(io).await.unwrap();
            tokio::spawn(connection);
            let ask = |body: &serde_json::Value| {
                Request::post(format!("http://{addr}{PATH}"))
                    .body(Full::new(bytes::Bytes::from(body.to_string())))
                    .unwrap()
            };
            let begun = sender.send_request(ask(&unread)).await.unwrap();
            assert_eq!(begun.status(), 200);
            let gone = "prelude:requests_total{route=\"/v1/completions\",code=\"499\",";
            let mut tries = 0;
            while server.metric_now(gone).await != Some(1.0) {
                tries += 1;
                assert!(tries < 500, "it was not given up");
                // Meanwhile the connection serves other requests.
                let other = json!({"prompt": [2], "max_tokens": 2, "ignore_eos": true});
                let other = sender.send_request(ask(&other)).await.unwrap();
                assert_eq!(other.status(), 200);
                assert!(
                    !other
                        .into_body()
                        .collect()
                        .await
                        .unwrap()
                        .to_bytes()
                        .is_empty()
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(begun.into_body().collect().await.is_err());
        });
        server.settle();
        if is_stream {
            // The unread generation was aborted before its end.
            let ran = fake.steps.load(std::sync::atomic::Ordering::SeqCst);
            assert!(ran < 2_000, "{ran}");
        }
    };
    let long = json!({"prompt": [1], "max_tokens": 2_000, "ignore_eos": true, "stream": true});
    let small = Limits {
        unread_bytes: 8 << 10,
        ..Limits::default()
    };
    check(small, long, true);
    // An answer of several hundred KiB, of which the client reads one.
    let whole = json!({"prompt": vec![vec![1; 900]; 20], "max_tokens": 0, "echo": true,
        "logprobs": 3});
    let impatient = Limits {
        write_stall_ms: 200,
        ..Limits::default()
    };
    check(impatient, whole, false);
}

#[test]
fn one_shot_rows_run_while_their_step_does() {
    let server = slow(Limits::default());
    let asked = server.runtime.spawn({
        let app = std::sync::Arc::clone(&server.app);
        let body = json!({"prompt": [[1], [2], [3]], "max_tokens": 1});
        async move { app.answer("POST", PATH, body.to_string()).await.status }
    });
    crate::support::wait_for(|| {
        let running = server.metric("vllm:num_requests_running");
        let rows = server.metric("prelude:running_rows{model_name=\"fake\",class=\"oneshot\"}");
        (running == 3.0 && rows == 3.0)
            .then_some(())
            .ok_or_else(|| format!("{running} {rows}"))
    });
    assert_eq!(server.runtime.block_on(asked).unwrap(), 200);
    server.settle();
}

#[test]
fn times_are_told_by_class_and_part() {
    let server = slow(Limits::default());
    let body = |max: u32| json!({"prompt": [1], "max_tokens": max, "ignore_eos": true}).to_string();
    assert_eq!(server.post(PATH, &body(3)).status, 200);
    assert_eq!(server.post(PATH, &body(1)).status, 200);
    let count = |name: &str| server.metric(&format!("{name}_count"));
    let of = |name: &str, class: &str| {
        server.metric(&format!(
            "prelude:{name}_count{{model_name=\"fake\",class=\"{class}\""
        ))
    };
    for class in ["oneshot", "decode"] {
        assert_eq!(of("queue_seconds", class), 1.0, "{class}");
        assert_eq!(of("exec_seconds", class), 1.0, "{class}");
    }
    // A prompt and two tokens behind it; the other answer is one step.
    assert_eq!(of("step_tokens", "decode"), 3.0);
    assert_eq!(of("step_rows", "oneshot"), 1.0);
    assert_eq!(count("vllm:request_decode_time_seconds"), 2.0);
    assert_eq!(count("vllm:request_time_per_output_token_seconds"), 1.0);
    // Two steps of a quarter of a second, two gaps between three tokens.
    let sum = |name: &str| server.metric(&format!("{name}_sum"));
    let (decode, gap) = (
        sum("vllm:request_decode_time_seconds"),
        sum("vllm:request_time_per_output_token_seconds"),
    );
    assert!(
        decode >= 0.5 && (decode - 2.0 * gap).abs() < 1e-9,
        "{decode} {gap}"
    );
}
