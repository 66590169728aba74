//! Tools, reasoning, words that are not to be said: what an answer is made of.

use std::cell::Cell;

use prelude_server::{ApiKeys, ReasoningParser, ServerConfig, ToolParser, demo};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};

use crate::support::{TestServer, config, demo_model};

const PATH: &str = "/v1/chat/completions";

fn server(reasoning: bool, tools: bool) -> TestServer {
    let config = ServerConfig {
        reasoning_parser: reasoning.then_some(ReasoningParser::Qwen3),
        tool_parser: tools.then_some(ToolParser::Hermes),
        ..config()
    };
    TestServer::with(config, ApiKeys::default(), vec![demo_model(&demo::LM)])
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "refund", "parameters": {"type": "object",
            "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 99},
                "to": {"$ref": "#/$defs/to"}},
            "required": ["days", "to"], "additionalProperties": false,
            "$defs": {"to": {"enum": ["card", "bank"]}}}}},
        {"type": "function", "function": {"name": "wait"}},
    ])
}

fn body(seed: u64, fields: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Where is my card?"}],
        "enable_thinking": false, "temperature": 2.0, "seed": seed, "max_tokens": 200});
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The message, and how it ended; the same of a stream.
fn ask(server: &TestServer, body: &Value) -> (Value, String) {
    let response = server.post(PATH, &body.to_string());
    assert_eq!(response.status, 200, "{body}: {}", response.body);
    let choice = response.json()["choices"][0].clone();
    let ended = choice["finish_reason"].as_str().unwrap().to_owned();
    let message = choice["message"].clone();
    let (streamed, streamed_end) = join(server, body);
    assert_eq!(plain(&streamed), plain(&message), "{body}");
    assert_eq!(streamed_end, ended, "{body}");
    (message, ended)
}

/// Without ids, which are new each time.
fn plain(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        for call in calls {
            let id = call["id"].take();
            assert!(id.as_str().unwrap().starts_with("call_"));
            assert_eq!(call["type"], "function");
        }
    }
    message
}

/// The message that a stream's chunks add up to.
fn join(server: &TestServer, body: &Value) -> (Value, String) {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (mut message, mut ended) = (json!({}), String::new());
    let mut calls: Vec<Value> = Vec::new();
    for (at, event) in server
        .post(PATH, &body.to_string())
        .events()
        .iter()
        .enumerate()
    {
        let choice = &event["choices"][0];
        let delta = choice["delta"].as_object().unwrap();
        let speaks = delta.values().any(|v| !v.is_null() && *v != "");
        assert!(speaks || !choice["finish_reason"].is_null(), "{event}");
        assert_eq!(delta.contains_key("role"), at == 0);
        for (key, value) in delta {
            match (key.as_str(), value) {
                ("tool_calls", Value::Array(new)) => {
                    for call in new {
                        let mut call = call.clone();
                        assert_eq!(call["index"], calls.len());
                        call.as_object_mut().unwrap().remove("index");
                        calls.push(call);
                    }
                }
                (_, Value::String(text)) => {
                    let said = message[key].as_str().unwrap_or_default().to_owned();
                    message[key] = json!(said + text);
                }
                _ => panic!("{event}"),
            }
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            ended = reason.to_owned();
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
        // A stream's first chunk has a content; a message of calls alone has none.
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
    }
    (message, ended)
}

/// Makes the model say this, character by character as the tokenizer allows.
fn saying(text: &str) -> Value {
    let quoted: String = text
        .chars()
        .map(|c| match c {
            '\n' => "\\n".to_owned(),
            c if c.is_alphanumeric() => c.to_string(),
            c => format!(
                "[{}]",
                if "^\\]-[".contains(c) {
                    format!("\\{c}")
                } else {
                    c.to_string()
                }
            ),
        })
        .collect();
    json!({"structured_outputs": {"regex": quoted}, "tools": tools()})
}

#[test]
fn calls_are_told_from_content() {
    let server = server(false, true);
    let call = r#"<tool_call>
{"name": "refund", "arguments": {"days": 3, "to": "card"}}
</tool_call>"#;
    let (message, ended) = ask(&server, &body(0, &saying(call)));
    assert_eq!(
        plain(&message),
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": null,
            "type": "function", "function": {"name": "refund",
            "arguments": "{\"days\": 3, \"to\": \"card\"}"}}]})
    );
    assert_eq!(ended, "tool_calls");

    let two = format!("So:\n{call}\n{call}");
    let (message, ended) = ask(&server, &body(0, &saying(&two)));
    assert_eq!(
        (&message["content"], &*ended),
        (&json!("So:"), "tool_calls")
    );
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 2);
    let ids = [
        &message["tool_calls"][0]["id"],
        &message["tool_calls"][1]["id"],
    ];
    assert_ne!(ids[0], ids[1]);
    let mut one = saying(&two);
    one["parallel_tool_calls"] = json!(false);
    let (message, _) = ask(&server, &body(0, &one));
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);

    // What is ill-formed is content, word for word.
    for ill in [
        "a <tool_call>{days}</tool_call> b",
        "<tool_call>\n{\"name\": \"wait\"}",
    ] {
        let (message, ended) = ask(&server, &body(0, &saying(ill)));
        assert_eq!(message, json!({"role": "assistant", "content": ill}));
        assert_eq!(ended, "stop");
    }
    // Hidden tools are not called, and nothing is looked for.
    let mut hidden = saying(call);
    hidden["tool_choice"] = json!("none");
    assert_eq!(ask(&server, &body(0, &hidden)).0["content"], call);
    server.settle();
}

