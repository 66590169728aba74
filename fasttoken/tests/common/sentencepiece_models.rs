//! Small SentencePiece-style tokenizers, trained in the test on this repository's own
//! text, in the shapes of published files.
#![allow(dead_code, reason = "each test file uses its own part")]

use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::LazyLock;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{AddedToken, Trainer};

/// Text to train on, and lines in other scripts.
const TEXTS: &[&str] = &[
    include_str!("../../README.md"),
    include_str!("../../src/lib.rs"),
    include_str!("../../src/added.rs"),
    include_str!("../../src/pattern.rs"),
];
const LINES: &str = "\
日本語の文章はここにあります。カードはまだ届いていません。カードはどこですか。\n\
我还没有收到我的新卡。我的卡在哪里?中文分词很有趣,中文没有空格。\n\
Моя карта ещё не пришла. Где моя карта? Это предложение на русском языке.\n\
لم تصل بطاقتي الجديدة بعد. أين بطاقتي؟\n\
제 카드가 아직 도착하지 않았습니다. 카드가 어디에 있습니까?\n\
naïve café, straße, Ångström, été, el niño, garçon\n";

/// The result of training: tokens by id, and rules.
pub(crate) struct Trained {
    tokens: Vec<String>,
    merges: Value,
}

/// About three thousand tokens. `<unk>`, `<s>`, `</s>` and the bytes come first.
pub(crate) static TRAINED: LazyLock<Trained> = LazyLock::new(|| {
    let text = training_text();
    let mut specials: Vec<AddedToken> = ["<unk>", "<s>", "</s>"]
        .iter()
        .map(|token| AddedToken::from(*token, true))
        .collect();
    specials.extend((0..256).map(|byte| AddedToken::from(format!("<{byte:#04X}>"), true)));
    let mut trainer = BpeTrainer::builder()
        .vocab_size(3_000)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(specials)
        .build();
    // Words begin with a space, and runs of spaces and line ends stay together, as in
    // SentencePiece's training.
    let split = |text: &str| {
        let mut words: Vec<String> = text
            .split_inclusive('\n')
            .flat_map(|line| line.split(' '))
            .map(|word| format!("▁{word}"))
            .collect();
        words.extend(std::iter::repeat_n("▁▁▁▁▁▁▁▁".to_owned(), 40));
        words.extend(std::iter::repeat_n("\n\n\n".to_owned(), 40));
        Ok(words)
    };
    trainer.feed([&text].into_iter(), split).expect("words");
    let mut model = BPE::default();
    trainer.train(&mut model).expect("the trainer works");
    let mut json = serde_json::to_value(&model).expect("a model is JSON");
    let ids: HashMap<String, usize> =
        serde_json::from_value(json["vocab"].take()).expect("a map of ids");
    let mut tokens = vec![String::new(); ids.len()];
    for (token, id) in ids {
        tokens[id] = token;
    }
    Trained {
        tokens,
        merges: json["merges"].take(),
    }
});

/// Returns text to train on.
pub(crate) fn training_text() -> String {
    let mut text = TEXTS.concat();
    for _ in 0..6 {
        text.push_str(LINES);
    }
    text
}

/// A file under construction.
pub(crate) struct Shape {
    pub(crate) json: Value,
}

fn added(id: usize, content: &str, special: bool, normalized: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": normalized, "special": special,
    })
}

impl Shape {
    /// Model, bytes, unknown token, `<unk>`, `<s>` and `</s>`; the rest is null.
    pub(crate) fn new() -> Self {
        let vocab: serde_json::Map<String, Value> = TRAINED
            .tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (token.clone(), id.into()))
            .collect();
        let specials = ["<unk>", "<s>", "</s>"].iter().enumerate();
        let specials: Vec<Value> = specials.map(|(id, t)| added(id, t, true, false)).collect();
        Self {
            json: json!({
                "version": "1.0", "truncation": null, "padding": null,
                "added_tokens": specials,
                "normalizer": null, "pre_tokenizer": null,
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [
                        {"SpecialToken": {"id": "<s>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                    ],
                    "pair": [
                        {"SpecialToken": {"id": "<s>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "<s>", "type_id": 1}},
                        {"Sequence": {"id": "B", "type_id": 1}},
                    ],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
                },
                "decoder": decoder(true),
                "model": {
                    "type": "BPE", "dropout": null, "unk_token": "<unk>",
                    "continuing_subword_prefix": null, "end_of_word_suffix": null,
                    "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                    "vocab": vocab, "merges": TRAINED.merges,
                },
            }),
        }
    }

    /// Returns the shape of Llama 2 and Mistral, as first published.
    pub(crate) fn legacy() -> Self {
        Self::new().with(
            "normalizer",
            json!({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                replace(" ", "▁"),
            ]}),
        )
    }

    /// Returns the shape of Llama 2 and Mistral with `Metaspace`, as written since.
    pub(crate) fn metaspace(scheme: &str, split: bool) -> Self {
        Self::new().with(
            "pre_tokenizer",
            json!({
                "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                "split": split,
            }),
        )
    }

    /// Returns the shape of Gemma: nothing is put before the text, and some blanks are added
    /// tokens.
    pub(crate) fn gemma() -> Self {
        let mut this = Self::new()
            .with("normalizer", replace(" ", "▁"))
            .with(
                "pre_tokenizer",
                json!({
                    "type": "Split", "pattern": {"String": " "},
                    "behavior": "MergedWithPrevious", "invert": false,
                }),
            )
            .with("decoder", decoder(false));
        for (content, special) in [
            ("<start_of_turn>", true),
            ("\n\n", false),
            ("▁▁", false),
            ("<unused0>", false),
        ] {
            this.add(content, special, false);
        }
        this
    }

    /// Adds an added token with the id that the reference gives it.
    pub(crate) fn add(&mut self, content: &str, special: bool, normalized: bool) {
        let known = TRAINED.tokens.iter().position(|token| token == content);
        let list = self.json["added_tokens"].as_array_mut().expect("a list");
        let new = list
            .iter()
            .filter(|token| token["id"].as_u64() >= Some(TRAINED.tokens.len() as u64))
            .count();
        let id = known.unwrap_or(TRAINED.tokens.len() + new);
        list.push(added(id, content, special, normalized));
    }

    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.json[name] = value;
        self
    }

    pub(crate) fn model(mut self, name: &str, value: Value) -> Self {
        self.json["model"][name] = value;
        self
    }

    /// Without the tokens that `gone` names, and without their rules.
    pub(crate) fn without(mut self, gone: impl Fn(&str) -> bool) -> Self {
        let model = &mut self.json["model"];
        let merges = model["merges"].as_array_mut().expect("a list");
        merges.retain(|rule| {
            let parts: Vec<&str> = rule
                .as_array()
                .expect("a pair")
                .iter()
                .map(|part| part.as_str().expect("a string"))
                .collect();
            !gone(parts[0]) && !gone(parts[1]) && !gone(&parts.concat())
        });
        let vocab = model["vocab"].as_object_mut().expect("a map");
        vocab.retain(|token, _| !gone(token));
        // The reference counts new added tokens from the number of tokens: no holes.
        for (id, value) in vocab.values_mut().enumerate() {
            *value = id.into();
        }
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.json).expect("JSON")
    }
}

pub(crate) fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

/// Returns the usual chain of decoders, which puts spaces and bytes back; `strip` takes the first
/// space away.
pub(crate) fn decoder(strip: bool) -> Value {
    let mut steps = vec![
        replace("▁", " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if strip {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}
