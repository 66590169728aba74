//! A constraint on what comes after the model's reasoning.

use std::sync::Arc;

use prelude_core::{Constraint, MatchState, Matcher, TokenId, TokenMask, TokenSet};

/// The marks at which a model's reasoning begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reasoning {
    /// The token that opens reasoning; `None` if the prompt has it.
    pub(crate) open: Option<TokenId>,
    /// The token that closes reasoning.
    pub(crate) close: TokenId,
}

/// Reasoning is free, and has to be closed; what follows is the inner constraint's. Reasoning that
/// the prompt has not opened may be left out.
#[derive(Debug)]
pub(super) struct AfterReasoning {
    reasoning: Reasoning,
    inner: Arc<dyn Constraint>,
    /// Everything but ends.
    free: Arc<TokenSet>,
}

impl AfterReasoning {
    pub(super) fn new(
        reasoning: Reasoning,
        inner: Arc<dyn Constraint>,
        ends: &[TokenId],
        vocab_size: u32,
    ) -> Self {
        Self {
            reasoning,
            inner,
            free: Arc::new(TokenSet::all(vocab_size).without(ends)),
        }
    }
}

impl Constraint for AfterReasoning {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Way {
            reasoning: self.reasoning,
            free: Arc::clone(&self.free),
            inner: self.inner.start(),
            place: match self.reasoning.open {
                Some(_) => Place::Start,
                None => Place::Reasoning,
            },
        })
    }
}

#[derive(Debug)]
struct Way {
    reasoning: Reasoning,
    free: Arc<TokenSet>,
    /// The matcher of the constraint, which stays at its beginning until reasoning is over.
    inner: Box<dyn Matcher>,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Start,
    Reasoning,
    Inside,
}

impl Matcher for Way {
    fn next(&mut self) -> Arc<dyn TokenMask> {
        match self.place {
            Place::Start => {
                // What comes first is known when a constraint is made.
                let first = self.inner.next();
                let first = first.wait().into_iter().flat_map(TokenSet::ids);
                let ids: Vec<TokenId> = first.chain(self.reasoning.open).collect();
                let vocab_size = ids.iter().max().map_or(0, |id| id + 1);
                Arc::new(TokenSet::from_ids(ids, vocab_size))
            }
            Place::Reasoning => Arc::clone(&self.free) as _,
            Place::Inside => self.inner.next(),
        }
    }

    fn take(&mut self, token: TokenId) -> MatchState {
        match self.place {
            Place::Start if Some(token) == self.reasoning.open => {
                self.place = Place::Reasoning;
                MatchState::Open
            }
            Place::Reasoning => {
                if token == self.reasoning.close {
                    self.place = Place::Inside;
                }
                MatchState::Open
            }
            Place::Start | Place::Inside => {
                self.place = Place::Inside;
                self.inner.take(token)
            }
        }
    }
}
