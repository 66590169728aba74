//! The small JSON files beside a checkpoint.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::LoadError;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SENTENCE_TRANSFORMERS: &str = "config_sentence_transformers.json";

/// Names under which a tokenizer's special tokens are known, to templates too.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// What the server needs of `tokenizer_config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    special_tokens: BTreeMap<&'static str, String>,
    /// Source of the chat template.
    pub chat_template: Option<String>,
    /// The reference's class, for clients that ask.
    pub tokenizer_class: Option<String>,
}

impl TokenizerConfig {
    /// Reads the file.
    ///
    /// # Errors
    /// [`LoadError::Document`] if it is not a JSON object, or a template is not text.
    pub fn from_json(bytes: &[u8]) -> Result<Self, LoadError> {
        let map: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|e| LoadError::Document {
                file: TOKENIZER_CONFIG,
                what: format!("is not a JSON object: {e}"),
            })?;
        // A special token is its text, or an object that describes an added token.
        let token = |name: &&'static str| {
            let value = map.get(*name)?;
            let text = value.as_str().or_else(|| value["content"].as_str())?;
            Some((*name, text.to_owned()))
        };
        Ok(Self {
            special_tokens: SPECIAL_TOKENS.iter().filter_map(token).collect(),
            chat_template: chat_template(map.get("chat_template"))?,
            tokenizer_class: map
                .get("tokenizer_class")
                .and_then(Value::as_str)
                .map(str::to_owned),
        })
    }

    /// The special token of this name (`eos_token` and so on), if it is set.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name).map(String::as_str)
    }

    /// All special tokens that are set, by name.
    pub fn special_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.special_tokens.iter().map(|(k, v)| (*k, v.as_str()))
    }
}

/// One template, or a list of named ones of which `default` is taken.
fn chat_template(value: Option<&Value>) -> Result<Option<String>, LoadError> {
    let wrong = |what: &str| LoadError::Document {
        file: TOKENIZER_CONFIG,
        what: what.to_owned(),
    };
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|t| t["name"] == "default");
            let source = default.and_then(|t| t["template"].as_str());
            let source = source.ok_or_else(|| wrong("has chat templates, but none is default"))?;
            Ok(Some(source.to_owned()))
        }
        Some(_) => Err(wrong("has a chat_template that is not text")),
    }
}

/// `config_sentence_transformers.json`: prompts that an embedding model was trained with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SentencePrompts {
    /// Prompt text by name; it precedes the input.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
}

impl SentencePrompts {
    /// Reads the file.
    ///
    /// # Errors
    /// [`LoadError::Document`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, LoadError> {
        serde_json::from_slice(bytes).map_err(|e| LoadError::Document {
            file: SENTENCE_TRANSFORMERS,
            what: format!("cannot be used: {e}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_come_as_text_or_objects() {
        let config = TokenizerConfig::from_json(
            br#"{"bos_token":null,"eos_token":"</s>","pad_token":{"content":"<pad>","lstrip":false}}"#,
        )
        .unwrap();
        assert_eq!(config.token("eos_token"), Some("</s>"));
        assert_eq!(config.token("pad_token"), Some("<pad>"));
        assert_eq!(config.token("bos_token"), None);
        assert_eq!(config.special_tokens().count(), 2);
    }

    #[test]
    fn templates() {
        let check = |json: &str, expected: Result<Option<&str>, &str>| {
            let got = TokenizerConfig::from_json(json.as_bytes());
            match (got, expected) {
                (Ok(config), Ok(expected)) => {
                    assert_eq!(config.chat_template.as_deref(), expected);
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, _) => panic!("{json}: {got:?}"),
            }
        };
        check("{}", Ok(None));
        check(r#"{"chat_template":"x"}"#, Ok(Some("x")));
        check(
            r#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#,
            Ok(Some("d")),
        );
        check(r#"{"chat_template":[]}"#, Err("none is default"));
        check(r#"{"chat_template":3}"#, Err("not text"));
        check("[]", Err("not a JSON object"));
    }

    #[test]
    fn prompts() {
        let read = |json: &str| SentencePrompts::from_json(json.as_bytes());
        let prompts = read(r#"{"prompts":{"query":"Instruct: x\nQuery:","document":""},"similarity_fn_name":"cosine"}"#).unwrap();
        assert_eq!(prompts.prompts["query"], "Instruct: x\nQuery:");
        assert!(read(r#"{"__version__":{}}"#).unwrap().prompts.is_empty());
        assert!(read(r#"{"prompts":{"query":1}}"#).is_err());
    }
}
