//! Traces of a running server, as a collector of OpenTelemetry gets them.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver, Sender},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use serde_json::json;

use crate::support::{Answer, Served, request, wait_for};

/// The trace and the span of a caller, as the W3C's recommendation has them in its examples.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A collector that takes every message and keeps it.
struct Collector {
    address: String,
    messages: Receiver<(String, ExportTraceServiceRequest)>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || take(stream.unwrap(), &sender));
            }
        });
        Self { address, messages }
    }

    fn server(&self) -> Served {
        Served::start_with_variables(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &self.address),
            ("OTEL_SERVICE_NAME", "judge"),
        ])
    }

    /// Returns the next spans, as many as `count`, and checks what they say of the service.
    fn spans(&self, count: usize) -> Vec<Span> {
        let end = Instant::now() + Duration::from_secs(30);
        let mut spans = Vec::new();
        while spans.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            let (path, message) = self.messages.recv_timeout(left).unwrap_or_else(|_| {
                let names: Vec<_> = spans.iter().map(|span: &Span| &span.name).collect();
                panic!("{count} spans were expected, these came: {names:?}")
            });
            assert_eq!(path, "/v1/traces");
            for of_service in message.resource_spans {
                assert_eq!(service(&of_service), "judge");
                let scopes = of_service.scope_spans.into_iter();
                spans.extend(scopes.flat_map(|scope| scope.spans));
            }
        }
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }
}

/// Answers the messages of one connection, until the client closes it.
fn take(stream: TcpStream, sender: &Sender<(String, ExportTraceServiceRequest)>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        for line in reader.by_ref().lines() {
            match line {
                Ok(line) if !line.is_empty() => head.push(line.to_lowercase()),
                _ => break,
            }
        }
        let Some(start) = head.first() else { return };
        let path = start.split(' ').nth(1).unwrap().to_owned();
        assert!(head.contains(&"content-type: application/x-protobuf".to_owned()));
        let len = head.iter().find_map(|l| l.strip_prefix("content-length: "));
        let mut body = vec![0; len.unwrap().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let message = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        // A test that has ended reads no more.
        let _ = sender.send((path, message));
        let answer = ExportTraceServiceResponse::default().encode_to_vec();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        let stream = reader.get_mut();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&answer).unwrap();
    }
}

fn service(spans: &ResourceSpans) -> String {
    let resource = spans.resource.as_ref().unwrap();
    text(&resource.attributes, "service.name").unwrap()
}

fn value<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    found.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    match value(attributes, name)? {
        Value::StringValue(text) => Some(text.clone()),
        other => panic!("{name} is {other:?}"),
    }
}

