//! Holds an answer against the document: as much of JSON Schema as the document uses. A keyword
//! that is not known here fails, so that nothing goes unchecked.

use serde_json::Value;

/// Checks that `body`, sent with `status` to a request of `path`, is as the document says.
///
/// # Errors
/// The part that differs, and its place.
pub(crate) fn check(
    document: &Value,
    method: &str,
    path: &str,
    status: u16,
    body: &Value,
) -> Result<(), String> {
    let path = match path.strip_prefix("/v1/models/") {
        Some(_) => "/v1/models/{id}",
        None => path,
    };
    let operation = &document["paths"][path][method.to_lowercase()];
    let response = &operation["responses"][status.to_string()];
    if !response.is_object() {
        return Err(format!(
            "{method} {path} is not described as answering {status}"
        ));
    }
    let schema = &response["content"]["application/json"]["schema"];
    if !schema.is_object() {
        return Err(format!(
            "{method} {path} is not described as answering {status} with JSON"
        ));
    }
    valid(document, schema, body, "").map_err(|e| format!("{method} {path} {status}: {e}"))
}

fn valid(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let object = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(object) => object,
        other => return Err(format!("{at}: no schema: {other}")),
    };
    for (keyword, rule) in object {
        let ok = match &**keyword {
            "title" | "description" | "format" | "default" => true,
            "$ref" => {
                let pointer = rule.as_str().and_then(|r| r.strip_prefix('#'));
                let target = pointer.and_then(|p| document.pointer(p));
                let target = target.ok_or_else(|| format!("{at}: nothing at {rule}"))?;
                valid(document, target, value, at)?;
                true
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind, value)),
                kind => is_a(kind, value),
            },
            "anyOf" | "oneOf" => {
                let fits = |rule: &&Value| valid(document, rule, value, at).is_ok();
                let count = rule
                    .as_array()
                    .map_or(0, |of| of.iter().filter(fits).count());
                count == 1 || (count > 1 && keyword == "anyOf")
            }
            "const" => rule == value,
            "enum" => rule.as_array().is_some_and(|of| of.contains(value)),
            "required" => rule.as_array().is_some_and(|names| {
                let has = |name: &Value| value.get(name.as_str().unwrap_or_default()).is_some();
                !value.is_object() || names.iter().all(has)
            }),
            "properties" => {
                for (name, rule) in rule.as_object().into_iter().flatten() {
                    if let Some(value) = value.get(name) {
                        valid(document, rule, value, &format!("{at}/{name}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = object.get("properties").and_then(Value::as_object);
                for (name, value) in value.as_object().into_iter().flatten() {
                    if !known.is_some_and(|known| known.contains_key(name)) {
                        valid(document, rule, value, &format!("{at}/{name}"))?;
                    }
                }
                true
            }
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    valid(document, rule, value, &format!("{at}/{index}"))?;
                }
                true
            }
            "maxItems" => value
                .as_array()
                .is_none_or(|v| Some(v.len() as u64) <= rule.as_u64()),
            "minimum" => value.as_f64().is_none_or(|v| Some(v) >= rule.as_f64()),
            "maximum" => value.as_f64().is_none_or(|v| Some(v) <= rule.as_f64()),
            other => return Err(format!("{at}: a schema has `{other}`, unknown here")),
        };
        if !ok {
            let shown: String = value.to_string().chars().take(120).collect();
            return Err(format!("{at}: {shown} is not `{keyword}` {rule}"));
        }
    }
    Ok(())
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
