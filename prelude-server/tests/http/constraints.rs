//! Constraints on the output: whatever is sampled, it is in the language that was asked for.

use std::{cell::Cell, io::Write};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};

use crate::support::{Response, TestServer, wait_for};

const PATH: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A request that samples as wildly as it can.
fn wild(seed: u64, fields: &Value) -> Value {
    let mut body = json!({"prompt": "Where is my", "max_tokens": 200, "temperature": 3.0,
        "seed": seed});
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn ask(server: &TestServer, body: &Value) -> Value {
    let response = server.post(PATH, &body.to_string());
    assert_eq!(response.status, 200, "{body}: {}", response.body);
    response.json()
}

fn refused(server: &TestServer, fields: &Value, reason: &str, param: &str) {
    let response = server.post(PATH, &wild(0, fields).to_string());
    let error = &response.json()["error"];
    assert_eq!(
        (response.status, &error["reason"], &error["param"]),
        (400, &json!(reason), &json!(param)),
        "{fields}: {}",
        response.body
    );
}

/// The finished texts of a few seeds, of which there must be some.
fn finished(server: &TestServer, fields: &Value) -> Vec<String> {
    let mut texts = Vec::new();
    for seed in 0..6 {
        let answer = ask(server, &wild(seed, fields));
        let choice = &answer["choices"][0];
        match choice["finish_reason"].as_str().unwrap() {
            "stop" => texts.push(choice["text"].as_str().unwrap().to_owned()),
            reason => assert_eq!(reason, "length", "{fields}: {answer}"),
        }
    }
    assert!(!texts.is_empty(), "{fields}: nothing has finished");
    texts
}

fn matches(regex: &str, text: &str) -> bool {
    let whole = format!("^(?:{regex})$");
    regex::Regex::new(&whole).unwrap().is_match(text)
}

fn conforms(schema: &Value, text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
    assert!(jsonschema::is_valid(schema, &value), "{schema}: {text}");
}

fn ticket() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["team", "urgent", "n"],
        "properties": {
            "team": {"enum": ["billing", "sales"]},
            "urgent": {"type": "boolean"},
            "n": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 3}}}})
}

#[test]
fn a_choice_is_one_of_the_options() {
    let server = TestServer::demo();
    let options = ["card", "card arrival", "top up", "é"];
    let fields = json!({"structured_outputs": {"choice": options}});
    for text in finished(&server, &fields) {
        assert!(options.contains(&&*text), "{text:?}");
    }
    // Every choice of `n`, streamed or not, with what else shapes a draw.
    let fields = json!({"structured_outputs": {"choice": options}, "n": 4, "logprobs": 2, "presence_penalty": 1.5,
        "repetition_penalty": 1.3, "top_p": 0.9});
    let whole = ask(&server, &wild(7, &fields));
    let mut body = wild(7, &fields);
    body["stream"] = json!(true);
    let mut texts = vec![String::new(); 4];
    for event in server.post(PATH, &body.to_string()).events() {
        let choice = &event["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    for (choice, text) in whole["choices"].as_array().unwrap().iter().zip(&texts) {
        assert_eq!(choice["text"], **text);
        assert!(options.contains(&&**text), "{text:?}");
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], Value::Null);
    }
    server.settle();
}

