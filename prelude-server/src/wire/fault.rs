//! Errors of reading a field, from serde's to the API's.

use std::fmt;

use serde::de;

use super::escaped;
use crate::error::ApiError;

/// Marks a message that says which type a value must have. serde's errors carry text alone.
const TYPE: char = '\u{1}';
/// Marks a message that says what a value of the right type must do.
const VALUE: char = '\u{2}';
/// The message for a value that is known and not implemented.
const UNSUPPORTED: &str = "\u{3}unsupported";
/// The words for a string that is JSON and no text.
pub(crate) const NO_TEXT: &str =
    "not have half of a surrogate pair (\\ud800 to \\udfff) in a string";
/// Begins the message of a [`Json`](super::Json) object with two keys of one name.
pub(super) const DUPLICATE: &str = "duplicate field";

/// Returns serde's error for a value of the wrong type; `be` completes "field `x` must be ..".
pub(crate) fn wrong_type<E: de::Error>(be: impl fmt::Display) -> E {
    E::custom(format_args!("{TYPE}{be}{TYPE}"))
}

/// Returns serde's error for a value that is not allowed; `must` completes "field `x` must ..".
pub(crate) fn wrong_value<E: de::Error>(must: impl fmt::Display) -> E {
    E::custom(format_args!("{VALUE}{must}{VALUE}"))
}

/// Returns serde's error for a value that is known and not implemented.
pub(crate) fn unsupported<E: de::Error>() -> E {
    E::custom(UNSUPPORTED)
}

/// Returns the API's error for what serde said of the value at `path`. No text of the value or of
/// serde's message reaches the caller.
pub(super) fn of_serde(message: &str, path: String) -> ApiError {
    // Only these two repeat a client's text as it is, so they are looked for first.
    if message.starts_with("unknown variant ") {
        return ApiError::invalid_value(path, format!("be {}", names(message)));
    }
    if let Some(name) = quoted_behind(message, "unknown field ") {
        let (path, name) = (pointer(&path), escaped(name));
        return match path.ends_with(&format!("/{name}")) {
            true => ApiError::unsupported_parameter(path),
            false => ApiError::unsupported_parameter(format!("{path}/{name}")),
        };
    }
    let marked = |mark: char| {
        let (_, rest) = message.split_once(mark)?;
        rest.split_once(mark).map(|(text, _)| text.to_owned())
    };
    if let Some(be) = marked(TYPE) {
        return ApiError::invalid_type(path, &be);
    }
    if let Some(must) = marked(VALUE) {
        return ApiError::invalid_value(path, must);
    }
    if message.starts_with(UNSUPPORTED) {
        return ApiError::unsupported_parameter(path);
    }
    if let Some(name) = quoted_behind(message, "missing field ") {
        return ApiError::missing_field(format!("{}/{name}", pointer(&path)));
    }
    if message.starts_with(DUPLICATE) {
        let message = format!("an object in `{path}` has two fields of the same name");
        return ApiError::new(400, "duplicate_field", message).with_param(path);
    }
    // The body is JSON, so this alone can be wrong with a string in it.
    let half = ["lone leading surrogate", "unexpected end of hex escape"];
    if half.iter().any(|half| message.starts_with(half)) {
        return ApiError::invalid_value(path, NO_TEXT);
    }
    let expected = message.rsplit_once(", expected ");
    let expected = expected.map_or("of another type", |(_, words)| cut(words));
    let is_integer = message.starts_with("invalid value: integer ");
    match expected {
        "u32" if is_integer => {
            ApiError::invalid_type(path, &format!("an integer from 0 to {}", u32::MAX))
        }
        _ => ApiError::invalid_type(path, words(expected)),
    }
}

/// Returns a path as a JSON pointer: fields of the body itself go without a slash.
pub(super) fn pointer(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    }
}

/// Returns what stands in backquotes behind `start`.
fn quoted_behind<'m>(message: &'m str, start: &str) -> Option<&'m str> {
    let rest = message.strip_prefix(start)?.strip_prefix('`')?;
    rest.split_once('`').map(|(name, _)| name)
}

/// Returns the names that serde expected in place of an unknown one, as a list in words.
fn names(message: &str) -> String {
    let expected = message
        .rsplit_once(", expected ")
        .map_or("", |(_, names)| names);
    // Names stand in backquotes, so every second part is one.
    let quoted = |name: &str| format!("\"{name}\"");
    let names: Vec<String> = expected.split('`').skip(1).step_by(2).map(quoted).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "one of the values that are served".to_owned(),
    }
}

/// Returns a message without the place that `serde_json` puts behind it.
pub(super) fn cut(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(text, _)| text)
}

/// Returns JSON's word for what Rust's types expect; other texts are those of our own visitors.
fn words(expected: &str) -> &str {
    match expected {
        "a string" | "a borrowed string" => "a string",
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "i64" | "usize" => "an integer",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    }
}
