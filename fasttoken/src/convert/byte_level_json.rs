//! Writing a `tokenizer.json` of a byte-level model.

use super::ranks::Ranks;
use crate::alphabet;
use crate::error::Error;
use serde_json::{Value, json};

/// The parts of a byte-level tokenizer.
pub(super) struct ByteLevel<'a> {
    /// Tokens by rising rank.
    pub(super) tokens: &'a [(Vec<u8>, u32)],
    /// The id of rank 0.
    pub(super) first_id: u32,
    pub(super) special_tokens: &'a [(String, u32)],
    pub(super) pattern: &'a str,
    /// The special token before a text.
    pub(super) begin: Option<&'a str>,
}

impl ByteLevel<'_> {
    /// Writes the file.
    pub(super) fn write(&self) -> Result<Vec<u8>, Error> {
        let merges = Ranks::new(self.tokens)?.merges()?;
        // Special tokens have to be in the vocabulary, or they would get the next free ids.
        let mut vocab = String::from("{");
        for (token, id) in self.special_tokens {
            entry(&mut vocab, token, *id);
        }
        for (token, rank) in self.tokens {
            let id = rank.checked_add(self.first_id).ok_or_else(|| {
                Error::invalid(format!("rank {rank}"), "the id is above 4294967295")
            })?;
            entry(&mut vocab, &spelled(token), id);
        }
        vocab.push('}');
        let mut rules = String::from("[");
        for (left, right) in merges {
            if rules.len() > 1 {
                rules.push(',');
            }
            rules.push_str(&Value::from([spelled(left), spelled(right)].as_slice()).to_string());
        }
        rules.push(']');
        let settings = self.settings().to_string();
        let open = settings
            .strip_suffix('}')
            .expect("a JSON object ends with a brace");
        let model = r#""model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":true,"vocab":"#;
        Ok(format!("{open},{model}{vocab},\"merges\":{rules}}}}}").into_bytes())
    }

    /// Returns all of the file but the model.
    fn settings(&self) -> Value {
        let added = |(content, id): &(String, u32)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        };
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false,
        });
        let split = json!({
            "type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated",
            "invert": false,
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.special_tokens.iter().map(added).collect::<Vec<_>>(),
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes.clone()]},
            "post_processor": self.begin.and_then(|token| self.template(token)),
            "decoder": bytes,
        })
    }

    /// Returns the template that puts a special token before a text.
    fn template(&self, token: &str) -> Option<Value> {
        let (_, id) = self.special_tokens.iter().find(|(name, _)| name == token)?;
        let special = json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
        Some(json!({
            "type": "TemplateProcessing",
            "single": [special, text("A", 0)],
            "pair": [special, text("A", 0), {"SpecialToken": {"id": token, "type_id": 1}}, text("B", 1)],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
        }))
    }
}

/// Appends one token of a vocabulary.
fn entry(vocab: &mut String, token: &str, id: u32) {
    if vocab.len() > 1 {
        vocab.push(',');
    }
    vocab.push_str(&Value::from(token).to_string());
    vocab.push(':');
    vocab.push_str(&id.to_string());
}

fn spelled(token: &[u8]) -> String {
    token.iter().map(|byte| alphabet::spelling(*byte)).collect()
}
