//! Small WordPiece tokenizers, trained in the test on this repository's own text, in the shapes of
//! published files.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::sentencepiece_models::training_text;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use tokenizers::Trainer;
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::{AddedToken, Model};

const SPECIALS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// About two thousand tokens by id; the special ones come first. Words are in lower case or not.
pub(crate) static LOWER: LazyLock<Vec<String>> = LazyLock::new(|| trained(true));
pub(crate) static CASED: LazyLock<Vec<String>> = LazyLock::new(|| trained(false));

fn trained(lower: bool) -> Vec<String> {
    let mut text = training_text();
    if lower {
        text = text.to_lowercase();
    }
    let specials = SPECIALS.iter().map(|token| AddedToken::from(*token, true));
    let mut trainer = WordPieceTrainer::builder()
        .vocab_size(2_000)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(specials.collect())
        .build();
    let split = |text: &str| {
        let words = text.split(|c: char| c.is_whitespace());
        let alone = |c: char| c.is_ascii_punctuation() || ('一'..'龥').contains(&c);
        let parts = words.flat_map(|word| word.split_inclusive(alone));
        let mut words: Vec<String> = Vec::new();
        for part in parts {
            let rest = part.trim_end_matches(alone);
            words.extend([rest, &part[rest.len()..]].map(str::to_owned));
        }
        words.retain(|word| !word.is_empty());
        Ok(words)
    };
    trainer.feed([&text].into_iter(), split).expect("words");
    let mut model = WordPiece::default();
    trainer.train(&mut model).expect("the trainer works");
    let mut tokens: Vec<(String, u32)> = model.get_vocab().into_iter().collect();
    tokens.sort_by_key(|(_, id)| *id);
    tokens.into_iter().map(|(token, _)| token).collect()
}

/// A file under construction.
pub(crate) struct Words {
    pub(crate) json: Value,
    tokens: usize,
}

impl Words {
    /// Returns the shape of BERT in lower case, as `bert-base-uncased`, MiniLM, bge and e5 have it.
    pub(crate) fn uncased() -> Self {
        Self::new(&LOWER, true)
    }

    /// Returns the shape of BERT as `bert-base-cased` has it.
    pub(crate) fn cased() -> Self {
        Self::new(&CASED, false)
    }

    fn new(tokens: &[String], lowercase: bool) -> Self {
        let ids = tokens.iter().enumerate();
        let vocab: Map<String, Value> = ids.map(|(id, t)| (t.clone(), id.into())).collect();
        let special =
            |id: &str, type_id: u32| json!({"SpecialToken": {"id": id, "type_id": type_id}});
        let text = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
        let mut this = Self {
            tokens: tokens.len(),
            json: json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
                "normalizer": {
                    "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                    "strip_accents": null, "lowercase": lowercase,
                },
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)],
                    "pair": [
                        special("[CLS]", 0), text("A", 0), special("[SEP]", 0), text("B", 1),
                        special("[SEP]", 1),
                    ],
                    "special_tokens": {
                        "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                        "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
                    },
                },
                "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
                "model": {
                    "type": "WordPiece", "unk_token": "[UNK]",
                    "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                    "vocab": vocab,
                },
            }),
        };
        for token in SPECIALS {
            this.add(token, &["special"]);
        }
        this
    }

    /// Adds an added token with the id that the reference gives it; `flags` names those that are
    /// set.
    pub(crate) fn add(&mut self, content: &str, flags: &[&str]) {
        let known = self.json["model"]["vocab"]
            .get(content)
            .and_then(Value::as_u64);
        let list = self.json["added_tokens"].as_array_mut().expect("a list");
        let end = self.tokens as u64;
        let new = list
            .iter()
            .filter(|token| token["id"].as_u64() >= Some(end));
        let id = known.unwrap_or_else(|| end + new.count() as u64);
        let set = |flag| flags.contains(&flag);
        list.push(json!({
            "id": id, "content": content, "single_word": set("single_word"),
            "lstrip": set("lstrip"), "rstrip": set("rstrip"), "normalized": set("normalized"),
            "special": set("special"),
        }));
    }

    pub(crate) fn added(mut self, content: &str, flags: &[&str]) -> Self {
        self.add(content, flags);
        self
    }

    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.json[name] = value;
        self
    }

    pub(crate) fn model(mut self, name: &str, value: Value) -> Self {
        self.json["model"][name] = value;
        self
    }

    pub(crate) fn normalizer(mut self, name: &str, value: Value) -> Self {
        self.json["normalizer"][name] = value;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.json).expect("JSON")
    }
}
