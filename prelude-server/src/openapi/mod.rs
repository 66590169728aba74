//! `/openapi.json`: the API as OpenAPI 3.1, made from the routes and the wire types.
//!
//! Bodies are described by the types that are read and written. Statuses follow from what an endpoint needs.

mod page;
mod statuses;

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

pub(crate) use self::page::page;
use crate::endpoint::{Bodies, Endpoint, Needs};

const SCHEMAS: &str = "/components/schemas";

/// Returns the whole document.
pub(crate) fn document(endpoints: &[&Endpoint]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.definitions_path = SCHEMAS.into();
        s.meta_schema = None;
    });
    let mut asked = settings.clone().for_deserialize().into_generator();
    let mut answered = settings.for_serialize().into_generator();
    let mut paths = Map::new();
    for (endpoint, path) in endpoints
        .iter()
        .flat_map(|e| e.paths.iter().map(move |p| (*e, *p)))
    {
        let item = paths.entry(template(path)).or_insert_with(|| json!({}));
        let operation = operation(endpoint, path, &mut asked, &mut answered);
        if endpoint.method == "GET" {
            let mut head = operation.clone();
            head["operationId"] = format!("head_{}", identifier(path)).into();
            without_bodies(&mut head);
            item["head"] = head;
        }
        item[endpoint.method.to_lowercase()] = operation;
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
                is an absent one. Unknown fields are ignored, unless the header \
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

/// Returns a path such as `/v1/models/*` with a name for what the star stands for.
fn template(path: &str) -> String {
    path.replace('*', "{id}")
}

fn identifier(path: &str) -> String {
    let name = path.replace(['/', '.'], "_").replace('*', "id");
    match name.trim_start_matches('_') {
        "" => "root".to_owned(),
        name => name.to_owned(),
    }
}

fn operation(
    endpoint: &Endpoint,
    path: &str,
    asked: &mut SchemaGenerator,
    answered: &mut SchemaGenerator,
) -> Value {
    let mut operation = json!({
        "operationId": identifier(path),
        "tags": [endpoint.group],
        "summary": endpoint.summary,
        "parameters": parameters(endpoint),
        "responses": statuses::responses(endpoint, (endpoint.responses)(answered)),
    });
    let mut bodies: Vec<_> = { endpoint.requests.iter() }
        .map(|body| (body.schema)(asked))
        .collect();
    if let Some(first) = bodies.pop() {
        let schema = match bodies.is_empty() {
            true => first,
            false => {
                bodies.push(first);
                schemars::json_schema!({ "anyOf": bodies })
            }
        };
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

fn parameters(endpoint: &Endpoint) -> Value {
    let header = |name: &str, schema: Value, description: &str| json!({ "name": name, "in": "header", "schema": schema, "description": description });
    let mut list = vec![header(
        "X-Request-Id",
        json!({ "type": "string" }),
        "Echoed if it is 1 to 128 of `[A-Za-z0-9._:-]`, else replaced.",
    )];
    if endpoint.needs == Needs::Queue {
        list.push(header(
            "x-slo-ttft-ms",
            json!({ "type": "integer", "minimum": 1, "maximum": 86_400_000 }),
            "As the field `slo_ttft_ms`; the smaller wins.",
        ));
    }
    if endpoint.method == "POST" {
        list.push(header(
            "x-prelude-strict",
            json!({ "type": "string", "enum": ["0", "1"] }),
            "`1` refuses unknown fields.",
        ));
    }
    if endpoint.route().ends_with('*') {
        list.push(json!({
            "name": "id", "in": "path", "required": true,
            "schema": { "type": "string", "minLength": 1 },
            "description": "A served name.",
        }));
    }
    list.into()
}

/// Removes the bodies of an operation: the answer to a HEAD has none.
fn without_bodies(operation: &mut Value) {
    let responses = operation["responses"].as_object_mut();
    for response in responses.into_iter().flat_map(Map::values_mut) {
        if let Some(response) = response.as_object_mut() {
            response.remove("content");
        }
    }
}

/// Returns the description of the document itself.
pub(crate) fn of_itself(_: &mut SchemaGenerator) -> Bodies {
    vec![(JSON, schemars::json_schema!({ "type": "object" }))]
}

const JSON: &str = "application/json";

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::right;
#[cfg(test)]
pub(crate) mod validate;
