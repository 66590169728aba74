//! Small tokenizers made in the test, so that a trap is all there is to see.
#![allow(dead_code, reason = "each test file uses its own part")]

use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// A `tokenizer.json` under construction. The alphabet takes ids 0 to 255.
pub(crate) struct Small {
    pub(crate) json: Value,
    vocab: Map<String, Value>,
    merges: Vec<Value>,
    added: Vec<Value>,
}

impl Small {
    pub(crate) fn new() -> Self {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let vocab = alphabet.iter().enumerate();
        Self {
            vocab: vocab.map(|(id, c)| (c.to_string(), id.into())).collect(),
            merges: Vec::new(),
            added: Vec::new(),
            json: json!({
                "version": "1.0",
                "truncation": null,
                "padding": null,
                "added_tokens": [],
                "normalizer": null,
                "pre_tokenizer": {
                    "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                    "use_regex": true,
                },
                "post_processor": null,
                "decoder": {
                    "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                    "use_regex": true,
                },
                "model": {
                    "type": "BPE", "dropout": null, "unk_token": null,
                    "continuing_subword_prefix": null, "end_of_word_suffix": null,
                    "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                },
            }),
        }
    }

    /// Adds a token with the next id.
    pub(crate) fn token(mut self, token: &str) -> Self {
        let id = self.vocab.len();
        self.vocab.entry(token).or_insert_with(|| id.into());
        self
    }

    pub(crate) fn without_token(mut self, token: &str) -> Self {
        self.vocab.remove(token);
        self
    }

    /// Adds a merge rule, and its token if that is new.
    pub(crate) fn merge(mut self, left: &str, right: &str) -> Self {
        self = self.token(&format!("{left}{right}"));
        self.merges.push(format!("{left} {right}").into());
        self
    }

    /// Adds a merge rule as a pair.
    pub(crate) fn merge_pair(mut self, left: &str, right: &str) -> Self {
        self = self.token(&format!("{left}{right}"));
        self.merges.push(json!([left, right]));
        self
    }

    /// Adds an added token; `flags` names those that are set.
    pub(crate) fn added(mut self, content: &str, flags: &[&str]) -> Self {
        let set = |flag| flags.contains(&flag);
        self.added.push(json!({
            "id": 1000 + self.added.len(),
            "content": content,
            "single_word": set("single_word"),
            "lstrip": set("lstrip"),
            "rstrip": set("rstrip"),
            "normalized": set("normalized"),
            "special": set("special"),
        }));
        self
    }

    /// Sets a top-level field.
    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.json[name] = value;
        self
    }

    pub(crate) fn with_model(mut self, name: &str, value: Value) -> Self {
        self.json["model"][name] = value;
        self
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.json["model"]["vocab"] = Value::Object(self.vocab);
        self.json["model"]["merges"] = Value::Array(self.merges);
        self.json["added_tokens"] = Value::Array(self.added);
        serde_json::to_vec(&self.json).expect("JSON values can be written")
    }
}

pub(crate) fn byte_level(use_regex: bool, add_prefix_space: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": false,
        "use_regex": use_regex,
    })
}

pub(crate) fn split(pattern: &str, behavior: &str, invert: bool) -> Value {
    json!({
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert,
    })
}

/// `steps`, then a `ByteLevel` that does not split.
pub(crate) fn sequence(mut steps: Vec<Value>) -> Value {
    steps.push(byte_level(false, false));
    json!({"type": "Sequence", "pretokenizers": steps})
}
