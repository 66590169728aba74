//! The JSON text of a body, and its top-level fields.
//!
//! A body is split once into its fields ([`Fields`]); a field's value stays raw text until a
//! group takes it in the type it should have. So a prompt of a million token ids is parsed once,
//! into a `Vec<u32>`, a long text is borrowed, and a `state` can be passed on with its numbers
//! spelled as they came.
//!
//! Rules of the API that live here: bounds on nesting, values and fields, no duplicate keys, `null`
//! equals absent, unknown fields are counted or refused.

use std::{borrow::Cow, fmt};

use serde_json::{error::Category, value::RawValue};

use super::{Json, Members, fault::cut, from_raw};
use crate::{
    dialects::{self, Effect, Table},
    error::ApiError,
};

/// Most fields of a body, known or not: far above any request's need.
const MAX_FIELDS: usize = 4_096;

/// Most values of one text, token ids aside: far above any request's need. As many take 208 MiB
/// where they become trees for templates and grammars.
const MAX_VALUES: u64 = 1 << 18;

/// Fields of a body whose lists of numbers are token ids. They become four bytes each, and are
/// bounded by the body's bytes alone.
const IDS: [&str; 6] = ["prompt", "input", "inputs", "query", "items", "tokens"];

/// Takes room for so many values before they are made.
pub(crate) type Room<'a> = &'a dyn Fn(u64) -> Result<(), ApiError>;

/// Checks that `body` is UTF-8, nests at most `max_depth` levels deep and has no more values than
/// one request may have and there is `room` for. Whatever is read from a body, trees of values
/// included, is read after this.
///
/// # Errors
/// 400 `invalid_json`, `too_deep` or `too_many_values`, and those of `room`.
pub(crate) fn check_text<'a>(
    body: &'a [u8],
    max_depth: usize,
    room: Room<'_>,
) -> Result<&'a str, ApiError> {
    let text = std::str::from_utf8(body).map_err(|e| {
        ApiError::invalid_json(format!(
            "the body is not UTF-8: invalid byte at offset {}",
            e.valid_up_to()
        ))
    })?;
    let values = count_values(text, max_depth)?;
    if values > MAX_VALUES {
        let message = format!(
            "the body has more than {MAX_VALUES} JSON values (members of lists and objects, token \
             ids aside): send it in several requests"
        );
        return Err(ApiError::new(400, "too_many_values", message));
    }
    room(values)?;
    Ok(text)
}

/// Returns how many values a text has, [token ids](IDS) aside, and checks how deep it nests, in one
/// pass over the bytes; strings are skipped. Malformed text is left for the parser to find. An empty
/// list or object counts as two.
fn count_values(text: &str, max_depth: usize) -> Result<u64, ApiError> {
    let bytes = text.as_bytes();
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let mut values = 1;
    // The place of the last string outside of which the pass is, without its quotes.
    let mut string = 0..0;
    // True inside of a field of ids; the depth up to which there are only lists.
    let (mut is_ids, mut lists) = (false, 1);
    for (at, &byte) in bytes.iter().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    in_string = false;
                    string.end = at;
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => {
                in_string = true;
                string = at + 1..at + 1;
                values += u64::from(is_ids && depth > 1 && depth == lists);
            }
            b',' => values += u64::from(!(is_ids && depth > 1 && depth == lists)),
            b':' if depth == 1 => is_ids = IDS.contains(&&text[string.clone()]),
            b'{' | b'[' => {
                if byte == b'[' && depth == lists {
                    lists += 1;
                }
                depth += 1;
                values += 1;
                if depth > max_depth {
                    let message = format!("the body nests deeper than {max_depth} levels");
                    return Err(ApiError::new(400, "too_deep", message));
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                lists = lists.min(depth.max(1));
            }
            _ => {}
        }
    }
    Ok(values)
}

/// The fields of a body. Groups take fields out; those that are left at the end are unknown.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    entries: Vec<Entry<'a>>,
    /// Unknown fields of objects inside the body.
    pub(crate) unknown: Unknown,
}

/// Fields that no type of a request has, of objects inside the body.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    /// The number of unknown fields.
    pub(crate) count: u64,
    /// The JSON pointer of one of the unknown fields.
    pub(crate) first: Option<String>,
}

impl Unknown {
    /// Adds `count` fields, the first of them at `first`.
    pub(crate) fn note(&mut self, count: u64, first: Option<String>) {
        self.count += count;
        if self.first.is_none() {
            self.first = first;
        }
    }
}

struct Entry<'a> {
    name: Cow<'a, str>,
    /// `None` once taken.
    raw: Option<&'a str>,
}

/// The lengths of the field's name and value: what clients wrote belongs into no log.
impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.raw.map(str::len);
        write!(f, "{}: {bytes:?}", self.name.len())
    }
}

