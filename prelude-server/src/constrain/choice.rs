//! One of several texts, as a trie of the options' own tokenisations: no second spelling of an
//! option, and an exact bound on its length.

use std::{collections::BTreeMap, sync::Arc};

use prelude_core::{Constraint, NextTokens, Progress, TokenId, TokenSet, Walk};

use crate::served_model::ServedModel;

/// The options, by their tokens.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    nodes: Arc<[Node]>,
    longest: u32,
}

#[derive(Debug)]
struct Node {
    children: BTreeMap<TokenId, usize>,
    /// What may come here: the children, and an end token where an option ends.
    next: Arc<TokenSet>,
}

impl Choice {
    /// The options that can be said in at least `min_tokens` tokens. `ends` are offered where one
    /// option is another's beginning.
    ///
    /// # Errors
    /// What the options must do, if there is no such option or two are the same tokens.
    pub(super) fn new(
        options: &[String],
        model: &ServedModel,
        ends: &[TokenId],
        min_tokens: u32,
    ) -> Result<Self, &'static str> {
        let paths: Vec<Vec<TokenId>> = options
            .iter()
            .map(|option| model.tokenizer.encode(option, false))
            .collect();
        Self::of_paths(&paths, model.vocab_size, ends, min_tokens)
    }

    fn of_paths(
        paths: &[Vec<TokenId>],
        vocab_size: u32,
        ends: &[TokenId],
        min_tokens: u32,
    ) -> Result<Self, &'static str> {
        let mut distinct: Vec<&Vec<TokenId>> = paths.iter().collect();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < paths.len() || paths.iter().any(Vec::is_empty) {
            return Err("be distinct and have tokens: to this tokenizer, two are the same");
        }
        // An option that ends too early could be begun, but not be said.
        distinct.retain(|path| path.len() >= min_tokens as usize);
        if distinct.is_empty() {
            return Err("have an option of at least `min_tokens` tokens");
        }
        let mut children: Vec<BTreeMap<TokenId, usize>> = vec![BTreeMap::new()];
        let mut is_option = vec![false];
        for path in &distinct {
            let mut at = 0;
            for &id in *path {
                let new = children.len();
                at = *children[at].entry(id).or_insert(new);
                if at == new {
                    children.push(BTreeMap::new());
                    is_option.push(false);
                }
            }
            is_option[at] = true;
        }
        let node = |(children, is_option): (BTreeMap<TokenId, usize>, bool)| {
            let ends = ends.iter().filter(|_| is_option).copied();
            let ids = children.keys().copied().chain(ends);
            Node {
                next: Arc::new(TokenSet::from_ids(ids, vocab_size)),
                children,
            }
        };
        let longest = distinct.iter().map(|path| path.len()).max().unwrap_or(0);
        Ok(Self {
            nodes: children.into_iter().zip(is_option).map(node).collect(),
            longest: u32::try_from(longest).map_err(|_| "have fewer than 2^32 tokens")?,
        })
    }

    /// Tokens of the longest option.
    pub(super) fn longest(&self) -> u32 {
        self.longest
    }
}

impl Constraint for Choice {
    fn start(&self) -> Box<dyn Walk> {
        Box::new(Place {
            nodes: Arc::clone(&self.nodes),
            at: Some(0),
        })
    }
}

#[derive(Debug)]
struct Place {
    nodes: Arc<[Node]>,
    /// `None` off the trie.
    at: Option<usize>,
}

impl Walk for Place {
    fn next(&mut self) -> Arc<dyn NextTokens> {
        match self.at {
            Some(at) => Arc::clone(&self.nodes[at].next) as _,
            None => Arc::new(TokenSet::default()),
        }
    }

    fn take(&mut self, token: TokenId) -> Progress {
        self.at = self
            .at
            .and_then(|at| self.nodes[at].children.get(&token).copied());
        match self.at {
            Some(at) if self.nodes[at].children.is_empty() => Progress::Complete,
            _ => Progress::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(paths: &[&[u32]], min_tokens: u32) -> Result<Choice, &'static str> {
        let paths: Vec<Vec<u32>> = paths.iter().map(|p| p.to_vec()).collect();
        Choice::of_paths(&paths, 100, &[99], min_tokens)
    }

    /// What may come after `taken`, and whether the text is complete then.
    fn check(choice: &Choice, taken: &[u32], next: &[u32], progress: Progress) {
        let mut walk = choice.start();
        let last = taken.iter().map(|&id| walk.take(id)).last();
        assert_eq!(last.unwrap_or(Progress::Open), progress, "{taken:?}");
        let found: Vec<u32> = walk.next().wait().unwrap().ids().collect();
        assert_eq!(found, next, "{taken:?}");
    }

    #[test]
    fn an_end_is_offered_where_an_option_goes_on() {
        let found = choice(&[&[1], &[1, 2, 3], &[4, 5]], 0).unwrap();
        assert_eq!(found.longest(), 3);
        check(&found, &[], &[1, 4], Progress::Open);
        check(&found, &[1], &[2, 99], Progress::Open);
        check(&found, &[1, 2], &[3], Progress::Open);
        check(&found, &[1, 2, 3], &[99], Progress::Complete);
        check(&found, &[4, 5], &[99], Progress::Complete);
    }

    #[test]
    fn options_that_end_too_early_are_not_begun() {
        let found = choice(&[&[1], &[1, 2, 3], &[4, 5], &[6]], 2).unwrap();
        check(&found, &[], &[1, 4], Progress::Open);
        check(&found, &[1], &[2], Progress::Open);
        assert!(choice(&[&[1], &[2]], 2).is_err());
    }

    #[test]
    fn one_tokenisation_is_one_option() {
        assert!(choice(&[&[1, 2], &[1, 2]], 0).is_err());
        assert!(choice(&[&[1], &[]], 0).is_err());
    }
}
