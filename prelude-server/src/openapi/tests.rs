use std::collections::BTreeSet;

use super::*;
use crate::{
    routes::ENDPOINTS,
    testing::{ask_strictly, every_task},
};

fn paths() -> impl Iterator<Item = (&'static Endpoint, &'static str)> {
    let of = |endpoint: &'static Endpoint| endpoint.paths.iter().map(move |path| (endpoint, *path));
    ENDPOINTS.iter().flat_map(move |endpoint| of(endpoint))
}

/// Returns the names of the fields that a request's body may have.
fn fields(endpoint: &Endpoint) -> Vec<String> {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|s| s.inline_subschemas = true)
        .into_generator();
    let bodies = endpoint.requests.iter();
    let schemas = bodies.map(|body| (body.schema)(&mut generator));
    let names = schemas.flat_map(|schema| {
        let properties = schema.get("properties").and_then(Value::as_object);
        properties.map_or_else(Vec::new, |p| p.keys().cloned().collect())
    });
    let names: BTreeSet<String> = names.collect();
    names.into_iter().collect()
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let document = document(ENDPOINTS);
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            described.insert((path.clone(), method.to_uppercase()));
            assert!(operation["responses"]["200"].is_object(), "{path}");
            let has_body = operation["requestBody"].is_object();
            assert_eq!(has_body, method == "post", "{method} {path}");
        }
    }
    let mut routes = BTreeSet::new();
    for (endpoint, path) in paths() {
        routes.insert((template(path), endpoint.method.to_owned()));
        if endpoint.method == "GET" {
            routes.insert((template(path), "HEAD".to_owned()));
        }
    }
    assert_eq!(described, routes);
}

#[test]
fn operations_have_names_of_their_own_and_references_lead_somewhere() {
    fn walk(document: &Value, value: &Value, names: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(to)) = object.get("$ref") {
                    let pointer = to.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{to}");
                }
                if let Some(Value::String(name)) = object.get("operationId") {
                    assert!(names.insert(name.clone()), "{name} twice");
                }
                object.values().for_each(|v| walk(document, v, names));
            }
            Value::Array(list) => list.iter().for_each(|v| walk(document, v, names)),
            _ => {}
        }
    }
    let document = document(ENDPOINTS);
    let mut names = BTreeSet::new();
    walk(&document, &document, &mut names);
    assert!(names.len() > paths().count(), "{names:?}");
}

/// Returns requests that are right, one for each way in which an endpoint is asked.
pub(crate) fn right(endpoint: &Endpoint) -> Vec<Value> {
    let messages = json!([{"role": "user", "content": "a"}]);
    match endpoint.route() {
        "/v1/completions" => vec![json!({"prompt": "a"})],
        "/v1/chat/completions" => vec![json!({"messages": messages})],
        "/tokenize" => vec![json!({"messages": messages}), json!({"prompt": "a"})],
        "/classify" => vec![
            json!({"input": "a", "model": "demo-classifier"}),
            json!({"messages": messages, "model": "demo-classifier"}),
            json!({"input": "a", "labels": ["b", "c"], "model": "demo-lm"}),
            json!({"inputs": "a", "model": "demo-classifier"}),
        ],
        "/pooling" => vec![
            json!({"input": "a", "model": "demo-classifier"}),
            json!({"messages": messages, "model": "demo-classifier"}),
            json!({"input": "a", "labels": ["b", "c"], "model": "demo-lm"}),
            json!({"input": "a", "model": "demo-lm"}),
        ],
        "/v1/moderations" => vec![
            json!({"input": "a", "model": "demo-classifier"}),
            json!({"input": ["a"], "model": "demo-lm", "labels": ["safe", "unsafe"]}),
            json!({"input": [{"type": "text", "text": "a"}], "model": "demo-classifier"}),
        ],
        "/v1/embeddings" => vec![json!({"input": "a"}), json!({"messages": messages})],
        "/embed" | "/embed_all" => vec![json!({"inputs": "a"})],
        "/predict" => vec![json!({"inputs": "a", "model": "demo-classifier"})],
        "/similarity" => {
            vec![json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}})]
        }
        "/score" => vec![
            json!({"query": "a", "items": ["b"], "label_token_ids": [1]}),
            json!({"text_1": "a", "text_2": ["b"]}),
        ],
        "/v2/embed" => vec![json!({"texts": ["a"]})],
        "/rerank" | "/v2/rerank" => vec![
            json!({"query": "a", "documents": ["b"]}),
            json!({"query": "a", "texts": ["b"]}),
        ],
        "/v1/systemone" => {
            vec![json!({"state": "a", "questions": {"q": {"type": "noul", "instructions": "b"}}})]
        }
        "/v1/systemone/permute" => vec![json!({
            "request": {"state": "a", "questions": {"q": {"type": "choice", "criteria": {"b": null, "c": null}}}},
            "question": "q",
        })],
        "/v1/decisions" => {
            vec![json!({"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]})]
        }
        "/detokenize" => vec![json!({"tokens": [1]})],
        other => panic!("{other} takes no body"),
    }
}

/// A request that is right but for one field, which has a value that no field takes: that it is
/// complained of shows that the field is read.
#[test]
fn every_described_field_is_read() {
    let app = every_task();
    let mut checked = 0;
    for (endpoint, path) in paths().filter(|(endpoint, _)| endpoint.method == "POST") {
        for name in fields(endpoint) {
            // These take anything, or any object.
            if matches!(&*name, "chat_template_kwargs" | "state" | "instructions") {
                continue;
            }
            let mut found = Vec::new();
            let is_read = right(endpoint).into_iter().any(|mut body| {
                body[&name] = json!({"no": [{"such": "value"}]});
                let (status, answer) = ask_strictly(app, path, &body);
                let error = &answer["error"];
                let param = error["param"].as_str().unwrap_or_default();
                // A member that an object does not know is complained of as `/name/member`.
                let is_unknown = error["reason"] == "unknown_field" && !param.starts_with('/');
                let is_complained_of = matches!(status, 400 | 422)
                    && !is_unknown
                    && param.trim_start_matches('/').starts_with(&*name);
                // The TEI dialect names fields in its message alone.
                let message = error.as_str().unwrap_or_default();
                let names = [format!("`{name}`"), format!("`/{name}/")];
                let is_named = status == 400 && names.iter().any(|name| message.contains(name));
                let is_read = is_complained_of || (is_named && !message.contains("is unknown"));
                found.push(answer);
                is_read
            });
            assert!(is_read, "{} does not read {name}: {found:?}", path);
            checked += 1;
        }
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn a_wrong_answer_is_noticed() {
    let document = document(ENDPOINTS);
    let check = |path: &str, status, body: Value, ok: bool| {
        let found = validate::check(&document, "POST", path, status, &body);
        assert_eq!(found.is_ok(), ok, "{path} {status} {body}: {found:?}");
    };
    let tokens = json!({"count": 1, "max_model_len": 2, "tokens": [3], "token_strs": null});
    check("/tokenize", 200, tokens.clone(), true);
    check("/tokenize", 200, json!([tokens]), true);
    check("/tokenize", 200, json!({"count": 1}), false);
    check("/tokenize", 200, json!([{"count": "1"}]), false);
    let error = json!({"error": {"message": "a", "type": "b", "param": null, "code": 400,
        "reason": "c"}});
    check("/tokenize", 400, error.clone(), true);
    check("/tokenize", 422, error.clone(), false);
    check("/v1/systemone", 422, error, false);
    check("/nowhere", 200, json!({}), false);
}
