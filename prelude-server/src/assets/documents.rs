//! `tokenizer_config.json` and `special_tokens_map.json`.

use std::collections::BTreeMap;

use prelude_models::fields;
use prelude_text::tokenizer::Tokenizer;
use serde_json::{Map, Value};

use super::LoadError;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";

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

/// Fields about the normalizer: the name in `tokenizer_config.json`, the name in BERT's normalizer, and
/// the normalizer that does the same by itself.
const NORMALIZER: [(&str, &str, &str); 3] = [
    ("do_lower_case", "lowercase", "Lowercase"),
    ("strip_accents", "strip_accents", "StripAccents"),
    (
        "tokenize_chinese_chars",
        "handle_chinese_chars",
        "BertNormalizer",
    ),
];

/// The fields of `tokenizer_config.json` that the server needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    special_tokens: BTreeMap<&'static str, String>,
    /// Source of the chat template.
    pub chat_template: Option<String>,
    /// The reference's class, for clients that ask.
    pub tokenizer_class: Option<String>,
    /// The template list has one for requests with tools, which is not served.
    pub(super) has_tool_template: bool,
    /// Longest text, if the file says so.
    pub(super) model_max_length: Option<u32>,
    /// `added_tokens_decoder`.
    added_tokens: Option<Map<String, Value>>,
    /// The fields about the normalizer that the file has.
    normalizer: Vec<(&'static str, Value)>,
    /// Fields that are passed over.
    pub(super) warnings: Vec<String>,
}

impl TokenizerConfig {
    /// Reads the file.
    ///
    /// # Errors
    /// [`LoadError::Model`] if it is not a JSON object, or a field says what is not served;
    /// [`LoadError::Document`] if a template is not text.
    pub fn from_json(bytes: &[u8]) -> Result<Self, LoadError> {
        let (map, warnings) = fields::read(TOKENIZER_CONFIG, bytes)?;
        let templates = map.get("chat_template");
        let named = templates.and_then(Value::as_array);
        Ok(Self {
            special_tokens: special_tokens(&map),
            chat_template: chat_template(templates)?,
            tokenizer_class: map
                .get("tokenizer_class")
                .and_then(Value::as_str)
                .map(str::to_owned),
            has_tool_template: named.is_some_and(|all| all.iter().any(|t| t["name"] == "tool_use")),
            // Files without a limit of their own say 1e30.
            model_max_length: ["model_max_length", "max_len"]
                .iter()
                .find_map(|name| length(map.get(*name)?)),
            added_tokens: map
                .get("added_tokens_decoder")
                .and_then(Value::as_object)
                .cloned(),
            normalizer: { NORMALIZER.iter() }
                .filter_map(|(name, ..)| Some((*name, map.get(*name)?.clone())))
                .filter(|(_, value)| !value.is_null())
                .collect(),
            warnings,
        })
    }

