//! Words that must not be said, as their tokenisations with and without a blank before them.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Duration,
};

use prelude_core::{Constraint, MatchState, Matcher, TokenId, TokenMask, TokenSet};
use prelude_text::tokenizer::Tokenizer;

/// Everything but what would complete one of these, within another constraint if there is one.
#[derive(Clone, Debug)]
pub(super) struct BadWords {
    words: Arc<[Vec<TokenId>]>,
    /// The vocabulary.
    all: Arc<TokenSet>,
    inner: Option<Arc<dyn Constraint>>,
}

impl BadWords {
    pub(super) fn new(
        words: &[String],
        tokenizer: &Tokenizer,
        vocab_size: u32,
        inner: Option<Arc<dyn Constraint>>,
    ) -> Self {
        let spelled = |word: &String| {
            let plain = tokenizer.encode(word, false);
            let after_blank = tokenizer.encode(&format!(" {word}"), false);
            [plain, after_blank]
        };
        let mut words: Vec<_> = words.iter().flat_map(spelled).collect();
        words.retain(|ids| !ids.is_empty());
        words.sort_unstable();
        words.dedup();
        Self::of_tokens(words, vocab_size, inner)
    }

    fn of_tokens(
        words: Vec<Vec<TokenId>>,
        vocab_size: u32,
        inner: Option<Arc<dyn Constraint>>,
    ) -> Self {
        Self {
            words: words.into(),
            all: Arc::new(TokenSet::all(vocab_size)),
            inner,
        }
    }
}

impl Constraint for BadWords {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Way {
            rules: self.clone(),
            said: VecDeque::new(),
            longest: self.words.iter().map(Vec::len).max().unwrap_or(0),
            inner: self.inner.as_ref().map(|inner| inner.start()),
        })
    }
}

#[derive(Debug)]
struct Way {
    rules: BadWords,
    /// The last tokens, as many as a word may need.
    said: VecDeque<TokenId>,
    longest: usize,
    inner: Option<Box<dyn Matcher>>,
}

impl Matcher for Way {
    fn next(&mut self) -> Arc<dyn TokenMask> {
        let ends_with = |start: &[TokenId]| {
            let skipped = self.said.len().checked_sub(start.len());
            skipped.is_some_and(|n| self.said.iter().skip(n).eq(start))
        };
        let split = self.rules.words.iter().filter_map(|word| word.split_last());
        let banned = split.filter(|(_, start)| ends_with(start));
        let banned: Vec<TokenId> = banned.map(|(last, _)| *last).collect();
        let within = match &mut self.inner {
            None => Arc::clone(&self.rules.all) as _,
            Some(inner) => inner.next(),
        };
        if banned.is_empty() {
            return within;
        }
        Arc::new(Rest {
            banned,
            within,
            set: OnceLock::new(),
        })
    }

    fn take(&mut self, token: TokenId) -> MatchState {
        self.said.push_back(token);
        if self.said.len() >= self.longest {
            self.said.pop_front();
        }
        let inner = self.inner.as_mut();
        inner.map_or(MatchState::Open, |inner| inner.take(token))
    }
}

/// What is left of another set.
#[derive(Debug)]
struct Rest {
    banned: Vec<TokenId>,
    within: Arc<dyn TokenMask>,
    set: OnceLock<Option<TokenSet>>,
}

impl TokenMask for Rest {
    fn wait(&self) -> Option<&TokenSet> {
        // The sampler waits here, in every step: no more work than copying the set.
        let left = || self.within.wait().map(|set| set.without(&self.banned));
        self.set.get_or_init(left).as_ref()
    }

    fn due_in(&self) -> Duration {
        self.within.due_in()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_be_completed() {
        let words = vec![vec![1], vec![2, 3], vec![2, 2, 4]];
        let free = BadWords::of_tokens(words.clone(), 6, None);
        let within = BadWords::of_tokens(words, 6, Some(Arc::new(free.clone())));
        for rules in [free, within] {
            let check = |said: &[u32], expected: &[u32]| {
                let mut walk = rules.start();
                said.iter()
                    .for_each(|&id| assert_eq!(walk.take(id), MatchState::Open));
                let found: Vec<u32> = walk.next().wait().unwrap().ids().collect();
                assert_eq!(found, expected, "{said:?}");
            };
            check(&[], &[0, 2, 3, 4, 5]);
            check(&[2], &[0, 2, 4, 5]);
            check(&[2, 2], &[0, 2, 5]);
            check(&[0, 2, 2, 2], &[0, 2, 5]);
            check(&[2, 0], &[0, 2, 3, 4, 5]);
        }
    }

    /// The set is handed on where nothing is banned, and cut where something is.
    #[test]
    fn a_set_is_copied_only_to_be_cut() {
        let rules = BadWords::of_tokens(vec![vec![1, 2]], 152_000, None);
        let mut walk = rules.start();
        let all: *const TokenSet = &*rules.all;
        assert!(std::ptr::eq(walk.next().wait().unwrap(), all));
        walk.take(1);
        let cut = walk.next();
        assert!(!std::ptr::eq(cut.wait().unwrap(), all));
        assert_eq!(cut.wait().unwrap().len(), 151_999);
    }
}
