//! Whatever is sent: an answer of the caller's own making, and a server as healthy as before.

use std::{io::Write, sync::OnceLock};

use prelude_server::Limits;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Fake, TestServer, with_limits};

fn server() -> &'static TestServer {
    static SERVER: OnceLock<TestServer> = OnceLock::new();
    let limits = Limits {
        body_read_ms: 200,
        header_read_ms: 200,
        ..Limits::default()
    };
    SERVER.get_or_init(|| TestServer::fake(with_limits(limits), &Fake::default()))
}

/// Bodies that are right, to be made wrong.
fn right() -> Vec<(&'static str, Value)> {
    vec![
        (
            "/v1/completions",
            json!({"model": "fake", "prompt": ["a", "b"], "max_tokens": 2, "n": 2, "echo": true,
                "logprobs": 1, "prompt_logprobs": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 3,
                "min_p": 0.1, "seed": 1, "stop": ["x"], "stop_token_ids": [1], "min_tokens": 0,
                "logit_bias": {"3": 1.5}, "allowed_token_ids": [1, 2], "presence_penalty": 1,
                "cache_salt": "s", "priority": 3, "ignore_eos": true, "return_token_ids": true}),
        ),
        (
            "/v1/completions",
            json!({"prompt": [1, 2], "max_tokens": 3, "stream": true,
                "stream_options": {"include_usage": true}}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
                "max_completion_tokens": 2, "logprobs": true, "top_logprobs": 2,
                "chat_template_kwargs": {"enable_thinking": false}, "tools": [],
                "add_generation_prompt": true}),
        ),
        (
            "/tokenize",
            json!({"prompt": ["a"], "return_token_strs": true}),
        ),
        ("/detokenize", json!({"tokens": [1, 2]})),
        ("/classify", json!({"input": "a", "labels": ["b", "c"]})),
        ("/v1/embeddings", json!({"input": ["a"], "dimensions": 2})),
        (
            "/score",
            json!({"query": "a", "items": ["b"], "label_token_ids": [1, 2]}),
        ),
        (
            "/generative_scoring",
            json!({"query": [1], "items": [[2]], "label_token_ids": [1, 2],
                "truncate_prompt_tokens": 3, "truncation_side": "left"}),
        ),
        ("/score", json!({"text_1": "a", "text_2": ["b"]})),
        (
            "/rerank",
            json!({"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
        ),
        (
            "/rerank",
            json!({"query": "a", "texts": ["b"], "truncate": true}),
        ),
        (
            "/pooling",
            json!({"input": ["a"], "task": "embed", "truncate_prompt_tokens": -1}),
        ),
        (
            "/v1/decisions",
            json!({"input": [{"role": "user", "content": "a"}], "questions": [
                {"type": "choice", "instructions": "b", "choices": [{"value": true}, {"value": "c"}]},
                {"type": "score", "instructions": "b", "levels": [{"label": "d"}, {"label": "e"}]}]}),
        ),
        (
            "/v1/systemone",
            json!({"state": {"a": 1}, "questions": {"q": {"type": "noul", "instructions": "b"}}}),
        ),
    ]
}

fn wrong_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..5000).prop_map(Value::from),
        (-5.0..5.0_f64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::from("<|im_start|>")),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,6}", inner, 0..4)
                .prop_map(|map| Value::from_iter(map.into_iter())),
        ]
    })
}

/// Replaces the value at a random place.
fn put(value: &mut Value, path: &[prop::sample::Index], new: &Value) {
    let children: Vec<&mut Value> = match value {
        Value::Object(map) => map.values_mut().collect(),
        Value::Array(list) => list.iter_mut().collect(),
        _ => Vec::new(),
    };
    match path.split_first() {
        Some((index, rest)) if !children.is_empty() => {
            let index = index.index(children.len());
            let child = children.into_iter().nth(index);
            put(child.expect("the index is in range"), rest, new);
        }
        _ => *value = new.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() })]

    #[test]
    fn wrong_fields_are_the_callers(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(
            (prop::collection::vec(any::<prop::sample::Index>(), 1..4), wrong_value()), 1..3),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let bodies = right();
        let (path, mut body) = bodies[which.index(bodies.len())].clone();
        for (place, value) in &changes {
            put(&mut body, place, value);
        }
        let mut text = body.to_string().into_bytes();
        if let Some(cut) = cut {
            text.truncate(cut.index(text.len()));
        }
        let server = server();
        let answered = server
            .runtime
            .block_on(server.app.answer("POST", path, text.clone()));
        let shown = String::from_utf8_lossy(&text);
        prop_assert!(
            matches!(answered.status, 200 | 400 | 404 | 413 | 422),
            "{path} {shown}\n{}", String::from_utf8_lossy(&answered.body)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn wrong_bytes_end_a_connection_and_nothing_else(
        head in prop::option::of(Just("POST /v1/completions HTTP/1.1\r\ncontent-length: 40\r\n\r\n")),
        bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let server = server();
        let mut stream = server.connect();
        let _ = stream.write_all(head.unwrap_or_default().as_bytes());
        let _ = stream.write_all(&bytes);
        drop(stream);
        prop_assert!(server.is_healthy());
    }
}

#[test]
fn all_right_bodies_are_right() {
    for (path, body) in right() {
        let answered = server().post(path, &body.to_string());
        assert_eq!(answered.status, 200, "{path} {}", answered.body);
    }
    server().settle();
}
