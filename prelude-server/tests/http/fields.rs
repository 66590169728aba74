//! Fields of other servers over HTTP: an answer has what they ask for, or they are refused by name.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::support::{Response, TestServer, every_task};

/// Asks for something, with more fields.
fn ask(server: &TestServer, path: &str, body: &Value, more: &Value) -> Response {
    let mut body = body.clone();
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    server.post(path, &body.to_string())
}

fn data(server: &TestServer, path: &str, body: &Value, more: Value) -> Value {
    let answer = ask(server, path, body, &more);
    assert_eq!(answer.status, 200, "{path} {more}: {}", answer.body);
    answer.json()["data"].clone()
}

fn refused(server: &TestServer, path: &str, body: &Value, more: Value, expected: (u16, &str)) {
    let answer = ask(server, path, body, &more);
    let name = more.as_object().unwrap().keys().next().unwrap().clone();
    let found = (answer.status, &*answer.reason());
    assert_eq!(found, expected, "{path} {more}: {}", answer.body);
    assert_eq!(answer.json()["error"]["param"], name, "{path} {more}");
}

const UNSUPPORTED: (u16, &str) = (400, "unsupported_parameter");

#[test]
fn options_of_vectors_have_other_names() {
    let server = every_task();
    let path = "/v1/embeddings";
    let body = json!({"model": "demo-lm", "input": ["a card", "b"]});
    let ask = |more| data(&server, path, &body, more);
    let (plain, raw) = (ask(json!({})), ask(json!({"use_activation": false})));
    assert_ne!(plain, raw);
    for name in ["normalize", "normalized"] {
        assert_eq!(ask(json!({name: false})), raw, "{name}");
        assert_eq!(ask(json!({name: true})), plain, "{name}");
        let both = json!({name: false, "use_activation": false});
        refused(&server, path, &body, both, (400, "invalid_value"));
    }
    let short = ask(json!({"dimensions": 8}));
    assert_eq!(ask(json!({"output_dimension": 8})), short);
    let packed = ask(json!({"encoding_format": "base64"}));
    assert_eq!(ask(json!({"embedding_type": "base64"})), packed);
    assert_eq!(ask(json!({"embedding_type": "float"})), plain);
    for name in ["late_chunking", "return_multivector"] {
        refused(&server, path, &body, json!({name: true}), UNSUPPORTED);
        assert_eq!(ask(json!({name: false})), plain, "{name}");
    }
    refused(
        &server,
        path,
        &body,
        json!({"output_dtype": "int8"}),
        UNSUPPORTED,
    );
    assert_eq!(ask(json!({"output_dtype": "float"})), plain);
    let bits = json!({"embedding_type": "ubinary"});
    refused(&server, path, &body, bits, (400, "invalid_value"));
    let pooled = data(&server, "/pooling", &body, json!({"normalized": false}));
    assert_eq!(pooled[0]["data"], raw[0]["embedding"]);
}

#[test]
fn bytes_of_numbers_are_those_that_are_asked_for() {
    let server = every_task();
    let body = json!({"model": "demo-lm", "input": "a card", "encoding_format": "base64"});
    let bytes = |more: Value| {
        let data = data(&server, "/v1/embeddings", &body, more);
        STANDARD
            .decode(data[0]["embedding"].as_str().unwrap())
            .unwrap()
    };
    let four = bytes(json!({}));
    let numbers: Vec<f32> = { four.as_chunks::<4>().0.iter() }
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    for same in ["native", "little"] {
        assert_eq!(bytes(json!({"endianness": same})), four, "{same}");
    }
    let turned: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
    assert_eq!(bytes(json!({"endianness": "big"})), turned);
    // The bits of a number of each type, from the highest.
    let half = |dtype: &str, value: fn([u8; 2]) -> f32, error: f32| {
        let two = bytes(json!({"embed_dtype": dtype}));
        assert_eq!(two.len(), numbers.len() * 2, "{dtype}");
        for (bytes, number) in two.as_chunks::<2>().0.iter().zip(&numbers) {
            let found = value(*bytes);
            assert!(
                (found - number).abs() <= error,
                "{dtype}: {found}, {number}"
            );
        }
        let mut turned = bytes(json!({"embed_dtype": dtype, "endianness": "big"}));
        turned
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .for_each(|two| two.reverse());
        assert_eq!(turned, two, "{dtype}");
    };
    half(
        "float16",
        |two| half::f16::from_le_bytes(two).to_f32(),
        1e-3,
    );
    half(
        "bfloat16",
        |two| half::bf16::from_le_bytes(two).to_f32(),
        4e-3,
    );
    let eight = json!({"embed_dtype": "fp8_e4m3"});
    refused(
        &server,
        "/v1/embeddings",
        &body,
        eight,
        (400, "invalid_value"),
    );
}

