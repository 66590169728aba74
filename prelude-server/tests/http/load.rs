//! Many at once: more than fits, leaving at random, and all kinds of requests beside each other.
//!
//! Counts and bytes are asserted, never times; `cargo xtask bench server` measures those.
//! `PRELUDE_LOAD_TEST_SECONDS` makes the tests with a duration last longer.

use std::{
    io::Write,
    net::Shutdown,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use prelude_server::Limits;
use serde_json::{Value, json};

use crate::support::{Fake, Response, TestServer, config, every_task, read_all, with_limits};

/// Returns the duration of tests that have no end of their own.
fn duration() -> Duration {
    let seconds = std::env::var("PRELUDE_LOAD_TEST_SECONDS").ok();
    let seconds = seconds.and_then(|s| s.parse().ok()).unwrap_or(1.5);
    Duration::from_secs_f64(seconds)
}

fn request(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Three clients for every place in the queue, each asking again as soon as it is answered: what
/// does not fit is refused by name and not tokenised, what fits is answered, and no step runs
/// with less than it could hold.
#[test]
fn three_times_too_many_are_served_as_if_they_fitted() {
    const PLACES: usize = 16;
    const ROWS_PER_STEP: u32 = 4;
    let mut fake = Fake {
        step: Duration::from_millis(20),
        ..Fake::default()
    };
    fake.engine.scheduler.max_batch_rows = ROWS_PER_STEP;
    let limits = Limits {
        queued_rows: PLACES as u64,
        rows: PLACES as u64,
        ..Limits::default()
    };
    let server = TestServer::fake(with_limits(limits), &fake);
    let (answered, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let until = Instant::now() + duration();
    std::thread::scope(|scope| {
        for client in 0..3 * PLACES {
            let (server, answered, refused) = (&server, &answered, &refused);
            scope.spawn(move || {
                let body = json!({"prompt": format!("client {client}"), "max_tokens": 1});
                let body = body.to_string();
                while Instant::now() < until {
                    let response = server.post("/v1/completions", &body);
                    if response.status == 200 {
                        answered.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    assert_eq!(
                        (response.status, &*response.reason()),
                        (429, "queue_full"),
                        "{}",
                        response.body
                    );
                    assert!(response.header("retry-after").is_some());
                    refused.fetch_add(1, Ordering::Relaxed);
                    // Not to take the processor from those that are served.
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
        }
    });
    let (answered, refused) = (answered.into_inner(), refused.into_inner());
    assert!(answered > 0 && refused > 0, "{answered} and {refused}");
    let encoded = server.metric("prelude:encode_seconds_count");
    assert_eq!(encoded, answered as f64, "refused: {refused}");
    let code = |code: u16| {
        let name = format!("prelude:requests_total{{route=\"/v1/completions\",code=\"{code}\",");
        server.metric(&name)
    };
    assert_eq!((code(200), code(429)), (answered as f64, refused as f64));
    // The first and last few steps had nobody waiting behind them.
    let steps = fake.steps.load(Ordering::SeqCst);
    let full = steps.saturating_sub(2 * PLACES as u64 / u64::from(ROWS_PER_STEP));
    assert!(
        answered as f64 >= 0.9 * (full * u64::from(ROWS_PER_STEP)) as f64,
        "{answered} answers of {steps} steps"
    );
    server.settle();
}

/// Clients that leave wherever they happen to be, beside others that stay: those get what they
/// would have got alone, and nothing is left of the rest.
#[test]
fn who_leaves_under_load_leaves_nothing_and_disturbs_nobody() {
    let fake = Fake {
        step: Duration::from_millis(2),
        ..Fake::default()
    };
    let server = TestServer::fake(config(), &fake);
    let bodies: Vec<(&str, String)> = vec![
        (
            "/v1/completions",
            json!({"prompt": [[1, 2, 3], [7, 5]], "max_tokens": 60, "n": 2, "ignore_eos": true,
                "temperature": 1, "seed": 3})
            .to_string(),
        ),
        (
            "/v1/completions",
            json!({"prompt": (0..200).collect::<Vec<u32>>(), "max_tokens": 40, "stream": true,
                "ignore_eos": true, "temperature": 0})
            .to_string(),
        ),
        (
            "/v1/systemone",
            json!({"state": "My card is lost. ".repeat(8), "questions":
                (0..20).map(|i| (format!("q{i}"), json!({"type": "noul",
                    "instructions": format!("Is it number {i}?")})))
                    .collect::<serde_json::Map<_, _>>()})
            .to_string(),
        ),
        (
            "/v1/embeddings",
            json!({"input": vec!["a text"; 30]}).to_string(),
        ),
    ];
    let ask = |(path, body): &(&str, String)| without_ids(server.post(path, body));
    let expected: Vec<Response> = bodies.iter().map(ask).collect();
    let until = Instant::now() + duration();
    let (left, stayed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for client in 0_u64..12 {
            let (server, bodies, expected, ask) = (&server, &bodies, &expected, &ask);
            let (left, stayed) = (&left, &stayed);
            scope.spawn(move || {
                let mut n = client;
                while Instant::now() < until {
                    n = n
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(client + 1);
                    let draw = n >> 33;
                    let which = draw as usize % bodies.len();
                    if client < 3 {
                        assert_eq!(ask(&bodies[which]), expected[which]);
                        stayed.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let bytes = request(bodies[which].0, &bodies[which].1).into_bytes();
                    let mut connection = server.connect();
                    let sent = match draw % 5 {
                        0 => draw as usize % bytes.len(),
                        _ => bytes.len(),
                    };
                    // It may have been answered and closed already.
                    let _ = connection.write_all(&bytes[..sent]);
                    std::thread::sleep(Duration::from_micros(draw % 30_000));
                    if draw.is_multiple_of(3) {
                        let _ = connection.shutdown(Shutdown::Write);
                    }
                    left.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let (left, stayed) = (left.into_inner(), stayed.into_inner());
    assert!(left > 10 && stayed > 3, "{left} and {stayed}");
    server.settle();
    let steps = fake.steps.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(fake.steps.load(Ordering::SeqCst), steps, "the engine rests");
    assert!(server.is_healthy());
}

/// Returns a response without what differs from run to run: ids, times, and what the cache held.
fn without_ids(mut response: Response) -> Response {
    fn mask(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(mask),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match name.as_str() {
                        "id" | "created" => *value = Value::Null,
                        "cached_tokens" | "cache_write_tokens" => *value = json!(0),
                        _ => mask(value),
                    }
                }
            }
            _ => {}
        }
    }
    let masked = |text: &str| {
        let mut value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        mask(&mut value);
        value.to_string()
    };
    response.body = if response.head.contains("text/event-stream") {
        let events = response.body.split("\n\n").filter(|e| !e.is_empty());
        let event = |event: &str| match event.strip_prefix("data: ") {
            Some("[DONE]") => event.to_owned(),
            Some(data) => masked(data),
            None => String::new(),
        };
        joined_text(events.map(event).filter(|e| !e.is_empty()))
    } else {
        masked(&response.body)
    };
    response.head.clear();
    response
}

/// Returns what a stream says, however steps cut it into events: texts, tokens
/// with their log-probabilities, calls, what the prompt has, how each choice ends, and usage.
fn joined_text(events: impl Iterator<Item = String>) -> String {
    let mut said: std::collections::BTreeMap<String, String> = Default::default();
    let mut lists: std::collections::BTreeMap<String, Vec<Value>> = Default::default();
    let mut rest = Vec::new();
    for event in events {
        let Ok(value) = serde_json::from_str::<Value>(&event) else {
            rest.push(event);
            continue;
        };
        rest.extend(value.get("prompt_logprobs").map(Value::to_string));
        rest.extend(value["usage"].as_object().map(|usage| format!("{usage:?}")));
        for choice in value["choices"].as_array().into_iter().flatten() {
            let index = &choice["index"];
            let texts = [
                ("text", &choice["text"]),
                ("content", &choice["delta"]["content"]),
                ("reasoning", &choice["delta"]["reasoning"]),
            ];
            for (name, text) in texts {
                let all = said.entry(format!("{index} {name}")).or_default();
                all.push_str(text.as_str().unwrap_or_default());
            }
            let of_tokens = choice["logprobs"].as_object().into_iter().flatten();
            for (name, list) in of_tokens {
                let all = lists.entry(format!("{index} {name}")).or_default();
                all.extend(list.as_array().into_iter().flatten().cloned());
            }
            let of_choice = ["finish_reason", "stop_reason", "prompt_logprobs"];
            let of_choice = of_choice.map(|name| (name, &choice[name]));
            let calls = ("tool_calls", &choice["delta"]["tool_calls"]);
            let told = of_choice.into_iter().chain([calls]);
            let told = told.filter(|(_, value)| !value.is_null());
            rest.extend(told.map(|(name, value)| format!("{index} {name} {value}")));
        }
    }
    rest.sort();
    format!("{said:?} {lists:?} {rest:?}")
}

/// Returns the requests of every kind that an engine answers.
fn every_kind() -> Vec<(&'static str, Value)> {
    let chat = |text: &str| json!([{"role": "user", "content": text}]);
    let noul = json!({"type": "noul", "instructions": "Is it about a card?"});
    let choice = json!({"type": "choice", "instructions": "Which topic?",
        "criteria": {"card": null, "transfer": null, "cash": "money in the hand"}});
    let score = json!({"type": "score", "instructions": "How angry?",
        "criteria": ["Calm", "Annoyed", "Furious"]});
    let text = "Where is my card? I ordered it two weeks ago.";
    let mut kinds = vec![
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 8, "temperature": 0}),
        ),
        (
            "/v1/completions",
            json!({"prompt": [text, "my"], "max_tokens": 5, "temperature": 1,
            "seed": 5, "n": 3, "logprobs": 2}),
        ),
        (
            "/v1/completions",
            json!({"prompt": [[5, 6, 7], [5, 6, 8]], "max_tokens": 0,
            "echo": true, "logprobs": 1}),
        ),
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 1, "prompt_logprobs": 2}),
        ),
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 12, "temperature": 0.7,
            "seed": 9, "stream": true, "ignore_eos": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": chat(text), "max_tokens": 1,
            "temperature": 0, "logprobs": true, "top_logprobs": 3}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": chat("I lost my phone."), "max_tokens": 9,
            "temperature": 1, "seed": 2, "stream": true}),
        ),
        (
            "/v1/embeddings",
            json!({"input": [text, "a", text], "dimensions": 16}),
        ),
        (
            "/v1/embeddings",
            json!({"input": text, "encoding_format": "base64"}),
        ),
        ("/classify", json!({"input": [text, "exchange rate"]})),
        (
            "/classify",
            json!({"input": text, "labels": ["card", "cash", "a longer label"]}),
        ),
        (
            "/score",
            json!({"query": "Is it a bank? ", "items": ["ING", "BMW"],
            "labels": ["yes", "no"], "apply_softmax": true}),
        ),
        (
            "/score",
            json!({"text_1": "card", "text_2": [text, "exchange rate"]}),
        ),
        (
            "/score",
            json!({"query": [5, 6], "items": [[7], [8, 9]],
            "label_token_ids": [1, 2]}),
        ),
        (
            "/rerank",
            json!({"query": "card", "documents": [text, "exchange rate", "a"]}),
        ),
        (
            "/v1/moderations",
            json!({"input": [text, "a"], "labels": ["safe", "a threat"]}),
        ),
        ("/pooling", json!({"input": text})),
        ("/embed", json!({"inputs": [text, "Where is my card?"]})),
        ("/embed_all", json!({"inputs": [text, "Where is my card?"]})),
        (
            "/predict",
            json!({"inputs": [[text]], "model": "demo-classifier"}),
        ),
        (
            "/similarity",
            json!({"inputs": {"source_sentence": text, "sentences": ["A card."]}}),
        ),
        (
            "/v1/systemone",
            json!({"state": text,
            "questions": {"a": noul, "b": choice, "c": score}}),
        ),
        (
            "/v1/systemone",
            json!({"state": {"message": text}, "questions": {"b": choice},
            "x_prelude": {"permutations": 3}}),
        ),
        (
            "/v1/systemone/permute",
            json!({"request": {"state": text, "questions": {"b": choice}}, "question": "b",
            "n_perm": 3}),
        ),
        (
            "/v1/decisions",
            json!({"input": text, "questions": [
            {"type": "predicate", "name": "lost", "instructions": "Is it lost?"},
            {"type": "choice", "instructions": "Which?", "choices": [
                {"value": "card"}, {"value": true}]}]}),
        ),
        (
            "/tokenize",
            json!({"prompt": [text, "ﬁ ｆ"], "return_token_strs": true}),
        ),
    ];
    kinds.extend(more_kinds(text));
    #[cfg(feature = "llguidance")]
    kinds.extend(constrained_kinds(text));
    kinds
}

