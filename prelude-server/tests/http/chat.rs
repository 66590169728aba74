//! `POST /v1/chat/completions`.

use serde_json::{Value, json};

use crate::support::{Fake, TestServer, config};

const PATH: &str = "/v1/chat/completions";

fn question() -> Value {
    json!({"messages": [{"role": "user", "content": "Where is my card?"}], "temperature": 0,
        "enable_thinking": false})
}

fn with(fields: Value) -> Value {
    let mut body = question();
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[test]
fn demo_answers() {
    let server = TestServer::demo();
    let response = server.post(PATH, &question().to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    let answer = response.json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(
        answer["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": "card_arrival"},
            "logprobs": null, "finish_reason": "stop", "stop_reason": null}])
    );
    // The template's switch in either place, and content in parts.
    let parts = json!({"messages": [{"role": "user", "content":
        [{"type": "text", "text": "Where is my card?"}]}], "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false}});
    let again = server.post(PATH, &parts.to_string()).json();
    assert_eq!(again["choices"], answer["choices"]);
    assert_eq!(
        again["usage"]["prompt_tokens"],
        answer["usage"]["prompt_tokens"]
    );
}

#[test]
fn a_stream_says_the_same() {
    let server = TestServer::demo();
    let body = with(
        json!({"stream": true, "stream_options": {"include_usage": true},
        "logprobs": true, "top_logprobs": 1}),
    );
    let mut events = server.post(PATH, &body.to_string()).events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["completion_tokens"].as_u64() > Some(1));
    let deltas: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0]["role"], "assistant");
    assert!(deltas[1..].iter().all(|d| d.get("role").is_none()));
    let text: String = deltas
        .iter()
        .filter_map(|d| d["content"].as_str())
        .collect();
    assert_eq!(text, "card_arrival");
    let finish: Vec<&Value> = events
        .iter()
        .map(|e| &e["choices"][0]["finish_reason"])
        .filter(|f| !f.is_null())
        .collect();
    assert_eq!(finish, ["stop"]);
    assert!(
        events
            .iter()
            .all(|e| e["object"] == "chat.completion.chunk")
    );
    let tokens: Vec<&str> = events
        .iter()
        .flat_map(|e| e["choices"][0]["logprobs"]["content"].as_array().unwrap())
        .map(|t| t["token"].as_str().unwrap())
        .collect();
    assert_eq!(tokens.concat(), "card_arrival<|im_end|>");
}

#[test]
fn one_token_with_logprobs_is_one_shot() {
    let server = TestServer::demo();
    let body = with(json!({"max_tokens": 1, "logprobs": true, "top_logprobs": 5}));
    let response = server.post(PATH, &body.to_string());
    assert_eq!(response.header("x-prelude-class"), Some("oneshot"));
    let answer = response.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let entry = &choice["logprobs"]["content"][0];
    assert_eq!(entry["token"], choice["message"]["content"]);
    let top = entry["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 5);
    assert_eq!(
        top[0]["logprob"], entry["logprob"],
        "greedy chose the likeliest"
    );
    assert_eq!(top[0]["bytes"], entry["bytes"]);
    let bytes: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).unwrap();
    assert_eq!(bytes, entry["token"].as_str().unwrap().as_bytes());
}

