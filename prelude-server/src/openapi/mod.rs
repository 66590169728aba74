//! `/openapi.json`: the API as OpenAPI 3.1, made from the routes and the wire types.
//!
//! Bodies are described by the types that are read and written. Statuses follow from what an endpoint needs.

mod statuses;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    endpoints::{
        chat, classify, completions, decisions, embeddings, health, models, pooling, rerank, score,
        systemone, tokenize,
    },
    routes::{Endpoint, Needs, ROUTES, Route},
};

const SCHEMAS: &str = "/components/schemas";

/// The whole document.
pub(crate) fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.definitions_path = SCHEMAS.into();
        s.meta_schema = None;
    });
    let mut asked = settings.clone().for_deserialize().into_generator();
    let mut answered = settings.for_serialize().into_generator();
    let mut paths = Map::new();
    for route in ROUTES {
        let item = paths.entry(template(route)).or_insert_with(|| json!({}));
        let operation = operation(route, &mut asked, &mut answered);
        if route.method == "GET" {
            let mut head = operation.clone();
            head["operationId"] = format!("head_{}", identifier(route.path)).into();
            without_bodies(&mut head);
            item["head"] = head;
        }
        item[route.method.to_lowercase()] = operation;
    }
    statuses::schemas(&mut answered);
    let mut schemas = asked.take_definitions(true);
    for (name, schema) in answered.take_definitions(true) {
        let twice = schemas.insert(name, schema.clone());
        debug_assert!(
            twice.is_none_or(|other| other == schema),
            "two types of one name"
        );
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Prelude",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Decisions made by language models, and text beside them. A null field \
                is an absent one. Fields that nobody knows are ignored, unless the header \
                `x-prelude-strict: 1` asks for them to be refused.",
            "license": {
                "name": "MIT OR Apache-2.0",
                "identifier": env!("CARGO_PKG_LICENSE"),
            },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": statuses::headers(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    })
}

/// `/v1/models/*` with a name for what the star stands for.
fn template(route: &Route) -> String {
    route.path.replace('*', "{id}")
}

fn identifier(path: &str) -> String {
    let name = path.replace(['/', '.'], "_").replace('*', "id");
    name.trim_start_matches('_').to_owned()
}

fn operation(route: &Route, asked: &mut SchemaGenerator, answered: &mut SchemaGenerator) -> Value {
    let endpoint = route.endpoint;
    let (tag, summary) = words(endpoint);
    let mut operation = json!({
        "operationId": identifier(route.path),
        "tags": [tag],
        "summary": summary,
        "parameters": parameters(route),
        "responses": statuses::responses(route, answer(endpoint, answered)),
    });
    if let Some(schema) = request(endpoint, asked) {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": schema } },
        });
    }
    if !endpoint.is_open(false) {
        operation["security"] = json!([{ "bearer": [] }, { "key": [] }]);
    }
    operation
}

fn parameters(route: &Route) -> Value {
    let header = |name: &str, schema: Value, description: &str| json!({ "name": name, "in": "header", "schema": schema, "description": description });
    let mut list = vec![header(
        "X-Request-Id",
        json!({ "type": "string" }),
        "Echoed if it is 1 to 128 of `[A-Za-z0-9._:-]`, else replaced.",
    )];
    if route.endpoint.needs() == Needs::Queue {
        list.push(header(
            "x-slo-ttft-ms",
            json!({ "type": "integer", "minimum": 1, "maximum": 86_400_000 }),
            "As the field `slo_ttft_ms`; the smaller wins.",
        ));
    }
    if route.method == "POST" {
        list.push(header(
            "x-prelude-strict",
            json!({ "type": "string" }),
            "`1` refuses fields that nobody knows.",
        ));
    }
    if route.path.ends_with('*') {
        list.push(json!({
            "name": "id", "in": "path", "required": true,
            "schema": { "type": "string", "minLength": 1 },
            "description": "A served name.",
        }));
    }
    list.into()
}

/// What a HEAD is answered has no body.
fn without_bodies(operation: &mut Value) {
    let responses = operation["responses"].as_object_mut();
    for response in responses.into_iter().flat_map(Map::values_mut) {
        if let Some(response) = response.as_object_mut() {
            response.remove("content");
        }
    }
}

/// Group and summary.
fn words(endpoint: Endpoint) -> (&'static str, &'static str) {
    match endpoint {
        Endpoint::Completions => ("text", "Continue prompts, or score them"),
        Endpoint::Chat => ("text", "Answer a conversation"),
        Endpoint::Embeddings => ("vectors", "Embed texts"),
        Endpoint::Classify => ("decisions", "Classify texts"),
        Endpoint::Score => ("decisions", "Score labels, or pairs of texts"),
        Endpoint::GenerativeScoring => ("decisions", "Score the first label behind each item"),
        Endpoint::Rerank | Endpoint::RerankV2 => ("decisions", "Order documents by relevance"),
        Endpoint::Pooling => ("vectors", "Vectors or classes, by what the model is"),
        Endpoint::SystemOne => ("decisions", "Answer typed questions about a state"),
        Endpoint::Decisions => ("decisions", "Answer typed questions, in OpenAI's shape"),
        Endpoint::Tokenize => ("tokens", "Text to token ids"),
        Endpoint::Detokenize => ("tokens", "Token ids to text"),
        Endpoint::TokenizerInfo => ("tokens", "Special tokens and the chat template"),
        Endpoint::Models => ("models", "What is served"),
        Endpoint::Model => ("models", "One of the served models"),
        Endpoint::Health => ("state", "Whether work is accepted"),
        Endpoint::Ready => ("state", "Whether work is accepted, with what is served"),
        Endpoint::Live => ("state", "Whether the process is worth keeping"),
        Endpoint::Version => ("state", "What runs here"),
        Endpoint::Metrics => ("state", "Metrics as Prometheus text"),
        Endpoint::OpenApi => ("state", "This document"),
    }
}