#[test]
fn options_of_one_token_are_one_step() {
    let server = TestServer::demo();
    // Two options of one token each, as the tokenizer has them.
    let count = |text: &str| {
        let body = json!({"prompt": text}).to_string();
        server.post("/tokenize", &body).json()["count"]
            .as_u64()
            .unwrap()
    };
    let one: Vec<&str> = [" a", " to", " card", "a", "to", "e"]
        .into_iter()
        .filter(|text| count(text) == 1)
        .take(2)
        .collect();
    assert_eq!(one.len(), 2);
    for n in [1, 5] {
        let body = wild(1, &json!({"structured_outputs": {"choice": one}, "n": n}));
        let response = server.post(PATH, &body.to_string());
        assert_eq!(response.header("x-prelude-class"), Some("oneshot"));
        for choice in response.json()["choices"].as_array().unwrap() {
            assert!(one.contains(&choice["text"].as_str().unwrap()));
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
    let longer = wild(
        1,
        &json!({"structured_outputs": {"choice": [one[0], "a long option"]}}),
    );
    let response = server.post(PATH, &longer.to_string());
    assert_eq!(response.header("x-prelude-class"), Some("decode"));
}

#[test]
fn texts_match_their_regular_expression() {
    let server = TestServer::demo();
    for regex in [
        "[a-c]{2,5}",
        r"(\d{1,3}\.){3}\d{1,3}",
        "(yes|no|maybe), [A-Z][a-z]{0,8}!?",
        "[αβγ]{1,3}é?",
        "a?b?c?d",
    ] {
        for text in finished(&server, &json!({"structured_outputs": {"regex": regex}})) {
            assert!(matches(regex, &text), "{regex}: {text:?}");
        }
        let anchored = json!({"structured_outputs": {"regex": format!("^{regex}$")}});
        for text in finished(&server, &anchored) {
            assert!(matches(regex, &text), "{regex}: {text:?}");
        }
    }
}

#[test]
fn texts_conform_to_their_schema() {
    let server = TestServer::demo();
    let schemas = [
        ticket(),
        json!({"type": "array", "items": {"type": "number", "minimum": -5,
            "maximum": 5.5}, "minItems": 1, "maxItems": 3}),
        json!({"anyOf": [{"const": "x"}, {"type": "null"}]}),
        json!({"$defs": {"t": {"type": "object", "properties": {"next": {"anyOf":
            [{"$ref": "#/$defs/t"}, {"type": "null"}]}}, "required": ["next"],
            "additionalProperties": false}}, "$ref": "#/$defs/t"}),
    ];
    for schema in schemas {
        for fields in [
            json!({"structured_outputs": {"json": schema}}),
            json!({"structured_outputs": {"json": schema.to_string()}}),
        ] {
            for text in finished(&server, &fields) {
                conforms(&schema, &text);
            }
        }
    }
    let schema = ticket();
    let fields = json!({"response_format": {"type": "json_schema", "json_schema":
        {"name": "ticket", "strict": true, "schema": schema}}});
    for text in finished(&server, &fields) {
        conforms(&schema, &text);
    }
    // In a conversation as well.
    let mut chat = wild(3, &fields);
    chat.as_object_mut().unwrap().remove("prompt");
    chat["messages"] = json!([{"role": "user", "content": "A ticket, please."}]);
    let answer = server.post(CHAT, &chat.to_string()).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
    conforms(&schema, choice["message"]["content"].as_str().unwrap());
}

/// The longest run of white space between the parts of a JSON text.
fn longest_gap(json: &str) -> usize {
    let (mut longest, mut run, mut inside, mut escaped) = (0, 0, false, false);
    for c in json.chars() {
        if inside {
            (inside, escaped) = (escaped || c != '"', !escaped && c == '\\');
            continue;
        }
        inside = c == '"';
        run = if c.is_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// A model that likes line ends, as greedy `demo-lm` does after a brace, still comes to an end.
#[test]
fn white_space_in_json_has_a_bound() {
    let server = TestServer::demo();
    let schema = json!({"type": "object", "properties": {"topic": {"enum": ["card", "cash"]},
        "urgent": {"type": "boolean"}}, "required": ["topic", "urgent"],
        "additionalProperties": false});
    let newline = server.post("/tokenize", r#"{"prompt": "\n"}"#).json()["tokens"][0].clone();
    let blank = server.post("/tokenize", r#"{"prompt": " "}"#).json()["tokens"][0].clone();
    let body = |fields: &Value, liked: &Value| {
        let mut body = wild(1, fields);
        body["logit_bias"] = json!({liked.to_string(): 100});
        body
    };
    let ask_for = |fields: Value, liked: &Value| {
        let answer = ask(&server, &body(&fields, liked));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{fields}: {answer}");
        let text = choice["text"].as_str().unwrap().to_owned();
        conforms(&schema, &text);
        longest_gap(&text)
    };
    let by_default = json!({"structured_outputs": {"json": schema}});
    for liked in [&newline, &blank] {
        let gap = ask_for(by_default.clone(), liked);
        assert!((1..=17).contains(&gap), "{gap}");
    }
    let none = json!({"structured_outputs": {"json": schema, "disable_any_whitespace": true}});
    assert_eq!(ask_for(none, &newline), 0);
    for fields in [
        json!({"structured_outputs": {"json": schema, "whitespace_pattern": "[ \n]{0,3}"}}),
        json!({"structured_outputs": {"json": schema, "whitespace_pattern": "[\n]{1,3}"}}),
    ] {
        assert_eq!(ask_for(fields, &newline), 3);
    }
    // Also in calls that are forced.
    let chat = json!({"messages": [{"role": "user", "content": "Where is my card?"}],
        "max_tokens": 400, "temperature": 0, "logit_bias": {newline.to_string(): 100},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "tool_choice": "required", "parallel_tool_calls": false});
    let answer = server.post(CHAT, &chat.to_string()).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    conforms(&schema, arguments.as_str().unwrap());

    // Wherever JSON is asked for, and named as this request has it, whichever request asked before.
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let fields = json!({"response_format": format, "structured_outputs": {"whitespace_pattern": "[\n]{1,3}"}});
    assert_eq!(ask_for(fields, &newline), 3);
    let fields = json!({"response_format": format,
        "structured_outputs": {"disable_any_whitespace": true}});
    assert_eq!(ask_for(fields, &newline), 0);
    let wrong = json!({"structured_outputs": {"json": schema, "whitespace_pattern": "(["}});
    refused(
        &server,
        &wrong,
        "grammar_error",
        "/structured_outputs/whitespace_pattern",
    );
    let wrong = json!({"structured_outputs": {"json": schema, "whitespace_pattern": "(limit"}});
    refused(
        &server,
        &wrong,
        "grammar_error",
        "/structured_outputs/whitespace_pattern",
    );
    refused(
        &server,
        &json!({"structured_outputs": {"regex": "(limit"}}),
        "grammar_error",
        "/structured_outputs/regex",
    );
    let pattern = "/structured_outputs/whitespace_pattern";
    let wrong = json!({"structured_outputs": {"json": schema, "whitespace_pattern": "(["}});
    refused(&server, &wrong, "grammar_error", pattern);
    let both = json!({"structured_outputs": {"json": schema, "whitespace_pattern": " ",
        "disable_any_whitespace": true}});
    refused(&server, &both, "invalid_value", pattern);
    let format = json!({"type": "text"});
    let both =
        json!({"response_format": format, "structured_outputs": {"whitespace_pattern": " "}});
    refused(&server, &both, "invalid_value", pattern);
    // The older names are known, so that no answer comes without its constraint.
    let older = json!({"guided_regex": "a+"});
    refused(&server, &older, "unsupported_parameter", "guided_regex");
    let no_json = json!({"structured_outputs": {"regex": "a+", "whitespace_pattern": " "}});
    refused(&server, &no_json, "invalid_value", pattern);
}

/// A field that is refused in one request concerns no request without the field.
#[test]
fn a_refusal_is_not_shared_with_what_is_allowed() {
    for schema in [json!({"type": "null"}), json!({"type": "boolean"})] {
        let server = TestServer::demo();
        let mut own = schema.clone();
        own["x-guidance"] = json!({});
        let wrong = json!({"structured_outputs": {"json": own}});
        let right = json!({"structured_outputs": {"json": schema}});
        refused(&server, &wrong, "grammar_error", "/structured_outputs/json");
        assert!(!finished(&server, &right).is_empty());
        refused(&server, &wrong, "grammar_error", "/structured_outputs/json");
    }
}

#[test]
fn any_object_and_grammars() {
    let server = TestServer::demo();
    for fields in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"json_object": true}}),
    ] {
        // An object of any length: what has come is one's beginning.
        let text = ask(&server, &wild(5, &fields))["choices"][0]["text"].clone();
        assert!(
            text.as_str().unwrap().trim_start().starts_with('{'),
            "{text}"
        );
    }
    let lark = "start: sum\nsum: NUM (\"+\" NUM){0,2}\nNUM: /[0-9]{1,2}/\n";
    for text in finished(&server, &json!({"structured_outputs": {"grammar": lark}})) {
        assert!(matches(r"\d{1,2}(\+\d{1,2}){0,2}", &text), "{text:?}");
    }
}

/// Ends, limits and other masks keep their meaning.
#[test]
fn constraints_compose() {
    let server = TestServer::demo();
    let ids = |text: &str| {
        let body = json!({"prompt": text}).to_string();
        server.post("/tokenize", &body).json()["tokens"].clone()
    };
    // `max_tokens` cuts, and says so.
    let cut = ask(
        &server,
        &wild(
            0,
            &json!({"structured_outputs": {"regex": "a{50}"}, "max_tokens": 2}),
        ),
    );
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    // A stop string ends a text that the constraint would go on with.
    let body = wild(
        0,
        &json!({"structured_outputs": {"regex": "ab{9}"}, "stop": "b"}),
    );
    let stopped = ask(&server, &body);
    assert_eq!(stopped["choices"][0]["text"], "a");
    assert_eq!(stopped["choices"][0]["stop_reason"], "b");
    // Where the text may end at any time, `min_tokens` keeps it going.
    let body = wild(
        0,
        &json!({"structured_outputs": {"regex": "[a-z ]*"}, "min_tokens": 20, "max_tokens": 40}),
    );
    let long = ask(&server, &body);
    assert!(
        long["usage"]["completion_tokens"].as_u64() >= Some(20),
        "{long}"
    );
    // So does `ignore_eos`, to the end.
    let body = wild(
        0,
        &json!({"structured_outputs": {"regex": "[a-z ]*"}, "ignore_eos": true, "max_tokens": 30}),
    );
    assert_eq!(ask(&server, &body)["usage"]["completion_tokens"], 30);
    // Allowed ids and bias apply as well.
    let (a, b) = (ids("a")[0].clone(), ids("b")[0].clone());
    let body = wild(
        0,
        &json!({"structured_outputs": {"regex": "[abc]{4}"}, "allowed_token_ids": [a, b],
        "logit_bias": {a.to_string(): -100}}),
    );
    assert_eq!(ask(&server, &body)["choices"][0]["text"], "bbbb");
    // What leaves nothing at first is refused.
    let fields = json!({"structured_outputs": {"regex": "c+"}, "allowed_token_ids": [a]});
    refused(
        &server,
        &fields,
        "invalid_value",
        "/structured_outputs/regex",
    );
    // Log-probabilities are of the raw logits: a forced token has its own.
    let forced = ask(
        &server,
        &wild(
            0,
            &json!({"structured_outputs": {"regex": "a"}, "logprobs": 0}),
        ),
    );
    let logprob = forced["choices"][0]["logprobs"]["token_logprobs"][0].as_f64();
    assert!(logprob.unwrap() < 0.0, "{forced}");
    server.settle();
}

/// A text that nothing can go on with is an error, whole or streamed, and never half an answer with
/// an end that clients do not know.
#[test]
fn a_dead_end_is_an_error() {
    let server = TestServer::demo();
    let body = json!({"prompt": "a"}).to_string();
    let a = server.post("/tokenize", &body).json()["tokens"][0].clone();
    let fields = json!({"structured_outputs": {"regex": "ac"}, "allowed_token_ids": [a]});
    for n in [1, 3] {
        let mut body = wild(0, &fields);
        body["n"] = json!(n);
        let whole = server.post(PATH, &body.to_string());
        assert_eq!(
            (whole.status, &*whole.reason()),
            (400, "constraint_dead_end"),
            "{}",
            whole.body
        );
        body["stream"] = json!(true);
        let streamed = server.post(PATH, &body.to_string());
        let last = match streamed.status {
            200 => streamed.events().pop().unwrap(),
            _ => streamed.json(),
        };
        assert_eq!(last["error"]["reason"], "constraint_dead_end", "{last}");
        assert!(!streamed.body.contains("abort"), "{}", streamed.body);
    }
    let mut chat = wild(0, &fields);
    chat.as_object_mut().unwrap().remove("prompt");
    chat["messages"] = json!([{"role": "user", "content": "a"}]);
    let chat = server.post(CHAT, &chat.to_string());
    assert_eq!(
        (chat.status, &*chat.reason()),
        (400, "constraint_dead_end"),
        "{}",
        chat.body
    );
    // A text that a stop string has ended before is an answer.
    let mut body = wild(0, &fields);
    body["stop"] = json!("a");
    let choice = ask(&server, &body)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop");
    server.settle();
}

/// vLLM takes one option, so clients that make the list send one.
#[test]
fn one_option_is_a_choice() {
    let server = TestServer::demo();
    let fields = json!({"structured_outputs": {"choice": ["card arrival"]}});
    assert_eq!(finished(&server, &fields)[0], "card arrival");
}

#[test]
fn constraints_that_cannot_be_enforced_are_refused() {
    let server = TestServer::demo();
    let check = |fields: Value, reason, param| refused(&server, &fields, reason, param);
    check(
        json!({"structured_outputs": {"regex": "(a"}}),
        "grammar_error",
        "/structured_outputs/regex",
    );
    check(
        json!({"structured_outputs": {"regex": r"(a)\1"}}),
        "grammar_error",
        "/structured_outputs/regex",
    );
    check(
        json!({"structured_outputs": {"regex": "(?=a)b"}}),
        "grammar_error",
        "/structured_outputs/regex",
    );
    check(
        json!({"structured_outputs": {"json": {"not": {"type": "null"}}}}),
        "grammar_error",
        "/structured_outputs/json",
    );
    check(
        json!({"structured_outputs": {"json": {"type": "array", "uniqueItems": true}}}),
        "grammar_error",
        "/structured_outputs/json",
    );
    check(
        json!({"structured_outputs": {"json": {"type": "string", "format": "?"}}}),
        "grammar_error",
        "/structured_outputs/json",
    );
    check(
        json!({"structured_outputs": {"json": {"$ref": "http://a/b"}}}),
        "grammar_error",
        "/structured_outputs/json",
    );
    check(
        json!({"structured_outputs": {"json": {"x-guidance": {"lenient": true}}}}),
        "grammar_error",
        "/structured_outputs/json",
    );
    check(
        json!({"structured_outputs": {"grammar": r#"start: %json {"type": "null", "x-guidance": {}}"#}}),
        "grammar_error",
        "/structured_outputs/grammar",
    );
    check(
        json!({"structured_outputs": {"grammar": "start: a\na[temperature=0.1]: /x+/"}}),
        "grammar_error",
        "/structured_outputs/grammar",
    );
    check(
        json!({"structured_outputs": {"grammar": "start: nobody"}}),
        "grammar_error",
        "/structured_outputs/grammar",
    );
    check(
        json!({"structured_outputs": {"grammar": "?"}}),
        "grammar_error",
        "/structured_outputs/grammar",
    );
    check(
        json!({"structured_outputs": {"choice": ["a", "b"]}, "min_tokens": 9, "max_tokens": 20}),
        "invalid_value",
        "/structured_outputs/choice",
    );
    check(
        json!({"structured_outputs": {"choice": ["a", "b"], "regex": "a"}}),
        "invalid_value",
        "/structured_outputs/regex",
    );
    let big = "a".repeat(70 << 10);
    check(
        json!({"structured_outputs": {"regex": &big}}),
        "grammar_too_complex",
        "/structured_outputs/regex",
    );
    let many: Vec<String> = (0..1_000).map(|i| format!("{i} {}", &big[..100])).collect();
    check(
        json!({"structured_outputs": {"choice": many}}),
        "grammar_too_complex",
        "/structured_outputs/choice",
    );
    let deep = format!("{}a{}", "(".repeat(2_000), ")".repeat(2_000));
    check(
        json!({"structured_outputs": {"regex": deep}}),
        "grammar_too_complex",
        "/structured_outputs/regex",
    );
}

/// Grammars made to be expensive end in an answer or a refusal, and others go on.
#[test]
fn hostile_grammars_hurt_nobody() {
    let server = TestServer::demo();
    let chain: String = (0..3_000)
        .map(|i| format!("r{i}: r{} \"a\"\n", i + 1))
        .collect();
    let wide: Value = (0..1_500)
        .map(|i| (format!("k{i}"), json!({"type": "string"})))
        .collect();
    let hostile = [
        json!({"structured_outputs": {"regex": "((a{100}){100}){100}"}}),
        json!({"structured_outputs": {"regex": "(a|b)*a(a|b){40}"}}),
        json!({"structured_outputs": {"regex": "(.*a.*b.*c.*d.*)*"}}),
        json!({"structured_outputs": {"regex": format!("({})", vec!["[a-z]+[0-9]+"; 400].join("|"))}}),
        json!({"structured_outputs": {"regex": "(x?){900}x{900}"}}),
        json!({"structured_outputs": {"regex": "\\w{1,5000}"}}),
        json!({"structured_outputs": {"regex": "a".repeat(60_000)}}),
        json!({"structured_outputs": {"grammar": format!("start: r0\n{chain}r3000: \"b\"\n")}}),
        json!({"structured_outputs": {"grammar": "start: s\ns: s s | s s s | \"a\"?\n"}}),
        json!({"structured_outputs": {"grammar": "start: start start | \"a\" start | \"a\"\n"}}),
        json!({"structured_outputs": {"json": {"type": "object", "properties": wide}}}),
        json!({"structured_outputs": {"json": {"type": "string", "minLength": 60_000, "maxLength": 90_000}}}),
        json!({"structured_outputs": {"json": {"type": "array", "minItems": 100_000}}}),
        json!({"structured_outputs": {"json": {"type": "string", "pattern": "^(a+)+$"}}}),
        json!({"structured_outputs": {"json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}}}),
    ];
    for fields in hostile {
        let mut body = wild(1, &fields);
        body["max_tokens"] = json!(6);
        let response = server.post(PATH, &body.to_string());
        let known = match response.status {
            200 => true,
            400 => matches!(&*response.reason(), "grammar_too_complex" | "grammar_error"),
            _ => false,
        };
        let shown = fields.to_string();
        assert!(
            known,
            "{}: {}",
            &shown[..shown.len().min(200)],
            response.body
        );
        assert!(server.is_healthy());
    }
    // An honest one goes through afterwards.
    for text in finished(
        &server,
        &json!({"structured_outputs": {"regex": "[a-c]{2,5}"}}),
    ) {
        assert!(matches("[a-c]{2,5}", &text));
    }
    server.settle();
}

#[test]
fn equal_grammars_are_compiled_once() {
    let server = TestServer::demo();
    let name = "prelude:grammar_cache_hits_total";
    assert_eq!(server.metric(name), 0.0);
    let texts: Vec<Value> = (0..3)
        .map(|_| {
            ask(
                &server,
                &wild(4, &json!({"structured_outputs": {"json": ticket()}})),
            )["choices"]
                .clone()
        })
        .collect();
    assert_eq!(server.metric(name), 2.0);
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

/// A constrained answer is the same alone and in a crowd of others, bit for bit.
#[test]
fn a_crowd_changes_nothing() {
    let server = TestServer::demo();
    let asks = [
        json!({"structured_outputs": {"json": ticket()}}),
        json!({"structured_outputs": {"regex": "[a-z]{1,12}( [a-z]{1,12}){0,5}"}}),
        json!({"structured_outputs": {"choice": ["card", "card arrival", "top up"]}}),
        json!({"response_format": {"type": "json_object"}}),
        json!({}),
    ];
    let bodies: Vec<Value> = (0..40)
        .map(|i| {
            let mut body = wild(i, &asks[i as usize % asks.len()]);
            body["max_tokens"] = json!(40);
            body["logprobs"] = json!(2);
            body["n"] = json!(1 + i % 3);
            body
        })
        .collect();
    let alone: Vec<Value> = bodies
        .iter()
        .map(|b| ask(&server, b)["choices"].clone())
        .collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = bodies
            .iter()
            .map(|body| scope.spawn(|| ask(&server, body)["choices"].clone()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for ((body, alone), together) in bodies.iter().zip(&alone).zip(&together) {
        assert_eq!(alone, together, "{body}");
    }
    server.settle();
}

#[test]
fn a_client_that_leaves_leaves_nothing() {
    let server = TestServer::demo();
    for seed in 0..8 {
        let mut body = wild(
            seed,
            &json!({"structured_outputs": {"regex": "[a-z ]{2000,}"}, "n": 3}),
        );
        body["max_tokens"] = json!(3000);
        body["stream"] = json!(true);
        let body = body.to_string();
        let mut connection = server.connect();
        write!(
            connection,
            "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        if seed % 2 == 0 {
            wait_for(|| match server.metric("vllm:num_requests_running") > 0.0 {
                true => Ok(()),
                false => Err("not begun".to_owned()),
            });
        }
        drop(connection);
    }
    server.settle();
}

/// A small schema, and nothing in it that takes a text of any length.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        (-50i32..50, 0i32..100)
            .prop_map(|(a, n)| json!({"type": "integer", "minimum": a, "maximum": a + n})),
        (0usize..3, 0usize..4)
            .prop_map(|(a, n)| json!({"type": "string", "minLength": a, "maxLength": a + n})),
        prop::collection::btree_set("[a-z\"é]{1,4}", 1..4)
            .prop_map(|set| json!({"enum": set.into_iter().collect::<Vec<_>>()})),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            (inner.clone(), 0usize..2, 0usize..3).prop_map(|(items, a, n)| json!(
                {"type": "array", "items": items, "minItems": a, "maxItems": a + n})),
            prop::collection::btree_map("[a-c]{1,2}", (inner.clone(), any::<bool>()), 1..4)
                .prop_map(|map| {
                    let required: Vec<_> = map
                        .iter()
                        .filter(|(_, v)| v.1)
                        .map(|(k, _)| k.clone())
                        .collect();
                    let properties: serde_json::Map<_, _> =
                        map.into_iter().map(|(k, v)| (k, v.0)).collect();
                    json!({"type": "object", "properties": properties, "required": required,
                        "additionalProperties": false})
                }),
            prop::collection::vec(inner, 1..3).prop_map(|all| json!({"anyOf": all})),
        ]
    })
}

/// A small regular expression.
fn regexes() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "[a-d]{1,3}",
        Just("[a-z]".to_owned()),
        Just("\\d".to_owned()),
        Just("[^a-y]".to_owned()),
        Just("é".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|all| all.concat()),
            prop::collection::vec(inner.clone(), 2..4)
                .prop_map(|all| format!("({})", all.join("|"))),
            (inner.clone(), 0u32..2, 1u32..3)
                .prop_map(|(r, a, n)| format!("({r}){{{a},{}}}", a + n)),
            inner.prop_map(|r| format!("({r})?")),
        ]
    })
}

#[test]
fn random_languages_are_kept() {
    let server = TestServer::demo();
    let config = || Config {
        cases: 40,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config());
    let (finished, refused) = (Cell::new(0), Cell::new(0));
    let check = |fields: &Value, valid: &dyn Fn(&str) -> bool| {
        for seed in 0..3 {
            let response: Response = server.post(PATH, &wild(seed, fields).to_string());
            // A language of the empty text alone, or of none: the same for every seed.
            if response.status == 400 {
                let reason = response.reason();
                let known = ["grammar_error", "invalid_value"].contains(&&*reason);
                prop_assert!(known, "{fields}: {}", response.body);
                refused.set(refused.get() + 1);
                return Ok(());
            }
            prop_assert_eq!(response.status, 200, "{}: {}", fields, response.body);
            let choice = response.json()["choices"][0].clone();
            let text = choice["text"].as_str().unwrap();
            let ended = choice["finish_reason"] == "stop";
            finished.set(finished.get() + u32::from(ended));
            prop_assert!(!ended || valid(text), "{fields}: {text:?}");
            prop_assert!(choice["finish_reason"] != "abort", "{fields}: {text:?}");
        }
        Ok(())
    };
    runner
        .run(&schemas(), |schema| {
            check(&json!({"structured_outputs": {"json": schema}}), &|text| {
                let value = serde_json::from_str::<Value>(text);
                value.is_ok_and(|value| jsonschema::is_valid(&schema, &value))
            })
        })
        .unwrap();
    let enough = |what: &str, refused: u32, finished: u32| {
        assert!(refused <= 10, "{refused} of 40 {what} were refused");
        assert!(
            finished >= 30,
            "{finished} of 120 texts of {what} were finished"
        );
    };
    enough("schemas", refused.take(), finished.take());
    let mut runner = TestRunner::new(config());
    runner
        .run(&regexes(), |regex| {
            check(&json!({"structured_outputs": {"regex": regex}}), &|text| {
                matches(&regex, text)
            })
        })
        .unwrap();
    enough("regular expressions", refused.take(), finished.take());
}
