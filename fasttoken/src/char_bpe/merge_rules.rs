//! The tokens and merge rules of a `tokenizer.json` with BPE of characters, checked entry by entry.

use super::CharBpe;
use super::char_bpe_builder::build;
use super::unmerged_tokens::UnmergedTokens;
use crate::error::Error;
use crate::json::{ModelJson, for_each_merge};
use crate::pairs::{RANK_MAX, TOKEN_END};
use crate::pieces::{Tokens, read_tokens};
use serde_json::value::RawValue;

/// The contents of a file's model: its tokens, its rules, and what stands for unknown text.
pub(crate) struct MergeRules {
    pub(crate) tokens: Tokens,
    /// The two tokens that each rule joins, and its product.
    pub(super) rules: Vec<[u32; 3]>,
    pub(super) unmerged: UnmergedTokens,
    pub(super) fuse_unk: bool,
    pub(super) ignore_merges: bool,
}

impl MergeRules {
    /// Makes a file of `tokens`, without rules.
    fn new(model: &ModelJson<'_>, tokens: Tokens) -> Result<Self, Error> {
        Ok(Self {
            unmerged: UnmergedTokens::new(model, &tokens)?,
            tokens,
            rules: Vec::new(),
            fuse_unk: model.fuse_unk.unwrap_or(false),
            ignore_merges: model.ignore_merges.unwrap_or(false),
        })
    }

    /// Reads the vocabulary and the merges of `model`.
    pub(crate) fn read(model: &ModelJson<'_>) -> Result<Self, Error> {
        let (vocab, merges) = model.vocab_and_merges()?;
        let mut this = Self::new(model, read_tokens(vocab)?)?;
        this.rules = this.read_rules(merges)?;
        Ok(this)
    }

    /// Takes the tokens and the rules of [`super::read_in_one_pass`]. Returns `None` if anything is unusual.
    pub(crate) fn from_one_pass(
        model: &ModelJson<'_>,
        tokens: Tokens,
        rules: Vec<[u32; 3]>,
    ) -> Option<Self> {
        let mut this = Self::new(model, tokens).ok()?;
        let mut parts = rules.iter().flat_map(|rule| &rule[..2]);
        if parts.any(|id| this.unmerged.contains(*id)) {
            return None;
        }
        this.rules = rules;
        Some(this)
    }

    /// Builds the tables of the model.
    pub(crate) fn build(&self) -> Result<CharBpe, Error> {
        build(self)
    }

    fn read_rules(&self, merges: &RawValue) -> Result<Vec<[u32; 3]>, Error> {
        let path = "$.model.merges";
        let mut rules = Vec::new();
        let mut joined = String::new();
        for_each_merge(merges, |index, left, right| {
            if rules.len() == RANK_MAX {
                return Err(Error::invalid(path, format!("more than {RANK_MAX} merges")));
            }
            let id = |token: &str| {
                self.tokens
                    .id(token)
                    .ok_or_else(|| Error::UnknownMergeToken {
                        index,
                        token: token.to_owned(),
                    })
            };
            let (left_id, right_id) = (id(left)?, id(right)?);
            for (token, id) in [(left, left_id), (right, right_id)] {
                let problem = if self.unmerged.contains(id) {
                    format!("a merge of {token:?}, which stands for bytes or for unknown text")
                } else if id >= TOKEN_END {
                    format!(
                        "merge of token {token:?}, whose id is {id} (supported: below {TOKEN_END})"
                    )
                } else {
                    continue;
                };
                return Err(Error::unsupported(format!("{path}[{index}]"), problem));
            }
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            rules.push([left_id, right_id, id(&joined)?]);
            Ok(())
        })?;
        Ok(rules)
    }
}