impl<'a> Fields<'a> {
    /// Splits the body of a request.
    ///
    /// # Errors
    /// `invalid_json` with line and column, `invalid_type` if it is not an object,
    /// `duplicate_field`, `too_many_fields`.
    pub(crate) fn from_body(text: &'a str) -> Result<Self, ApiError> {
        if text.trim_start().is_empty() {
            let message = "the body is empty; a JSON object is required";
            return Err(ApiError::invalid_json(message));
        }
        let Members(entries) = serde_json::from_str(text).map_err(|e| {
            // The only data error of a map of raw values is that the text is not a map.
            match e.is_data() && !text.trim_start().starts_with('{') {
                true => ApiError::new(400, "invalid_type", "the body must be a JSON object"),
                false => not_json(&e, "the body"),
            }
        })?;
        if entries.len() > MAX_FIELDS {
            let message = format!("the body has more than {MAX_FIELDS} fields");
            return Err(ApiError::new(400, "too_many_fields", message));
        }
        let mut names: Vec<&str> = entries.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            let name: String = twice[0].chars().take(64).collect();
            let message = format!("field `{name}` appears twice");
            return Err(ApiError::new(400, "duplicate_field", message).with_param(name));
        }
        let entry = |(name, raw): (Cow<'a, str>, &'a RawValue)| Entry {
            name,
            raw: Some(raw.get()),
        };
        Ok(Self {
            entries: entries.into_iter().map(entry).collect(),
            unknown: Unknown::default(),
        })
    }

    /// Takes a field as raw JSON text; `null` is `None`.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a str> {
        let entry = self.entries.iter_mut().find(|e| e.name == name)?;
        entry.raw.take().filter(|raw| *raw != "null")
    }

    /// Returns a field that is not taken as raw JSON text.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a str> {
        let entry = self.entries.iter().find(|e| e.name == name)?;
        entry.raw
    }

    /// Returns the bytes of all values that are not taken.
    pub(crate) fn bytes(&self) -> usize {
        let values = self.entries.iter().filter_map(|entry| entry.raw);
        values.map(str::len).sum()
    }

    /// Returns true if a field is present, and neither null nor taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        let present = |e: &Entry<'_>| e.name == name && e.raw.is_some_and(|raw| raw != "null");
        self.entries.iter().any(present)
    }

    /// Returns true if a field is present and not taken, even if it is null.
    pub(crate) fn names(&self, name: &str) -> bool {
        let present = |e: &Entry<'_>| e.name == name && e.raw.is_some();
        self.entries.iter().any(present)
    }

    /// Takes the fields that a request's tables know and its type does not: those without an
    /// effect, and those that are refused. To be called when the request has taken its own, so that
    /// a body with nothing else costs nothing.
    ///
    /// # Errors
    /// 400 `unsupported_parameter`.
    pub(crate) fn settle(&mut self, tables: &[Table]) -> Result<(), ApiError> {
        for entry in &mut self.entries {
            let Some(raw) = entry.raw else { continue };
            let Some(field) = dialects::row(tables, &entry.name) else {
                continue;
            };
            let is_given = |neutral: &[&str]| raw != "null" && !neutral.contains(&raw);
            match field.effect {
                Effect::Refused(neutral) if is_given(neutral) => {
                    return Err(ApiError::refused_field(entry.name.to_string(), field.note));
                }
                Effect::Foreign(neutral) if is_given(neutral) => {
                    return Err(ApiError::unsupported_parameter(entry.name.to_string()));
                }
                Effect::Refused(_) | Effect::Foreign(_) | Effect::NoEffect => entry.raw = None,
                // Left behind by a request that was not read to its end.
                Effect::Obeyed | Effect::Cut => {}
            }
        }
        Ok(())
    }

    /// Returns names and raw values not taken, in order, nulls included.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.entries
            .iter()
            .filter_map(|e| e.raw.map(|raw| (&*e.name, raw)))
    }
}

/// Parses text that should be JSON, as the field `param` holds it.
///
/// # Errors
/// `invalid_json`, `too_deep`, `too_many_values` or `duplicate_field`, naming `param`, and those of
/// `room`.
pub(crate) fn parse_text(
    text: &str,
    max_depth: usize,
    param: &'static str,
    room: Room<'_>,
) -> Result<Json, ApiError> {
    check_text(text.as_bytes(), max_depth, room).map_err(|e| e.with_param(param))?;
    let raw: &RawValue =
        serde_json::from_str(text).map_err(|e| not_json(&e, param).with_param(param))?;
    from_raw(raw.get(), param, &mut Unknown::default())
}

