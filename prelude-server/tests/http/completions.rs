//! `POST /v1/completions`.

use serde_json::{Value, json};

use crate::support::{FAILS, Fake, Response, TestServer, config, with_limits};

const PATH: &str = "/v1/completions";

fn complete(server: &TestServer, body: &Value) -> Value {
    let response = server.post(PATH, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().unwrap().iter();
    choices.map(|c| c["text"].as_str().unwrap()).collect()
}

/// Joins the chunks of each choice: text and finish reason.
fn join(response: &Response) -> Vec<(String, String)> {
    let mut joined: Vec<(String, String)> = Vec::new();
    for event in response.events() {
        for choice in event["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap() as usize;
            joined.resize(joined.len().max(index + 1), Default::default());
            joined[index].0.push_str(choice["text"].as_str().unwrap());
            if let Some(reason) = choice["finish_reason"].as_str() {
                assert!(joined[index].1.is_empty(), "one finish reason each");
                reason.clone_into(&mut joined[index].1);
            } else {
                assert_ne!(choice["text"], "", "a chunk says something");
            }
        }
    }
    joined
}

#[test]
fn demo_answers_greedily_and_repeats_itself() {
    let server = TestServer::demo();
    let prompt = "<|im_start|>user\nWhere is my card?<|im_end|>\n<|im_start|>assistant\n\
                  <think>\n\n</think>\n\n";
    let body = json!({"prompt": prompt, "max_tokens": 16, "temperature": 0});
    let first = complete(&server, &body);
    assert_eq!(texts(&first), ["card_arrival"]);
    assert_eq!(first["choices"][0]["finish_reason"], "stop");
    assert_eq!(first["choices"][0]["stop_reason"], Value::Null);
    assert_eq!(first["object"], "text_completion");
    assert_eq!(first["model"], "demo-lm");
    let usage = &first["usage"];
    let total =
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], total);

    // Cached now, and the same.
    let again = complete(&server, &body);
    assert_eq!(first["choices"], again["choices"]);
    // Streamed, and the same.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let response = server.post(PATH, &streamed.to_string());
    assert_eq!(
        response.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    assert_eq!(response.header("x-prelude-class"), Some("decode"));
    assert_eq!(
        join(&response),
        [("card_arrival".to_owned(), "stop".to_owned())]
    );
    // Among others in one request, and the same.
    let list =
        json!({"prompt": ["a", prompt, "b c d"], "max_tokens": 16, "temperature": 0, "n": 2});
    let answer = complete(&server, &list);
    assert_eq!(texts(&answer)[2..4], ["card_arrival", "card_arrival"]);
    assert_eq!(answer["choices"].as_array().unwrap().len(), 6);
    server.settle();
}

#[test]
fn a_seed_repeats_its_text_and_draws_differ() {
    let server = TestServer::demo();
    let body = json!({"prompt": "my card", "max_tokens": 12, "temperature": 1.5, "seed": 7, "n": 4,
        "top_p": 0.99, "top_k": -1});
    let first = complete(&server, &body);
    let again = complete(&server, &body);
    assert_eq!(first["choices"], again["choices"]);
    let mut distinct = texts(&first);
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 1, "{distinct:?}");
    // One draw from one token is one-shot, and is the first of the same draws.
    let mut one = body.clone();
    one["max_tokens"] = json!(1);
    let response = server.post(PATH, &one.to_string());
    assert_eq!(response.header("x-prelude-class"), Some("oneshot"));
    for (short, long) in texts(&response.json()).iter().zip(texts(&first)) {
        assert!(long.starts_with(short), "{short:?} begins {long:?}");
    }
}

