//! Constraints on generated text: languages over tokens, of which this crate knows only the
//! interface.

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::TokenId;

/// A language that every continuation of a row has to belong to.
///
/// A pure function: what may come next, and whether a text is complete, depend on the tokens
/// taken so far and on nothing else. So a constrained row keeps its batch invariance, and a
/// scheduler its determinism.
pub trait Constraint: Debug + Send + Sync {
    /// Returns a matcher that has taken no token.
    fn start(&self) -> Box<dyn Matcher>;
}

/// The position of one continuation in the language of a [`Constraint`].
pub trait Matcher: Debug + Send {
    /// Returns the mask of the tokens that may come next. It returns at once: the consumer of the
    /// mask waits for it, so that the mask can be computed while the model runs.
    fn next(&mut self) -> Arc<dyn TokenMask>;

    /// Advances by a token that was allowed.
    fn take(&mut self, token: TokenId) -> MatchState;
}

/// The state of a matcher after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchState {
    /// More text may come.
    Open,
    /// The text is in the language and nothing can follow: it needs no end token.
    Complete,
}

/// The tokens that may come next, perhaps still being computed.
pub trait TokenMask: Debug + Send + Sync {
    /// Waits for the set. Returns `None` if no token may come, or if the computation exceeded the
    /// constraint's budget: the row ends then.
    fn wait(&self) -> Option<&TokenSet>;

    /// Returns the estimated time until the set is there; zero if it is. A scheduler leaves rows
    /// out of steps that are shorter than that, so it has to become zero even if no thread waits
    /// for the set. A hint: it changes when a row runs, never its result.
    fn due_in(&self) -> Duration {
        Duration::ZERO
    }
}

/// A set of token ids, a bit for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet {
    /// Bit i of word w stands for id 32·w + i. Ids beyond are not in the set.
    words: Box<[u32]>,
}

impl TokenSet {
    /// Returns the set whose bit i of word w stands for id 32·w + i.
    #[must_use]
    pub fn from_words(words: Box<[u32]>) -> Self {
        Self { words }
    }

    /// Returns the set of these ids, all below `vocab_size`.
    ///
    /// # Panics
    /// If an id is not.
    #[must_use]
    pub fn from_ids(ids: impl IntoIterator<Item = TokenId>, vocab_size: u32) -> Self {
        let mut words = vec![0; vocab_size.div_ceil(32) as usize].into_boxed_slice();
        for id in ids {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Self { words }
    }

    /// Returns the set of all ids below `vocab_size`.
    #[must_use]
    pub fn all(vocab_size: u32) -> Self {
        let mut words = vec![u32::MAX; vocab_size.div_ceil(32) as usize].into_boxed_slice();
        if let (Some(last), used @ 1..) = (words.last_mut(), vocab_size % 32) {
            *last = (1 << used) - 1;
        }
        Self { words }
    }

    /// Returns a copy without `ids`. Costs as much as copying the bits.
    #[must_use]
    pub fn without(&self, ids: &[TokenId]) -> Self {
        let mut words = self.words.clone();
        for &id in ids {
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
        Self { words }
    }

    /// Returns whether the set has `id`.
    #[must_use]
    pub fn contains(&self, id: TokenId) -> bool {
        let word = self.words.get(id as usize / 32).copied().unwrap_or(0);
        word >> (id % 32) & 1 == 1
    }

    /// Returns the number of ids in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Returns true if the set has no ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// Returns the ids in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..).zip(&*self.words).flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    at * 32 + bit
                })
            })
        })
    }
}

/// A set that is known already.
impl TokenMask for TokenSet {
    fn wait(&self) -> Option<&TokenSet> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_ids_it_was_given() {
        let check = |ids: &[u32]| {
            let set = TokenSet::from_ids(ids.iter().copied(), 100);
            assert_eq!(set.ids().collect::<Vec<_>>(), ids);
            assert_eq!(set.len(), ids.len());
            assert_eq!(set.is_empty(), ids.is_empty());
            for id in 0..300 {
                assert_eq!(set.contains(id), ids.contains(&id), "{id}");
            }
        };
        check(&[]);
        check(&[0, 31, 32, 63, 64, 99]);
        check(&(0..100).collect::<Vec<_>>());
    }

    #[test]
    fn all_is_every_id_and_without_takes_away() {
        for vocab_size in [0, 1, 31, 32, 33, 64, 100] {
            let all = TokenSet::all(vocab_size);
            assert_eq!(all, TokenSet::from_ids(0..vocab_size, vocab_size));
            let gone = [0, 31, 32, 33, 99, 4_000];
            let left = (0..vocab_size).filter(|id| !gone.contains(id));
            assert_eq!(all.without(&gone), TokenSet::from_ids(left, vocab_size));
            assert_eq!(all.without(&[]), all);
        }
    }
}
