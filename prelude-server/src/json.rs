//! Strict reading of JSON bodies, field by field, straight from the body's bytes.
//!
//! A body is split once into its top-level fields ([`Fields`]); a field's value stays raw text
//! until a getter asks for it in the type it should have. So a prompt of a million token ids is
//! parsed once, into a `Vec<u32>`, a long text is borrowed, and a `state` can be passed on with
//! its numbers spelled as they came.
//!
//! Rules of the API that live here: nesting of at most 64 levels, no duplicate keys, integers
//! are JSON integers, `null` equals absent, unknown fields are counted or refused.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    error::ApiError,
    wire::{DUPLICATE, Json, Text},
};

/// Fields one object may have, known or not. Far above any request's need; it bounds the work of
/// looking fields up.
const MAX_FIELDS: usize = 4_096;

/// Checks that `body` is UTF-8 and nests at most `max_depth` levels deep.
pub(crate) fn check_text(body: &[u8], max_depth: usize) -> Result<&str, ApiError> {
    let text = std::str::from_utf8(body).map_err(|e| {
        ApiError::invalid_json(format!(
            "the body is not UTF-8: invalid byte at offset {}",
            e.valid_up_to()
        ))
    })?;
    check_depth(text, max_depth)?;
    Ok(text)
}

/// One pass over the bytes; strings are skipped. Malformed text is left for the parser to find.
fn check_depth(text: &str, max_depth: usize) -> Result<(), ApiError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in text.as_bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > max_depth {
                    let message = format!("the body nests deeper than {max_depth} levels");
                    return Err(ApiError::new(400, "too_deep", message));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// The fields of one JSON object. Getters take fields out; what is left at the end is unknown.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// JSON pointer of the object; empty for the body itself.
    pointer: String,
    entries: Vec<Entry<'a>>,
    /// Of objects inside this one.
    pub(crate) unknown: Unknown,
    /// Names asked for so far, to be compared with the API's description.
    #[cfg(debug_assertions)]
    asked: Vec<String>,
}

/// Fields that nobody asked for, of objects inside another.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    /// How many.
    pub(crate) count: u64,
    /// The path of one of them.
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

    /// Adds what is left of `part`, all known fields of which have been taken.
    pub(crate) fn add(&mut self, part: &Fields<'_>) {
        for (name, _) in part.rest() {
            self.count += 1;
            self.first.get_or_insert_with(|| part.path(name));
        }
        self.count += part.unknown.count;
        if self.first.is_none() {
            self.first.clone_from(&part.unknown.first);
        }
    }
}

struct Entry<'a> {
    name: Cow<'a, str>,
    /// `None` once taken.
    raw: Option<&'a str>,
}

/// The field's name and how long its value is: what clients wrote belongs into no log.
impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.raw.map(str::len);
        write!(f, "{}: {bytes:?}", self.name.len())
    }
}

impl<'a> Fields<'a> {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// `invalid_json` with line and column, `invalid_type` if it is not an object,
    /// `duplicate_field`.
    pub(crate) fn from_body(text: &'a str) -> Result<Self, ApiError> {
        if text.trim_start().is_empty() {
            return Err(ApiError::invalid_json(
                "the body is empty; a JSON object is required",
            ));
        }
        Self::read(text, String::new())
    }

    /// Reads an object found at `pointer` inside a body.
    ///
    /// # Errors
    /// As [`Self::from_body`].
    pub(crate) fn at(pointer: String, raw: &'a str) -> Result<Self, ApiError> {
        Self::read(raw, pointer)
    }

