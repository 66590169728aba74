//! The raw shape of `tokenizer.json`, before anything is checked against anything.

use crate::error::Error;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// The whole file. Unknown fields are ignored, as the reference ignores them.
#[derive(Debug, Deserialize)]
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

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AddedTokenJson {
    pub(crate) id: u32,
    pub(crate) content: String,
    pub(crate) single_word: bool,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
    pub(crate) special: bool,
}

/// Any model; what is not BPE has other fields, so nothing is required here.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelJson<'a> {
    #[serde(default, rename = "type")]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) dropout: Option<f64>,
    #[serde(default)]
    pub(crate) unk_token: Option<String>,
    #[serde(default)]
    pub(crate) byte_fallback: Option<bool>,
    #[serde(default)]
    pub(crate) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(crate) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(crate) ignore_merges: Option<bool>,
    #[serde(default, borrow)]
    pub(crate) vocab: Option<VocabJson<'a>>,
    #[serde(default, borrow)]
    pub(crate) merges: Option<Vec<MergeJson<'a>>>,
}

/// A string that borrows from the file unless it has escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Tokens and their ids in the order of the file.
#[derive(Debug)]
pub(crate) enum VocabJson<'a> {
    Map(Vec<(Text<'a>, u64)>),
    /// A list, as in Unigram models.
    List,
}

impl<'de: 'a, 'a> Deserialize<'de> for VocabJson<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = VocabJson<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(VocabJson::Map(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(VocabJson::List)
            }
        }
        deserializer.deserialize_any(VocabVisitor)
    }
}

/// `"a b"`, or `["a", "b"]`.
#[derive(Debug)]
pub(crate) enum MergeJson<'a> {
    Joined(Text<'a>),
    List(Vec<Text<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for MergeJson<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = MergeJson<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(MergeJson::Joined(Text(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(MergeJson::Joined(Text(Cow::Owned(text.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::with_capacity(2);
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(MergeJson::List(parts))
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

/// A normalizer, pre-tokenizer, post-processor or decoder, read by its user.
#[derive(Debug, Clone, Deserialize)]
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
