//! The raw shape of `tokenizer.json`, before anything is checked against anything.

mod vocab_and_merges;

use crate::error::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub(crate) use vocab_and_merges::{MergesJson, VocabJson};

/// The whole file. Unknown fields are ignored, as the reference ignores them. Serialized, it is the
/// configuration of a compiled tokenizer, without the vocabulary and the merges.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct File {
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
    pub(crate) model: ModelJson,
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
pub(crate) struct ModelJson {
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
    #[serde(default, skip_serializing)]
    pub(crate) vocab: Option<VocabJson>,
    #[serde(default, skip_serializing)]
    pub(crate) merges: Option<MergesJson>,
}

impl ModelJson {
    /// Returns the vocabulary and the merges, which a BPE model must have.
    pub(crate) fn vocab_and_merges(&self) -> Result<(&VocabJson, &MergesJson), Error> {
        let both = self.vocab.as_ref().zip(self.merges.as_ref());
        both.ok_or_else(|| {
            let problem = "a BPE model needs a map \"vocab\" and a list \"merges\"";
            Error::invalid("$.model", problem)
        })
    }
}

/// A normalizer, pre-tokenizer, post-processor or decoder, read by its user.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Component(Value);

impl Component {
    /// Returns the value of `type`.
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

    /// Returns a field that older files lack.
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

    /// Returns the elements of a list and their paths.
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
