//! The tokens and merge rules of a `tokenizer.json` with BPE of characters, checked entry by entry.

use super::CharBpe;
use super::char_bpe_builder::build;
use super::unmerged_tokens::UnmergedTokens;
use crate::error::Error;
use crate::json::{MergesJson, ModelJson};
use crate::pairs::{RANK_MAX, TOKEN_END};
use crate::pieces::{Tokens, read_tokens};

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
    /// Reads the vocabulary and the merges of `model`.
    pub(crate) fn read(model: &ModelJson) -> Result<Self, Error> {
        let (vocab, merges) = model.vocab_and_merges()?;
        let tokens = read_tokens(vocab)?;
        let mut this = Self {
            unmerged: UnmergedTokens::new(model, &tokens)?,
            tokens,
            rules: Vec::new(),
            fuse_unk: model.fuse_unk.unwrap_or(false),
            ignore_merges: model.ignore_merges.unwrap_or(false),
        };
        this.rules = this.read_rules(merges)?;
        Ok(this)
    }

    /// Builds the tables of the model.
    pub(crate) fn build(&self) -> Result<CharBpe, Error> {
        build(self)
    }

    fn read_rules(&self, merges: &MergesJson) -> Result<Vec<[u32; 3]>, Error> {
        let path = "$.model.merges";
        if merges.len() > RANK_MAX {
            return Err(Error::invalid(path, format!("more than {RANK_MAX} merges")));
        }
        let mut rules = Vec::with_capacity(merges.len());
        let mut joined = String::new();
        for merge in merges.iter() {
            let (index, left, right) = merge?;
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
        }
        Ok(rules)
    }
}
