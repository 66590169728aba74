//! The vocabulary and the merges of a byte-level model, with an error for every problem.

use crate::added::AddedTokens;
use crate::alphabet;
use crate::error::Error;
use crate::json::{MergesJson, VocabJson};
use crate::pairs::{RANK_MAX, TOKEN_END};
use crate::vocab::{Builder, Clash, NO_TOKEN, Names, Sought, Unindexed, Vocab};

/// The number of rules whose tokens are looked up together: the index and the tokens are megabytes,
/// and their memory is prefetched before it is read. With the table of pairs, the rules of Qwen 3
/// take 14 ms; looked up one by one they took 21 ms.
const GROUP: usize = 32;

/// The model's own vocabulary.
pub(super) struct Model {
    pub(super) tokens: Builder,
    pub(super) names: Names,
}

impl Model {
    pub(super) fn load(vocab: &VocabJson) -> Result<Self, Error> {
        vocab.check_map()?;
        let mut builder = Builder::default();
        builder.reserve(vocab.len());
        for (token, id) in vocab.iter() {
            builder.add_model(token, id).map_err(|clash| match clash {
                Clash::Same => duplicate(token),
                Clash::Other(first) => Error::DuplicateId {
                    id,
                    first,
                    second: token.to_owned(),
                },
            })?;
        }
        let names = builder.index().map_err(|problem| match problem {
            Unindexed::Twice(id) => duplicate(&builder.spelling(id).unwrap_or_default()),
            Unindexed::TooManyCollisions(id) => {
                let token = builder.spelling(id).unwrap_or_default();
                Error::too_many_collisions("$.model.vocab", &format!("token {token:?}"))
            }
        })?;
        Ok(Self {
            tokens: builder,
            names,
        })
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.tokens.model_id(&self.names, token)
    }

    /// Returns the token of each byte. Bytes that UTF-8 never uses may lack one, and others too if
    /// `may_lack`: text then loses them, as in the reference.
    pub(super) fn byte_ids(&self, may_lack: bool) -> Result<[u32; 256], Error> {
        let mut ids = [0; 256];
        for byte in 0..=255u8 {
            ids[usize::from(byte)] = match self.tokens.word_id(&self.names, &[byte]) {
                Some(id) => id,
                None if may_lack || matches!(byte, 0xC0 | 0xC1 | 0xF5..) => NO_TOKEN,
                None => {
                    let spelling = alphabet::spelling(byte);
                    return Err(Error::MissingByte { byte, spelling });
                }
            };
        }
        Ok(ids)
    }

    /// Returns the merge rules of `$.model.merges`: the ids of the left token, the right token and
    /// the product. Of two rules for one pair, the later wins, as in the reference.
    pub(super) fn rules(&self, merges: &MergesJson) -> Result<Vec<[u32; 3]>, Error> {
        if merges.len() > RANK_MAX {
            let problem = format!("more than {RANK_MAX} merges");
            return Err(Error::invalid("$.model.merges", problem));
        }
        let mut rules: Vec<[u32; 3]> = Vec::with_capacity(merges.len());
        let (mut merges, mut group) = (merges.iter(), Vec::with_capacity(GROUP));
        let mut text = Vec::new();
        loop {
            text.clear();
            group.clear();
            for merge in merges.by_ref().take(GROUP) {
                let (index, left, right) = merge?;
                let lookups = self.seek_rule(left, right, &mut text);
                group.push((index, [left, right], lookups));
            }
            if group.is_empty() {
                return Ok(rules);
            }
            for lookup in group.iter().flat_map(|rule| &rule.2).flatten() {
                self.tokens.seek_slot(&self.names, lookup);
            }
            for (index, tokens, lookups) in &group {
                let last = rules.last().map_or(0, |rule| rule[2]);
                let found = lookups
                    .as_ref()
                    .and_then(|lookups| self.find_rule(lookups, &text, last));
                let rule = found.map_or_else(|| self.find_rule_by_spelling(*index, *tokens), Ok)?;
                check_merge_ids(*index, *tokens, rule)?;
                rules.push(rule);
            }
        }
    }