fn number(span: &Span, name: &str) -> Option<i64> {
    match value(&span.attributes, name)? {
        Value::IntValue(number) => Some(*number),
        other => panic!("{name} is {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ask(server: &Served, path: &str, body: &str, headers: &str) -> Answer {
    let plain = request(path, body);
    server.exchange(
        plain
            .replacen("\r\n", &format!("\r\n{headers}"), 1)
            .as_bytes(),
    )
}

fn sampled(trace: &str) -> String {
    format!("traceparent: 00-{trace}-{CALLER}-01\r\n")
}

#[test]
fn a_request_leaves_its_spans_below_those_of_its_caller() {
    let collector = Collector::start();
    let server = collector.server();
    let body = json!({
        "model": "demo-lm", "prompt": (0..70).collect::<Vec<u32>>(), "max_tokens": 3,
        "temperature": 0, "ignore_eos": true,
    });
    for round in 0..2 {
        let headers = format!("x-request-id: mine-{round}\r\n{}", sampled(TRACE));
        let answer = ask(&server, "/v1/completions", &body.to_string(), &headers);
        assert_eq!(answer.status, 200, "{answer:?}");
        let spans = collector.spans(5);
        let roots = spans.iter().filter(|s| s.kind() == SpanKind::Server);
        let [root] = roots.collect::<Vec<_>>()[..] else {
            panic!("one span of the request: {spans:#?}");
        };
        assert_eq!(root.name, "POST /v1/completions");
        assert_eq!(hex(&root.parent_span_id), CALLER);
        for span in &spans {
            assert_eq!(hex(&span.trace_id), TRACE);
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        }
        // The parts follow each other from the start of the request to its end.
        let mut at = root.start_time_unix_nano;
        for name in ["prepare", "queue", "steps", "answer"] {
            let part = spans.iter().find(|span| span.name == name).unwrap();
            assert_eq!(part.parent_span_id, root.span_id, "{name}");
            assert_eq!(part.start_time_unix_nano, at, "{name}");
            at = part.end_time_unix_nano;
        }
        assert_eq!(at, root.end_time_unix_nano);
        let usage = &answer.json()["usage"];
        let number = |name| number(root, name).unwrap();
        let text = |name| text(&root.attributes, name).unwrap();
        assert_eq!(text("http.request.method"), "POST");
        assert_eq!(text("http.route"), "/v1/completions");
        assert_eq!(number("http.response.status_code"), 200);
        assert_eq!(text("gen_ai.request.model"), "demo-lm");
        assert_eq!(text("prelude.class"), "decode");
        assert_eq!(text("prelude.request_id"), format!("mine-{round}"));
        assert_eq!(number("gen_ai.usage.input_tokens"), 70);
        assert_eq!(number("gen_ai.usage.output_tokens"), 3);
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(number("prelude.cached_tokens"), cached.as_i64().unwrap());
        assert_eq!(number("prelude.cached_tokens") > 0, round == 1);
        assert!(number("prelude.computed_tokens") > 0);
    }
    wait_for(
        || match server.metric("prelude:trace_spans_total{outcome=\"exported\"") {
            10.0 => Ok(()),
            other => Err(format!("{other} spans exported")),
        },
    );
    assert_eq!(
        server.metric("prelude:trace_spans_total{outcome=\"dropped\""),
        0.0
    );
}

#[test]
fn refusals_have_a_span_and_probes_and_unrecorded_traces_have_none() {
    let collector = Collector::start();
    let server = collector.server();
    let classify = json!({"input": "Where is my card?"}).to_string();
    let unrecorded = format!("traceparent: 00-{TRACE}-{CALLER}-00\r\n");
    assert_eq!(
        ask(&server, "/classify", &classify, &unrecorded).status,
        200
    );
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/metrics").status, 200);
    // Of these, the first has no parent that could be believed.
    let broken = "traceparent: 00-xyz-01\r\n";
    assert_eq!(ask(&server, "/classify", "{", broken).status, 400);
    assert_eq!(server.post("/no/such/path", "{}").status, 404);
    let spans = collector.spans(2);
    let of = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    for (name, status) in [("POST /classify", 400), ("POST", 404)] {
        let span = of(name);
        assert_eq!(number(span, "http.response.status_code"), Some(status));
        assert!(span.parent_span_id.is_empty(), "{span:?}");
        assert_ne!(hex(&span.trace_id), TRACE);
        // A client's mistake is no error of the server's.
        let code = span.status.as_ref().map(|status| status.code());
        assert!(matches!(code, None | Some(StatusCode::Unset)), "{code:?}");
    }
    // The path is the client's text, which may be anything.
    assert_eq!(text(&of("POST").attributes, "http.route"), None);
}

#[test]
fn the_last_spans_are_sent_before_the_process_ends() {
    let collector = Collector::start();
    let mut server = collector.server();
    let classify = json!({"input": "Where is my card?"}).to_string();
    assert_eq!(
        ask(&server, "/classify", &classify, &sampled(TRACE)).status,
        200
    );
    server.signal("-TERM");
    assert!(server.child.wait().unwrap().success());
    // Nothing can come after the end of the process.
    let spans = collector.spans(5);
    assert!(spans.iter().any(|span| hex(&span.parent_span_id) == CALLER));
}

#[test]
fn requests_are_answered_although_no_collector_listens() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let server = Served::start_with_variables(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &address)]);
    let said = format!("traces go to {address}");
    assert!(
        server.before_ready.contains(&said),
        "{:?}",
        server.before_ready
    );
    let classify = json!({"input": "Where is my card?"}).to_string();
    assert_eq!(server.post("/classify", &classify).status, 200);
    wait_for(
        || match server.metric("prelude:trace_spans_total{outcome=\"failed\"") {
            5.0 => Ok(()),
            other => Err(format!("{other} spans failed")),
        },
    );
    assert_eq!(server.post("/classify", &classify).status, 200);
    let is_told = |line: String| line.starts_with("traces: the collector takes no spans");
    assert!(server.log.try_iter().any(is_told));
}