    fn read(text: &'a str, pointer: String) -> Result<Self, ApiError> {
        let entries: RawEntries<'a> =
            serde_json::from_str(text).map_err(|e| describe(&e, text, &pointer))?;
        let entries = entries.0;
        if entries.len() > MAX_FIELDS {
            let message = format!("an object has more than {MAX_FIELDS} fields");
            return Err(ApiError::new(400, "too_many_fields", message).with_param(pointer));
        }
        let mut names: Vec<&str> = entries.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            return Err(duplicate(&pointer, twice[0]));
        }
        let entries = entries
            .into_iter()
            .map(|(name, raw)| Entry {
                name,
                raw: Some(raw.get()),
            })
            .collect();
        Ok(Self {
            pointer,
            entries,
            unknown: Unknown::default(),
            #[cfg(debug_assertions)]
            asked: Vec::new(),
        })
    }

    /// The name by which errors call field `name` of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.pointer.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.pointer)
        }
    }

    /// Takes a field as raw JSON text; `null` is `None`.
    pub(crate) fn raw(&mut self, name: &str) -> Option<&'a str> {
        #[cfg(debug_assertions)]
        self.asked.push(name.to_owned());
        self.take(name)
    }

    /// Fields asked for so far, those not counted that are only refused.
    #[cfg(debug_assertions)]
    pub(crate) fn asked(&self) -> &[String] {
        &self.asked
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let entry = self.entries.iter_mut().find(|e| e.name == name)?;
        entry.raw.take().filter(|raw| *raw != "null")
    }

    /// Whether a field is present and neither null nor taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        let present = |e: &Entry<'_>| e.name == name && e.raw.is_some_and(|raw| raw != "null");
        self.entries.iter().any(present)
    }

    /// Takes a field as `T`. `must_be` completes "field `x` must be ..".
    pub(crate) fn get<T: Deserialize<'a>>(
        &mut self,
        name: &str,
        must_be: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        match serde_json::from_str(raw) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(ApiError::invalid_type(self.path(name), must_be)),
        }
    }

    /// Takes a string.
    pub(crate) fn string(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, ApiError> {
        Ok(self.get::<Text<'a>>(name, "a string")?.map(|t| t.0))
    }

    /// Takes a boolean.
    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name, "true or false")
    }

    /// Takes an integer in `range`.
    pub(crate) fn int(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get::<i64>(name, "an integer")? else {
            return Ok(None);
        };
        if range.contains(&value) {
            return Ok(Some(value));
        }
        let (min, max) = range.into_inner();
        let must = match (min, max) {
            (i64::MIN, max) => format!("be at most {max}"),
            (min, i64::MAX) => format!("be at least {min}"),
            (min, max) => format!("be in {min}..={max}"),
        };
        Err(ApiError::invalid_value(self.path(name), must))
    }

    /// Takes a count: an integer in `range` of `u32`s.
    pub(crate) fn count(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<u32>,
    ) -> Result<Option<u32>, ApiError> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        let value = self.int(name, range)?;
        Ok(value.map(|v| u32::try_from(v).expect("the range lies within u32")))
    }

    /// Takes a number for which `ok` holds; `must` completes "field `x` must ..".
    pub(crate) fn number(
        &mut self,
        name: &str,
        ok: impl FnOnce(f64) -> bool,
        must: &str,
    ) -> Result<Option<f64>, ApiError> {
        match self.get::<f64>(name, "a number")? {
            Some(value) if !ok(value) => Err(ApiError::invalid_value(self.path(name), must)),
            value => Ok(value),
        }
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        let pointer = format!("{}/{name}", self.pointer);
        self.raw(name).map(|raw| Self::at(pointer, raw)).transpose()
    }

    /// Takes a list as the raw texts of its items.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<&'a RawValue>>, ApiError> {
        self.get(name, "a list")
    }

    /// Takes any JSON value, checking keys for duplicates at every level.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<Value>, ApiError> {
        let pointer = format!("{}/{name}", self.pointer);
        self.raw(name).map(|raw| value(raw, &pointer)).transpose()
    }

    /// Takes an object as a map.
    pub(crate) fn map(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.value(name)? {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(ApiError::invalid_type(self.path(name), "an object")),
        }
    }

    /// Takes a known field that is not implemented: refused unless absent, null or `neutral`
    /// (compact JSON texts).
    pub(crate) fn refuse(&mut self, name: &str, neutral: &[&str]) -> Result<(), ApiError> {
        match self.take(name) {
            Some(raw) if !neutral.contains(&raw) => {
                Err(ApiError::unsupported_parameter(self.path(name)))
            }
            _ => Ok(()),
        }
    }

    /// Takes a field whose value means nothing by contract.
    pub(crate) fn ignore(&mut self, name: &str) {
        let _ = self.raw(name);
    }

    /// Names and raw values not taken, in order, nulls included.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.entries
            .iter()
            .filter_map(|e| e.raw.map(|raw| (&*e.name, raw)))
    }

    /// Takes every remaining field with its value, in order: for objects whose keys are data.
    pub(crate) fn drain(self) -> impl Iterator<Item = (Cow<'a, str>, &'a str)> {
        self.entries
            .into_iter()
            .filter_map(|e| e.raw.map(|raw| (e.name, raw)))
    }
}

/// Parses JSON text into a value, refusing duplicate keys at any level.
pub(crate) fn value(raw: &str, pointer: &str) -> Result<Value, ApiError> {
    serde_json::from_str::<Json>(raw)
        .map(|s| s.0)
        .map_err(|e| match e.to_string() {
            text if text.starts_with(DUPLICATE) => ApiError::new(
                400,
                "duplicate_field",
                format!("an object in `{pointer}` has two fields of the same name"),
            )
            .with_param(pointer.to_owned()),
            _ => describe(&e, raw, pointer),
        })
}

/// Parses the raw text of a list item or field already known to be JSON.
pub(crate) fn parse<T: DeserializeOwned>(
    raw: &str,
    pointer: &str,
    must_be: &str,
) -> Result<T, ApiError> {
    serde_json::from_str(raw).map_err(|_| ApiError::invalid_type(pointer.to_owned(), must_be))
}

