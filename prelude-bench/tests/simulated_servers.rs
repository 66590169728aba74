//! Simulated servers over HTTP: alone, and sixteen of them behind the picker.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, client::conn::http1, header::HeaderMap};
use hyper_util::rt::TokioIo;
use prelude_bench::sim::{EngineConfig, Preset, serve::Serving};
use prelude_epp::{
    Config, Picker,
    body::Body,
    picker::{Asked, Charge},
    probe::{ProbeConfig, watch_health},
};
use prelude_router::{LapsConfig, PolicyConfig as RoutePolicy, Pool};
use prelude_sched::PolicyConfig;
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts servers in the background.
async fn start(engines: u16) -> Vec<SocketAddr> {
    let config = EngineConfig::new(Preset::Llama70bH100x2, PolicyConfig::Fcfs);
    let serving = Serving::bind(&config, engines, IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let serving = serving.await.unwrap();
    let addresses = serving.addresses().unwrap();
    tokio::spawn(serving.run());
    addresses
}

/// Asks a server, and returns status, headers and body.
async fn ask(
    address: SocketAddr,
    path: &str,
    body: Option<&Value>,
) -> (StatusCode, HeaderMap, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let method = if body.is_some() { "POST" } else { "GET" };
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "engine");
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (
        parts.status,
        parts.headers,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

/// Returns a number of a server's page of metrics.
async fn metric(address: SocketAddr, name: &str) -> f64 {
    let (_, _, page) = ask(address, "/metrics", None).await;
    let line = page.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test]
async fn a_server_answers_as_the_real_one() {
    let address = start(1).await[0];
    for path in ["/health", "/ready", "/v1/models"] {
        assert_eq!(ask(address, path, None).await.0, StatusCode::OK, "{path}");
    }
    let state = "a state that is asked about ".repeat(40);
    let decide = json!({"state": state, "questions": ["Is it so?"]});
    let (status, headers, _) = ask(address, "/v1/systemone", Some(&decide)).await;
    assert_eq!(
        (status, &headers["x-prelude-class"]),
        (StatusCode::OK, &"oneshot".parse().unwrap())
    );
    assert_eq!(headers["x-prelude-cached-tokens"], "0");
    let exec_ms: f64 = headers["x-prelude-exec-ms"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(exec_ms > 1.0, "{exec_ms}");
    // The same state again: all of its whole blocks of 16 tokens are cached.
    let again = json!({"state": state, "questions": ["Or is it not?"]});
    let (_, headers, _) = ask(address, "/v1/systemone", Some(&again)).await;
    assert_eq!(headers["x-prelude-cached-tokens"], "272");
    assert!(metric(address, "vllm:prefix_cache_hits_total").await >= 272.0);

    let body = json!({"prompt": "Once", "max_tokens": 3});
    let (_, headers, answer) = ask(address, "/v1/completions", Some(&body)).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["choices"][0]["text"], " a a a");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(headers["x-prelude-class"], "decode");
    let body = json!({"messages": [{"content": "Once"}], "max_tokens": 3, "stream": true});
    let (_, headers, events) = ask(address, "/v1/chat/completions", Some(&body)).await;
    assert_eq!(headers["content-type"], "text/event-stream");
    assert_eq!(events.matches("\"content\":\" a\"").count(), 3, "{events}");
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
}

#[tokio::test]
async fn bad_requests_get_their_status() {
    let address = start(1).await[0];
    let check = async |path: &str, body: Option<Value>, expected: u16, word: &str| {
        let (status, _, answer) = ask(address, path, body.as_ref()).await;
        assert_eq!(status.as_u16(), expected, "{path}: {answer}");
        assert!(answer.contains(word), "{path}: {answer}");
    };
    check("/nothing", None, 404, "/nothing").await;
    check("/v1/nothing", Some(json!({})), 404, "/v1/nothing").await;
    check("/v1/completions", None, 404, "/v1/completions").await;
    check("/v1/completions", Some(json!({})), 400, "no prompt").await;
    let endless = json!({"prompt": "x", "max_tokens": 1_000_000});
    check("/v1/completions", Some(endless), 400, "max_tokens").await;
    let long = json!({"prompt": "x".repeat(9 << 20), "max_tokens": 2});
    check("/v1/completions", Some(long), 400, "do not fit").await;
    let longer = json!({"prompt": "x".repeat(11 << 20)});
    check("/v1/completions", Some(longer), 413, "more than").await;
}

#[tokio::test]
async fn ports_are_consecutive_or_refused() {
    let config = EngineConfig::new(Preset::Mistral7bA6000, PolicyConfig::Fcfs);
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let error = Serving::bind(&config, 3, local, 65_535).await.unwrap_err();
    let error = format!("{error:#}");
    // The first port may be taken by another program.
    assert!(
        error.contains("beyond 65535") || error.contains("cannot listen"),
        "{error}"
    );
    assert!(Serving::bind(&config, 0, local, 0).await.is_err());
}

/// Returns a picker that has found all of these servers healthy.
async fn picker(policy: RoutePolicy, engines: &[SocketAddr]) -> Arc<Picker> {
    let mut config = Config::default();
    config.router.policy = policy;
    let picker = Arc::new(Picker::new(config, None).unwrap());
    picker
        .replace(0, engines.iter().map(|&address| (address, None)))
        .unwrap();
    let every = Duration::from_millis(20);
    let probes = ProbeConfig {
        every,
        ..ProbeConfig::default()
    };
    tokio::spawn(watch_health(Arc::clone(&picker), probes));
    let all_healthy = || picker.members().iter().all(|member| member.is_healthy);
    let wait = async {
        while !all_healthy() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap();
    picker
}

/// Sends a body to the server that the picker names, and returns that server.
async fn through(picker: &Arc<Picker>, body: &Value) -> SocketAddr {
    let text = body.to_string();
    let body_of_key = Body::new("/v1/systemone", text.as_bytes());
    let asked = Asked {
        max_output_tokens: body_of_key.max_output_tokens(),
        first_token_within: Some(Duration::from_millis(400)),
        ..Asked::default()
    };
    let picked = picker.pick(&picker.prefix(&body_of_key), &asked).unwrap();
    let _charge = Charge::new(picker, picked.id);
    let first = picked.addresses.split(',').next().unwrap();
    let address = first.parse().unwrap();
    let (status, ..) = ask(address, "/v1/systemone", Some(body)).await;
    assert_eq!(status, StatusCode::OK);
    address
}

#[tokio::test]
async fn sixteen_behind_the_picker_share_the_states() {
    let engines = start(16).await;
    let picker = picker(RoutePolicy::default(), &engines).await;
    let mut tasks = JoinSet::new();
    for state in 0..64 {
        let picker = Arc::clone(&picker);
        tasks.spawn(async move {
            for question in 0..6 {
                // States begin alike and part inside a block.
                let state = format!("The state {state:03} is this. ").repeat(50);
                let body = json!({"state": state, "questions": [format!("question {question}?")]});
                through(&picker, &body).await;
            }
        });
    }
    timeout(PATIENCE, tasks.join_all()).await.unwrap();
    let (mut queries, mut hits) = (Vec::new(), 0.0);
    for &engine in &engines {
        queries.push(metric(engine, "vllm:prefix_cache_queries_total").await);
        hits += metric(engine, "vllm:prefix_cache_hits_total").await;
    }
    let sum: f64 = queries.iter().sum();
    // Five of six questions can find their state; in turns one of six would.
    assert!(hits > 0.6 * sum, "{hits} of {sum}");
    let most = queries.iter().copied().fold(0.0, f64::max);
    assert!(queries.iter().all(|&tokens| tokens > 0.0), "{queries:?}");
    assert!(most < 4.0 * sum / 16.0, "{queries:?}");
    assert_eq!(picker.in_flight(), 0);
}

#[tokio::test]
async fn short_and_long_prompts_meet_in_different_servers() {
    let engines = start(8).await;
    let picker = picker(RoutePolicy::Laps(LapsConfig::default()), &engines).await;
    let mut tasks = JoinSet::new();
    for n in 0..80 {
        let picker = Arc::clone(&picker);
        tasks.spawn(async move {
            let words = if n % 4 == 0 { 1_000 } else { 20 };
            let state = format!("{n} words ").repeat(words);
            let body = json!({"state": state, "questions": ["Is it so?"]});
            let before = picker.members();
            let served = through(&picker, &body).await;
            let pool = { before.iter() }
                .find(|m| m.address == served)
                .and_then(|m| m.pool);
            (words, pool)
        });
    }
    let served = timeout(PATIENCE, tasks.join_all()).await.unwrap();
    let of = |words: usize, pool| {
        let some = served.iter().filter(|(w, _)| *w == words);
        some.filter(|(_, p)| *p == Some(pool)).count()
    };
    // All come at once, so that some may leave a pool which would miss their deadline.
    assert!(of(20, Pool::Short) > 40, "{served:?}");
    assert!(of(1_000, Pool::Long) > 10, "{served:?}");
}