/// A call that `max_tokens` cuts is told in `tool_calls` as far as it came, streamed or not.
#[test]
fn a_call_that_is_cut_is_told_as_far_as_it_came() {
    let server = server(false, true);
    let arguments = r#"{"days": 3, "to": "card"}"#;
    let call =
        format!("<tool_call>\n{{\"name\": \"refund\", \"arguments\": {arguments}}}\n</tool_call>");
    let mut partial = 0;
    for max_tokens in 1.. {
        let mut cut = body(0, &saying(&call));
        cut["max_tokens"] = json!(max_tokens);
        let (message, ended) = ask(&server, &cut);
        if ended != "length" {
            assert_eq!(ended, "tool_calls");
            break;
        }
        let Some(calls) = message["tool_calls"].as_array() else {
            // Its function was not known yet.
            let content = message["content"].as_str().unwrap();
            assert!(!content.contains("refund\""), "{content}");
            continue;
        };
        assert_eq!(message["content"], Value::Null);
        let function = &calls[0]["function"];
        let told = function["arguments"].as_str().unwrap();
        assert_eq!((calls.len(), &function["name"]), (1, &json!("refund")));
        assert!(arguments.starts_with(told), "{told}");
        partial += u32::from(!told.is_empty() && told != arguments);
    }
    assert!(partial > 0, "no arguments were cut");
    server.settle();
}

#[test]
fn calls_stay_text_without_a_parser() {
    let server = server(false, false);
    let call = "<tool_call>{\"name\": \"wait\"}</tool_call>";
    let (message, ended) = ask(&server, &body(0, &saying(call)));
    assert_eq!((&message["content"], &*ended), (&json!(call), "stop"));
}

