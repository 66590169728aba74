//! More than fits: refused by name, at once, with nothing left behind.

use std::{
    io::{Read, Write},
    sync::atomic::Ordering,
    time::Duration,
};

use prelude_server::Limits;
use serde_json::{Value, json};

use crate::support::{Fake, Response, TestServer, config, wait_for, with_limits};

const PATH: &str = "/v1/completions";
const SLOW: Duration = Duration::from_millis(300);

fn slow() -> Fake {
    Fake {
        step: SLOW,
        ..Fake::default()
    }
}

fn request(body: &str, headers: &str) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn a_full_queue_refuses_before_it_reads_or_encodes() {
    let limits = Limits {
        queued_rows: 2,
        rows: 2,
        ..Limits::default()
    };
    // Long enough for a thousand refusals on a machine that has much else to do.
    let fake = Fake {
        step: Duration::from_secs(4),
        ..Fake::default()
    };
    let server = TestServer::fake(with_limits(limits), &fake);
    let long = request(r#"{"prompt":[1],"max_tokens":1}"#, "");
    let mut held: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(long.as_bytes()).unwrap();
            stream
        })
        .collect();
    wait_for(|| {
        let rows = server.metric("prelude:queue_rows");
        (rows == 2.0)
            .then_some(())
            .ok_or_else(|| format!("{rows} rows"))
    });
    let encoded = server.metric("prelude:encode_seconds_count");
    for _ in 0..1000 {
        // The body never comes: the refusal does not wait for it.
        let head =
            format!("POST {PATH} HTTP/1.1\r\nconnection: close\r\ncontent-length: 99\r\n\r\n");
        let response = Response::parse(&server.exchange(head.as_bytes()));
        assert_eq!((response.status, &*response.reason()), (429, "queue_full"));
        assert_eq!(response.header("retry-after"), Some("1"));
        assert!(response.header("retry-after-ms").is_some());
    }
    assert_eq!(server.metric("prelude:encode_seconds_count"), encoded);
    for stream in &mut held {
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }
    server.settle();
}

