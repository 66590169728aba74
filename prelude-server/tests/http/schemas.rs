//! Schemas that are refused: by name, with the place, wherever a schema may come in.

use serde_json::{Value, json};

use crate::support::TestServer;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Each place where a schema may come in: the path, a body, and the field that errors name.
fn places(schema: &str) -> Vec<(&'static str, String, &'static str)> {
    let text = Value::from(schema);
    let lark = Value::from(format!("start: \"a\" b\nb: %json {schema}\n"));
    let prompt = r#""prompt": "Where is my", "max_tokens": 200, "temperature": 3, "seed": 1"#;
    let messages = r#""messages": [{"role": "user", "content": "a"}], "max_tokens": 200"#;
    let format = format!(
        r#""response_format": {{"type": "json_schema", "json_schema": {{"name": "n", "schema": {schema}}}}}"#
    );
    let tools = format!(
        r#""tools": [{{"type": "function", "function": {{"name": "f", "parameters": {schema}}}}}]"#
    );
    let json = "/structured_outputs/json";
    let in_format = "/response_format/json_schema/schema";
    let in_tool = "/tools/0/function/parameters";
    vec![
        (
            COMPLETIONS,
            format!(r#"{{{prompt}, "structured_outputs": {{"json": {schema}}}}}"#),
            json,
        ),
        (
            COMPLETIONS,
            format!(r#"{{{prompt}, "structured_outputs": {{"json": {text}}}}}"#),
            json,
        ),
        (
            COMPLETIONS,
            format!(r#"{{{prompt}, "structured_outputs": {{"grammar": {lark}}}}}"#),
            "/structured_outputs/grammar",
        ),
        (COMPLETIONS, format!("{{{prompt}, {format}}}"), in_format),
        (CHAT, format!("{{{messages}, {format}}}"), in_format),
        (
            CHAT,
            format!(r#"{{{messages}, {tools}, "tool_choice": "required"}}"#),
            in_tool,
        ),
    ]
}

/// Checks that a schema is refused in every place, and that the message has all of `words`.
fn refused(server: &TestServer, schema: &str, words: &[&str]) {
    for (path, body, param) in places(schema) {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let error = &answer.json()["error"];
        assert_eq!(
            (&error["reason"], &error["param"]),
            (&json!("grammar_error"), &json!(param)),
            "{body}: {error}"
        );
        let message = error["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{schema}: {message}");
        }
    }
    assert!(server.is_healthy());
}

/// Doubles do not hold these numbers, and at the end of 64 bits the compiler would not end.
#[test]
fn numbers_that_cannot_be_kept_are_refused_by_name() {
    let server = TestServer::demo();
    for (schema, keyword, place) in [
        (r#"{"const": -9223372036854775808}"#, "const", "/const"),
        (r#"{"const": 1234567890123456789}"#, "const", "/const"),
        (r#"{"enum": [1, -9223372036854775808]}"#, "enum", "/enum/1"),
        (
            r#"{"type": "integer", "minimum": -9223372036854775807, "maximum": -9223372036854775807}"#,
            "minimum",
            "/minimum",
        ),
        (
            r#"{"properties": {"a": {"items": {"maximum": 18446744073709551615}}}}"#,
            "maximum",
            "/properties/a/items/maximum",
        ),
        (
            r##"{"$defs": {"a": {"exclusiveMinimum": -1e308}}, "items": {"$ref": "#/$defs/a"}}"##,
            "exclusiveMinimum",
            "/$defs/a/exclusiveMinimum",
        ),
        (
            r#"{"const": {"a": [9007199254740993.0]}}"#,
            "const",
            "/const/a/0",
        ),
        (r#"{"multipleOf": 1e19}"#, "multipleOf", "/multipleOf"),
        (
            r#"{"type": "string", "maxLength": 9007199254740992}"#,
            "maxLength",
            "/maxLength",
        ),
        (r#"{"minimum": 5e-324}"#, "minimum", "/minimum"),
        // A reference may make a schema of anything.
        (
            r##"{"$ref": "#/x", "x": {"const": -9223372036854775808}}"##,
            "const",
            "/x/const",
        ),
    ] {
        let words = [format!("in `{keyword}`"), format!("at `{place}`")];
        refused(&server, schema, &[&words[0], &words[1]]);
    }
    // What no double holds at all is no JSON to anybody here.
    for (path, body, _) in places(r#"{"minimum": 1e400}"#) {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    }
    // Up to there numbers are exact.
    for number in [9_007_199_254_740_991_i64, -9_007_199_254_740_991] {
        let schema = json!({"const": number}).to_string();
        let (path, body, _) = &places(&schema)[0];
        let answer = server.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let text = answer.json()["choices"][0]["text"].clone();
        assert_eq!(text.as_str().unwrap().trim(), number.to_string());
    }
    server.settle();
}

#[test]
fn keywords_that_cannot_be_enforced_are_named_with_their_place() {
    let server = TestServer::demo();
    for (schema, words) in [
        (
            r#"{"properties": {"a": {"type": "string", "format": "banana"}}}"#,
            ["`format`", "at `/properties/a/format`"],
        ),
        (
            r##"{"items": {"$ref": "#/$defs/none"}, "$defs": {"some": {}}}"##,
            ["`$ref`", "at `/items/$ref`"],
        ),
        (
            r##"{"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "string", "pattern": "(?=b)c"}}}"##,
            ["`pattern`", "at `/$defs/a/pattern`"],
        ),
        (
            r#"{"anyOf": [{"type": "null"}, {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}]}"#,
            ["`oneOf`", "at `/anyOf/1/oneOf`"],
        ),
        (
            r#"{"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "boolean"}}}"#,
            ["`patternProperties`", "at `/patternProperties`"],
        ),
        // A property's name is not said twice, so that nothing could follow a comma.
        (
            r#"{"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"],
                "patternProperties": {"^score$": {"type": "integer"}}, "additionalProperties": false}"#,
            ["`patternProperties`", "at `/patternProperties`"],
        ),
        (
            r#"{"items": {"not": {"type": "null"}}}"#,
            ["\"not\"", "at `/items`"],
        ),
        (
            r#"{"items": {"if": {}, "then": {}}}"#,
            ["\"if\", \"then\"", "at `/items`"],
        ),
        (
            r#"{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 4}}}"#,
            ["`minimum`", "at `/properties/a/minimum`"],
        ),
        (
            r#"{"type": "string", "minLength": 1.5}"#,
            ["`minLength`", "at `/minLength`"],
        ),
    ] {
        refused(&server, schema, &words);
    }
    server.settle();
}
