//! The raw shape of `tokenizer.json`, before anything is checked against anything.

pub(crate) mod one_pass_model;
pub(crate) mod one_pass_scanner;

use crate::error::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The whole file. Unknown fields are ignored, as the reference ignores them. Serialized, it is the
/// configuration of a compiled tokenizer, without the vocabulary and the merges.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct File<'a> {
    #[serde(default)]
    pub(crate) version: Option<String>,
    #[serde(default)]
    pub(crate) truncation: Option<Value>,
    #[serde(default)]
    pub(crate) padding: Option<Value>,
    #[serde(default)]
    pub(crate) added_tokens: Vec<AddedTokenJson>,
    #[serde(default)]
    pub(crate) normalizer: Option<Component>,
    #[serde(default)]
    pub(crate) pre_tokenizer: Option<Component>,
    #[serde(default)]
    pub(crate) post_processor: Option<Component>,
    #[serde(default)]
    pub(crate) decoder: Option<Component>,
    #[serde(borrow)]
    pub(crate) model: ModelJson<'a>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct AddedTokenJson {
    pub(crate) id: u32,
    pub(crate) content: String,
    pub(crate) single_word: bool,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
    pub(crate) special: bool,
}

/// A model of any type. Models other than BPE have other fields, so nothing is required here.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ModelJson<'a> {
    #[serde(default, rename = "type")]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) dropout: Option<f64>,
    #[serde(default)]
    pub(crate) unk_token: Option<String>,
    #[serde(default)]
    pub(crate) fuse_unk: Option<bool>,
    #[serde(default)]
    pub(crate) byte_fallback: Option<bool>,
    #[serde(default)]
    pub(crate) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(crate) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(crate) ignore_merges: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_input_chars_per_word: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unk_id: Option<u64>,
    #[serde(default, borrow, skip_serializing)]
    pub(crate) vocab: Option<&'a RawValue>,
    #[serde(default, borrow, skip_serializing)]
    pub(crate) merges: Option<&'a RawValue>,
}

impl<'a> ModelJson<'a> {
    /// Returns the vocabulary and the merges, which a BPE model must have.
    pub(crate) fn vocab_and_merges(&self) -> Result<(&'a RawValue, &'a RawValue), Error> {
        self.vocab.zip(self.merges).ok_or_else(|| {
            let problem = "a BPE model needs a map \"vocab\" and a list \"merges\"";
            Error::invalid("$.model", problem)
        })
    }
}

/// Reads a value that `serde_json` found to be well-formed: only types are checked. The two big values of a file are read this way, entry by entry, so that
/// nothing of their size is kept beside the tables that are made of them.
#[derive(Debug)]
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(value: &'a RawValue) -> Self {
        Self {
            text: value.get(),
            at: 0,
        }
    }

    /// Returns the first byte of the next token.
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(self.at) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// Steps over `byte` if it comes next, and returns true if it did.
    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Reads a string. Returns `None` if the next value is of another type.
    fn string(&mut self) -> Result<Option<Cow<'a, str>>, serde_json::Error> {
        if !self.take(b'"') {
            return Ok(None);
        }
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut escaped = false;
        loop {
            match bytes.get(self.at) {
                Some(b'"') | None => break,
                Some(b'\\') => {
                    escaped = true;
                    self.at += 2;
                }
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        if escaped {
            serde_json::from_str(&self.text[start - 1..self.at])
                .map(|text: String| Some(Cow::Owned(text)))
        } else {
            Ok(Some(Cow::Borrowed(&self.text[start..self.at - 1])))
        }
    }

    /// Reads a natural number. Returns `None` if the next value is of another type.
    fn number(&mut self) -> Option<u64> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let len = rest
            .bytes()
            .take_while(|byte| !matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'))
            .count();
        let number = rest[..len].parse().ok()?;
        self.at += len;
        Some(number)
    }
}

/// Returns the largest id accepted for a vocabulary of `tokens` tokens: it leaves room for the
/// holes of real files, and keeps a damaged id from asking for gigabytes.
pub(crate) fn id_limit(tokens: usize) -> u64 {
    (tokens as u64 * 4 + 0xFFFF).min(u64::from(u32::MAX / 4))
}