#[test]
fn logprobs_of_prompt_and_tokens() {
    let server = TestServer::demo();
    let body = json!({"prompt": "Where is my card?", "max_tokens": 1, "temperature": 0, "echo": true, "min_tokens": 1,
        "logprobs": 2, "prompt_logprobs": 1, "return_token_ids": true});
    let answer = complete(&server, &body);
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().unwrap();
    assert!(text.starts_with("Where is my card?"));
    let logprobs = &choice["logprobs"];
    let tokens: Vec<&str> = logprobs["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(tokens.concat(), text);
    let prompt_ids = choice["prompt_token_ids"].as_array().unwrap();
    assert_eq!(tokens.len(), prompt_ids.len() + 1);
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    let mut offset = 0;
    for (i, token) in tokens.iter().enumerate() {
        assert_eq!(logprobs["text_offset"][i], offset);
        offset += token.chars().count();
        if i > 0 {
            // The chosen token is among the top with the same float.
            let top = logprobs["top_logprobs"][i].as_object().unwrap();
            assert_eq!(top[*token], logprobs["token_logprobs"][i]);
            assert!((2..=3).contains(&top.len()));
        }
    }
    // The other dialect says the same of the prompt.
    let positions = choice["prompt_logprobs"].as_array().unwrap();
    assert_eq!(positions.len(), prompt_ids.len());
    assert_eq!(positions[0], Value::Null);
    for (i, id) in prompt_ids.iter().enumerate().skip(1) {
        let entry = &positions[i][id.to_string()];
        assert_eq!(entry["logprob"], logprobs["token_logprobs"][i]);
        assert_eq!(entry["decoded_token"], tokens[i]);
        let best = positions[i].as_object().unwrap().values();
        assert!(best.clone().any(|e| e["rank"] == 1));
        assert!(best.count() <= 2);
    }
    // A range: null elsewhere, the same values within.
    let range = complete(
        &server,
        &json!({"prompt": "Where is my card?", "max_tokens": 0,
        "prompt_logprobs": 1, "prompt_logprobs_range": [2, 4]}),
    );
    let ranged = range["choices"][0]["prompt_logprobs"].as_array().unwrap();
    for (i, position) in ranged.iter().enumerate() {
        let expected = if (2..4).contains(&i) {
            &positions[i]
        } else {
            &Value::Null
        };
        assert_eq!(position, expected);
    }
    // Tokens by number.
    let mut by_id = body.clone();
    by_id["return_tokens_as_token_ids"] = json!(true);
    let by_id = complete(&server, &by_id);
    let first = by_id["choices"][0]["logprobs"]["tokens"][0]
        .as_str()
        .unwrap();
    assert_eq!(first, format!("token_id:{}", prompt_ids[0]));
    // Streamed, the echo waits for its scores.
    let mut streamed = body;
    streamed["stream"] = json!(true);
    streamed["prompt_logprobs"] = Value::Null;
    let events = server.post(PATH, &streamed.to_string()).events();
    let all: Vec<&Value> = events
        .iter()
        .flat_map(|e| {
            e["choices"][0]["logprobs"]["token_logprobs"]
                .as_array()
                .unwrap()
        })
        .collect();
    assert_eq!(
        Value::from_iter(all.into_iter().cloned()),
        logprobs["token_logprobs"]
    );
}

#[test]
fn an_end_token_is_reported_and_counted_but_not_printed() {
    let server = TestServer::demo();
    let prompt = "<|im_start|>user\nWhere is my card?<|im_end|>\n<|im_start|>assistant\n\
                  <think>\n\n</think>\n\ncard_arrival";
    let answer = complete(
        &server,
        &json!({"prompt": prompt, "max_tokens": 4, "temperature": 0,
        "logprobs": 0}),
    );
    assert_eq!(texts(&answer), [""]);
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["<|im_end|>"]));
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 1);
    // Ignored, it does not end the text; kept, it is printed.
    let ignored = complete(
        &server,
        &json!({"prompt": prompt, "max_tokens": 4, "temperature": 0,
        "ignore_eos": true}),
    );
    assert_eq!(ignored["usage"]["completion_tokens"], 4);
    assert_eq!(ignored["choices"][0]["finish_reason"], "length");
    let kept = complete(
        &server,
        &json!({"prompt": prompt, "max_tokens": 4, "temperature": 0,
        "include_stop_str_in_output": true, "skip_special_tokens": false}),
    );
    assert_eq!(texts(&kept), ["<|im_end|>"]);
    let id = complete(
        &server,
        &json!({"prompt": prompt, "max_tokens": 4, "temperature": 0,
        "ignore_eos": true, "stop_token_ids": [4066]}),
    );
    assert_eq!(id["choices"][0]["stop_reason"], 4066);
    assert_eq!(id["choices"][0]["finish_reason"], "stop");
    let later = complete(
        &server,
        &json!({"prompt": prompt, "max_tokens": 4, "temperature": 0,
        "min_tokens": 2}),
    );
    assert!(later["usage"]["completion_tokens"].as_u64() >= Some(2));
}