/// The model calls, whatever text it would prefer, with arguments that its schema allows.
#[test]
fn a_call_is_forced() {
    let server = server(false, false);
    let schema = tools()[0]["function"]["parameters"].clone();
    for (seed, choice) in [
        (0, json!("required")),
        (1, json!("required")),
        (
            2,
            json!({"type": "function", "function": {"name": "refund"}}),
        ),
        (
            3,
            json!({"type": "function", "function": {"name": "refund"}}),
        ),
    ] {
        let fields = json!({"tools": tools(), "tool_choice": choice,
            "parallel_tool_calls": false});
        let (message, ended) = ask(&server, &body(seed, &fields));
        if ended == "length" {
            // `wait` takes any object, which may be long.
            continue;
        }
        assert_eq!(ended, "tool_calls");
        assert_eq!(message["content"], Value::Null);
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let function = &calls[0]["function"];
        let arguments = function["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        match function["name"].as_str().unwrap() {
            "refund" => assert!(jsonschema::is_valid(&schema, &arguments), "{arguments}"),
            name => assert_eq!((name, &choice), ("wait", &json!("required"))),
        }
    }
    let both = body(
        0,
        &json!({"tools": tools(), "tool_choice": "required",
        "response_format": {"type": "json_object"}}),
    );
    let response = server.post(PATH, &both.to_string());
    assert_eq!(
        (response.status, &*response.reason()),
        (400, "invalid_value")
    );
    let unknown = body(
        0,
        &json!({"tools": tools(),
        "tool_choice": {"type": "function", "function": {"name": "nobody"}}}),
    );
    let response = server.post(PATH, &unknown.to_string());
    assert_eq!(response.json()["error"]["param"], "tool_choice");
    server.settle();
}

/// Parameters whose references would find something else in the call's schema: its own `name` and
/// `arguments`, and the call itself.
fn parameters() -> impl Strategy<Value = Value> {
    let leaf = || {
        prop_oneof![
            Just(json!({"type": "boolean"})),
            Just(json!({"type": "null"})),
            (-9i32..9, 0i32..9)
                .prop_map(|(a, n)| json!({"type": "integer", "minimum": a, "maximum": a + n})),
            Just(json!({"enum": ["x", {"$ref": "#"}]})),
        ]
    };
    let target = prop::sample::select(vec![
        "#/properties/name",
        "#/properties/$ref",
        "#/$defs/d",
        "#/$defs/e",
        "#/definitions/name",
    ]);
    (leaf(), leaf(), leaf(), target, any::<bool>()).prop_map(|(name, reference, d, to, again)| {
        let mut schema = json!({"type": "object", "additionalProperties": false,
            "properties": {"name": name, "$ref": reference, "arguments": {"$ref": to}},
            "required": ["name", "$ref", "arguments"],
            "definitions": {"name": {"$ref": "#/$defs/d"}},
            "$defs": {"d": d, "e": {"$ref": "#/properties/name"}}});
        if again {
            schema["properties"]["next"] = json!({"anyOf": [{"type": "null"}, {"$ref": "#"}]});
        }
        schema
    })
}

#[test]
fn random_arguments_are_what_their_schema_refers_to() {
    let server = server(false, false);
    let config = Config {
        cases: 40,
        failure_persistence: None,
        ..Config::default()
    };
    let (asked, called) = (Cell::new(0), Cell::new(0));
    TestRunner::new(config)
        .run(&(parameters(), any::<u32>()), |(schema, seed)| {
            let fields = json!({"tool_choice": "required", "parallel_tool_calls": false,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]});
            let response = server.post(PATH, &body(seed.into(), &fields).to_string());
            prop_assert_eq!(response.status, 200, "{}: {}", schema, response.body);
            asked.set(asked.get() + 1);
            let choice = &response.json()["choices"][0];
            if choice["finish_reason"] == "length" {
                return Ok(());
            }
            called.set(called.get() + 1);
            let function = &choice["message"]["tool_calls"][0]["function"];
            let arguments = function["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            let valid = jsonschema::is_valid(&schema, &arguments);
            prop_assert!(valid, "{}: {}", schema, arguments);
            Ok(())
        })
        .unwrap();
    let (asked, called) = (asked.get(), called.get());
    // About two in three: far fewer than chance would leave.
    assert!(called * 4 > asked, "{called} of {asked} have finished");
    server.settle();
}

