//! A constraint as arbitrary as the imagined model: what may come next is a function of the
//! tokens taken.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prelude_core::{Constraint, MatchState, Matcher, TokenId, TokenMask, TokenSet};

use super::{random::mix, twin};

/// A constraint by places: about a third of the ids lead on from each place; now and then a place
/// is the last, or a dead end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hops {
    pub(super) vocab_size: u32,
}

#[derive(Debug)]
struct Place {
    at: u64,
    vocab_size: u32,
}

impl Constraint for Hops {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Place {
            at: twin::START,
            vocab_size: self.vocab_size,
        })
    }
}

impl Matcher for Place {
    fn next(&mut self) -> Arc<dyn TokenMask> {
        let leads = |id: &TokenId| mix(self.at, u64::from(*id)).is_multiple_of(3);
        let is_dead_end = mix(self.at, 0xdead).is_multiple_of(31);
        let ids = (0..self.vocab_size).filter(|id| !is_dead_end && leads(id));
        let polls = mix(self.at, 0x51ee9) % 8;
        Arc::new(Later {
            set: TokenSet::from_ids(ids, self.vocab_size),
            polls: AtomicU64::new(polls.saturating_sub(4)),
        })
    }

    fn take(&mut self, token: TokenId) -> MatchState {
        self.at = twin::after(self.at, token);
        match mix(self.at, 0xe4d).is_multiple_of(11) {
            true => MatchState::Complete,
            false => MatchState::Open,
        }
    }
}

/// A set that is there after some have asked when it is due.
#[derive(Debug)]
struct Later {
    set: TokenSet,
    polls: AtomicU64,
}

impl TokenMask for Later {
    fn wait(&self) -> Option<&TokenSet> {
        Some(&self.set)
    }

    fn due_in(&self) -> Duration {
        let one_less = |polls: u64| polls.checked_sub(1);
        let polls = &self.polls;
        let left = polls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        // Some are hidden by some steps.
        Duration::from_micros(left.map_or(0, |polls| 700 * polls))
    }
}