#[test]
fn stop_strings_end_the_text_and_the_work() {
    let server = TestServer::fake(config(), &Fake::default());
    let whole = complete(
        &server,
        &json!({"prompt": [9], "max_tokens": 40, "temperature": 0,
        "ignore_eos": true}),
    );
    let text = texts(&whole)[0].to_owned();
    // Some stop string in the middle of the text, and what precedes its first end.
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let (from, to) = (chars[chars.len() / 2].0, chars[chars.len() / 2 + 2].0);
    let stop = &text[from..to];
    let before = &text[..text.find(stop).unwrap()];
    for stream in [false, true] {
        let body = json!({"prompt": [9], "max_tokens": 40, "temperature": 0, "ignore_eos": true,
            "stop": ["never in it", stop], "stream": stream});
        let response = server.post(PATH, &body.to_string());
        if stream {
            assert_eq!(join(&response), [(before.to_owned(), "stop".to_owned())]);
        } else {
            let answer = response.json();
            assert_eq!(texts(&answer), [before]);
            assert_eq!(answer["choices"][0]["stop_reason"], stop);
            assert!(answer["usage"]["completion_tokens"].as_u64() < Some(40));
        }
    }
    let kept = complete(
        &server,
        &json!({"prompt": [9], "max_tokens": 40, "temperature": 0,
        "ignore_eos": true, "stop": stop, "include_stop_str_in_output": true}),
    );
    assert_eq!(texts(&kept), [format!("{before}{stop}")]);
    server.settle();
}

/// The bytes of a character that never ends are a replacement character, which stop strings may be.
#[test]
fn a_stop_string_may_be_the_end_of_an_unfinished_character() {
    let server = TestServer::fake(config(), &Fake::default());
    let first_byte_of_two = 127;
    let body = |stop: &str| {
        json!({"prompt": [9], "max_tokens": 1, "allowed_token_ids": [first_byte_of_two],
            "stop": stop})
    };
    let unstopped = complete(&server, &body("a"));
    assert_eq!(texts(&unstopped), ["\u{fffd}"]);
    let stopped = complete(&server, &body("\u{fffd}"));
    assert_eq!(texts(&stopped), [""]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["stop_reason"], "\u{fffd}");
    server.settle();
}

#[test]
fn streams_say_what_whole_answers_say() {
    let server = TestServer::fake(config(), &Fake::default());
    for seed in 0..6 {
        let body = json!({"prompt": [[1, 2], [seed, 7, 8]], "max_tokens": 30, "n": 2, "seed": seed,
            "temperature": 1, "logprobs": 1, "stop": ["e", "\n"]});
        let whole = complete(&server, &body);
        let mut streamed = body;
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let response = server.post(PATH, &streamed.to_string());
        let mut events = response.events();
        let last = events.pop().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(
            last["usage"]["total_tokens"],
            whole["usage"]["total_tokens"]
        );
        assert!(
            events
                .iter()
                .all(|e| e["usage"].is_null() && e.get("usage").is_some())
        );
        let joined = join(&response);
        for (i, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            assert_eq!(joined[i].0, choice["text"], "seed {seed}");
            assert_eq!(joined[i].1, choice["finish_reason"]);
            let pieces = events.iter().filter(|e| e["choices"][0]["index"] == i);
            for key in ["tokens", "token_logprobs", "text_offset"] {
                let all = pieces
                    .clone()
                    .flat_map(|e| e["choices"][0]["logprobs"][key].as_array().unwrap().clone());
                assert_eq!(Value::from_iter(all), choice["logprobs"][key], "{key}");
            }
        }
    }
    // Without the option no chunk is without a choice, and none has usage.
    let body = json!({"prompt": [1], "max_tokens": 3, "stream": true, "ignore_eos": true});
    let events = server.post(PATH, &body.to_string()).events();
    assert!(
        events
            .iter()
            .all(|e| e["choices"] != json!([]) && e.get("usage").is_none())
    );
    let body = json!({"prompt": [1], "max_tokens": 3, "stream": true, "ignore_eos": true,
        "stream_options": {"continuous_usage_stats": true}});
    let events = server.post(PATH, &body.to_string()).events();
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 3);
}

