//! Errors of reading a field, from serde's to the API's.

use std::fmt;

use serde::de;

use crate::error::ApiError;

/// Marks a message that says which type a value must have. serde's errors carry text alone.
const TYPE: char = '\u{1}';
/// Marks a message that says what a value of the right type must do.
const VALUE: char = '\u{2}';
/// Begins the message of a [`Json`](super::Json) object with two keys of one name.
pub(crate) const DUPLICATE: &str = "duplicate field";

/// Returns serde's error for a value of the wrong type; `be` completes "field `x` must be ..".
pub(crate) fn wrong_type<E: de::Error>(be: impl fmt::Display) -> E {
    E::custom(format_args!("{TYPE}{be}{TYPE}"))
}

/// Returns serde's error for a value that is not allowed; `must` completes "field `x` must ..".
pub(crate) fn wrong_value<E: de::Error>(must: impl fmt::Display) -> E {
    E::custom(format_args!("{VALUE}{must}{VALUE}"))
}

/// Returns the API's error for what serde said of the value at `path`. No text of the value or of
/// serde's message reaches the caller.
pub(super) fn of_serde(message: &str, path: String) -> ApiError {
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
    if let Some(name) = quoted_behind(message, "missing field ") {
        return ApiError::missing_field(format!("{}/{name}", pointer(&path)));
    }
    if message.starts_with(DUPLICATE) {
        let message = format!("an object in `{path}` has two fields of the same name");
        return ApiError::new(400, "duplicate_field", message).with_param(path);
    }
    if message.starts_with("unknown variant ") {
        return match message.split_once(", expected ") {
            Some((_, expected)) => ApiError::invalid_value(path, format!("be {}", cut(expected))),
            None => ApiError::invalid_value(path, "be one of the values that are allowed"),
        };
    }
    let expected = message.rsplit_once(", expected ");
    ApiError::invalid_type(path, words(expected.map_or("", |(_, words)| cut(words))))
}

/// Returns a path as a JSON pointer: fields of the body itself go without a slash.
fn pointer(path: &str) -> String {
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

/// Returns a message without the place that `serde_json` puts behind it.
fn cut(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(text, _)| text)
}

/// Returns JSON's word for what Rust's types expect.
fn words(expected: &str) -> &'static str {
    match expected {
        "a string" | "a borrowed string" => "a string",
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "i64" | "usize" => "an integer",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => "of another type",
    }
}