/// Generations have filled their part of the queue: the next one is refused before it is encoded,
/// while decisions find room.
#[test]
fn a_class_keeps_to_its_part_of_the_queue() {
    let limits = Limits {
        queued_decode_rows: Some(2),
        ..Limits::default()
    };
    let mut fake = Fake {
        step: Duration::from_secs(2),
        ..Fake::default()
    };
    fake.engine.scheduler.max_num_seqs = 1;
    let server = TestServer::fake(with_limits(limits), &fake);
    let body = r#"{"prompt":[1],"max_tokens":2,"ignore_eos":true}"#;
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(request(body, "").as_bytes()).unwrap();
            stream
        })
        .collect();
    wait_for(|| {
        let rows = server.metric("prelude:queue_rows{class=\"decode\",");
        (rows == 2.0)
            .then_some(())
            .ok_or_else(|| format!("{rows} rows"))
    });
    let encoded = server.metric("prelude:encode_seconds_count");
    let text = json!({"prompt": "a text", "max_tokens": 2}).to_string();
    let chat = json!({"messages": [{"role": "user", "content": "a"}]}).to_string();
    for (path, body) in [(PATH, &text), ("/v1/chat/completions", &chat)] {
        let refused = server.post(path, body);
        assert_eq!((refused.status, &*refused.reason()), (429, "class_quota"));
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(server.metric("prelude:encode_seconds_count"), encoded);
    let more = json!({"prompt": [1], "max_tokens": 2, "n": 3}).to_string();
    let refused = server.post(PATH, &more);
    assert_eq!(
        (refused.status, &*refused.reason()),
        (400, "larger_than_queue")
    );
    let one = json!({"prompt": "a text", "max_tokens": 1}).to_string();
    for (path, body) in [
        (PATH, &*one),
        ("/v1/embeddings", r#"{"input": ["a", "b", "c"]}"#),
    ] {
        assert_eq!(server.post(path, body).status, 200, "{path}");
    }
    drop(held);
    server.settle();
}

/// A long answer has its room before it is computed, and nobody else's.
#[test]
fn long_answers_have_a_bound_together() {
    let limits = Limits {
        answers_in_flight_bytes: 5_000,
        ..Limits::default()
    };
    let fake = Fake {
        step: Duration::from_secs(2),
        ..Fake::default()
    };
    let server = TestServer::fake(with_limits(limits), &fake);
    let scored = |tokens: usize| {
        let ids: Vec<usize> = (1..=tokens).collect();
        json!({"prompt": ids, "max_tokens": 0, "prompt_logprobs": 0}).to_string()
    };
    let mut held = server.connect();
    let long = request(&scored(20), "");
    held.write_all(long.as_bytes()).unwrap();
    wait_for(|| {
        let rows = server.metric("prelude:queue_rows");
        (rows == 1.0)
            .then_some(())
            .ok_or_else(|| format!("{rows} rows"))
    });
    let check = |tokens, expected: (u16, &str)| {
        let response = server.post(PATH, &scored(tokens));
        assert_eq!((response.status, &*response.reason()), expected, "{tokens}");
    };
    check(20, (429, "queue_full"));
    check(40, (400, "larger_than_queue"));
    let mut text = String::new();
    let _ = held.read_to_string(&mut text);
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    // Taken by its client: there is room again.
    assert_eq!(server.post(PATH, &scored(20)).status, 200);
    server.settle();
}

/// Labels are rows, of which it is known only once they are tokenised how many they are.
#[test]
fn labels_without_room_are_not_tokenised() {
    let limits = Limits {
        queued_rows: 12,
        ..Limits::default()
    };
    let fake = Fake {
        step: Duration::from_secs(4),
        ..Fake::default()
    };
    let server = TestServer::fake(with_limits(limits), &fake);
    let mut held = server.connect();
    let long = request(r#"{"prompt":[1],"max_tokens":1}"#, "");
    held.write_all(long.as_bytes()).unwrap();
    wait_for(|| {
        let rows = server.metric("prelude:queue_rows");
        (rows == 1.0)
            .then_some(())
            .ok_or_else(|| format!("{rows} rows"))
    });
    let encoded = server.metric("prelude:encode_seconds_count");
    let names: Vec<String> = (0..9).map(|i| format!("option {i}")).collect();
    let options: serde_json::Map<_, _> = { names.iter() }
        .map(|name| (name.clone(), Value::Null))
        .collect();
    let question = json!({"type": "choice", "instructions": "b", "criteria": options});
    for (path, body) in [
        ("/classify", json!({"input": "a", "labels": names})),
        (
            "/v1/systemone",
            json!({"state": "a", "questions": {"q": question}, "x_prelude": {"labels": "text"}}),
        ),
    ] {
        let response = server.post(path, &body.to_string());
        assert_eq!(
            (response.status, &*response.reason()),
            (429, "queue_full"),
            "{path} {}",
            response.body
        );
    }
    assert_eq!(server.metric("prelude:encode_seconds_count"), encoded);
    let mut text = String::new();
    let _ = held.read_to_string(&mut text);
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    server.settle();
}

/// That nothing is tokenised for a refused request is seen in this number.
#[test]
fn whatever_is_tokenised_is_counted() {
    let server = TestServer::fake(config(), &Fake::default());
    let count = || server.metric("prelude:encode_seconds_count");
    let check = |path: &str, body: Value, status: u16| {
        let before = count();
        let response = server.post(path, &body.to_string());
        assert_eq!(response.status, status, "{path} {}", response.body);
        assert_eq!(count() - before, 1.0, "{path} {body}");
    };
    check(PATH, json!({"prompt": "a", "max_tokens": 1}), 200);
    check("/tokenize", json!({"prompt": "a"}), 200);
    check("/v1/embeddings", json!({"input": ["a", "b"]}), 200);
    check(
        "/classify",
        json!({"input": "a", "labels": ["b", "c"]}),
        200,
    );
    let items = json!({"query": "a", "items": ["b"], "label_token_ids": [1, 2]});
    check("/score", items, 200);
    check("/score", json!({"text_1": "a", "text_2": ["b"]}), 200);
    check("/rerank", json!({"query": "a", "documents": ["b"]}), 200);
    let question = json!({"type": "noul", "instructions": "b"});
    let decision = json!({"state": "a", "questions": {"q": question}});
    check("/v1/systemone", decision, 200);
    let question = json!([{"type": "predicate", "instructions": "b"}]);
    check(
        "/v1/decisions",
        json!({"input": "a", "questions": question}),
        200,
    );
    // Too long is known once it is tokenised.
    let long = "a ".repeat(1_000);
    check(PATH, json!({"prompt": long, "max_tokens": 1}), 400);
    // Ids are no text.
    let before = count();
    assert_eq!(server.post(PATH, r#"{"prompt":[1]}"#).status, 200);
    assert_eq!(count(), before);
    server.settle();
}

#[test]
fn a_request_that_can_never_fit_is_the_caller_s_to_split() {
    let limits = Limits {
        queued_tokens: 10,
        queued_rows: 4,
        rows: 8,
        ..Limits::default()
    };
    let server = TestServer::fake(with_limits(limits), &Fake::default());
    let check = |body: Value, reason: &str| {
        let response = server.post(PATH, &body.to_string());
        assert_eq!(
            (response.status, &*response.reason()),
            (400, reason),
            "{body}"
        );
    };
    check(
        json!({"prompt": vec![1; 11], "max_tokens": 1}),
        "larger_than_queue",
    );
    check(json!({"prompt": [1], "n": 5}), "larger_than_queue");
    check(json!({"prompt": [1], "n": 9}), "too_many_rows");
    server.settle();
}

/// At every endpoint, an answer prints so many numbers and no more, and says so alike.
#[test]
fn every_endpoint_bounds_the_numbers_that_it_prints() {
    let limits = Limits {
        answer_numbers: 100,
        ..Limits::default()
    };
    let server = TestServer::fake(with_limits(limits), &Fake::default());
    let check = |path: &str, body: Value, numbers: u64| {
        let response = server.post(path, &body.to_string());
        let found = (response.status, &*response.reason());
        assert_eq!(
            found,
            (400, "too_many_numbers"),
            "{path}: {}",
            response.body
        );
        let message = response.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        let expected = format!("would print {numbers} numbers, the limit is 100");
        assert!(message.contains(&expected), "{message}");
    };
    let many = |n: usize| vec!["x"; n];
    let ids: Vec<u32> = (1..=21).collect();
    let labels = json!({"query": "q", "items": many(5), "label_token_ids": ids});
    check("/v1/score", labels, 105);
    check(
        "/v1/score",
        json!({"text_1": "q", "text_2": many(101)}),
        101,
    );
    check(
        "/v1/rerank",
        json!({"query": "q", "documents": many(101)}),
        101,
    );
    let names: Vec<String> = (0..26).map(|i| format!("label {i}")).collect();
    check("/classify", json!({"input": many(4), "labels": names}), 104);
    let vectors = |n: usize| json!({"input": many(n), "dimensions": 4});
    check("/v1/embeddings", vectors(26), 104);
    let mut base64 = vectors(76);
    base64["encoding_format"] = json!("base64");
    check("/v1/embeddings", base64, 102);
    let options: serde_json::Map<String, Value> = (0..101)
        .map(|i| (format!("option {i}"), Value::Null))
        .collect();
    let question = json!({"type": "choice", "criteria": options});
    let body = json!({"state": "s", "questions": {"q": question}});
    let response = server.post("/v1/systemone", &body.to_string());
    // Its clients expect this status.
    let found = (response.status, &*response.reason());
    assert_eq!(found, (422, "too_many_numbers"));
    server.settle();
}

/// A text that cannot fit is refused by its bytes, before any of it is read.
#[test]
fn a_text_that_cannot_fit_is_not_tokenised() {
    let server = TestServer::fake(config(), &Fake::default());
    let texts = [
        "\u{200d}".repeat(1 << 20),
        "a\u{323}\u{301}".repeat(1 << 18),
        "word ".repeat(1 << 20),
    ];
    for text in &texts {
        let bodies = [
            ("/v1/completions", json!({"prompt": text})),
            ("/v1/completions", json!({"prompt": ["a", text]})),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": text}]}),
            ),
            ("/v1/embeddings", json!({"input": text})),
            (
                "/v1/score",
                json!({"query": text, "items": ["a"], "label_token_ids": [1]}),
            ),
            ("/v1/score", json!({"text_1": "a", "text_2": text})),
            ("/v1/rerank", json!({"query": "a", "documents": [text]})),
            ("/classify", json!({"input": text, "labels": ["a", "b"]})),
        ];
        for (path, body) in bodies {
            let response = server.post(path, &body.to_string());
            let found = (response.status, &*response.reason());
            assert_eq!(found, (400, "context_length_exceeded"), "{path}");
            let message = response.json()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned();
            assert!(
                message.starts_with("This model's maximum context length is"),
                "{message}"
            );
            assert!(message.contains("tokens or more"), "{path}: {message}");
        }
    }
    server.settle();
}

/// Each choice repeats its prompt's log-probabilities, so a small request could ask for gigabytes.
#[test]
fn an_answer_prints_so_many_log_probabilities_and_no_more() {
    let limits = Limits {
        answer_numbers: 120,
        ..Limits::default()
    };
    let server = TestServer::fake(with_limits(limits), &Fake::default());
    let check = |more: Value, status: u16| {
        let mut body = json!({"prompt": vec![1; 10], "max_tokens": 1});
        let fields = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let response = server.post(PATH, &body.to_string());
        assert_eq!(response.status, status, "{body}");
        if status == 400 {
            assert_eq!(response.reason(), "too_many_numbers", "{body}");
        }
    };
    check(json!({"prompt_logprobs": 2, "n": 2}), 200);
    check(json!({"prompt_logprobs": 2, "n": 3}), 400);
    check(json!({"echo": true, "logprobs": 2, "n": 2}), 200);
    check(json!({"echo": true, "logprobs": 2, "n": 3}), 400);
    let prompts = json!([vec![1; 10], vec![2; 10]]);
    check(json!({"prompt": prompts, "prompt_logprobs": 2}), 200);
    check(json!({"prompt": prompts, "prompt_logprobs": 3}), 400);
    // Both are printed.
    let both = json!({"echo": true, "logprobs": 3, "prompt_logprobs": 2});
    check(both, 400);
    // A range has nothing beside the positions outside it.
    let range = |end| json!({"prompt_logprobs": 10, "prompt_logprobs_range": [1, end]});
    check(range(6), 200);
    check(range(7), 400);
    // Without an echo only generated tokens are printed.
    check(json!({"logprobs": 5, "n": 8}), 200);
    server.settle();
}

#[test]
fn overload_may_have_another_status() {
    let mut config = with_limits(Limits {
        bodies_in_flight_bytes: 40,
        ..Limits::default()
    });
    config.overload_status = 503;
    let server = TestServer::fake(config, &Fake::default());
    let body = r#"{"prompt":[1],"max_tokens":1}"#;
    let whole = request(body, "");
    let mut half = server.connect();
    let missing = body.len() / 2;
    half.write_all(&whole.as_bytes()[..whole.len() - missing])
        .unwrap();
    // A body that came first would have half of one refused instead.
    wait_for(|| match server.metric("prelude:body_bytes_in_flight") {
        bytes if bytes == (body.len() - missing) as f64 => Ok(()),
        bytes => Err(format!("{bytes} bytes are received")),
    });
    let response = server.post(PATH, body);
    assert_eq!(response.status, 503);
    assert_eq!(response.reason(), "queue_full");
    assert_eq!(response.json()["error"]["code"], 503);
    assert!(response.header("retry-after").is_some());
}

#[test]
fn a_deadline_that_passes_is_not_worth_a_retry() {
    let server = TestServer::fake(config(), &slow());
    let mut busy = server.connect();
    let long = request(r#"{"prompt":[1],"max_tokens":3,"ignore_eos":true}"#, "");
    busy.write_all(long.as_bytes()).unwrap();
    wait_for(|| {
        let running = server.metric("prelude:queue_rows{class=\"decode\",");
        (running > 0.0)
            .then_some(())
            .ok_or_else(|| format!("{running}"))
    });
    std::thread::sleep(Duration::from_millis(50));
    for headers in ["x-slo-ttft-ms: 20\r\n", ""] {
        let body = match headers {
            "" => r#"{"prompt":[2],"max_tokens":1,"slo_ttft_ms":20}"#,
            _ => r#"{"prompt":[2],"max_tokens":1}"#,
        };
        let response = Response::parse(&server.exchange(request(body, headers).as_bytes()));
        assert_eq!(
            (response.status, &*response.reason()),
            (429, "deadline_expired")
        );
        assert_eq!(response.header("x-should-retry"), Some("false"));
    }
    assert_eq!(server.metric("prelude:deadline_missed_total"), 2.0);
    drop(busy);
    server.settle();
}

#[test]
fn clients_that_leave_leave_nothing_behind() {
    let fake = Fake {
        step: Duration::from_millis(5),
        ..Fake::default()
    };
    let server = TestServer::fake(config(), &fake);
    let mut left = 0;
    for round in 0_u64..60 {
        let stream = round % 2 == 0;
        let body = json!({"prompt": [[1, 2, 3], [round % 7, 5]], "max_tokens": 200, "n": 3,
            "ignore_eos": true, "stream": stream, "temperature": 1});
        let bytes = request(&body.to_string(), "").into_bytes();
        let mut connection = server.connect();
        // Some leave in the middle of the body, most somewhere in the answer.
        let sent = if round % 5 == 0 {
            bytes.len() - 9
        } else {
            bytes.len()
        };
        connection.write_all(&bytes[..sent]).unwrap();
        std::thread::sleep(Duration::from_millis(round * 7 % 40));
        if round % 3 == 0 {
            // Half-closed is as good as gone.
            connection.shutdown(std::net::Shutdown::Write).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        left += 1;
        drop(connection);
    }
    server.settle();
    let gone = server.metric("prelude:requests_total{route=\"/v1/completions\",code=\"499\",");
    assert!(gone > f64::from(left) * 0.5, "{gone} of {left}");
    // The engine rests: nobody wants anything of it.
    let steps = fake.steps.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fake.steps.load(Ordering::SeqCst), steps);
    assert!(server.is_healthy());
}

#[test]
fn many_at_once_answer_as_one_by_one() {
    let server = TestServer::demo();
    let bodies: Vec<(&str, String)> = (0..256)
        .map(|i| {
            let text = ["Where is my card?", "I lost my phone", "exchange rate"][i % 3];
            let body = match i % 4 {
                0 => json!({"prompt": text, "max_tokens": 4, "temperature": 0, "echo": true,
                    "logprobs": 1}),
                1 => json!({"prompt": [text, "my"], "max_tokens": 3, "temperature": 1,
                    "seed": i % 12, "n": 2}),
                2 => json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1,
                    "temperature": 0, "logprobs": true, "top_logprobs": 2}),
                _ => json!({"input": text}),
            };
            let path = match i % 4 {
                0 | 1 => PATH,
                2 => "/v1/chat/completions",
                _ => "/classify",
            };
            (path, body.to_string())
        })
        .collect();
    let ask = |(path, body): &(&str, String)| {
        let response = server.post(path, body);
        assert_eq!(response.status, 200, "{body}\n{}", response.body);
        let mut answer = response.json();
        for changing in ["id", "created", "usage"] {
            answer[changing] = Value::Null;
        }
        answer
    };
    // Kinds repeat every twelve.
    let expected: Vec<Value> = bodies[..12].iter().map(ask).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..32)
            .map(|t| {
                let (bodies, expected, ask) = (&bodies, &expected, &ask);
                scope.spawn(move || {
                    for i in (t..256).step_by(32) {
                        assert_eq!(ask(&bodies[i]), expected[i % 12], "request {i}");
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
    server.settle();
}

#[test]
fn a_late_answer_may_be_wanted() {
    let server = TestServer::fake(config(), &slow());
    let mut busy = server.connect();
    let long = request(r#"{"prompt":[1],"max_tokens":3,"ignore_eos":true}"#, "");
    busy.write_all(long.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let body = r#"{"prompt":[2],"max_tokens":1,"slo_ttft_ms":20,"on_deadline":"finish"}"#;
    let late = Response::parse(&server.exchange(request(body, "").as_bytes()));
    assert_eq!(late.status, 200, "{}", late.body);
    drop(busy);
    server.settle();
}

#[test]
fn a_deadline_that_no_engine_meets_is_refused_as_such() {
    let fake = Fake {
        step: Duration::from_millis(20),
        ..Fake::default()
    };
    let server = TestServer::fake(config(), &fake);
    let body = r#"{"prompt":[1],"max_tokens":40,"ignore_eos":true}"#;
    assert_eq!(server.post(PATH, body).status, 200);
    let refused = server.post(PATH, r#"{"prompt":[1],"max_tokens":1,"slo_ttft_ms":1}"#);
    assert_eq!(
        (refused.status, &*refused.reason()),
        (400, "deadline_infeasible")
    );
    let met = server.post(PATH, r#"{"prompt":[1],"max_tokens":1,"slo_ttft_ms":5000}"#);
    assert_eq!(met.status, 200);
    server.settle();
}

/// Twenty prompts of sixty tokens at some two hundred tokens a second.
#[test]
fn a_deadline_behind_a_long_queue_is_refused_at_once() {
    let mut fake = slow();
    fake.engine.scheduler.max_batch_tokens = Some(64);
    let server = TestServer::fake(config(), &fake);
    let ids = |first: u32| (first * 60..first * 60 + 60).collect::<Vec<u32>>();
    let waiting: Vec<_> = (0..20)
        .map(|i| {
            let mut connection = server.connect();
            let body = json!({"prompt": ids(i), "max_tokens": 1}).to_string();
            connection.write_all(request(&body, "").as_bytes()).unwrap();
            connection
        })
        .collect();
    // Long enough for a rate to be measured.
    wait_for(|| {
        let ran = fake.steps.load(Ordering::SeqCst);
        (ran >= 6).then_some(()).ok_or_else(|| ran.to_string())
    });
    let body = json!({"prompt": ids(30), "max_tokens": 1, "slo_ttft_ms": 700}).to_string();
    let refused = Response::parse(&server.exchange(request(&body, "").as_bytes()));
    assert_eq!(
        (refused.status, &*refused.reason()),
        (429, "deadline_unmeetable"),
        "{}",
        refused.body
    );
    assert!(refused.header("retry-after").is_some());
    drop(waiting);
    server.settle();
}