/// Log-probabilities are of the prompt's own tokens alone; likeliest ones beside them do not go with a stream.
#[test]
fn a_stream_begins_with_what_was_asked_of_the_prompt() {
    let server = TestServer::fake(config(), &Fake::default());
    let body = json!({"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 3, "prompt_logprobs": 0,
        "ignore_eos": true, "temperature": 0, "return_token_ids": true});
    let whole = complete(&server, &body);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = server.post(PATH, &streamed.to_string()).events();
    for (i, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let of_choice = |e: &&Value| e["choices"][0]["index"] == i;
        let mut chunks = events.iter().filter(of_choice).map(|e| &e["choices"][0]);
        let first = chunks.next().unwrap();
        for field in ["prompt_logprobs", "prompt_token_ids"] {
            assert!(first[field].is_array(), "{first}");
            assert_eq!(first[field], choice[field]);
            assert!(chunks.clone().all(|c| c.get(field).is_none()));
        }
    }
    streamed["prompt_logprobs"] = json!(1);
    refused(
        &server,
        &streamed.to_string(),
        "invalid_value",
        "prompt_logprobs",
    );

    // Chat has one prompt, and prints it once.
    let path = "/v1/chat/completions";
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "n": 2,
        "prompt_logprobs": 0, "ignore_eos": true, "temperature": 0});
    let whole = server.post(path, &body.to_string()).json();
    body["stream"] = json!(true);
    let events = server.post(path, &body.to_string()).events();
    let told: Vec<&Value> = events
        .iter()
        .filter_map(|e| e.get("prompt_logprobs"))
        .collect();
    assert!(whole["prompt_logprobs"].is_array());
    assert_eq!(told, [&whole["prompt_logprobs"]]);
    server.settle();
}