#[test]
fn activations_of_classes_have_other_names() {
    let server = every_task();
    let body = json!({"model": "demo-classifier", "input": "Where is my card?"});
    for path in ["/classify", "/pooling"] {
        let ask = |more| data(&server, path, &body, more);
        let (plain, logits) = (ask(json!({})), ask(json!({"use_activation": false})));
        assert_ne!(plain, logits);
        for name in ["activation", "softmax"] {
            assert_eq!(ask(json!({name: false})), logits, "{path} {name}");
            assert_eq!(ask(json!({name: true})), plain, "{path} {name}");
        }
        assert_eq!(ask(json!({"function_to_apply": "none"})), logits, "{path}");
        assert_eq!(
            ask(json!({"function_to_apply": "softmax"})),
            plain,
            "{path}"
        );
        let other = json!({"function_to_apply": "sigmoid"});
        refused(&server, path, &body, other, (400, "invalid_value"));
        let both = json!({"activation": true, "use_activation": true});
        refused(&server, path, &body, both, (400, "invalid_value"));
    }
    let ask = |more| data(&server, "/classify", &body, more);
    assert_eq!(ask(json!({"top_k": 77})), ask(json!({})));
    refused(
        &server,
        "/classify",
        &body,
        json!({"top_k": 3}),
        (400, "invalid_value"),
    );
    refused(&server, "/pooling", &body, json!({"top_k": 3}), UNSUPPORTED);
    let vectors = json!({"model": "demo-lm", "input": "a"});
    refused(
        &server,
        "/pooling",
        &vectors,
        json!({"softmax": true}),
        UNSUPPORTED,
    );

    let rank = json!({"model": "demo-lm", "query": "a", "documents": ["b", "c"]});
    let scores = |more: Value| {
        let answer = self::ask(&server, "/rerank", &rank, &more).json();
        answer["results"][0]["relevance_score"].clone()
    };
    let raw = scores(json!({"use_activation": false}));
    assert_eq!(scores(json!({"activation": false})), raw);
    assert_ne!(scores(json!({})), raw);
    let pairs = json!({"model": "demo-lm", "text_1": "a", "text_2": "b"});
    let score = |more| data(&server, "/score", &pairs, more);
    let raw = score(json!({"use_activation": false}));
    assert_eq!(score(json!({"activation": false})), raw);
}

/// The wire of routers that ask a classifier about a text as `inputs`.
#[test]
fn classes_of_inputs_are_listed_with_their_names() {
    let server = every_task();
    let text = "Where is my card?";
    let body = json!({"model": "demo-classifier", "inputs": text});
    let ask = |more: Value| ask(&server, "/classify", &body, &more);
    let found = ask(json!({})).json();
    let same = server.post("/predict", &body.to_string()).json();
    assert_eq!(found, same);
    let classes = found.as_array().unwrap();
    assert_eq!(
        (classes.len(), &classes[0]["label"]),
        (77, &json!("card_arrival"))
    );
    let sum: f64 = classes.iter().map(|c| c["score"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 0.02, "{sum}");
    let top = ask(json!({"top_k": 2})).json();
    assert_eq!(top.as_array().unwrap()[..], classes[..2]);
    let raw = ask(json!({"raw_scores": true})).json();
    assert_eq!(ask(json!({"function_to_apply": "none"})).json(), raw);
    assert_ne!(raw, found);
    // The first model that has classes, as a router means that names none.
    let unnamed = server.post("/classify", &json!({"inputs": text}).to_string());
    assert_eq!(unnamed.json(), found);
    let wrong = ask(json!({"input": text}));
    let error = wrong.json();
    assert_eq!(
        (wrong.status, &error["error_type"]),
        (400, &json!("Validation"))
    );
    assert!(
        error["error"].as_str().unwrap().contains("`input`"),
        "{error}"
    );
}

#[test]
fn openais_names_of_moderation_are_known() {
    let server = every_task();
    let body = json!({"input": "a"});
    let plain = ask(&server, "/v1/moderations", &body, &json!({})).json();
    for name in [
        "omni-moderation-latest",
        "text-moderation-latest",
        "text-moderation-stable",
    ] {
        let named = ask(&server, "/v1/moderations", &body, &json!({"model": name}));
        assert_eq!(named.status, 200, "{name}: {}", named.body);
        assert_eq!(named.json()["results"], plain["results"], "{name}");
    }
    let other = ask(
        &server,
        "/v1/moderations",
        &body,
        &json!({"model": "moderation"}),
    );
    assert_eq!(other.status, 404);
}

#[test]
fn media_of_decisions_are_refused() {
    let server = every_task();
    let unsupported = (422, "unsupported_parameter");
    let state = json!({"state": "a", "questions": {"q": {"type": "noul", "instructions": "b"}}});
    let input = json!({"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]});
    for name in [
        "images",
        "image_url",
        "audio",
        "video",
        "videos",
        "assets",
        "media",
    ] {
        for (path, body) in [("/v1/systemone", &state), ("/v1/decisions", &input)] {
            refused(&server, path, body, json!({name: ["data:,"]}), unsupported);
            let empty = ask(&server, path, body, &json!({name: []}));
            assert_eq!(empty.status, 200, "{path} {name}: {}", empty.body);
        }
    }
    let parts = json!([{"type": "image_url", "image_url": {"url": "data:,"}}]);
    let message = json!([{"role": "user", "content": parts}]);
    refused(
        &server,
        "/v1/systemone",
        &state,
        json!({"state": parts}),
        unsupported,
    );
    refused(
        &server,
        "/v1/systemone",
        &state,
        json!({"state": message}),
        unsupported,
    );
    let answer = ask(&server, "/v1/decisions", &input, &json!({"input": message}));
    assert_eq!((answer.status, &*answer.reason()), unsupported);
    // Text about pictures is text.
    for text in [
        json!("{\"type\": \"image_url\"}"),
        json!({"image_url": "a", "type": "b"}),
    ] {
        let answer = ask(&server, "/v1/systemone", &state, &json!({"state": text}));
        assert_eq!(answer.status, 200, "{text}: {}", answer.body);
    }
}
