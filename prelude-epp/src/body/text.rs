//! Strings of JSON without a copy.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{KeySink, fields::Part};

/// Returns the text of a JSON string, and nothing for other values.
pub(super) fn decoded(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inner = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    let mut bytes = Vec::with_capacity(inner.len());
    write_escaped(inner, &mut bytes);
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Writes the text of a string, or a value of another type as it is spelled.
pub(super) fn write_value(raw: &RawValue, sink: &mut impl KeySink) {
    let json = raw.get();
    match json.strip_prefix('"').and_then(|s| s.strip_suffix('"')) {
        Some(inner) => write_escaped(inner, sink),
        None => sink.push(json.as_bytes()),
    }
}

/// Writes a text, or a list of texts or of objects with a `text`, each with a line break behind it.
/// A list of numbers is written as it is spelled.
pub(super) fn write_texts(raw: &RawValue, sink: &mut impl KeySink) {
    let json = raw.get();
    let first = json.strip_prefix('[').map(str::trim_start);
    let is_list = first.is_some_and(|rest| rest.starts_with(['"', '{']));
    let list: Option<Vec<&RawValue>> = match is_list {
        true => serde_json::from_str(json).ok(),
        false => None,
    };
    match list {
        Some(list) => list.into_iter().for_each(|item| write_text(item, sink)),
        None => write_text(raw, sink),
    }
}

/// Writes a text, the `text` of an object, or another value as it is spelled, and a line break.
fn write_text(raw: &RawValue, sink: &mut impl KeySink) {
    let text = match raw.get().starts_with('{') {
        true => {
            serde_json::from_str::<Part<'_>>(raw.get())
                .unwrap_or_default()
                .text
        }
        false => None,
    };
    write_value(text.unwrap_or(raw), sink);
    sink.push(b"\n");
}

/// Writes what the inside of a JSON string stands for.
pub(super) fn write_escaped(mut rest: &str, sink: &mut impl KeySink) {
    while let Some((plain, escape)) = rest.split_once('\\') {
        sink.push(plain.as_bytes());
        rest = write_escape(escape, sink);
    }
    sink.push(rest.as_bytes());
}

/// Writes what an escape stands for, and returns the text behind it.
fn write_escape<'a>(escape: &'a str, sink: &mut impl KeySink) -> &'a str {
    let mut chars = escape.chars();
    let plain: &[u8] = match chars.next() {
        Some('n') => b"\n",
        Some('t') => b"\t",
        Some('r') => b"\r",
        Some('b') => b"\x08",
        Some('f') => b"\x0c",
        Some('u') => return write_code_unit(chars.as_str(), sink),
        Some(_) => &escape.as_bytes()[..escape.len() - chars.as_str().len()],
        None => b"",
    };
    sink.push(plain);
    chars.as_str()
}

/// Writes the character of one or two code units of UTF-16.
fn write_code_unit<'a>(digits: &'a str, sink: &mut impl KeySink) -> &'a str {
    let unit = |text: &str| u16::from_str_radix(text.get(..4)?, 16).ok();
    let Some(first) = unit(digits) else {
        return digits;
    };
    let mut rest = &digits[4..];
    let mut units = [first, 0];
    let mut count = 1;
    if (0xd800..0xdc00).contains(&first)
        && let Some(second) = rest.strip_prefix("\\u").and_then(unit)
        && (0xdc00..0xe000).contains(&second)
    {
        units[1] = second;
        count = 2;
        rest = &rest[6..];
    }
    for c in char::decode_utf16(units.into_iter().take(count)) {
        let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
        sink.push(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    rest
}
