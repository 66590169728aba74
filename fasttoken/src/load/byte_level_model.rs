//! The vocabulary and the merges of a byte-level model, with an error for every problem.

use crate::added::AddedTokens;
use crate::alphabet;
use crate::error::Error;
use crate::json::{for_each_merge, for_each_token, id_limit};
use crate::pairs::{RANK_MAX, TOKEN_END};
use crate::vocab::{Builder, Clash, NO_TOKEN, Names, Unindexed, Vocab};
use serde_json::value::RawValue;

/// The model's own vocabulary.
pub(super) struct Model {
    pub(super) tokens: Builder,
    pub(super) names: Names,
}

impl Model {
    pub(super) fn load(vocab: &RawValue) -> Result<Self, Error> {
        // No entry is shorter than `"":0,`: until all have been counted, this bounds
        // the room that one of them can ask for.
        let shortest = 5;
        let most = id_limit(vocab.get().len() / shortest + 1);
        let mut builder = Builder::default();
        let mut largest = 0;
        let mut outlier: Option<(String, u64)> = None;
        let mut count = 0;
        let mut text_bytes = 0;
        for_each_token(vocab, |token, id| {
            count += 1;
            text_bytes += token.len();
            let Some(near) = u32::try_from(id).ok().filter(|_| id <= most) else {
                outlier.get_or_insert_with(|| (token.to_owned(), id));
                return Ok(());
            };
            if text_bytes > u32::MAX as usize / 4 {
                return Err(Error::invalid(
                    "$.model.vocab",
                    "more than a gigabyte of text",
                ));
            }
            largest = largest.max(near);
            builder.add_model(token, near).map_err(|clash| match clash {
                Clash::Same => duplicate(token),
                Clash::Other(first) => Error::DuplicateId {
                    id: near,
                    first,
                    second: token.to_owned(),
                },
            })
        })?;
        let limit = id_limit(count);
        if u64::from(largest) > limit {
            outlier.get_or_insert_with(|| {
                let token = builder.spelling(largest).unwrap_or_default();
                (token.into_owned(), u64::from(largest))
            });
        }
        if let Some((token, id)) = outlier {
            return Err(Error::IdOutOfRange {
                token,
                id,
                tokens: count,
                limit,
            });
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
    pub(super) fn rules(&self, merges: &RawValue) -> Result<Vec<[u32; 3]>, Error> {
        let mut rules = Vec::new();
        let mut bytes = Vec::new();
        let mut joined = String::new();
        for_each_merge(merges, |index, left, right| {
            if rules.len() == RANK_MAX {
                return Err(Error::invalid(
                    "$.model.merges",
                    format!("more than {RANK_MAX} merges"),
                ));
            }
            bytes.clear();
            let mut ids = [None; 3];
            if alphabet::append_bytes(left, &mut bytes) {
                let cut = bytes.len();
                if alphabet::append_bytes(right, &mut bytes) {
                    let word = |bytes| self.tokens.word_id(&self.names, bytes);
                    ids = [word(&bytes[..cut]), word(&bytes[cut..]), word(&bytes)];
                }
            }
            let [Some(left_id), Some(right_id), Some(id)] = ids else {
                // Not spelled by the alphabet, or not there.
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                let id = |token: &str| {
                    self.id(token).ok_or_else(|| Error::UnknownMergeToken {
                        index,
                        token: token.to_owned(),
                    })
                };
                rules.push([id(left)?, id(right)?, id(&joined)?]);
                return check_merge_ids(index, [left, right], rules[rules.len() - 1]);
            };
            rules.push([left_id, right_id, id]);
            check_merge_ids(index, [left, right], [left_id, right_id, id])
        })?;
        Ok(rules)
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
