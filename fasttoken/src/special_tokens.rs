//! Beginning, end, padding and unknown tokens, which `tokenizer.json` does not name.

use crate::error::Error;
use crate::file;
use serde_json::{Map, Value};
use std::path::Path;

/// The tokens that `tokenizer_config.json` and `special_tokens_map.json` give a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Beginning of a text.
    pub bos: Option<String>,
    /// End of a text.
    pub eos: Option<String>,
    /// Padding.
    pub pad: Option<String>,
    /// Stands for what the vocabulary lacks.
    pub unk: Option<String>,
}

impl SpecialTokens {
    /// Reads either file's contents. A token is a string or an object with a
    /// `content`; `null` and missing are both `None`.
    ///
    /// ```
    /// let json = br#"{"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}"#;
    /// let tokens = fasttoken::SpecialTokens::from_json(json)?;
    /// assert_eq!(tokens.eos.as_deref(), Some("<|im_end|>"));
    /// assert_eq!(tokens.bos, None);
    /// # Ok::<(), fasttoken::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the bytes are not a JSON object, or a token is of another type.
    pub fn from_json(json: &[u8]) -> Result<Self, Error> {
        let map: Map<String, Value> = serde_json::from_slice(json)?;
        let token = |name: &str| match map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(content)) => Ok(Some(content.clone())),
            Some(other) => match other.get("content").and_then(Value::as_str) {
                Some(content) => Ok(Some(content.to_owned())),
                None => Err(Error::invalid(
                    format!("$.{name}"),
                    "must be a string or an object with a content",
                )),
            },
        };
        Ok(Self {
            bos: token("bos_token")?,
            eos: token("eos_token")?,
            pad: token("pad_token")?,
            unk: token("unk_token")?,
        })
    }

    /// Reads `tokenizer_config.json` and `special_tokens_map.json` in `folder`,
    /// where they exist; the former wins.
    ///
    /// # Errors
    /// When a file is there and cannot be read, or as [`SpecialTokens::from_json`].
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let mut tokens = Self::default();
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = folder.as_ref().join(name);
            match file::read(&path) {
                Ok(json) => tokens = tokens.or(Self::from_json(&json)?),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error::Io { path, source }),
            }
        }
        Ok(tokens)
    }

    /// Returns these tokens, with those of `other` for missing roles.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            bos: self.bos.or(other.bos),
            eos: self.eos.or(other.eos),
            pad: self.pad.or(other.pad),
            unk: self.unk.or(other.unk),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_wins_and_wrong_types_are_errors() {
        let config = SpecialTokens::from_json(br#"{"eos_token": "a", "bos_token": null}"#).unwrap();
        let map = SpecialTokens::from_json(br#"{"eos_token": "b", "unk_token": {"content": "u"}}"#);
        let both = config.or(map.unwrap());
        assert_eq!(both.eos.as_deref(), Some("a"));
        assert_eq!((both.bos, both.pad), (None, None));
        assert_eq!(both.unk.as_deref(), Some("u"));
        for bad in [
            &b"[]"[..],
            b"{",
            br#"{"eos_token": 3}"#,
            br#"{"eos_token": {}}"#,
        ] {
            assert!(SpecialTokens::from_json(bad).is_err());
        }
    }
}