    /// Begins to look up both tokens of a rule, whose bytes are appended to `text`. Returns `None` if
    /// they are not spelled by the alphabet.
    fn seek_rule(&self, left: &str, right: &str, text: &mut Vec<u8>) -> Option<[Sought; 2]> {
        let start = text.len();
        alphabet::append_bytes(left, text).then_some(())?;
        let cut = text.len();
        alphabet::append_bytes(right, text).then_some(())?;
        let seek = |range| self.tokens.seek(&self.names, text, range);
        Some([seek(start..cut), seek(cut..text.len())])
    }

    /// Completes these lookups and finds the product; `last` is that of the rule before.
    fn find_rule(&self, lookups: &[Sought; 2], text: &[u8], last: u32) -> Option<[u32; 3]> {
        let [left, right] = lookups;
        let product = left.range().start..right.range().end;
        let found = |lookup| self.tokens.found(&self.names, text, lookup);
        // Most rules make the token after the product of the rule before, or the same one.
        let mut near = [last.wrapping_add(1), last].into_iter();
        let near = near.find(|id| self.tokens.is_word(*id, text, product.clone()));
        let id = near.or_else(|| self.tokens.word_id(&self.names, &text[product]));
        Some([found(left)?, found(right)?, id?])
    }

    /// Finds the tokens of a rule that are not spelled by the alphabet, or not there.
    #[cold]
    fn find_rule_by_spelling(&self, index: usize, tokens: [&str; 2]) -> Result<[u32; 3], Error> {
        let id = |token: &str| {
            self.id(token).ok_or_else(|| Error::UnknownMergeToken {
                index,
                token: token.to_owned(),
            })
        };
        let [left, right] = tokens;
        Ok([id(left)?, id(right)?, id(&tokens.concat())?])
    }

    /// Returns the vocabulary with the added tokens.
    pub(super) fn finish(self, added: &AddedTokens) -> Result<Vocab, Error> {
        let names = added.ids.keys();
        let new = names.filter(|content| self.id(content).is_none()).count();
        let mut tokens = self.tokens;
        for (id, token) in &added.tokens {
            let spelling = added.normalized_forms.get(id).unwrap_or(&token.content);
            if let Some(other) = tokens.spelling(*id) {
                if other != token.content {
                    // Happens where the vocabulary has holes: the next free id is not
                    // free.
                    return Err(Error::DuplicateId {
                        id: *id,
                        first: other.into_owned(),
                        second: token.content.clone(),
                    });
                }
                if *spelling != token.content {
                    // Decoding would write one thing and encoding match another.
                    return Err(Error::unsupported(
                        "$.added_tokens",
                        format!(
                            "added token {:?}, which is in the vocabulary and is normalized to {spelling:?}",
                            token.content
                        ),
                    ));
                }
            }
            let hidden = added.special_contents.contains(spelling);
            tokens.add_added(spelling, *id, hidden, token.special);
        }
        Ok(tokens.finish(self.names, new))
    }
}

/// Checks that the table of merges can hold the tokens of a rule.
fn check_merge_ids(index: usize, tokens: [&str; 2], rule: [u32; 3]) -> Result<(), Error> {
    let far = tokens
        .into_iter()
        .zip(rule)
        .find(|(_, id)| *id >= TOKEN_END);
    far.map_or(Ok(()), |(token, id)| {
        Err(Error::unsupported(
            format!("$.model.merges[{index}]"),
            format!("merge of token {token:?}, whose id is {id} (supported: below {TOKEN_END})"),
        ))
    })
}

fn duplicate(token: &str) -> Error {
    Error::DuplicateToken {
        token: token.to_owned(),
    }
}
