//! The two demo models inside the program: 2 million parameters each, trained from scratch on
//! banking77 (see `demo/`), so that everything can be tried without a download.

use crate::assets::EmbeddedModel;

/// `demo-lm`: a chat model that answers a banking message with its intent, its topic, or yes/no.
pub static LM: EmbeddedModel = EmbeddedModel {
    name: "demo-lm",
    config: include_bytes!("../demo/demo-lm/config.json"),
    generation_config: Some(include_bytes!("../demo/demo-lm/generation_config.json")),
    weights: include_bytes!("../demo/demo-lm/model.safetensors"),
    tokenizer: include_bytes!("../demo/demo-lm/tokenizer.json"),
    tokenizer_config: include_bytes!("../demo/demo-lm/tokenizer_config.json"),
};

/// `demo-classifier`: 77 intents of banking messages.
pub static CLASSIFIER: EmbeddedModel = EmbeddedModel {
    name: "demo-classifier",
    config: include_bytes!("../demo/demo-classifier/config.json"),
    generation_config: None,
    weights: include_bytes!("../demo/demo-classifier/model.safetensors"),
    tokenizer: include_bytes!("../demo/demo-classifier/tokenizer.json"),
    tokenizer_config: include_bytes!("../demo/demo-classifier/tokenizer_config.json"),
};