#[test]
fn masks_and_biases_reach_the_model() {
    let server = TestServer::demo();
    let base = json!({"prompt": "my card is", "max_tokens": 1, "temperature": 0,
        "return_token_ids": true});
    let with = |fields: Value| {
        let mut body = base.clone();
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        complete(&server, &body)["choices"][0]["token_ids"][0]
            .as_u64()
            .unwrap()
    };
    let free = with(json!({}));
    assert_eq!(with(json!({"allowed_token_ids": [696, 706]})) % 10, 6);
    assert_eq!(with(json!({"logit_bias": {"77": 100}})), 77);
    assert_ne!(with(json!({"logit_bias": {free.to_string(): -100}})), free);
    assert_eq!(with(json!({"top_k": 1, "temperature": 2.0})), free);
    // A prompt in ids is the same prompt.
    let ids = server
        .post("/tokenize", r#"{"prompt":"my card is"}"#)
        .json()["tokens"]
        .clone();
    assert_eq!(with(json!({"prompt": ids})), free);
}

#[test]
fn extremes_within_range_have_an_answer() {
    let server = TestServer::demo();
    let answered = |fields: Value| {
        let mut body = json!({"prompt": "my card is", "max_tokens": 2, "seed": 1});
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        complete(&server, &body);
    };
    answered(json!({"temperature": 1e-30}));
    answered(json!({"temperature": 1e-45}));
    answered(json!({"temperature": 3.4e38}));
    for penalty in [0.01, 100.0] {
        answered(json!({"repetition_penalty": penalty, "temperature": 1}));
        answered(json!({"repetition_penalty": penalty, "temperature": 1e-30}));
    }
    answered(json!({"logit_bias": {"1": 100, "2": -100}, "temperature": 1e-30}));
    // A stop id may be the only one allowed where it may end the text at once.
    answered(json!({"allowed_token_ids": [5], "stop_token_ids": [5]}));
    answered(json!({"min_tokens": 1, "allowed_token_ids": [5, 6, 5], "stop_token_ids": [5]}));
}

/// A body that is refused with this status, reason and field.
fn refused(server: &TestServer, body: &str, reason: &str, param: &str) {
    let response = server.post(PATH, body);
    let error = &response.json()["error"];
    let found = (response.status, &error["reason"], &error["param"]);
    let param = if param.is_empty() {
        Value::Null
    } else {
        json!(param)
    };
    assert_eq!(found, (400, &json!(reason), &param), "{body}\n{error}");
}

#[test]
fn bad_input_is_refused_by_name() {
    let server = TestServer::fake(config(), &Fake::default());
    let with = |fields: &str| format!(r#"{{"prompt":[1],{fields}}}"#);
    let bad = |body: &str, reason, param| refused(&server, body, reason, param);
    bad("", "invalid_json", "");
    bad("{", "invalid_json", "");
    bad(r#"{"prompt": }"#, "invalid_json", "");
    bad("[]", "invalid_type", "");
    bad("{}", "missing_field", "prompt");
    bad(r#"{"prompt":null}"#, "missing_field", "prompt");
    bad(r#"{"prompt":3}"#, "invalid_type", "prompt");
    bad(r#"{"prompt":[]}"#, "invalid_value", "prompt");
    bad(r#"{"prompt":""}"#, "invalid_value", "prompt");
    bad(r#"{"prompt":[[1],[]]}"#, "invalid_value", "/prompt/1");
    bad(r#"{"prompt":[4096]}"#, "token_out_of_range", "prompt");
    bad(r#"{"prompt":[-1]}"#, "invalid_type", "prompt");
    bad(
        r#"{"prompt":[1],"prompt":[1]}"#,
        "duplicate_field",
        "prompt",
    );
    bad(&with(r#""max_tokens":-1"#), "invalid_value", "max_tokens");
    bad(&with(r#""max_tokens":1.0"#), "invalid_type", "max_tokens");
    bad(&with(r#""max_tokens":"1""#), "invalid_type", "max_tokens");
    bad(
        &with(r#""max_tokens":512"#),
        "context_length_exceeded",
        "prompt",
    );
    bad(&with(r#""n":0"#), "invalid_value", "n");
    bad(&with(r#""n":129"#), "invalid_value", "n");
    bad(
        &with(r#""n":1,"best_of":2"#),
        "unsupported_parameter",
        "best_of",
    );
    bad(&with(r#""temperature":-1"#), "invalid_value", "temperature");
    bad(
        &with(r#""temperature":1e300"#),
        "invalid_value",
        "temperature",
    );
    bad(&with(r#""top_p":0"#), "invalid_value", "top_p");
    bad(&with(r#""top_p":1.5"#), "invalid_value", "top_p");
    bad(&with(r#""top_k":-2"#), "invalid_value", "top_k");
    bad(&with(r#""min_p":2"#), "invalid_value", "min_p");
    bad(
        &with(r#""repetition_penalty":0"#),
        "invalid_value",
        "repetition_penalty",
    );
    for penalty in ["1e-38", "0.009", "101"] {
        bad(
            &with(&format!(r#""repetition_penalty":{penalty}"#)),
            "invalid_value",
            "repetition_penalty",
        );
    }
    bad(
        &with(r#""presence_penalty":3"#),
        "invalid_value",
        "presence_penalty",
    );
    bad(
        &with(r#""frequency_penalty":-3"#),
        "invalid_value",
        "frequency_penalty",
    );
    bad(&with(r#""seed":1.5"#), "invalid_type", "seed");
    bad(&with(r#""stop":3"#), "invalid_type", "stop");
    bad(&with(r#""stop":"""#), "invalid_value", "stop");
    bad(
        &with(&format!(r#""stop":"{}""#, "x".repeat(257))),
        "invalid_value",
        "stop",
    );
    let many = format!(r#""stop":[{}"x"]"#, r#""x","#.repeat(16));
    bad(&with(&many), "invalid_value", "stop");
    bad(
        &with(r#""stop_token_ids":[4096]"#),
        "token_out_of_range",
        "stop_token_ids",
    );
    bad(
        &with(r#""stop_token_ids":["a"]"#),
        "invalid_type",
        "/stop_token_ids/0",
    );
    bad(&with(r#""min_tokens":17"#), "invalid_value", "min_tokens");
    bad(&with(r#""logprobs":21"#), "invalid_value", "logprobs");
    bad(&with(r#""logprobs":-1"#), "invalid_value", "logprobs");
    bad(&with(r#""logprobs":true"#), "invalid_type", "logprobs");
    bad(
        &with(r#""prompt_logprobs":21"#),
        "invalid_value",
        "prompt_logprobs",
    );
    bad(
        &with(r#""prompt_logprobs":1,"stream":true"#),
        "invalid_value",
        "prompt_logprobs",
    );
    bad(
        &with(r#""prompt_logprobs_range":[0,1]"#),
        "invalid_value",
        "prompt_logprobs_range",
    );
    bad(
        &with(r#""prompt_logprobs":1,"prompt_logprobs_range":[1,1]"#),
        "invalid_value",
        "prompt_logprobs_range",
    );
    bad(
        &with(r#""prompt_logprobs":1,"prompt_logprobs_range":[0,2]"#),
        "invalid_value",
        "prompt_logprobs_range",
    );
    bad(
        &with(r#""logit_bias":{"a":1}"#),
        "invalid_value",
        "logit_bias",
    );
    bad(
        &with(r#""logit_bias":{"1":101}"#),
        "invalid_value",
        "logit_bias",
    );
    bad(
        &with(r#""logit_bias":{"1":1,"01":1}"#),
        "invalid_value",
        "logit_bias",
    );
    bad(
        &with(r#""logit_bias":{"4096":1}"#),
        "token_out_of_range",
        "logit_bias",
    );
    bad(
        &with(r#""allowed_token_ids":[]"#),
        "invalid_value",
        "allowed_token_ids",
    );
    bad(
        &with(r#""allowed_token_ids":[4096,1]"#),
        "token_out_of_range",
        "allowed_token_ids",
    );
    let stops = r#""min_tokens":1,"allowed_token_ids":[6,5,6],"stop_token_ids":[5,6,7]"#;
    bad(&with(stops), "invalid_value", "allowed_token_ids");
    bad(&with(r#""stream":1"#), "invalid_type", "stream");
    bad(
        &with(r#""stream_options":{}"#),
        "invalid_value",
        "stream_options",
    );
    bad(&with(r#""echo":"yes""#), "invalid_type", "echo");
    bad(
        &with(r#""cache_salt":"a/b""#),
        "invalid_value",
        "cache_salt",
    );
    bad(&with(r#""cache_salt":"""#), "invalid_value", "cache_salt");
    bad(
        &with(r#""truncate_prompt_tokens":0"#),
        "invalid_value",
        "truncate_prompt_tokens",
    );
    bad(
        &with(r#""truncate_prompt_tokens":513"#),
        "invalid_value",
        "truncate_prompt_tokens",
    );
    bad(
        &with(r#""truncation_side":"top""#),
        "invalid_value",
        "truncation_side",
    );
    bad(&with(r#""priority":1.5"#), "invalid_type", "priority");
    bad(&with(r#""slo_ttft_ms":0"#), "invalid_value", "slo_ttft_ms");
    for (field, value) in [
        ("suffix", "\"x\""),
        ("use_beam_search", "true"),
        ("logprob_token_ids", "[1]"),
        ("lora", "\"x\""),
        ("logits_processors", "[1]"),
    ] {
        bad(
            &with(&format!(r#""{field}":{value}"#)),
            "unsupported_parameter",
            field,
        );
    }
    // Neutral values of the same are no reason to refuse, nor are fields nobody knows.
    let neutral = with(
        r#""max_tokens":1,"suffix":"","use_beam_search":false,"bad_words":[],"lora":null,
           "response_format":{"type":"text"},"user":"u","on_deadline":"drop","nobody":{"knows":1}"#,
    );
    assert_eq!(server.post(PATH, &neutral).status, 200);
    assert_eq!(server.metric("prelude:unknown_fields_total"), 1.0);
    let strict = format!(
        "POST {PATH} HTTP/1.1\r\nconnection: close\r\nx-prelude-strict: 1\r\ncontent-length: \
         {}\r\n\r\n{neutral}",
        neutral.len()
    );
    let strict = Response::parse(&server.exchange(strict.as_bytes()));
    assert_eq!(strict.reason(), "unknown_field");
    assert_eq!(strict.json()["error"]["param"], "nobody");

    let missing = server.post(PATH, r#"{"model":"other","prompt":"a"}"#);
    assert_eq!(
        (missing.status, &*missing.reason()),
        (404, "model_not_found")
    );
    let invalid = b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: \
        14\r\n\r\n{\"prompt\":\"\xff\"}";
    let invalid = Response::parse(&server.exchange(invalid));
    assert_eq!((invalid.status, &*invalid.reason()), (400, "invalid_json"));
    let deep = format!(
        r#"{{"prompt":[1],"x":{}{}}}"#,
        "[".repeat(99),
        "]".repeat(99)
    );
    bad(&deep, "too_deep", "");
    let rows = format!(
        r#"{{"prompt":[{}[1]],"max_tokens":1}}"#,
        "[1],".repeat(4096)
    );
    bad(&rows, "too_many_rows", "");
    assert!(server.is_healthy());
    server.settle();
}

#[test]
fn a_long_prompt_is_refused_in_the_words_clients_search_for() {
    let server = TestServer::fake(config(), &Fake::default());
    let ids = vec![1; 600];
    let response = server.post(PATH, &json!({"prompt": ids, "max_tokens": 1}).to_string());
    let error = &response.json()["error"];
    assert!(error["message"].as_str().unwrap().starts_with(
        "This model's maximum context length is 512 tokens. However, you requested 601 tokens"
    ));
}

#[test]
fn a_long_prompt_may_be_cut() {
    let server = TestServer::fake(config(), &Fake::default());
    let ids: Vec<u32> = (0..600).collect();
    let kept = |fields: Value| {
        let mut body = json!({"prompt": ids, "max_tokens": 0, "return_token_ids": true});
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        complete(&server, &body)["choices"][0]["prompt_token_ids"].clone()
    };
    assert_eq!(
        kept(json!({"truncate_prompt_tokens": 2})),
        json!([598, 599])
    );
    let right = json!({"truncate_prompt_tokens": 2, "truncation_side": "right"});
    assert_eq!(kept(right), json!([0, 1]));
    let rest = kept(json!({"truncate_prompt_tokens": -1, "max_tokens": 12}));
    assert_eq!(rest.as_array().unwrap().len(), 500);
    let echo = json!({"prompt": "Where is my card?", "max_tokens": 0, "echo": true,
        "truncate_prompt_tokens": 1});
    assert_eq!(texts(&complete(&server, &echo)), ["?"]);
}

#[test]
fn a_classifier_does_not_complete() {
    let server = TestServer::demo();
    let response = server.post(PATH, r#"{"model":"demo-classifier","prompt":"a"}"#);
    assert_eq!(
        (response.status, &*response.reason()),
        (400, "unsupported_task")
    );
    let message = response.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        message.starts_with(
            "model \"demo-classifier\" (kind classifier) does not serve completions; it serves: "
        ),
        "{message}"
    );
}

#[test]
fn a_failed_step_fails_its_requests_alone() {
    let server = TestServer::faulty();
    let body = json!({"prompt": [FAILS], "max_tokens": 3}).to_string();
    let response = server.post(PATH, &body);
    assert_eq!((response.status, &*response.reason()), (500, "step_failed"));
    let id = response.header("x-request-id").unwrap();
    assert!(
        response.body.contains(id),
        "the id is what the caller can quote"
    );
    assert!(
        !response.body.contains("told to"),
        "the cause is not the caller's"
    );
    // A stream that has not begun fails with a status of its own.
    let body = json!({"prompt": [FAILS], "max_tokens": 3, "stream": true}).to_string();
    assert_eq!(server.post(PATH, &body).status, 500);
    assert_eq!(
        server.post(PATH, r#"{"prompt":[1],"max_tokens":3}"#).status,
        200
    );
    server.settle();
}

/// Each of `n` choices repeats its prompt: what that makes is bounded, and nothing is computed
/// for what is refused.
#[test]
fn repeated_prompts_of_an_answer_are_bounded() {
    let limits = prelude_server::Limits {
        echo_bytes: 1_000,
        ..prelude_server::Limits::default()
    };
    let fake = Fake::default();
    let server = TestServer::fake(with_limits(limits), &fake);
    let check = |more: Value, expected: u16| {
        let mut body = json!({"prompt": "word ".repeat(50), "max_tokens": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let response = server.post(PATH, &body.to_string());
        assert_eq!(response.status, expected, "{more}: {}", response.body);
        if expected == 400 {
            assert_eq!(response.json()["error"]["reason"], "too_much_echo");
        }
    };
    check(json!({"echo": true, "n": 4}), 200);
    check(json!({"echo": true, "n": 5}), 400);
    check(json!({"return_token_ids": true, "n": 2}), 200);
    check(json!({"return_token_ids": true, "n": 5}), 400);
}