/// Says where a text stops being JSON, and why. What `serde_json` says of the syntax repeats
/// nothing of the text.
fn not_json(error: &serde_json::Error, what: &str) -> ApiError {
    let at = format!("line {}, column {}", error.line(), error.column());
    let said = error.to_string();
    ApiError::invalid_json(match error.classify() {
        Category::Eof => format!("{what} is not JSON: it ends at {at}"),
        Category::Syntax => format!("{what} is not JSON: {} at {at}", cut(&said)),
        Category::Data | Category::Io => format!("{what} is not JSON: error at {at}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::table;

    table! {
        KNOWN "Known";
        Obeyed ["o"] "" "";
        NoEffect ["n"] "" "";
        Refused("[]", "1") ["q", "r"] "" "there is a reason";
    }

    fn check(body: &str, reason: &str, message_has: &str) {
        let read = check_text(body.as_bytes(), 4, &|_| Ok(())).and_then(|text| {
            let mut fields = Fields::from_body(text)?;
            fields.settle(&[KNOWN])
        });
        let (found, message) = match &read {
            Ok(()) => ("ok", ""),
            Err(e) => (e.reason(), e.message()),
        };
        assert_eq!(found, reason, "{body}: {message}");
        assert!(message.contains(message_has), "{body}: {message}");
    }

    #[test]
    fn refuses_by_name() {
        check(r#"{"s":null,"i":null,"unknown":{"x":[]}}"#, "ok", "");
        check("", "invalid_json", "empty");
        check("{", "invalid_json", "ends at line 1, column 1");
        check("{\"s\":tru}", "invalid_json", "expected ident at line 1");
        let comma = "the body is not JSON: trailing comma at line 1, column 10";
        check("{\"s\":\"a\",}", "invalid_json", comma);
        check("{\"s\":NaN}", "invalid_json", "expected value at line 1");
        check("{} more", "invalid_json", "trailing characters at line 1");
        check("{} x", "invalid_json", "column 4");
        check("[]", "invalid_type", "the body must be a JSON object");
        check("3", "invalid_type", "the body must be a JSON object");
        check(
            r#"{"s":"a","s":"b"}"#,
            "duplicate_field",
            "`s` appears twice",
        );
        check(r#"{"s":"a","\u0073":"b"}"#, "duplicate_field", "`s`");
        check(r#"{"v":[[[[]]]]}"#, "too_deep", "4 levels");
        check(r#"{"v":[[["]]]][[["]]]}"#, "ok", "");
        check(r#"{"r":[]}"#, "ok", "");
        check(r#"{"r":2}"#, "unsupported_parameter", "`r`");
        check(r#"{"n":2,"q":1,"r":true}"#, "unsupported_parameter", "`r`");
        check(r#"{"\u0072":2}"#, "unsupported_parameter", "a reason");
        check(r#"{"r":null,"n":{},"o":2}"#, "ok", "");
    }

    #[test]
    fn values_are_counted_before_they_are_made() {
        let check = |text: &str, expected: u64| {
            assert_eq!(count_values(text, 8).unwrap(), expected, "{text}");
        };
        check("1", 1);
        check(r#"{"a":1,"b":"c,[{","d":null}"#, 4);
        check(r#"{"messages":[0,0,0]}"#, 5);
        check(r#"{"tools":[{"":0},{"":0}]}"#, 6);
        // Ids are as good as free, in one list or in several, and nothing else is.
        check(r#"{"prompt":[1,2,3,4],"n":[1,2]}"#, 6);
        check(r#"{ "prompt" : [ [1,2] , [3,4,5] ] }"#, 5);
        check(r#"{"prompt":["a" , "b"]}"#, 5);
        check(r#"{"prompt":[{"x":[1,2,3]}]}"#, 7);
        check(r#"{"x":[1,2,3],"prompt":1}"#, 6);
        check(r#"{"x":{"prompt":[1,2,3]}}"#, 6);
        check(r#"{"\"prompt":[1,2,3]}"#, 5);
    }

    #[test]
    fn no_tree_is_made_without_room() {
        let list = |values: u64| format!("[{}]", vec!["0"; values as usize - 1].join(","));
        let check = |text: &str, room: u64, expected: &str| {
            let room = |values| match values <= room {
                true => Ok(()),
                false => Err(ApiError::internal("no room")),
            };
            let parsed = parse_text(text, 8, "p", &room);
            let found = parsed.as_ref().map_or_else(ApiError::reason, |_| "ok");
            assert_eq!(found, expected);
        };
        check(&list(10), 10, "ok");
        check(&list(10), 9, "internal");
        check(&list(MAX_VALUES), MAX_VALUES, "ok");
        check(&list(MAX_VALUES + 1), u64::MAX, "too_many_values");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_named_by_offset() {
        let error = check_text(b"{\"s\":\"\xff\"}", 64, &|_| Ok(())).unwrap_err();
        assert_eq!(error.reason(), "invalid_json");
        assert!(error.message().contains("offset 6"));
    }
}
