//! Small Unigram tokenizers, trained in the test on this repository's own text, in the shapes of
//! published files.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::sentencepiece_models::{replace, training_text};
use serde_json::{Value, json};
use std::sync::LazyLock;
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::{AddedToken, Trainer};

/// A map of replacements as SentencePiece makes it; see `tests/data/README.md`.
pub(crate) const CHARSMAP: &str = include_str!("../data/charsmap.txt");

const SPECIALS: [&str; 5] = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"];
pub(crate) const UNK: usize = 3;

/// About two thousand tokens with their scores, by id; the special ones come first.
pub(crate) static SCORED: LazyLock<Vec<(String, f64)>> = LazyLock::new(|| {
    let text = training_text();
    let specials = SPECIALS.iter().map(|token| AddedToken::from(*token, true));
    let mut trainer = UnigramTrainer::builder()
        .vocab_size(2_000)
        .show_progress(false)
        .special_tokens(specials.collect())
        .unk_token(Some("<unk>".to_owned()))
        .build()
        .expect("complete");
    let split = |text: &str| {
        let words = text.split_whitespace();
        Ok(words.map(|word| format!("▁{word}")).collect())
    };
    trainer.feed([&text].into_iter(), split).expect("words");
    let mut model = Unigram::default();
    trainer.train(&mut model).expect("the trainer works");
    model.iter().cloned().collect()
});

/// A file under construction.
pub(crate) struct Scored {
    pub(crate) json: Value,
    tokens: usize,
}

pub(crate) fn precompiled() -> Value {
    json!({"type": "Precompiled", "precompiled_charsmap": CHARSMAP.trim()})
}

pub(crate) fn metaspace(scheme: &str, split: bool) -> Value {
    json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split,
    })
}

pub(crate) fn normalizers(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "normalizers": steps})
}

pub(crate) fn pretokenizers(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

pub(crate) fn replace_regex(pattern: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": to})
}

impl Scored {
    /// Returns the shape of XLM-R, bge-m3 and multilingual E5, as first published.
    pub(crate) fn xlm_r() -> Self {
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let mut this = Self {
            tokens: SCORED.len(),
            json: json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
                "normalizer": precompiled(),
                "pre_tokenizer": pretokenizers(vec![
                    json!({"type": "WhitespaceSplit"}), metaspace("always", true),
                ]),
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [special("<s>"), text("A"), special("</s>")],
                    "pair": [
                        special("<s>"), text("A"), special("</s>"), special("</s>"), text("B"),
                        special("</s>"),
                    ],
                    "special_tokens": {
                        "<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
                        "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
                    },
                },
                "decoder": metaspace("always", true),
                "model": {
                    "type": "Unigram", "unk_id": UNK, "byte_fallback": false, "vocab": *SCORED,
                },
            }),
        };
        for token in &SPECIALS[..4] {
            this.add(token, &["special"]);
        }
        this.add("<mask>", &["special", "lstrip"]);
        this
    }

    /// Returns the shape that newer conversions have.
    pub(crate) fn converted() -> Self {
        Self::xlm_r()
            .with(
                "normalizer",
                normalizers(vec![
                    precompiled(),
                    json!({"type": "Strip", "strip_left": false, "strip_right": true}),
                    replace_regex(" {2,}", "▁"),
                ]),
            )
            .with("pre_tokenizer", metaspace("always", true))
    }

    /// Returns the shape of T5: one token after each text, and many special ones.
    pub(crate) fn t5() -> Self {
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let mut this = Self::converted().with(
            "post_processor",
            json!({
                "type": "TemplateProcessing",
                "single": [text("A"), special("</s>")],
                "pair": [text("A"), special("</s>"), text("B"), special("</s>")],
                "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
            }),
        );
        for n in (0..20).rev() {
            this.add(&format!("<extra_id_{n}>"), &["special"]);
        }
        this
    }

    /// Returns the shape of ALBERT: quotes, accents and upper case go before the map.
    pub(crate) fn albert() -> Self {
        let steps = vec![
            replace("``", "\""),
            replace("''", "\""),
            json!({"type": "NFKD"}),
            json!({"type": "StripAccents"}),
            json!({"type": "Lowercase"}),
            precompiled(),
        ];
        Self::xlm_r().with("normalizer", normalizers(steps))
    }

    /// Adds a token for each byte.
    pub(crate) fn bytes_too(mut self) -> Self {
        let vocab = self.json["model"]["vocab"].as_array_mut().expect("a list");
        vocab.extend((0..256).map(|byte| json!([format!("<{byte:#04X}>"), -30.0])));
        self.tokens = vocab.len();
        self.json["model"]["byte_fallback"] = json!(true);
        self.json["decoder"] = json!({"type": "Sequence", "decoders": [
            replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        self
    }

    /// Adds an added token with the id that the reference gives it; `flags` names those that are
    /// set.
    pub(crate) fn add(&mut self, content: &str, flags: &[&str]) {
        let vocab = self.json["model"]["vocab"].as_array().expect("a list");
        let known = vocab.iter().position(|entry| entry[0] == content);
        let list = self.json["added_tokens"].as_array_mut().expect("a list");
        let end = self.tokens as u64;
        let new = list
            .iter()
            .filter(|token| token["id"].as_u64() >= Some(end));
        let id = known.unwrap_or_else(|| self.tokens + new.count());
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

    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.json).expect("JSON")
    }
}