/// Says where a text stops being JSON, in our words.
fn describe(error: &serde_json::Error, text: &str, pointer: &str) -> ApiError {
    use serde_json::error::Category;
    let at = format!("line {}, column {}", error.line(), error.column());
    let whose = if pointer.is_empty() {
        "the body"
    } else {
        pointer
    };
    match error.classify() {
        Category::Eof => ApiError::invalid_json(format!("{whose} is not JSON: it ends at {at}")),
        // The only data error of a map of raw values is that the text is not a map.
        Category::Data if !text.trim_start().starts_with('{') => {
            let error = ApiError::new(
                400,
                "invalid_type",
                format!("{whose} must be a JSON object"),
            );
            if pointer.is_empty() {
                error
            } else {
                error.with_param(pointer.to_owned())
            }
        }
        _ => ApiError::invalid_json(format!("{whose} is not JSON: error at {at}")),
    }
}

fn duplicate(pointer: &str, name: &str) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    let path = if pointer.is_empty() {
        shown
    } else {
        format!("{pointer}/{shown}")
    };
    let message = format!("field `{path}` appears twice");
    ApiError::new(400, "duplicate_field", message).with_param(path)
}

struct RawEntries<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for RawEntries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawEntries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((name, raw)) = map.next_entry::<Text<'de>, &RawValue>()? {
                    entries.push((name.0, raw));
                }
                Ok(RawEntries(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, reason: &str, message_has: &str) {
        let read = check_text(body.as_bytes(), 4).and_then(|text| {
            let mut fields = Fields::from_body(text)?;
            fields.string("s")?;
            fields.int("i", 0..=9)?;
            fields.bool("b")?;
            fields.number("f", |f| f > 0.0, "be above 0")?;
            fields.value("v")?;
            fields.refuse("r", &["[]", "1"])?;
            fields
                .object("o")?
                .map(|mut o| o.int("x", 0..=1))
                .transpose()?;
            Ok(())
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
        check(r#"{"s":"a","i":3,"b":true,"f":2,"v":[{"a":1}]}"#, "ok", "");
        check(r#"{"s":null,"i":null,"unknown":{"x":[]}}"#, "ok", "");
        check("", "invalid_json", "empty");
        check("{", "invalid_json", "ends at line 1, column 1");
        check("{\"s\":tru}", "invalid_json", "line 1");
        check("{} x", "invalid_json", "column 4");
        check("[]", "invalid_type", "the body must be a JSON object");
        check("3", "invalid_type", "the body must be a JSON object");
        check(r#"{"i":1.0}"#, "invalid_type", "`i` must be an integer");
        check(r#"{"i":1e2}"#, "invalid_type", "`i` must be an integer");
        check(r#"{"i":"1"}"#, "invalid_type", "`i` must be an integer");
        check(r#"{"i":10}"#, "invalid_value", "`i` must be in 0..=9");
        check(r#"{"i":99999999999999999999}"#, "invalid_type", "integer");
        check(r#"{"b":1}"#, "invalid_type", "`b` must be true or false");
        check(r#"{"f":-1}"#, "invalid_value", "`f` must be above 0");
        check(r#"{"f":1e999}"#, "invalid_type", "number");
        check(
            r#"{"s":"a","s":"b"}"#,
            "duplicate_field",
            "`s` appears twice",
        );
        check(r#"{"s":"a","\u0073":"b"}"#, "duplicate_field", "`s`");
        check(r#"{"v":[{"a":1,"a":2}]}"#, "duplicate_field", "`/v`");
        check(r#"{"v":[[[[]]]]}"#, "too_deep", "4 levels");
        check(r#"{"v":[[["]]]][[["]]]}"#, "ok", "");
        check(r#"{"r":[]}"#, "ok", "");
        check(r#"{"r":2}"#, "unsupported_parameter", "`r`");
        check(r#"{"s":"\ud800"}"#, "invalid_type", "`s` must be a string");
        check(r#"{"o":{"x":2}}"#, "invalid_value", "`/o/x` must be");
        check(r#"{"o":[]}"#, "invalid_type", "/o must be a JSON object");
    }

    #[test]
    fn borrows_plain_strings_and_decodes_escapes() {
        let mut fields = Fields::from_body(r#"{"plain":"über","escaped":"\u00fcber\n"}"#).unwrap();
        let plain = fields.string("plain").unwrap().unwrap();
        assert!(matches!(plain, Cow::Borrowed("über")));
        assert_eq!(fields.string("escaped").unwrap().unwrap(), "über\n");
        assert_eq!(fields.rest().count(), 0);
    }

    #[test]
    fn what_is_not_utf8_is_named_by_offset() {
        let error = check_text(b"{\"s\":\"\xff\"}", 64).unwrap_err();
        assert_eq!(error.reason(), "invalid_json");
        assert!(error.message().contains("offset 6"));
    }
}
