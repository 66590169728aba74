//! Limits of connections, and the responses beyond them.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use prelude_server::{ApiKeys, Limits};

use crate::support::{
    Fake, Response, TestServer, config, demo_model, read_all, wait_for, with_limits,
};

fn fake() -> TestServer {
    TestServer::fake(config(), &Fake::default())
}

#[test]
fn whole_transcripts() {
    let server = fake();
    let body = r#"{"prompt":[5],"max_tokens":0,"echo":true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-request-id: my.id-1\r\nconnection: \
         close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let text = server.exchange(request.as_bytes());
    // Replaces the parts that differ from run to run.
    let date = text.find("date: ").unwrap();
    let text = text.replace(&text[date..date + 37], "");
    let id = text.find("cmpl-").unwrap();
    let text = text.replace(&text[id + 5..id + 37], "X");
    let created = text.find("\"created\":").unwrap() + 10;
    let text = text.replace(&text[created..created + 10], "T");
    let print = text.find("fingerprint\":\"").unwrap() + 14;
    let end = print + text[print..].find('"').unwrap();
    let text = text.replace(&text[print..end], "F");
    let expected = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
        x-prelude-fingerprint: F\r\n\
        x-prelude-class: oneshot\r\nx-prelude-prompt-tokens: 1\r\n\
        x-prelude-cached-tokens: 0\r\nx-prelude-computed-tokens: 0\r\n\
        x-prelude-queue-ms: 0.000\r\nx-prelude-exec-ms: 0.000\r\nx-request-id: my.id-1\r\n\
        connection: close\r\ncontent-length: 333\r\n\r\n\
        {\"id\":\"cmpl-X\",\"object\":\"text_completion\",\"created\":T,\"model\":\"fake\",\
        \"choices\":[{\"index\":0,\"text\":\"&\",\"logprobs\":null,\"finish_reason\":\"length\",\
        \"stop_reason\":null,\"prompt_logprobs\":null}],\"usage\":{\"prompt_tokens\":1,\
        \"completion_tokens\":0,\"total_tokens\":1,\"prompt_tokens_details\":\
        {\"cached_tokens\":0}},\"system_fingerprint\":\"F\"}";
    let length = text.find("content-length: ").unwrap() + 16;
    let text = text.replace(&text[length..length + 3], "333");
    assert_eq!(text, expected);

    let text =
        server.exchange(b"GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let response = Response::parse(&text);
    assert_eq!(response.status, 404);
    assert_eq!(
        response.body,
        r#"{"error":{"message":"no such path; GET /openapi.json lists all","type":"NotFoundError","param":null,"code":404,"reason":"not_found"}}"#
    );
    assert!(response.header("x-request-id").unwrap().starts_with("req-"));
}

/// Sends a request with this head and body, and checks status and reason.
fn check(server: &TestServer, head: &str, body: &str, expected: (u16, &str)) -> Response {
    let request = format!("{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n{body}");
    let response = Response::parse(&server.exchange(request.as_bytes()));
    assert_eq!(
        (response.status, &*response.reason()),
        expected,
        "{head}\n{}",
        response.body
    );
    let id = response.header("x-request-id");
    assert!(id.is_some_and(|id| !id.is_empty()), "{}", response.head);
    response
}

/// Sends a head that hyper refuses by itself.
fn check_malformed(server: &TestServer, head: &str, status: u16) {
    let request = format!("{head}\r\nhost: localhost\r\n\r\n");
    let response = Response::parse(&server.exchange(request.as_bytes()));
    assert_eq!(response.status, status, "{head}\n{}", response.head);
    assert_eq!(response.header("connection"), Some("close"), "{head}");
}

#[test]
fn heads_that_hyper_cannot_read_close_the_connection() {
    let server = fake();
    let many: String = (0..101).map(|i| format!("\r\nx-{i}: 1")).collect();
    check_malformed(&server, &format!("GET /health HTTP/1.1{many}"), 431);
    let huge = format!("GET /health HTTP/1.1\r\nx-a: {}", "x".repeat(100 << 10));
    check_malformed(&server, &huge, 431);
    check_malformed(&server, "GET health", 400);
    check_malformed(&server, "GET /health HTTP/1.1\r\na b: c", 400);
    assert!(server.is_healthy());
    server.settle();
}

#[test]
fn heads_are_refused_by_name() {
    let server = fake();
    let post = "POST /v1/completions HTTP/1.1\r\ncontent-length: 2";
    let long = format!("GET /{} HTTP/1.1", "x".repeat(9000));
    check(&server, &long, "", (414, "uri_too_long"));
    let large = format!("GET /health HTTP/1.1\r\nx-a: {}", "x".repeat(33 << 10));
    check(&server, &large, "", (431, "headers_too_large"));

    let get = "GET /v1/completions HTTP/1.1";
    let refused = check(&server, get, "", (405, "method_not_allowed"));
    assert_eq!(refused.header("allow"), Some("post"));
    let refused = check(
        &server,
        "DELETE /health HTTP/1.1",
        "",
        (405, "method_not_allowed"),
    );
    assert_eq!(refused.header("allow"), Some("get, head"));

    let text = format!("{post}\r\ncontent-type: text/plain");
    let refused = check(&server, &text, "{}", (415, "unsupported_media_type"));
    assert!(refused.body.contains("-H 'content-type: application/json'"));
    let packed = format!("{post}\r\ncontent-encoding: br");
    check(&server, &packed, "{}", (415, "unsupported_media_type"));
    let slo = format!("{post}\r\nx-slo-ttft-ms: 0");
    check(&server, &slo, "{}", (400, "invalid_value"));
    check(&server, post, "{}", (400, "missing_field"));
    assert!(server.is_healthy());
    server.settle();
}

#[test]
fn large_bodies_are_refused_at_the_byte_that_crosses() {
    let server = TestServer::fake(
        with_limits(Limits {
            body_bytes: 1000,
            ..Limits::default()
        }),
        &Fake::default(),
    );
    // A declared length is refused before the body.
    let head = "POST /v1/completions HTTP/1.1\r\ncontent-length: 1001";
    let refused = check(&server, head, "", (413, "body_too_large"));
    assert_eq!(refused.header("connection"), Some("close"));
    // A client that sends the body all the same can read the response.
    check(&server, head, &"x".repeat(1001), (413, "body_too_large"));
    // An undeclared length is refused when the body exceeds the limit.
    let chunked = "POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked";
    let body = format!("3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1001));
    check(&server, chunked, &body, (413, "body_too_large"));
    let body = format!("3e8\r\n{}\r\n0\r\n\r\n", "x".repeat(1000));
    check(&server, chunked, &body, (400, "invalid_json"));
    // `Expect: 100-continue` gets the refusal instead of status 100.
    let expect = format!("{head}\r\nexpect: 100-continue");
    check(&server, &expect, "", (413, "body_too_large"));
    server.settle();
}

#[test]
fn expect_continue_is_answered_before_the_body() {
    let server = fake();
    let mut stream = server.connect();
    let body = r#"{"prompt":"a","max_tokens":0}"#;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: \
         100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).unwrap();
    assert_eq!(Response::parse(&read_all(&mut stream)).status, 200);
}

#[test]
fn slow_clients_are_told_and_do_not_delay_others() {
    let server = TestServer::fake(
        with_limits(Limits {
            header_read_ms: 200,
            body_read_ms: 400,
            body_min_rate_after_ms: 200,
            body_min_bytes_per_s: 1000,
            keep_alive_ms: 300,
            ..Limits::default()
        }),
        &Fake::default(),
    );
    let start = Instant::now();
    // A head that does not end.
    let mut head = server.connect();
    head.write_all(b"GET /health HTTP/1.1\r\nhost").unwrap();
    // A body that does not begin.
    let mut none = server.connect();
    none.write_all(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 9\r\n\r\n")
        .unwrap();
    // A body that trickles.
    let mut slow = server.connect();
    slow.write_all(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 9000\r\n\r\n{")
        .unwrap();
    // A connection that says nothing.
    let mut idle = server.connect();
    assert!(server.is_healthy());
    for stream in [&mut head, &mut none, &mut slow] {
        let response = Response::parse(&read_all(stream));
        assert_eq!(
            (response.status, &*response.reason()),
            (408, "request_timeout")
        );
        assert_eq!(response.header("connection"), Some("close"));
    }
    assert_eq!(read_all(&mut idle), "");
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(start.elapsed() < Duration::from_secs(5));
    server.settle();
}

#[test]
fn a_connection_is_kept_between_requests_and_closed_when_idle() {
    let server = TestServer::fake(
        with_limits(Limits {
            keep_alive_ms: 300,
            ..Limits::default()
        }),
        &Fake::default(),
    );
    let mut stream = server.connect();
    for _ in 0..3 {
        stream
            .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .unwrap();
        let mut response = [0; 15];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(&response, b"HTTP/1.1 200 OK");
        let mut rest = [0; 1024];
        let _ = stream.read(&mut rest).unwrap();
    }
    let start = Instant::now();
    assert_eq!(read_all(&mut stream), "");
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = fake();
    let text = server.exchange(
        b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: \
          close\r\n\r\n",
    );
    let (first, second) = text.split_once("HTTP/1.1 404").unwrap();
    assert!(first.starts_with("HTTP/1.1 200 OK"));
    assert!(second.contains("not_found"));
}

#[test]
fn more_connections_than_allowed_are_told() {
    let server = TestServer::fake(
        with_limits(Limits {
            connections: 2,
            ..Limits::default()
        }),
        &Fake::default(),
    );
    let held = [server.connect(), server.connect()];
    let mut third = server.connect();
    let response = Response::parse(&read_all(&mut third));
    assert_eq!(response.status, 503);
    assert_eq!(response.reason(), "too_many_connections");
    assert!(response.header("retry-after").is_some());
    assert!(response.header("retry-after-ms").is_some());
    drop(held);
    wait_for(|| {
        let mut stream = server.connect();
        let _ = stream.write_all(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n");
        let text = read_all(&mut stream);
        text.starts_with("HTTP/1.1 200").then_some(()).ok_or(text)
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let server = TestServer::fake(
        with_limits(Limits {
            write_stall_ms: 300,
            ..Limits::default()
        }),
        &Fake::default(),
    );
    let mut stream = server.connect();
    // Requests whose answers (a few hundred bytes each) are never read.
    let page = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(4000);
    let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
    let _ = stream.write_all(&page);
    wait_for(|| {
        let gone = stream.write(b"GET / HTTP/1.1\r\n\r\n").is_err_and(|e| {
            !matches!(
                e.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            )
        });
        gone.then_some(()).ok_or_else(|| "connected".to_owned())
    });
    assert!(server.is_healthy());
}

#[test]
fn keys_guard_everything_but_what_is_open() {
    let keys = ApiKeys::new(["secret"]);
    let model = crate::support::fake_model(&Fake::default());
    let server = TestServer::with(config(), keys, vec![model]);
    let get = |path: &str, header: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n");
        Response::parse(&server.exchange(request.as_bytes()))
    };
    for path in [
        "/health", "/ping", "/ready", "/live", "/version", "/metrics",
    ] {
        assert_eq!(get(path, "").status, 200, "{path}");
    }
    for path in ["/v1/models", "/nothing", "/tokenize"] {
        let refused = get(path, "");
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.header("www-authenticate"), Some("bearer"));
        assert_eq!(refused.reason(), "invalid_api_key");
    }
    assert_eq!(
        get("/v1/models", "authorization: Bearer wrong\r\n").status,
        401
    );
    assert_eq!(
        get("/v1/models", "authorization: Bearer secret\r\n").status,
        200
    );
    assert_eq!(get("/v1/models", "x-api-key: secret\r\n").status, 200);
    assert_eq!(get("/nothing", "x-api-key: secret\r\n").status, 404);
}

#[test]
fn http2_without_upgrade() {
    let server = fake();
    let addr = server.addr;
    let status = server.runtime.block_on(async move {
        use http_body_util::{BodyExt, Empty};
        use hyper::{Request, client::conn::http2};
        use hyper_util::rt::{TokioExecutor, TokioIo};
        let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let io = TokioIo::new(stream);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get(format!("http://{addr}/version"));
        let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"{\"version\""));
        status
    });
    assert_eq!(status, 200);
}

#[test]
fn unread_answers_hold_no_room() {
    let server = fake();
    let addr = server.addr;
    let unread = server.runtime.block_on(async move {
        use http_body_util::Full;
        use hyper::{Request, client::conn::http2};
        use hyper_util::rt::{TokioExecutor, TokioIo};
        let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let io = TokioIo::new(stream);
        // With an empty window heads arrive, and bodies cannot.
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(0)
            .handshake(io)
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut unread = Vec::new();
        for (body, status) in [
            (r#"{"prompt":"#, 400),
            (r#"{"prompt":[1],"max_tokens":1}"#, 200),
        ] {
            let request = Request::post(format!("http://{addr}/v1/completions"));
            let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), status);
            unread.push(response);
        }
        (unread, sender)
    });
    for name in ["queue_rows", "queue_tokens", "body_bytes_in_flight"] {
        assert_eq!(server.metric(&format!("prelude:{name}")), 0.0, "{name}");
    }
    drop(unread);
}

#[test]
fn pages_of_listed_origins_may_ask() {
    let mut config = config();
    config.cors_origins = vec!["https://a.example".to_owned()];
    let keys = ApiKeys::new(["secret"]);
    let server = TestServer::with(config, keys, vec![demo_model(&prelude_server::demo::LM)]);
    let ask = |head: &str| {
        let text = format!("{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        Response::parse(&server.exchange(text.as_bytes()))
    };
    let preflight = "OPTIONS /v1/completions HTTP/1.1\r\nAccess-Control-Request-Method: POST\r\n\
                     Access-Control-Request-Headers: authorization, x-own\r\norigin: ";
    // A browser sends no key with a preflight request.
    let answer = ask(&format!("{preflight}https://a.example"));
    assert_eq!(answer.status, 204, "{}", answer.body);
    let header = |name: &str| answer.header(name).map(str::to_owned);
    assert_eq!(
        header("access-control-allow-origin").as_deref(),
        Some("https://a.example")
    );
    assert_eq!(
        header("access-control-allow-headers").as_deref(),
        Some("authorization, x-own")
    );
    let other = ask(&format!("{preflight}https://b.example"));
    assert_eq!(other.status, 401);
    assert!(other.header("access-control-allow-origin").is_none());
    // Pages may read errors too.
    let refused = ask("GET /v1/models HTTP/1.1\r\norigin: https://a.example");
    assert_eq!(refused.status, 401);
    assert_eq!(
        refused.header("access-control-allow-origin"),
        Some("https://a.example")
    );
    let plain = ask("GET /health HTTP/1.1");
    assert!(plain.header("access-control-allow-origin").is_none());
}

#[test]
fn a_salt_may_be_required() {
    let mut config = config();
    config.require_cache_salt = true;
    let server = TestServer::fake(config, &Fake::default());
    let ask = |body: &str| server.post("/v1/completions", body);
    let refused = ask(r#"{"prompt":[1],"max_tokens":1}"#);
    assert_eq!((refused.status, &*refused.reason()), (400, "missing_field"));
    let salted = ask(r#"{"prompt":[1],"max_tokens":1,"cache_salt":"mine"}"#);
    assert_eq!(salted.status, 200);
}