    /// Refuses a file that says otherwise of the normalizer than `tokenizer.json` does: transformers
    /// would change the normalizer.
    pub(super) fn check_normalizer(&self, tokenizer_json: &[u8]) -> Result<(), LoadError> {
        if self.normalizer.is_empty() {
            return Ok(());
        }
        let document: Value = serde_json::from_slice(tokenizer_json).unwrap_or_default();
        let normalizer = &document["normalizer"];
        for (name, said) in &self.normalizer {
            let found = NORMALIZER.iter().find(|(of, ..)| of == name);
            let (_, field, class) = found.expect("only these fields are kept");
            let own = match &normalizer[*field] {
                // BERT's strips accents where it makes texts lower case, unless it says otherwise.
                Value::Null if normalizer["type"] == "BertNormalizer" => &normalizer["lowercase"],
                own => own,
            };
            let own = own
                .as_bool()
                .unwrap_or_else(|| has_class(normalizer, class));
            if said.as_bool() != Some(own) {
                return Err(LoadError::Document {
                    file: TOKENIZER_CONFIG,
                    what: format!(
                        "has `{name}` of {said}, but the normalizer of tokenizer.json says {own}; \
                         make both say the same"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Takes the special tokens of `special_tokens_map.json`, which transformers reads where
    /// `tokenizer_config.json` has no `added_tokens_decoder`.
    pub(super) fn add_special_tokens(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        if self.added_tokens.is_none() {
            let (map, warnings) = fields::read(SPECIAL_TOKENS_MAP, bytes)?;
            self.special_tokens.extend(special_tokens(&map));
            self.warnings.extend(warnings);
        }
        Ok(())
    }

    /// Refuses added tokens that the tokenizer does not have or reads otherwise: transformers
    /// would add them.
    pub(super) fn check_added_tokens(&self, tokenizer: &Tokenizer) -> Result<(), LoadError> {
        for (id, token) in self.added_tokens.iter().flatten() {
            let content = token["content"].as_str().unwrap_or_default();
            let fits = id.parse().is_ok_and(|id| {
                let flag = |name: &str| token[name].as_bool();
                tokenizer.token_to_id(content) == Some(id) && tokenizer.has_added(id, flag)
            });
            if !fits {
                let shown: String = content.chars().take(60).collect();
                return Err(LoadError::Document {
                    file: TOKENIZER_CONFIG,
                    what: format!(
                        "has {shown:?} as added token {id} in `added_tokens_decoder`, which is no \
                         added token of tokenizer.json with this id and these flags"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Returns the special token of this name (`eos_token` and so on), if it is set.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name).map(String::as_str)
    }

    /// Returns all special tokens that are set, by name.
    pub fn special_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.special_tokens.iter().map(|(k, v)| (*k, v.as_str()))
    }
}

/// Returns true if a normalizer, or one of a sequence, is of a class.
fn has_class(normalizer: &Value, class: &str) -> bool {
    let parts = normalizer["normalizers"].as_array();
    normalizer["type"] == class || parts.is_some_and(|all| all.iter().any(|n| n["type"] == class))
}

/// Reads one template, or a list of named ones of which `default` is taken.
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

/// Returns the special tokens by name: each is given as text, or as an object that describes an added
/// token.
fn special_tokens(map: &Map<String, Value>) -> BTreeMap<&'static str, String> {
    let token = |name: &&'static str| {
        let value = map.get(*name)?;
        let text = value.as_str().or_else(|| value["content"].as_str())?;
        Some((*name, text.to_owned()))
    };
    SPECIAL_TOKENS.iter().filter_map(token).collect()
}

/// Reads a length in tokens; `None` for a length that no text has.
pub(super) fn length(value: &Value) -> Option<u32> {
    let length = value.as_f64().filter(|n| *n >= 1.0)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and the largest"
    )]
    (length <= f64::from(u32::MAX)).then_some(length as u32)
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
    fn a_map_of_special_tokens_is_read_where_transformers_reads_it() {
        let token = |config: &str| {
            let mut config = TokenizerConfig::from_json(config.as_bytes()).unwrap();
            let map = br#"{"eos_token":{"content":"</t>"}}"#;
            config.add_special_tokens(map).unwrap();
            config.token("eos_token").map(str::to_owned)
        };
        assert_eq!(token("{}").as_deref(), Some("</t>"));
        assert_eq!(token(r#"{"eos_token":"</s>"}"#).as_deref(), Some("</t>"));
        let decoder = r#"{"eos_token":"</s>","added_tokens_decoder":{}}"#;
        assert_eq!(token(decoder).as_deref(), Some("</s>"));
    }

    #[test]
    fn lengths_are_read() {
        let check = |json: &str, expected| {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(length(&value), expected, "{json}");
        };
        check("512", Some(512));
        check("1000000000000000019884624838656", None);
        check("0", None);
        check("null", None);
    }

    #[test]
    fn chat_templates_are_read() {
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
        check("[]", Err("not an object"));
    }
}
