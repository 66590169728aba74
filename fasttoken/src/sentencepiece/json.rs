//! The model part of `tokenizer.json`, as this family needs it.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

#[derive(Debug, Deserialize)]
pub(super) struct File {
    pub(super) model: Model,
}

#[derive(Debug, Deserialize)]
pub(super) struct Model {
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: Option<bool>,
    #[serde(default)]
    pub(super) byte_fallback: Option<bool>,
    #[serde(default)]
    pub(super) ignore_merges: Option<bool>,
    pub(super) vocab: Tokens,
    pub(super) merges: Vec<Rule>,
}

/// Tokens and ids in the order of the file.
#[derive(Debug)]
pub(super) struct Tokens(pub(super) Vec<(String, u64)>);

/// The left and the right part of `"a b"` or `["a", "b"]`; or a string that is neither.
#[derive(Debug)]
pub(super) struct Rule(pub(super) Result<(String, String), String>);

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokensVisitor;
        impl<'de> Visitor<'de> for TokensVisitor {
            type Value = Tokens;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tokens, A::Error> {
                let mut tokens = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    tokens.push(entry);
                }
                Ok(Tokens(tokens))
            }
        }
        deserializer.deserialize_map(TokensVisitor)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RuleVisitor;
        impl<'de> Visitor<'de> for RuleVisitor {
            type Value = Rule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E>(self, text: &str) -> Result<Rule, E> {
                let parts = text.split_once(' ');
                let parts = parts.filter(|(_, right)| !right.contains(' '));
                let owned = parts.map(|(left, right)| (left.to_owned(), right.to_owned()));
                Ok(Rule(owned.ok_or_else(|| text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Rule, A::Error> {
                let mut parts: Vec<String> = Vec::with_capacity(2);
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Rule(match <[String; 2]>::try_from(parts) {
                    Ok([left, right]) => Ok((left, right)),
                    Err(parts) => Err(format!("{parts:?}")),
                }))
            }
        }
        deserializer.deserialize_any(RuleVisitor)
    }
}
