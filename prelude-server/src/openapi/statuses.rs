//! The statuses, bodies and headers that an operation may be answered with.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::JSON;
use crate::{
    endpoint::{Bodies, Endpoint, Needs},
    error::Dialect,
};

/// A refusal or failure.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "described, never built: errors are written in error.rs"
)]
struct ErrorResponse {
    error: ErrorObject,
}

#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "described, never built: errors are written in error.rs"
)]
struct ErrorObject {
    message: String,
    /// `BadRequestError` and the like, by status.
    r#type: String,
    /// The field that is meant: its name, or a JSON pointer.
    param: Option<String>,
    /// The status.
    code: u16,
    /// A slug that does not change.
    reason: String,
}

/// The body of an error on the System One routes.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "described, never built: errors are written in error.rs"
)]
struct SystemOneErrorResponse {
    error: ErrorObject,
    detail: SystemOneDetail,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(
    dead_code,
    reason = "described, never built: errors are written in error.rs"
)]
enum SystemOneDetail {
    /// A body of 422: each fault and its place.
    Validation(Vec<ValidationDetail>),
    Other {
        error_type: String,
        message: String,
    },
}

#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "described, never built: errors are written in error.rs"
)]
struct ValidationDetail {
    loc: Vec<Value>,
    msg: String,
    r#type: String,
}

/// The body of an error to a request with `texts` on the rerank routes.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "described, never built: errors are written in error.rs"
)]
struct TeiErrorResponse {
    error: String,
    /// `Validation`, `Tokenizer`, `Overloaded`, `Backend` or `Unhealthy`.
    error_type: String,
}

/// Adds the bodies of errors to the generator's definitions.
pub(super) fn schemas(generator: &mut SchemaGenerator) {
    generator.subschema_for::<ErrorResponse>();
    generator.subschema_for::<SystemOneErrorResponse>();
    generator.subschema_for::<TeiErrorResponse>();
}

