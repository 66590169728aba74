//! What a client may do to others: go before them, read their cache, ask in the name of a page.

use std::{io::Write as _, net::IpAddr, sync::mpsc, time::Duration};

use flate2::{Compression, write::GzEncoder};
use prelude_server::{ApiKeys, Limits, demo};

use crate::support::{
    Fake, Response, TestServer, config, demo_model, every_task, fake_model, with_limits,
};

const PATH: &str = "/v1/completions";

/// Sends a head, to which nothing is added but the body and its length.
fn ask(server: &TestServer, head: &str, body: &[u8]) -> Response {
    let length = body.len();
    let head = format!("{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    let bytes = [head.as_bytes(), body].concat();
    Response::parse(&server.exchange(&bytes))
}

fn with_key(server: &TestServer, key: &str, body: &str) -> Response {
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}");
    ask(server, &head, body.as_bytes())
}

#[test]
fn nobody_goes_before_others_by_default() {
    let server = every_task();
    let bodies = [
        (PATH, r#""prompt":"a","max_tokens":1"#),
        (
            "/v1/chat/completions",
            r#""messages":[{"role":"user","content":"a"}],"max_tokens":1"#,
        ),
        ("/v1/embeddings", r#""input":"a""#),
        ("/embed", r#""inputs":"a""#),
        ("/embed_all", r#""inputs":"a""#),
        ("/pooling", r#""input":"a","task":"embed""#),
        ("/classify", r#""input":"a""#),
        ("/predict", r#""inputs":"a""#),
        ("/rerank", r#""query":"a","documents":["b"]"#),
        (
            "/v1/decisions",
            r#""input":"a","questions":[{"type":"predicate","instructions":"b"}]"#,
        ),
        (
            "/v1/systemone",
            r#""state":"a","questions":{"q":{"type":"noul"}}"#,
        ),
    ];
    for (path, fields) in bodies {
        for priority in [-1, i64::MIN, 0, 7] {
            let body = format!(r#"{{{fields},"priority":{priority}}}"#);
            let answer = server.post(path, &body);
            let is_refused = answer.body.contains("limits.best_priority");
            assert_eq!(is_refused, priority < 0, "{path}: {}", answer.body);
        }
    }
    server.settle();
}

#[test]
fn a_setting_or_a_key_lets_clients_go_first() {
    let check = |server: &TestServer, key: &str, priority: &str, expected: u16| {
        let body = format!(r#"{{"prompt":[1],"max_tokens":1{priority}}}"#);
        let answer = with_key(server, key, &body);
        assert_eq!(answer.status, expected, "{key} {priority}: {}", answer.body);
    };
    let limits = Limits {
        best_priority: -10,
        ..Limits::default()
    };
    let server = TestServer::fake(with_limits(limits), &Fake::default());
    check(&server, "", r#","priority":-10"#, 200);
    check(&server, "", r#","priority":-11"#, 400);

    let keys = ApiKeys::from_lines("plain\nfirst priority=-5\nlast priority=2").unwrap();
    let models = vec![fake_model(&Fake::default())];
    let server = TestServer::with(config(), keys, models);
    check(&server, "plain", r#","priority":-1"#, 400);
    check(&server, "first", r#","priority":-5"#, 200);
    check(&server, "first", r#","priority":-6"#, 400);
    // A key may stand behind all others.
    check(&server, "last", "", 200);
    check(&server, "last", r#","priority":1"#, 400);
    check(&server, "last", r#","priority":2"#, 200);
}

/// A deadline that has no chance would put its request before all that name none.
#[test]
fn a_deadline_that_cannot_be_met_is_none() {
    let mut fake = Fake {
        step: Duration::from_millis(300),
        ..Fake::default()
    };
    // One prompt of sixty tokens for each step.
    fake.engine.scheduler.max_batch_tokens = Some(64);
    let server = TestServer::fake(config(), &fake);
    let body = |first: u32, more: &str| {
        let ids: Vec<u32> = (first * 60..first * 60 + 60).collect();
        format!(r#"{{"prompt":{ids:?},"max_tokens":1{more}}}"#)
    };
    // Long enough for a rate to be measured.
    for at in 4..8 {
        assert_eq!(server.post(PATH, &body(at, "")).status, 200);
    }
    let (ended, order) = mpsc::channel();
    std::thread::scope(|scope| {
        let late = r#","slo_ttft_ms":1,"on_deadline":"finish""#;
        for (at, more) in [(1, ""), (2, ""), (3, late)] {
            let (server, ended, body) = (&server, ended.clone(), body(at, more));
            scope.spawn(move || {
                assert_eq!(server.post(PATH, &body).status, 200);
                ended.send(at).unwrap();
            });
            // Time to get into the queue, long before the step before it ends.
            std::thread::sleep(Duration::from_millis(60));
        }
    });
    let order: Vec<u32> = order.try_iter().collect();
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn several_keys_share_no_cache() {
    let prompt: Vec<u32> = (0..70).collect();
    let check = |server: &TestServer, key: &str, salt: &str, expected: bool| {
        let body = format!(r#"{{"prompt":{prompt:?},"max_tokens":1{salt}}}"#);
        let answer = with_key(server, key, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cached = answer.header("x-prelude-cached-tokens").unwrap() != "0";
        assert_eq!(cached, expected, "{key} {salt}");
    };
    let start = |keys: &str| {
        let keys = ApiKeys::from_lines(keys).unwrap();
        TestServer::with(config(), keys, vec![demo_model(&demo::LM)])
    };
    let server = start("one\ntwo");
    check(&server, "one", "", false);
    check(&server, "one", "", true);
    check(&server, "two", "", false);
    check(&server, "two", "", true);
    let salt = r#","cache_salt":"mine""#;
    check(&server, "one", salt, false);
    check(&server, "two", salt, false);
    check(&server, "two", salt, true);

    // One key is one tenant.
    let server = start("one");
    check(&server, "one", "", false);
    server.app.set_keys(ApiKeys::new(["other"]));
    check(&server, "other", "", true);
}

#[test]
fn pages_of_others_are_refused_where_no_key_keeps_them_out() {
    let check = |server: &TestServer, head: &str, expected: u16| {
        let answer = ask(server, head, b"");
        assert_eq!(answer.status, expected, "{head}: {}", answer.body);
        if expected == 403 {
            assert_eq!(answer.reason(), "foreign_origin");
        }
    };
    let server = TestServer::fake(config(), &Fake::default());
    for path in ["/health", "/v1/status", "/ui", "/", "/metrics", "/nothing"] {
        check(
            &server,
            &format!("GET {path} HTTP/1.1\r\nhost: evil.test"),
            403,
        );
        let own = format!("GET {path} HTTP/1.1\r\nhost: localhost:8000");
        check(&server, &own, if path == "/nothing" { 404 } else { 200 });
        let foreign = format!("{own}\r\norigin: http://evil.test");
        check(&server, &foreign, 403);
    }
    let get = "GET /health HTTP/1.1\r\nhost: 127.0.0.1:8000";
    check(
        &server,
        &format!("{get}\r\norigin: http://127.0.0.1:8000"),
        200,
    );
    check(
        &server,
        &format!("{get}\r\norigin: http://127.0.0.1:3000"),
        403,
    );
    check(&server, &format!("{get}\r\norigin: null"), 403);
    check(
        &server,
        "GET http://evil.test/health HTTP/1.1\r\nhost: localhost",
        403,
    );
    // What asks without a name is no browser.
    check(&server, "GET /health HTTP/1.1", 200);
    let typeless = format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.test");
    let body = br#"{"prompt":[1],"max_tokens":1}"#;
    assert_eq!(ask(&server, &typeless, body).status, 403);

    let mut listed = config();
    listed.hosts = vec!["judge.example".to_owned()];
    listed.cors_origins = vec!["https://a.example".to_owned()];
    let server = TestServer::fake(listed, &Fake::default());
    let get = "GET /health HTTP/1.1\r\nhost:";
    check(&server, &format!("{get} judge.example"), 200);
    // A proxy may keep the origin and not the host.
    check(
        &server,
        &format!("{get} localhost\r\norigin: https://judge.example"),
        200,
    );
    check(
        &server,
        &format!("{get} localhost\r\norigin: https://a.example"),
        200,
    );
    check(&server, &format!("{get} evil.test"), 403);

    let mut open = config();
    open.host = IpAddr::from([0, 0, 0, 0]);
    let server = TestServer::fake(open, &Fake::default());
    check(&server, &format!("{get} judge.local"), 200);
    let models = vec![fake_model(&Fake::default())];
    let server = TestServer::with(config(), ApiKeys::new(["secret"]), models);
    check(&server, &format!("{get} judge.local"), 200);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn packed_bodies_are_read_within_the_limit() {
    let limits = Limits {
        body_bytes: 1 << 20,
        ..Limits::default()
    };
    let server = TestServer::fake(with_limits(limits), &Fake::default());
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-encoding: gzip");
    let body = gzip(br#"{"prompt":[1],"max_tokens":1}"#);
    assert_eq!(ask(&server, &head, &body).status, 200);
    let check = |body: &[u8], expected: (u16, &str)| {
        let answer = ask(&server, &head, body);
        assert_eq!((answer.status, &*answer.reason()), expected);
    };
    check(&gzip(&vec![b' '; 64 << 20]), (413, "body_too_large"));
    check(&body[..body.len() - 1], (400, "invalid_gzip"));
    check(b"{}", (400, "invalid_gzip"));
    check(b"", (400, "invalid_gzip"));
    check(&gzip(b""), (400, "invalid_json"));
    server.settle();
}

#[test]
fn a_browser_finds_its_way() {
    let server = TestServer::fake(config(), &Fake::default());
    let (root, page) = (server.get("/"), server.get("/ui"));
    assert_eq!((root.status, &root.body), (200, &page.body));
    let routes = server.get("/docs");
    assert_eq!(routes.status, 200);
    assert!(routes.body.contains("openapi.json") && routes.body.contains("/v1/decisions"));
    for page in [&root, &routes] {
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"));
    }
}

/// Where two programs disagree on a body's end, one of them reads another's request.
#[test]
fn a_body_has_one_end() {
    let server = TestServer::fake(config(), &Fake::default());
    let ask = |coding: &str| {
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close");
        let body = r#"{"prompt":[1],"max_tokens":1}"#;
        let request = format!(
            "{head}\r\ntransfer-encoding: {coding}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        Response::parse(&server.exchange(request.as_bytes())).status
    };
    assert_eq!(ask("chunked"), 200);
    for coding in [
        "chunked, chunked",
        "chunked\r\ntransfer-encoding: chunked",
        "gzip, chunked",
    ] {
        assert_eq!(ask(coding), 400, "{coding}");
    }
}