const VOCAB: &str = "$.model.vocab";
const MERGES: &str = "$.model.merges";

/// Calls `each` with the tokens of `$.model.vocab` and their ids, in the order of the
/// file.
pub(crate) fn for_each_token(
    vocab: &RawValue,
    mut each: impl FnMut(&str, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut cursor = Cursor::new(vocab);
    if !cursor.take(b'{') {
        return Err(Error::invalid(VOCAB, "must be a map from tokens to ids"));
    }
    while let Some(token) = cursor.string()? {
        cursor.take(b':');
        let Some(id) = cursor.number() else {
            return Err(Error::invalid(
                VOCAB,
                format!("the id of {token:?} must be a natural number below 2^64"),
            ));
        };
        each(&token, id)?;
        cursor.take(b',');
    }
    Ok(())
}

/// Calls `each` with the positions of the merge rules in `$.model.merges` and their two
/// tokens.
pub(crate) fn for_each_merge(
    merges: &RawValue,
    mut each: impl FnMut(usize, &str, &str) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut cursor = Cursor::new(merges);
    if !cursor.take(b'[') {
        return Err(Error::invalid(MERGES, "must be a list"));
    }
    for index in 0.. {
        let path = || format!("{MERGES}[{index}]");
        if cursor.take(b'[') {
            let mut parts = Vec::with_capacity(2);
            while let Some(part) = cursor.string()? {
                parts.push(part);
                cursor.take(b',');
            }
            if !cursor.take(b']') {
                return Err(Error::invalid(path(), "must hold strings only"));
            }
            match parts.as_slice() {
                [left, right] => each(index, left, right)?,
                _ => return Err(malformed(index, &format!("{parts:?}"))),
            }
        } else if let Some(text) = cursor.string()? {
            // The version line of the older text format of merges.
            if !text.starts_with("#version") {
                let (left, right) = text
                    .split_once(' ')
                    .filter(|(_, right)| !right.contains(' '))
                    .ok_or_else(|| malformed(index, &text))?;
                each(index, left, right)?;
            }
        } else if cursor.take(b']') {
            break;
        } else {
            return Err(Error::invalid(
                path(),
                r#"must be a merge: "a b" or ["a", "b"]"#,
            ));
        }
        cursor.take(b',');
    }
    Ok(())
}

fn malformed(index: usize, text: &str) -> Error {
    Error::MalformedMerge {
        index,
        text: text.to_owned(),
    }
}

/// A normalizer, pre-tokenizer, post-processor or decoder, read by its user.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Component(Value);

impl Component {
    /// The value of `type`.
    pub(crate) fn kind(&self, path: &str) -> Result<&str, Error> {
        self.string("type", path)
    }

    fn field(&self, name: &str, path: &str) -> Result<&Value, Error> {
        self.0
            .get(name)
            .ok_or_else(|| Error::invalid(path, format!("field {name:?} is missing")))
    }

    pub(crate) fn string(&self, name: &str, path: &str) -> Result<&str, Error> {
        self.field(name, path)?
            .as_str()
            .ok_or_else(|| Error::invalid(format!("{path}.{name}"), "must be a string"))
    }

    pub(crate) fn bool(&self, name: &str, path: &str) -> Result<bool, Error> {
        self.field(name, path)?
            .as_bool()
            .ok_or_else(|| Error::invalid(format!("{path}.{name}"), "must be true or false"))
    }

    /// A field that older files lack.
    pub(crate) fn bool_or(&self, name: &str, path: &str, default: bool) -> Result<bool, Error> {
        if self.0.get(name).is_none() {
            return Ok(default);
        }
        self.bool(name, path)
    }

    pub(crate) fn object(&self, name: &str, path: &str) -> Result<Self, Error> {
        self.field(name, path).cloned().map(Self)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The elements of a list and their paths.
    pub(crate) fn parts(&self, name: &str, path: &str) -> Result<Vec<(Self, String)>, Error> {
        let list = self
            .field(name, path)?
            .as_array()
            .ok_or_else(|| Error::invalid(format!("{path}.{name}"), "must be a list"))?;
        let parts = list.iter().enumerate();
        Ok(parts
            .map(|(n, part)| (Self(part.clone()), format!("{path}.{name}[{n}]")))
            .collect())
    }
}

impl Component {
    /// Reads the whole component as `T`.
    pub(crate) fn read<'de, T: Deserialize<'de>>(&'de self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(json: &str) -> Result<Vec<(String, u64)>, Error> {
        let mut tokens = Vec::new();
        for_each_token(serde_json::from_str(json)?, |token, id| {
            tokens.push((token.to_owned(), id));
            Ok(())
        })?;
        Ok(tokens)
    }

    fn merges(json: &str) -> Result<Vec<(usize, String, String)>, Error> {
        let mut merges = Vec::new();
        for_each_merge(serde_json::from_str(json)?, |index, left, right| {
            merges.push((index, left.to_owned(), right.to_owned()));
            Ok(())
        })?;
        Ok(merges)
    }

    proptest! {
        #[test]
        fn tokens_are_those_that_serde_reads(
            map in prop::collection::btree_map(r#"[a"\\\n\u{7f}é漢😀/ :,{}\[\]]{0,6}"#, any::<u64>(), 0..8),
            pretty in any::<bool>(),
        ) {
            let json = if pretty {
                serde_json::to_string_pretty(&map)
            } else {
                serde_json::to_string(&map)
            };
            let expected: Vec<_> = map.into_iter().collect();
            let mut read = tokens(&json.unwrap()).unwrap();
            read.sort();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn merges_are_those_that_serde_reads(
            list in prop::collection::vec((r#"[a"\\é漢\]]{1,3}"#, r#"[a"\\é漢,\[]{1,3}"#, any::<bool>()), 0..8),
            pretty in any::<bool>(),
        ) {
            let values: Vec<Value> = list
                .iter()
                .map(|(left, right, joined)| match joined {
                    true => format!("{left} {right}").into(),
                    false => vec![left.as_str(), right].into(),
                })
                .collect();
            let json = if pretty {
                serde_json::to_string_pretty(&values)
            } else {
                serde_json::to_string(&values)
            };
            let expected: Vec<_> = list.into_iter().enumerate().map(|(n, (l, r, _))| (n, l, r)).collect();
            prop_assert_eq!(merges(&json.unwrap()).unwrap(), expected);
        }
    }

    #[test]
    fn other_types_are_named_with_their_place() {
        for (json, place) in [
            (r#"["a"]"#, "$.model.vocab: must be a map"),
            (r#"{"a": 1, "b": "2"}"#, r#"the id of "b" must"#),
            (r#"{"a": -1}"#, r#"the id of "a" must"#),
            (r#"{"a": 1.0}"#, r#"the id of "a" must"#),
            (r#"{"a": 1e3}"#, r#"the id of "a" must"#),
            (r#"{"a": 18446744073709551616}"#, r#"the id of "a" must"#),
            (r#"{"a": {}}"#, r#"the id of "a" must"#),
            (r#"{"\ud800": 1}"#, "malformed tokenizer JSON"),
        ] {
            let message = tokens(json).unwrap_err().to_string();
            assert!(message.contains(place), "{json}: {message}");
        }
        for (json, place) in [
            ("{}", "$.model.merges: must be a list"),
            (r#"["a b", 3]"#, "$.model.merges[1]: must be a merge"),
            (
                r#"["a b", ["a", 3]]"#,
                "$.model.merges[1]: must hold strings",
            ),
            (r#"["a b", ["a", "b", "c"]]"#, "merge 1 is not a pair"),
            (r#"["a b", []]"#, "merge 1 is not a pair"),
            (r#"["a b", "a b c"]"#, "merge 1 is not a pair"),
            (r#"["ab"]"#, "merge 0 is not a pair"),
            (r#"["a\udc00 b"]"#, "malformed tokenizer JSON"),
        ] {
            let message = merges(json).unwrap_err().to_string();
            assert!(message.contains(place), "{json}: {message}");
        }
        assert_eq!(merges(r##"["#version: 0.2"]"##).unwrap(), []);
        assert_eq!(tokens(" { } ").unwrap(), []);
    }
}