fn named(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// Returns the body that an endpoint's errors have.
fn error_schema(endpoint: &Endpoint) -> Value {
    let of = |dialect| match dialect {
        Dialect::OpenAi => named("ErrorResponse"),
        Dialect::SystemOne => named("SystemOneErrorResponse"),
        Dialect::Tei => named("TeiErrorResponse"),
    };
    match endpoint.other_dialect {
        None => of(endpoint.dialect),
        Some(other) => json!({ "anyOf": [of(endpoint.dialect), of(other)] }),
    }
}

/// Returns every status that a route may be answered with.
pub(super) fn responses(endpoint: &Endpoint, answer: Bodies) -> Value {
    let mut responses = Map::new();
    let mut headers = vec!["X-Request-Id"];
    if endpoint.needs == Needs::Queue {
        headers.extend(INFERENCE.iter().map(|(name, ..)| name));
    }
    let mut success = json!({ "description": "Success.", "headers": refer(&headers) });
    if !answer.is_empty() {
        let bodies = answer.into_iter();
        let content = bodies.map(|(media, schema)| (media.to_owned(), json!({ "schema": schema })));
        success["content"] = content.collect::<Map<_, _>>().into();
    }
    responses.insert("200".to_owned(), success);
    for (status, description) in STATUSES {
        if !is_possible(*status, endpoint) {
            continue;
        }
        let mut headers = vec!["X-Request-Id"];
        match status {
            401 => headers.push("WWW-Authenticate"),
            405 => headers.push("Allow"),
            429 => headers.extend(["Retry-After", "retry-after-ms", "x-should-retry"]),
            503 => headers.extend(["Retry-After", "retry-after-ms"]),
            _ => {}
        }
        let response = json!({
            "description": description,
            "headers": refer(&headers),
            "content": { JSON: { "schema": error_schema(endpoint) } },
        });
        responses.insert(status.to_string(), response);
    }
    responses.into()
}

const STATUSES: &[(u16, &str)] = &[
    (
        400,
        "The request is wrong: HTTP, JSON, a field, a length, a deadline.",
    ),
    (401, "The key is missing or wrong."),
    (
        403,
        "The request is addressed to a name that is not the server's, or comes from a page of \
         another origin.",
    ),
    (404, "No such model."),
    (405, "The path has other methods."),
    (
        408,
        "The client did not finish sending in time; the connection closes.",
    ),
    (
        413,
        "The body is too large; on the System One routes also a state and question too long.",
    ),
    (414, "The request target is too long."),
    (
        415,
        "The body is said not to be JSON, or packed otherwise than by gzip.",
    ),
    (
        422,
        "The request has what is not served, such as images; on the System One routes also \
         whatever else is wrong with it.",
    ),
    (
        429,
        "Shed: the queue is full, or the deadline cannot be met.",
    ),
    (431, "Too many or too large headers."),
    (
        500,
        "The step that computed this request failed, or there is a bug.",
    ),
    (503, "This process is not in service now."),
];

fn is_possible(status: u16, endpoint: &Endpoint) -> bool {
    let is_post = endpoint.method == "POST";
    match status {
        401 => !endpoint.is_open(false),
        404 => is_post || endpoint.route().ends_with('*'),
        415 => is_post,
        422 => endpoint.dialect == Dialect::SystemOne || endpoint.route() == "/v1/decisions",
        // Bodies in flight are bounded too, those of routes that ask no engine not excepted.
        429 => is_post,
        _ => true,
    }
}

/// Headers of every answer that an engine gave.
const INFERENCE: &[(&str, &str, &str)] = &[
    (
        "x-prelude-fingerprint",
        "string",
        "Names the model's weights and head, its dtype and the program's version, as `system_fingerprint`.",
    ),
    (
        "x-prelude-revision",
        "string",
        "The model's commit on the Hub. Absent if its folder is none of the Hub's cache.",
    ),
    (
        "x-prelude-class",
        "string",
        "`oneshot`: one forward pass and no more; `decode`: a text that grew.",
    ),
    (
        "x-prelude-prompt-tokens",
        "integer",
        "Tokens of the prompts, each prompt once.",
    ),
    (
        "x-prelude-truncated",
        "integer",
        "Prompts of whose texts tokens were cut off. Absent where none was.",
    ),
    (
        "x-prelude-cached-tokens",
        "integer",
        "Of these, read from the prefix cache.",
    ),
    (
        "x-prelude-computed-tokens",
        "integer",
        "Really run: neither cached nor shared inside the request.",
    ),
    (
        "x-prelude-queue-ms",
        "number",
        "From arrival at the engine to the first step. Not on streams that go on after their head.",
    ),
    (
        "x-prelude-exec-ms",
        "number",
        "From the first step to the end. Not on streams that go on after their head.",
    ),
];

const OTHERS: &[(&str, &str, &str)] = &[
    ("WWW-Authenticate", "string", "`Bearer`."),
    ("Allow", "string", "The methods of the path."),
    (
        "Retry-After",
        "integer",
        "Seconds after which to try again.",
    ),
    ("retry-after-ms", "integer", "The same in milliseconds."),
    (
        "x-should-retry",
        "string",
        "`false` where trying again cannot help.",
    ),
];

/// Returns every header by name.
pub(super) fn headers() -> Value {
    let mut headers = Map::new();
    let id = json!({
        "description": "The request's id: the client's, or the server's.",
        "required": true,
        "schema": { "type": "string" },
    });
    headers.insert("X-Request-Id".to_owned(), id);
    for (name, kind, description) in INFERENCE.iter().chain(OTHERS) {
        let header = json!({ "description": description, "schema": { "type": kind } });
        headers.insert((*name).to_owned(), header);
    }
    headers.into()
}

fn refer(names: &[&str]) -> Value {
    let header = |name: &&str| {
        let reference = format!("#/components/headers/{name}");
        ((*name).to_owned(), json!({ "$ref": reference }))
    };
    names.iter().map(header).collect::<Map<_, _>>().into()
}
