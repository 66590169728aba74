//! Reading fields of JSON documents with errors that name the field.

use std::{io::ErrorKind, path::Path};

use serde_json::{Map, Value};

use crate::{Error, file};

/// Returns the bytes of a document beside the weights; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match file::read(path, file::DOCUMENT_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Parses a document as Python does: `NaN`, `Infinity` and `-Infinity`, which JSON does not have, are
/// the texts of these names, so that a field that must be a number is refused by name.
pub(crate) fn value(file: &str, bytes: &[u8]) -> Result<Value, Error> {
    let parsed = serde_json::from_slice(bytes);
    parsed
        .or_else(|e| match quoted(bytes) {
            Some(bytes) => serde_json::from_slice(&bytes),
            None => Err(e),
        })
        .map_err(|e| Error::Json {
            file: file.to_owned(),
            what: e.to_string(),
        })
}

/// Returns a document with quotes around Python's numbers that are none; `None` if it has no such.
fn quoted(bytes: &[u8]) -> Option<Vec<u8>> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut out = Vec::with_capacity(bytes.len() + 2);
    let (mut at, mut in_text, mut found) = (0, false, false);
    while let Some(&byte) = bytes.get(at) {
        let word = WORDS.iter().find(|word| bytes[at..].starts_with(word));
        let taken = match (in_text, byte, word) {
            (true, b'\\', _) => 2,
            (_, b'"', _) => {
                in_text = !in_text;
                1
            }
            (false, _, Some(word)) => {
                out.push(b'"');
                out.extend_from_slice(word);
                out.push(b'"');
                at += word.len();
                found = true;
                continue;
            }
            _ => 1,
        };
        let end = bytes.len().min(at + taken);
        out.extend_from_slice(&bytes[at..end]);
        at = end;
    }
    found.then_some(out)
}

/// Parses a document that is an object.
pub(crate) fn object(file: &str, bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    match value(file, bytes)? {
        Value::Object(map) => Ok(map),
        _ => Err(Error::Json {
            file: file.to_owned(),
            what: "not an object".to_owned(),
        }),
    }
}

/// An object whose fields are read one by one. `null` equals absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) file: &'a str,
    /// The path of the object in the document, such as `rope_scaling.`.
    pub(crate) path: &'a str,
    pub(crate) map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Returns the fields of a document's own object.
    pub(crate) const fn new(file: &'a str, map: &'a Map<String, Value>) -> Self {
        let path = "";
        Self { file, path, map }
    }

    /// Returns the fields of an object in the same document, whose path is `path`.
    pub(crate) const fn within<'b>(&self, path: &'b str, map: &'b Map<String, Value>) -> Fields<'b>
    where
        'a: 'b,
    {
        let file = self.file;
        Fields { file, path, map }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    /// Returns the error that `field` `what`.
    pub(crate) fn wrong(&self, field: &str, what: impl Into<String>) -> Error {
        Error::Field {
            file: self.file.to_owned(),
            field: format!("{}{field}", self.path),
            what: what.into(),
        }
    }

    /// Returns the error that `what` is not supported.
    pub(crate) fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::Unsupported {
            file: self.file.to_owned(),
            what: what.into(),
        }
    }

    fn read<T>(
        &self,
        field: &str,
        must: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        self.get(field)
            .map(|value| {
                read(value).ok_or_else(|| {
                    self.wrong(field, format!("must be {must}, not {}", short(value)))
                })
            })
            .transpose()
    }

    /// Returns a count from 1 to `max`.
    pub(crate) fn count(&self, field: &str, max: usize) -> Result<Option<usize>, Error> {
        self.read(field, &format!("an integer in 1..={max}"), |v| {
            let n = usize::try_from(v.as_u64()?).ok()?;
            (1..=max).contains(&n).then_some(n)
        })
    }

    /// Returns the value of a field that must be there.
    pub(crate) fn required<T>(&self, field: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.wrong(field, "is missing"))
    }

    /// Returns a count that must be there.
    pub(crate) fn required_count(&self, field: &str, max: usize) -> Result<usize, Error> {
        self.required(field, self.count(field, max)?)
    }

    /// Returns a finite number for which `ok` holds.
    pub(crate) fn number(
        &self,
        field: &str,
        must: &str,
        ok: impl FnOnce(f64) -> bool,
    ) -> Result<Option<f64>, Error> {
        self.read(field, must, |v| {
            v.as_f64().filter(|n| n.is_finite()).filter(|&n| ok(n))
        })
    }

    pub(crate) fn boolean(&self, field: &str) -> Result<Option<bool>, Error> {
        self.read(field, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, Error> {
        self.read(field, "a string", Value::as_str)
    }

    pub(crate) fn object(&self, field: &str) -> Result<Option<&'a Map<String, Value>>, Error> {
        self.read(field, "an object", Value::as_object)
    }

    pub(crate) fn array(&self, field: &str) -> Result<Option<&'a [Value]>, Error> {
        self.read(field, "a list", |v| v.as_array().map(Vec::as_slice))
    }

    /// Returns one token id or a list of them; absent is empty.
    pub(crate) fn token_ids(&self, field: &str) -> Result<Vec<u32>, Error> {
        let id = |v: &Value| u32::try_from(v.as_u64()?).ok();
        let ids = self.read(field, "a token id or a list of them", |v| match v {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

/// Returns a value as shown in a message: a hostile one may be megabytes long.
pub(crate) fn short(value: &Value) -> String {
    const SHOWN: usize = 60;
    let mut text = value.to_string();
    if text.len() > SHOWN {
        let mut cut = SHOWN;
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        text.truncate(cut);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_of_python_are_texts() {
        let check = |document: &str, expected: Value| {
            let found = value("f", document.as_bytes()).map_err(|e| e.to_string());
            assert_eq!(found, Ok(expected), "{document}");
        };
        check(
            r#"{"a": NaN, "b": [-Infinity, Infinity], "c": 1}"#,
            json!({"a": "NaN", "b": ["-Infinity", "Infinity"], "c": 1}),
        );
        check(
            r#"{"a \" NaN": "Infinity \\", "b": NaN}"#,
            json!({"a \" NaN": "Infinity \\", "b": "NaN"}),
        );
        check(r#"{"a": "NaN"}"#, json!({"a": "NaN"}));
        for wrong in [
            "{NaN",
            "{\"a\": Infinit}",
            "{\"a\": \"NaN",
            "\\",
            "\"NaN\\",
            "{\"a\": NaNNaN}",
        ] {
            assert!(value("f", wrong.as_bytes()).is_err(), "{wrong}");
        }
        let map = object("f", br#"{"hidden_size": Infinity}"#).unwrap();
        let fields = Fields::new("f", &map);
        let error = fields.count("hidden_size", 9).unwrap_err().to_string();
        assert!(
            error.contains("`hidden_size` must be an integer"),
            "{error}"
        );
    }
}