#[test]
fn reasoning_has_a_field_of_its_own() {
    let server = server(true, false);
    // The model may think first, and then has to answer as it was asked to. The biases make it
    // say the two tags and a word, as often as it may.
    let mut thoughts = 0;
    for seed in 0..8 {
        let fields = json!({"enable_thinking": true, "structured_outputs": {"choice": ["yes", "no"]},
            "logit_bias": {"4071": 100, "4072": 100, "300": 100}});
        let (message, ended) = ask(&server, &body(seed, &fields));
        if ended == "length" {
            continue;
        }
        assert_eq!(ended, "stop");
        let content = message["content"].as_str().unwrap();
        assert!(["yes", "no"].contains(&content), "{message}");
        assert_eq!(message["reasoning"], message["reasoning_content"]);
        let raw = message["reasoning"].as_str().unwrap_or_default();
        assert!(!raw.contains("</think>"), "{message}");
        thoughts += u32::from(!raw.is_empty());

        let mut silent = fields.clone();
        silent["include_reasoning"] = json!(false);
        let (silent, _) = ask(&server, &body(seed, &silent));
        assert_eq!(silent, json!({"role": "assistant", "content": content}));
    }
    assert!(thoughts > 0, "the model has never thought");
    // Where the prompt has thought for it, it may not.
    let done =
        json!({"structured_outputs": {"choice": ["yes", "no"]}, "logit_bias": {"4071": 100}});
    let (message, _) = ask(&server, &body(0, &done));
    assert!(message.get("reasoning").is_none(), "{message}");
    server.settle();
}

#[test]
fn reasoning_is_content_without_a_parser() {
    let server = server(false, false);
    let said = "<think>\nwhy\n</think>\n\nyes";
    let (message, _) = ask(&server, &body(0, &saying(said)));
    assert_eq!(message, json!({"role": "assistant", "content": said}));
}

/// A fault of a function's parameters is reported as theirs, in words for schemas.
#[test]
fn parameters_that_cannot_be_enforced_are_refused_by_name() {
    let server = server(false, false);
    let check = |parameters: Value, param: &str, says: &str| {
        let mut tools = tools();
        tools[1]["function"]["parameters"] = parameters;
        let fields = json!({"tools": tools, "tool_choice": "required"});
        let response = server.post(PATH, &body(0, &fields).to_string());
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["param"]), (400, &json!(param)));
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(says) && !message.contains("Lark"),
            "{message}"
        );
    };
    let second = "/tools/1/function/parameters";
    check(json!({"not": {"type": "null"}}), second, "\"not\"");
    check(json!({"type": 3}), second, "`type`");
    let wide: Value = (0..9_000).map(|i| (format!("key{i}"), json!({}))).collect();
    check(json!({"properties": wide}), "tools", "bytes");
}

/// A message that clients send back when an answer was a call: its content is null, and the reference reads
/// it as empty.
#[test]
fn a_call_in_the_conversation_needs_no_words() {
    let server = server(false, true);
    let call = json!([{"id": "call_1", "type": "function",
        "function": {"name": "wait", "arguments": "{}"}}]);
    let prompt = |said: Option<Value>| {
        let mut turn = json!({"role": "assistant", "tool_calls": call});
        if let Some(said) = said {
            turn["content"] = said;
        }
        let messages = json!([
            {"role": "user", "content": "Where is my card?"},
            turn,
            {"role": "tool", "tool_call_id": "call_1", "content": "It is on its way."},
        ]);
        let body = json!({"messages": messages, "max_tokens": 1, "return_prompt_text": true});
        let response = server.post(PATH, &body.to_string());
        assert_eq!(response.status, 200, "{body}: {}", response.body);
        let prompt = &response.json()["prompt_text"];
        prompt.as_str().unwrap().to_owned()
    };
    let empty = prompt(Some(json!("")));
    assert!(
        empty.contains("<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n"),
        "{empty}"
    );
    assert_eq!(prompt(Some(Value::Null)), empty);
    assert_eq!(prompt(None), empty);
    assert_eq!(prompt(Some(json!([]))), empty);
}