/// People's words are cut: the template's parts stay.
#[test]
fn a_long_conversation_may_be_cut() {
    let server = TestServer::demo();
    let talk = |content: &str| json!([{"role": "system", "content": content}, {"role": "user", "content": content}]);
    let tokens = |content: &str| -> Vec<u32> {
        let body = json!({"messages": talk(content), "enable_thinking": false});
        let answer = server.post("/tokenize", &body.to_string()).json();
        serde_json::from_value(answer["tokens"].clone()).unwrap()
    };
    let content = "Where is my card? ".repeat(12);
    let (all, empty) = (tokens(&content), tokens(""));
    let start = all.iter().zip(&empty).take_while(|(a, b)| a == b).count();
    let same = all.iter().rev().zip(empty.iter().rev());
    let end = all.len() - same.take_while(|(a, b)| a == b).count();
    let ask = |fields: Value| {
        let mut body = json!({"messages": talk(&content), "enable_thinking": false,
            "max_tokens": 1, "temperature": 0, "return_token_ids": true});
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        server.post(PATH, &body.to_string())
    };
    let prompt = |fields: Value| -> Vec<u32> {
        serde_json::from_value(ask(fields).json()["prompt_token_ids"].clone()).unwrap()
    };
    assert_eq!(prompt(json!({"truncate_prompt_tokens": -1})), all);
    assert_eq!(prompt(json!({"truncate_prompt_tokens": all.len()})), all);
    let over = all.len() - 40;
    let left = [&all[..start], &all[start + over..]].concat();
    assert_eq!(prompt(json!({"truncate_prompt_tokens": 40})), left);
    let right = [&all[..end - over], &all[end..]].concat();
    let side = json!({"truncate_prompt_tokens": 40, "truncation_side": "right"});
    assert_eq!(prompt(side), right);
    // Nothing of what was said would be left.
    let around = start + all.len() - end;
    let refused = ask(json!({"truncate_prompt_tokens": around}));
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.status, &error["param"]),
        (400, &json!("truncate_prompt_tokens"))
    );
}

#[test]
fn a_final_message_is_continued() {
    let server = TestServer::demo();
    let body = json!({"messages": [{"role": "user", "content": "Where is my card?"},
        {"role": "assistant", "content": "<think>\n\n</think>\n\ncard"}], "temperature": 0,
        "add_generation_prompt": false, "continue_final_message": true});
    let answer = server.post(PATH, &body.to_string()).json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty(), "{answer}");
    assert!(!content.contains("card"), "{content}");
}

#[test]
fn bad_input_is_refused_by_name() {
    let server = TestServer::fake(config(), &Fake::default());
    let check = |body: Value, reason: &str, param: &str| {
        let response = server.post(PATH, &body.to_string());
        let error = &response.json()["error"];
        let found = (response.status, &error["reason"], &error["param"]);
        assert_eq!(
            found,
            (400, &json!(reason), &json!(param)),
            "{body}\n{error}"
        );
    };
    check(json!({}), "missing_field", "messages");
    check(json!({"messages": []}), "invalid_value", "messages");
    check(
        json!({"messages": [{"role": "user"}]}),
        "missing_field",
        "/messages/0/content",
    );
    check(
        with(json!({"top_logprobs": 2})),
        "invalid_value",
        "top_logprobs",
    );
    check(
        with(json!({"logprobs": true, "top_logprobs": 21})),
        "invalid_value",
        "top_logprobs",
    );
    check(with(json!({"logprobs": 1})), "invalid_type", "logprobs");
    check(
        with(json!({"max_tokens": 600})),
        "context_length_exceeded",
        "messages",
    );
    check(
        with(json!({"continue_final_message": true})),
        "invalid_value",
        "continue_final_message",
    );
    check(
        with(json!({"chat_template_kwargs": 3})),
        "invalid_type",
        "chat_template_kwargs",
    );
    check(with(json!({"tools": [1]})), "invalid_type", "tools");
    let template = with(json!({"chat_template": "x"}));
    check(template, "unsupported_parameter", "chat_template");
    for (field, value) in [
        ("modalities", json!(["text", "audio"])),
        ("reasoning_effort", json!("low")),
        ("thinking_token_budget", json!(100)),
        ("verbosity", json!("low")),
        ("web_search_options", json!({})),
    ] {
        check(with(json!({field: value})), "unsupported_parameter", field);
    }
    let usual = with(json!({"max_tokens": 1, "modalities": ["text"], "verbosity": "medium"}));
    assert_eq!(server.post(PATH, &usual.to_string()).status, 200);
    for field in ["escape_special_tokens", "return_prompt_text"] {
        check(with(json!({field: 1})), "invalid_type", field);
    }
    let tools = with(
        json!({"max_tokens": 1, "tool_choice": "none", "tools": [{"type": "function",
        "function": {"name": "f"}}], "parallel_tool_calls": true}),
    );
    assert_eq!(server.post(PATH, &tools.to_string()).status, 200);
    server.settle();
}
