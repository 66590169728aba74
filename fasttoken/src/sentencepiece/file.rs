//! The model of a SentencePiece-style file, checked entry by entry.

use super::json;
use super::tokens::{self, Clash, Tokens};
use crate::error::Error;
use std::collections::{HashMap, HashSet};

/// The model of a file.
#[derive(Debug)]
pub(crate) struct File {
    /// Tokens and ids, as the file orders them.
    tokens: Vec<(String, u32)>,
    /// Left and right part of each rule.
    pub(super) merges: Vec<(String, String)>,
    pub(super) options: Options,
}

/// The settings of a model besides its tokens and rules.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) unk_token: Option<String>,
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
}

impl From<&json::Model> for Options {
    fn from(model: &json::Model) -> Self {
        Self {
            unk_token: model.unk_token.clone(),
            fuse_unk: model.fuse_unk.unwrap_or(false),
            byte_fallback: model.byte_fallback.unwrap_or(false),
            ignore_merges: model.ignore_merges.unwrap_or(false),
        }
    }
}

impl File {
    pub(crate) fn read(json: &[u8]) -> Result<Self, Error> {
        let json::File { model } = serde_json::from_slice(json)?;
        let options = Options::from(&model);
        let tokens = model.vocab.0;
        let limit = id_limit(tokens.len());
        let count = tokens.len();
        let tokens = tokens.into_iter().map(|(token, id)| {
            match u32::try_from(id).ok().filter(|id| u64::from(*id) <= limit) {
                Some(id) => Ok((token, id)),
                None => Err(Error::IdOutOfRange {
                    token,
                    id,
                    tokens: count,
                    limit,
                }),
            }
        });
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        let text: usize = tokens.iter().map(|(token, _)| token.len()).sum();
        if text > u32::MAX as usize / 4 {
            return Err(Error::invalid(
                "$.model.vocab",
                "more than a gigabyte of text",
            ));
        }
        let rules = model.merges.into_iter().enumerate();
        // The version line of the older text format of merges.
        let rules = rules.filter(|(_, rule)| {
            let comment = |text: &String| text.starts_with("#version");
            !rule.0.as_ref().is_err_and(comment)
        });
        let merges =
            rules.map(|(index, rule)| rule.0.map_err(|text| Error::MalformedMerge { index, text }));
        Ok(Self {
            tokens,
            merges: merges.collect::<Result<_, _>>()?,
            options,
        })
    }

    /// The number of tokens, without added ones.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn ids(&self) -> HashMap<&str, u32> {
        let tokens = self.tokens.iter();
        tokens.map(|(token, id)| (token.as_str(), *id)).collect()
    }

    /// Returns the tokens, or an error if one is there twice.
    pub(super) fn tokens(&self, ids: &HashMap<&str, u32>) -> Result<Tokens, Error> {
        let duplicate = |token| Error::DuplicateToken { token };
        if ids.len() != self.tokens.len() {
            let mut seen = HashSet::new();
            let twice = self.tokens.iter().find(|(token, _)| !seen.insert(token));
            return Err(duplicate(
                twice.map(|two| two.0.clone()).unwrap_or_default(),
            ));
        }
        let mut builder = tokens::Builder::default();
        for (token, id) in &self.tokens {
            builder.text().extend_from_slice(token.as_bytes());
            builder.push(*id);
        }
        builder.finish().map_err(|clash| match clash {
            Clash::Token(token) => duplicate(token),
            Clash::Id(id, first, second) => Error::DuplicateId { id, first, second },
            Clash::TooManyCollisions(token) => token_collides(&token),
            Clash::Text => unreachable!("strings are UTF-8"),
        })
    }
}

pub(super) fn token_collides(token: &str) -> Error {
    Error::too_many_collisions("$.model.vocab", &format!("token {token:?}"))
}

/// Largest id accepted for a vocabulary of `tokens`: leaves room for the holes of real
/// files, and keeps a damaged id from asking for gigabytes.
pub(super) fn id_limit(tokens: usize) -> u64 {
    (tokens as u64 * 4 + 0xFFFF).min(u64::from(u32::MAX / 4))
}