/// A request's body, if the endpoint takes one.
fn request(endpoint: Endpoint, g: &mut SchemaGenerator) -> Option<Schema> {
    Some(match endpoint {
        Endpoint::Completions => g.subschema_for::<completions::CompletionRequest<'_>>(),
        Endpoint::Chat => g.subschema_for::<chat::ChatRequest<'_>>(),
        Endpoint::Embeddings => g.subschema_for::<embeddings::EmbeddingRequest<'_>>(),
        Endpoint::Classify => g.subschema_for::<classify::ClassifyRequest<'_>>(),
        Endpoint::Score => g.subschema_for::<score::ScoreRequest<'_>>(),
        Endpoint::GenerativeScoring => g.subschema_for::<score::GenerativeScoringRequest<'_>>(),
        Endpoint::Rerank | Endpoint::RerankV2 => g.subschema_for::<rerank::RerankRequest<'_>>(),
        Endpoint::Pooling => g.subschema_for::<pooling::PoolingRequest<'_>>(),
        Endpoint::SystemOne => g.subschema_for::<systemone::SystemOneRequest<'_>>(),
        Endpoint::Decisions => g.subschema_for::<decisions::DecisionRequest<'_>>(),
        Endpoint::Tokenize => g.subschema_for::<tokenize::TokenizeRequest<'_>>(),
        Endpoint::Detokenize => g.subschema_for::<tokenize::DetokenizeRequest<'_>>(),
        Endpoint::TokenizerInfo
        | Endpoint::Models
        | Endpoint::Model
        | Endpoint::Health
        | Endpoint::Ready
        | Endpoint::Live
        | Endpoint::Version
        | Endpoint::Metrics
        | Endpoint::OpenApi => return None,
    })
}

/// The body of a success: its media type and schema, in one form or two.
type Bodies = Vec<(&'static str, Schema)>;

const JSON: &str = "application/json";

fn answer(endpoint: Endpoint, g: &mut SchemaGenerator) -> Bodies {
    fn one<T: JsonSchema>(g: &mut SchemaGenerator) -> Bodies {
        vec![(JSON, g.subschema_for::<T>())]
    }
    fn any(of: &[Schema]) -> Bodies {
        vec![(JSON, schemars::json_schema!({ "anyOf": of }))]
    }
    let text = || schemars::json_schema!({ "type": "string" });
    let events = |mut bodies: Bodies, chunk: &str| {
        // Of no type: to some tools a stream is one text, to others each event is an object.
        let mut schema = schemars::json_schema!({});
        let what = format!(
            "Events `data: {chunk}`, one for each piece of the answer, the last `data: [DONE]`."
        );
        schema.insert("description".to_owned(), what.into());
        bodies.push(("text/event-stream", schema));
        bodies
    };
    match endpoint {
        Endpoint::Completions => events(one::<completions::Body<'_>>(g), "<Completion>"),
        Endpoint::Chat => {
            // Chunks are described although no media type can name them.
            g.subschema_for::<chat::Body<'_, chat::ChunkBody<'_>>>();
            events(
                one::<chat::Body<'_, chat::ChoiceBody<'_>>>(g),
                "<ChatChunk>",
            )
        }
        Endpoint::Embeddings => one::<embeddings::Response<'_>>(g),
        Endpoint::Classify => one::<classify::Response<'_>>(g),
        Endpoint::Score => any(&[
            g.subschema_for::<score::Response<'_>>(),
            g.subschema_for::<score::ListResponse<'_>>(),
        ]),
        Endpoint::GenerativeScoring => one::<score::ListResponse<'_>>(g),
        Endpoint::Rerank => any(&[
            g.subschema_for::<rerank::Body<'_>>(),
            g.subschema_for::<Vec<rerank::TeiBody<'_>>>(),
        ]),
        Endpoint::RerankV2 => any(&[
            g.subschema_for::<rerank::CohereBody<'_>>(),
            g.subschema_for::<Vec<rerank::TeiBody<'_>>>(),
        ]),
        Endpoint::Pooling => one::<pooling::Response<'_>>(g),
        Endpoint::SystemOne => one::<systemone::Response<'_>>(g),
        Endpoint::Decisions => one::<decisions::Response<'_>>(g),
        Endpoint::Tokenize => any(&[
            g.subschema_for::<tokenize::Tokens<'_>>(),
            g.subschema_for::<Vec<tokenize::Tokens<'_>>>(),
        ]),
        Endpoint::Detokenize => one::<tokenize::Detokenized<'_>>(g),
        Endpoint::TokenizerInfo => one::<tokenize::Info<'_>>(g),
        Endpoint::Models => one::<models::List<'_>>(g),
        Endpoint::Model => one::<models::Described<'_>>(g),
        Endpoint::Health | Endpoint::Live => Vec::new(),
        Endpoint::Ready => one::<health::Readiness<'_>>(g),
        Endpoint::Version => one::<health::Version>(g),
        Endpoint::Metrics => vec![("text/plain", text())],
        Endpoint::OpenApi => vec![(JSON, schemars::json_schema!({ "type": "object" }))],
    }
}

/// Names of the fields that a request's body may have.
#[cfg(test)]
fn fields(endpoint: Endpoint) -> Vec<String> {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|s| s.inline_subschemas = true)
        .into_generator();
    let schema = request(endpoint, &mut generator);
    let schema = schema.unwrap_or_default();
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.map_or_else(Vec::new, |p| p.keys().cloned().collect())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod validate;