/// Returns requests for the same endpoints in other dialects, with other forms of answers and parameters.
fn more_kinds(text: &str) -> Vec<(&'static str, Value)> {
    let chat =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]);
    let documents = json!([text, "exchange rate", "a"]);
    let many: serde_json::Map<String, Value> = (0..12)
        .map(|i| {
            let text = format!("Does it speak of number {i}?");
            (
                format!("q{i}"),
                json!({"type": "noul", "instructions": text}),
            )
        })
        .collect();
    vec![
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 10, "temperature": 1, "seed": 4, "top_p": 0.8,
            "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.3, "presence_penalty": 0.5,
            "frequency_penalty": -0.5, "logit_bias": {"321": 3}, "min_tokens": 3,
            "stop": ["card", "?"], "include_stop_str_in_output": true,
            "cache_salt": "mine", "priority": 3, "return_token_ids": true}),
        ),
        (
            "/v1/completions",
            json!({"prompt": [text, "my"], "max_tokens": 6, "temperature": 0, "stream": true,
            "echo": true, "logprobs": 2, "n": 2, "prompt_logprobs": 0,
            "stream_options": {"include_usage": true}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 4, "temperature": 1, "seed": 1,
            "allowed_token_ids": [321, 712, 64, 65, 66], "ignore_eos": true, "priority": 2}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": chat, "max_tokens": 7, "temperature": 1, "seed": 8, "n": 3,
            "prompt_logprobs": 1, "enable_thinking": false, "slo_ttft_ms": 60_000,
            "on_deadline": "finish"}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": chat, "max_tokens": 7, "temperature": 1, "seed": 8, "stream": true,
            "logprobs": true, "top_logprobs": 2, "priority": 1}),
        ),
        (
            "/v1/embeddings",
            json!({"input": [[5, 6, 7], [5, 6]], "use_activation": false, "instruction": null}),
        ),
        ("/v1/embeddings", json!({"messages": chat})),
        (
            "/classify",
            json!({"input": [text, text, "a"], "use_activation": false}),
        ),
        (
            "/classify",
            json!({"input": [text, "my"], "labels": ["yes", "no"], "template": "Lost? {{ text }}"}),
        ),
        (
            "/score",
            json!({"query": "a bank", "items": ["ING is ", "BMW is "], "item_first": true,
            "labels": ["yes", "no"]}),
        ),
        (
            "/score",
            json!({"query": "My ", "items": ["card"], "model": "demo-classifier"}),
        ),
        (
            "/score",
            json!({"queries": ["card", "rate"], "documents": [text, "exchange rate"],
            "use_activation": false}),
        ),
        (
            "/v2/rerank",
            json!({"query": "card", "documents": documents}),
        ),
        (
            "/rerank",
            json!({"query": "card", "texts": documents, "return_text": true, "raw_scores": true}),
        ),
        (
            "/pooling",
            json!({"input": [text, "a"], "task": "token_classify", "model": "demo-classifier"}),
        ),
        (
            "/pooling",
            json!({"input": text, "task": "token_embed", "dimensions": 8, "model": "demo-lm"}),
        ),
        (
            "/v1/systemone",
            json!({"state": text.repeat(6), "instructions": "Judge.", "questions": many}),
        ),
        (
            "/v1/systemone",
            json!({"state": [text], "questions": {"t": {"type": "choice",
                "criteria": {"a lost card": null, "a rate": null}}},
            "x_prelude": {"labels": "text"}}),
        ),
        (
            "/v1/decisions",
            json!({"input": [{"role": "user", "content": text}], "questions": [
                {"type": "score", "instructions": "How?", "levels": [
                    {"label": "a"}, {"label": "b", "description": "worse"}]}]}),
        ),
        ("/tokenize", json!({"messages": chat})),
        ("/detokenize", json!({"tokens": [321, 64, 4095, 9]})),
    ]
}

