//! The schema of a function's call: its parameters' schema, one level down.

use serde_json::{Map, Value, json};

/// The place of the parameters' schema in the call's.
const PLACE: &str = "#/properties/arguments";

/// Returns a call of the function `name` as a schema: `{"name": .., "arguments": ..}`. References
/// within the parameters go on meaning what they meant when those were a schema of their own.
pub(super) fn of(name: &Value, parameters: &Value) -> Value {
    let mut parameters = match parameters {
        Value::Object(schema) => schema.clone(),
        _ => Map::from_iter([("type".to_owned(), json!("object"))]),
    };
    let mut root = Map::new();
    // The dialect is the document's. A name would make the parameters a document of their own.
    if let Some(dialect) = parameters.shift_remove("$schema") {
        root.insert("$schema".to_owned(), dialect);
    }
    parameters.shift_remove("$id");
    move_references(&mut parameters);
    root.insert("type".to_owned(), json!("object"));
    root.insert(
        "properties".to_owned(),
        json!({"name": {"const": name}, "arguments": parameters}),
    );
    root.insert("required".to_owned(), json!(["name", "arguments"]));
    root.insert("additionalProperties".to_owned(), json!(false));
    Value::Object(root)
}

/// Makes references to places in a schema follow it to [`PLACE`]. Those to anchors and to other
/// documents stay.
fn move_references(schema: &mut Map<String, Value>) {
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("$ref", Value::String(to)) => {
                if let Some(pointer) = to.strip_prefix('#')
                    && (pointer.is_empty() || pointer.starts_with('/'))
                {
                    *to = format!("{PLACE}{pointer}");
                }
            }
            // The values of these keywords are data, not schemas.
            ("enum" | "const" | "default" | "examples", _) => {}
            // The keys of these keywords' objects are names, not keywords.
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
                | "dependencies",
                Value::Object(named),
            ) => named.values_mut().for_each(in_value),
            (_, value) => in_value(value),
        }
    }
}

/// Moves the references in a schema, in a list of schemas, or in a keyword's value that a reference
/// may point into.
fn in_value(value: &mut Value) {
    match value {
        // A schema with an id is a document of its own: its references start there.
        Value::Object(schema) if schema.get("$id").is_some_and(Value::is_string) => {}
        Value::Object(schema) => move_references(schema),
        Value::Array(schemas) => schemas.iter_mut().for_each(in_value),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parameters: Value, expected: Value) {
        let call = of(&json!("f"), &parameters);
        assert_eq!(call["properties"]["arguments"], expected, "{parameters}");
    }

    #[test]
    fn references_follow_their_schema() {
        check(json!({"$ref": "#"}), json!({"$ref": PLACE}));
        check(
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}}, "anyOf": [{"$ref": "#/properties/x"}]}),
            json!({"$defs": {"a": {"$ref": "#/properties/arguments/$defs/b"}},
                "anyOf": [{"$ref": "#/properties/arguments/properties/x"}]}),
        );
        // Also those in places that only references know.
        check(
            json!({"parts": {"a": {"items": {"$ref": "#/parts/b"}}}}),
            json!({"parts": {"a": {"items": {"$ref": "#/properties/arguments/parts/b"}}}}),
        );
    }

    #[test]
    fn values_that_are_no_references_stay() {
        for schema in [
            json!({"properties": {"$ref": {"const": "#"}}}),
            json!({"const": {"$ref": "#"}, "default": {"$ref": "#"}}),
            json!({"enum": [{"$ref": "#/x"}], "examples": [{"$ref": "#/x"}]}),
            json!({"items": {"$ref": "#anchor"}, "not": {"$ref": "http://a/b#/c"}}),
            json!({"$defs": {"a": {"$id": "http://a/b", "items": {"$ref": "#/x"}}}}),
        ] {
            check(schema.clone(), schema);
        }
        // A property may be called like a keyword whose value is no schema.
        check(
            json!({"properties": {"const": {"$ref": "#/x"}, "$ref": {"$ref": "#"}}}),
            json!({"properties": {"const": {"$ref": "#/properties/arguments/x"},
                "$ref": {"$ref": PLACE}}}),
        );
    }
}
