//! The language of one of several texts, as a trie of the options' own tokenisations: no second
//! spelling of an option, and an exact bound on its length.

use std::sync::{Arc, OnceLock};

use prelude_core::{Constraint, MatchState, Matcher, TokenId, TokenMask, TokenSet};

use super::ConstraintContext;

/// The options, by their tokens.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    trie: Arc<Trie>,
    longest: u32,
}

/// A few bytes for each token of the options, whatever the vocabulary's size: sets of what may
/// come next are made when they are waited for.
#[derive(Debug)]
struct Trie {
    nodes: Vec<Node>,
    /// The tokens that end an option with which another option begins.
    ends: Arc<[TokenId]>,
    vocab_size: u32,
}

#[derive(Debug, Default)]
struct Node {
    /// Tokens and the nodes that they lead to, rising.
    children: Vec<(TokenId, usize)>,
    is_option: bool,
}

impl Choice {
    /// Returns the options that can be said in at least `min_tokens` tokens. `ends` are offered
    /// where one option is another's beginning.
    ///
    /// # Errors
    /// The rule that the options break, if there is no such option or two are the same tokens.
    pub(super) fn new(
        options: &[String],
        context: ConstraintContext<'_>,
        ends: Arc<[TokenId]>,
        min_tokens: u32,
    ) -> Result<Self, &'static str> {
        let paths: Vec<Vec<TokenId>> = options
            .iter()
            .map(|option| context.tokenizer.encode(option, false))
            .collect();
        Self::of_paths(&paths, context.vocab_size, ends, min_tokens)
    }

    fn of_paths(
        paths: &[Vec<TokenId>],
        vocab_size: u32,
        ends: Arc<[TokenId]>,
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
        let mut nodes = vec![Node::default()];
        for path in &distinct {
            let mut at = 0;
            for &id in *path {
                // Paths rise, so a node's last child is the only one to go on from.
                at = match nodes[at].children.last() {
                    Some(&(last, child)) if last == id => child,
                    _ => {
                        let new = nodes.len();
                        nodes[at].children.reserve_exact(1);
                        nodes[at].children.push((id, new));
                        nodes.push(Node::default());
                        new
                    }
                };
            }
            nodes[at].is_option = true;
        }
        nodes.shrink_to_fit();
        let longest = distinct.iter().map(|path| path.len()).max().unwrap_or(0);
        Ok(Self {
            trie: Arc::new(Trie {
                nodes,
                ends,
                vocab_size,
            }),
            longest: u32::try_from(longest).map_err(|_| "have fewer than 2^32 tokens")?,
        })
    }

    /// Returns the number of tokens of the longest option.
    pub(super) fn longest(&self) -> u32 {
        self.longest
    }
}

impl Constraint for Choice {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Place {
            trie: Arc::clone(&self.trie),
            at: Some(0),
        })
    }
}

#[derive(Debug)]
struct Place {
    trie: Arc<Trie>,
    /// `None` off the trie.
    at: Option<usize>,
}

impl Matcher for Place {
    fn next(&mut self) -> Arc<dyn TokenMask> {
        match self.at {
            Some(at) => Arc::new(Next {
                trie: Arc::clone(&self.trie),
                at,
                set: OnceLock::new(),
            }),
            None => Arc::new(TokenSet::default()),
        }
    }

    fn take(&mut self, token: TokenId) -> MatchState {
        self.at = self.at.and_then(|at| {
            let children = &self.trie.nodes[at].children;
            let found = children.binary_search_by_key(&token, |&(id, _)| id);
            found.ok().map(|i| children[i].1)
        });
        match self.at {
            Some(at) if self.trie.nodes[at].children.is_empty() => MatchState::Complete,
            _ => MatchState::Open,
        }
    }
}

/// A node's children, and an end token where an option ends.
#[derive(Debug)]
struct Next {
    trie: Arc<Trie>,
    at: usize,
    set: OnceLock<TokenSet>,
}

impl TokenMask for Next {
    fn wait(&self) -> Option<&TokenSet> {
        Some(self.set.get_or_init(|| {
            let node = &self.trie.nodes[self.at];
            let ends = self.trie.ends.iter().filter(|_| node.is_option);
            let children = node.children.iter().map(|(id, _)| id);
            TokenSet::from_ids(children.chain(ends).copied(), self.trie.vocab_size)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(paths: &[&[u32]], min_tokens: u32) -> Result<Choice, &'static str> {
        let paths: Vec<Vec<u32>> = paths.iter().map(|p| p.to_vec()).collect();
        Choice::of_paths(&paths, 100, Arc::from([99]), min_tokens)
    }

    /// Returns the tokens that may come after `taken`, and true if the text is complete then.
    fn check(choice: &Choice, taken: &[u32], next: &[u32], progress: MatchState) {
        let mut walk = choice.start();
        let last = taken.iter().map(|&id| walk.take(id)).last();
        assert_eq!(last.unwrap_or(MatchState::Open), progress, "{taken:?}");
        let found: Vec<u32> = walk.next().wait().unwrap().ids().collect();
        assert_eq!(found, next, "{taken:?}");
    }

    #[test]
    fn an_end_is_offered_where_an_option_goes_on() {
        let found = choice(&[&[1], &[1, 2, 3], &[4, 5]], 0).unwrap();
        assert_eq!(found.longest(), 3);
        check(&found, &[], &[1, 4], MatchState::Open);
        check(&found, &[1], &[2, 99], MatchState::Open);
        check(&found, &[1, 2], &[3], MatchState::Open);
        check(&found, &[1, 2, 3], &[99], MatchState::Complete);
        check(&found, &[4, 5], &[99], MatchState::Complete);
    }

    #[test]
    fn options_that_end_too_early_are_not_begun() {
        let found = choice(&[&[1], &[1, 2, 3], &[4, 5], &[6]], 2).unwrap();
        check(&found, &[], &[1, 4], MatchState::Open);
        check(&found, &[1], &[2], MatchState::Open);
        assert!(choice(&[&[1], &[2]], 2).is_err());
    }

    #[test]
    fn one_tokenisation_is_one_option() {
        assert!(choice(&[&[1, 2], &[1, 2]], 0).is_err());
        assert!(choice(&[&[1], &[]], 0).is_err());
    }

    /// Returns the bytes that the trie holds on the heap.
    fn bytes(choice: &Choice) -> usize {
        let Trie {
            nodes,
            ends,
            vocab_size: _,
        } = &*choice.trie;
        let children = |node: &Node| {
            let Node {
                children,
                is_option: _,
            } = node;
            size_of_val(&**children) + (children.capacity() - children.len()) * 16
        };
        size_of_val(&**ends)
            + nodes.capacity() * size_of::<Node>()
            + nodes.iter().map(children).sum::<usize>()
    }

    #[test]
    fn a_trie_is_as_large_as_its_options() {
        let paths: Vec<Vec<u32>> = (0..1_000)
            .map(|i| {
                (0..60)
                    .map(|at| (i * 7_919 + at * 104_729) % 152_000)
                    .collect()
            })
            .collect();
        let sizes = [152_000, 1 << 30].map(|vocab_size| {
            let choice = Choice::of_paths(&paths, vocab_size, Arc::from([]), 0).unwrap();
            bytes(&choice)
        });
        assert_eq!(sizes[0], sizes[1]);
        assert!(sizes[0] <= 60_001 * 64, "{}", sizes[0]);
    }
}
