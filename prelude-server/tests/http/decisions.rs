//! Classes, scores, embeddings and typed decisions over a connection.

use serde_json::{Value, json};

use crate::support::{Response, TestServer};

/// The body with what differs from run to run or machine to machine replaced: ids by their
/// prefix, times and probabilities by a word.
fn masked(response: &Response) -> Value {
    fn mask(value: &mut Value) {
        match value {
            Value::Number(n) if n.is_f64() => *value = json!("number"),
            Value::Array(items) => items.iter_mut().for_each(mask),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), value.as_str()) {
                        ("created", _) => *value = json!("time"),
                        ("id", Some(id)) => *value = json!(id.split_inclusive('-').next()),
                        _ => mask(value),
                    }
                }
            }
            _ => {}
        }
    }
    let mut body = response.json();
    mask(&mut body);
    body
}

fn check(server: &TestServer, path: &str, request: &Value, status: u16, expected: &Value) {
    let response = server.post(path, &request.to_string());
    assert_eq!(
        response.status, status,
        "{path} {request}: {}",
        response.body
    );
    assert_eq!(masked(&response), *expected, "{path} {request}");
    assert_eq!(response.header("content-type"), Some("application/json"));
}

fn usage(tokens: u64) -> Value {
    json!({
        "prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    })
}

#[test]
fn classes_are_answered() {
    let server = TestServer::demo();
    let mut probs = vec!["number"; 77];
    for path in ["/classify", "/v1/classify"] {
        check(
            &server,
            path,
            &json!({"input": "Where is my card?"}),
            200,
            &json!({
                "id": "classify-", "object": "list", "created": "time", "model": "demo-classifier",
                "data": [{"index": 0, "label": "card_arrival", "probs": probs, "num_classes": 77}],
                "usage": usage(5),
            }),
        );
    }
    probs.truncate(2);
    check(
        &server,
        "/classify",
        &json!({"input": "Where is my card?", "labels": ["card_arrival", "exchange_rate"]}),
        200,
        &json!({
            "id": "classify-", "object": "list", "created": "time", "model": "demo-lm",
            "data": [{"index": 0, "label": "card_arrival", "probs": probs, "num_classes": 2}],
            "usage": usage(19),
        }),
    );
}

#[test]
fn scores_are_answered() {
    let server = TestServer::demo();
    let row = ["number"; 2];
    check(
        &server,
        "/score",
        &json!({"query": "Where is my", "items": [" card?", " cash?"], "label_token_ids": [0, 1]}),
        200,
        &json!({"scores": [row, row], "model": "demo-lm", "usage": usage(10), "object": "scoring"}),
    );
    check(
        &server,
        "/v1/score",
        &json!({"text_1": "a", "text_2": "b"}),
        400,
        &json!({"error": {
            "message": "model \"demo-lm\" (kind lm) does not serve score of pairs; it serves: completions, chat, classify, score, systemone, decisions; for score of pairs its server must be started with --rerank-template qwen3",
            "type": "BadRequestError", "param": "model", "code": 400, "reason": "unsupported_task",
        }}),
    );
}

#[test]
fn embeddings_need_a_model_that_embeds() {
    let server = TestServer::demo();
    check(
        &server,
        "/v1/embeddings",
        &json!({"model": "demo-classifier", "input": "a"}),
        400,
        &json!({"error": {
            "message": "model \"demo-classifier\" (kind classifier) does not serve embeddings; it serves: classify, score, pooling",
            "type": "BadRequestError", "param": "model", "code": 400, "reason": "unsupported_task",
        }}),
    );
}

#[test]
fn typed_decisions() {
    let server = TestServer::demo();
    for path in ["/v1/systemone", "/v1/decide"] {
        check(
            &server,
            path,
            &json!({"model": "jev-latest", "state": "s", "cache_salt": path.replace('/', "-"), "questions": {
                "a": {"type": "noul"},
                "b": {"type": "choice", "criteria": {"x": null, "y": "why"}},
                "c": {"type": "score", "criteria": ["low", "high"]},
            }}),
            200,
            &json!({
                "model": "demo-lm",
                "answers": {
                    "a": {"type": "noul", "noul": "number"},
                    "b": {"type": "choice", "choice": server_choice(&server), "probabilities": {"x": "number", "y": "number"}, "confidence": "number"},
                    "c": {"type": "score", "score": "number", "legend": {"0": "low", "1": "high"}, "probabilities": {"0": "number", "1": "number"}, "confidence": "number"},
                },
                "usage": {"input_tokens": input_tokens(&server), "output_tokens": 0},
                "x_prelude": {"prompt_format": "prelude-decide-1", "diagnostics": {
                    "a": {"label_mass": "number", "margin": "number"},
                    "b": {"label_mass": "number", "margin": "number"},
                    "c": {"label_mass": "number", "margin": "number"},
                }},
            }),
        );
    }
    check(
        &server,
        "/v1/systemone",
        &json!({"state": "s", "questions": {"a": {"type": "boolean"}}}),
        422,
        &json!({
            "error": {
                "message": "field `/questions/a/type` must be \"noul\", \"choice\" or \"score\"",
                "type": "UnprocessableEntityError", "param": "/questions/a/type", "code": 422, "reason": "invalid_value",
            },
            "detail": [{
                "loc": ["body", "questions", "a", "type"],
                "msg": "field `/questions/a/type` must be \"noul\", \"choice\" or \"score\"",
                "type": "value_error",
            }],
        }),
    );
}

/// A state is never cut; and what is not about the request's form is said in one object.
#[test]
fn decisions_are_refused_in_one_object() {
    let server = TestServer::demo();
    let question = json!({"a": {"type": "noul"}});
    let refused = |state: &str, model: &str, status: u16, reason: &str, error_type: &str| {
        let body = json!({"state": state, "model": model, "questions": question});
        for path in ["/v1/systemone", "/v1/decide"] {
            let response = server.post(path, &body.to_string());
            assert_eq!((response.status, &*response.reason()), (status, reason));
            let body = response.json();
            assert_eq!(body["detail"]["error_type"], error_type);
            assert_eq!(body["detail"]["message"], body["error"]["message"]);
            assert_eq!(body["error"]["code"], status);
        }
    };
    let long = "x ".repeat(5_000);
    refused(
        &long,
        "demo-lm",
        413,
        "context_length_exceeded",
        "max_tokens_exceeded",
    );
    refused("s", "nix", 404, "model_not_found", "not_found");
    refused(
        "s",
        "demo-classifier",
        400,
        "unsupported_task",
        "invalid_request",
    );
}

/// Returns the model's answer to question `b`, asked alone: it does not depend on the others.
fn server_choice(server: &TestServer) -> Value {
    let question = json!({"b": {"type": "choice", "criteria": {"x": null, "y": "why"}}});
    let body = json!({"state": "s", "questions": question});
    let response = server.post("/v1/systemone", &body.to_string());
    response.json()["answers"]["b"]["choice"].clone()
}

/// Returns the number of tokens of the three questions' prompts, what they share counted once.
fn input_tokens(server: &TestServer) -> usize {
    let start = "<|im_start|>user\ns\n\nQuestion: ";
    let end = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let questions = [
        "Yes or no?\nAnswer with yes or no.",
        "Which option fits best?\nA: x\nB: y - why\nAnswer with one letter.",
        "Which level fits best?\n0: low\n1: high\nAnswer with one digit.",
    ];
    let prompts: Vec<Vec<Value>> = questions
        .iter()
        .map(|q| {
            let body = json!({"prompt": format!("{start}{q}{end}")});
            let tokens = server.post("/tokenize", &body.to_string()).json()["tokens"].clone();
            tokens.as_array().unwrap().clone()
        })
        .collect();
    let prefixes: std::collections::BTreeSet<String> = prompts
        .iter()
        .flat_map(|p| (1..=p.len()).map(|n| json!(p[..n]).to_string()))
        .collect();
    prefixes.len()
}

#[test]
fn headers_say_what_was_shared() {
    let server = TestServer::demo();
    let query = "The customer has waited for the card for two weeks now. ".repeat(4);
    let items: Vec<String> = (0..64).map(|i| format!("Is it about {i}?")).collect();
    let body = json!({"query": query, "items": items, "labels": ["yes", "no"]});
    let response = server.post("/v1/score", &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    let number = |name: &str| -> u64 { response.header(name).unwrap().parse().unwrap() };
    assert_eq!(response.header("x-prelude-class"), Some("oneshot"));
    assert_eq!(number("x-prelude-cached-tokens"), 0);
    let (prompt, computed) = (
        number("x-prelude-prompt-tokens"),
        number("x-prelude-computed-tokens"),
    );
    assert_eq!(prompt, response.json()["usage"]["prompt_tokens"]);
    assert!(computed * 4 < prompt, "{computed} of {prompt}");
    // Each item alone: the same numbers, bit for bit.
    let together = response.json();
    for (i, item) in items.iter().enumerate().step_by(9) {
        let body = json!({"query": query, "items": item, "labels": ["yes", "no"]});
        let alone = server.post("/v1/score", &body.to_string()).json();
        assert_eq!(alone["scores"][0], together["scores"][i]);
    }
}