/// Whatever needs a grammar's parser, and a choice, which needs none.
#[cfg(feature = "llguidance")]
fn constrained_kinds(text: &str) -> Vec<(&'static str, Value)> {
    let constrained = |more: Value| {
        let mut body = json!({"prompt": text, "max_tokens": 24, "temperature": 1, "seed": 6});
        let fields = body.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        ("/v1/completions", body)
    };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"},
        "topic": {"enum": ["card", "cash"]}}, "required": ["n", "topic"],
        "additionalProperties": false});
    let function = json!({"name": "find", "parameters": schema});
    vec![
        constrained(json!({"structured_outputs": {"choice": ["card", "cash", "a longer one"]}})),
        constrained(json!({"structured_outputs": {"regex": "[ab]{2,6}c"}, "n": 2})),
        constrained(json!({"structured_outputs": {"grammar": "start: \"a\" start | \"b\""}})),
        constrained(json!({"structured_outputs": {"json": schema}, "logprobs": 1})),
        constrained(json!({"response_format": {"type": "json_object"}, "stream": true})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": text}], "max_tokens": 60,
                "temperature": 1, "seed": 3, "tool_choice": "required",
                "tools": [{"type": "function", "function": function}]}),
        ),
    ]
}

/// Two hundred connections at the same moment, all kinds of requests mixed: every answer is, bit
/// for bit, the one that a request alone gets.
#[test]
fn two_hundred_of_all_kinds_answer_as_one_by_one() {
    const CLIENTS: usize = 200;
    let server = every_task();
    let kinds: Vec<(&str, String)> = every_kind()
        .into_iter()
        .map(|(path, body)| (path, body.to_string()))
        .collect();
    // All there are: by the last part of a path, since aliases differ in the others.
    let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    let document = server.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let asked = kinds.iter().any(|(asked, _)| name(asked) == name(path));
        let is_alias = ["/v1/decide", "/v1/systemone/separate"].contains(&path.as_str());
        assert!(asked || is_alias || methods.get("post").is_none(), "{path}");
    }
    let ask = |(path, body): &(&str, String)| {
        let response = server.post(path, body);
        assert_eq!(response.status, 200, "{path} {body}\n{}", response.body);
        without_ids(response)
    };
    let expected: Vec<Response> = kinds.iter().map(ask).collect();
    let start = Arc::new(Barrier::new(CLIENTS));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, kinds, expected) = (&server, &kinds, &expected);
            let start = Arc::clone(&start);
            scope.spawn(move || {
                // A stride that meets all kinds and puts different ones side by side.
                let which = client * 7 % kinds.len();
                let mut connection = server.connect();
                start.wait();
                let (path, body) = &kinds[which];
                connection
                    .write_all(request(path, body).as_bytes())
                    .unwrap();
                let response = Response::parse(&read_all(&mut connection));
                assert_eq!(response.status, 200, "{path} {body}\n{}", response.body);
                assert_eq!(without_ids(response), expected[which], "{path} {body}");
            });
        }
    });
    server.settle();
}
