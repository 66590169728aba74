//! The changes that a reader is told of.

use prelude_core::KvEvent;

use crate::Error;

/// A change of what a reader knows of an engine.
#[derive(Debug)]
pub enum Update {
    /// Forget all blocks of the engine.
    Reset,
    /// Apply events, in order. Events about unknown blocks are to be ignored.
    Events(Vec<KvEvent>),
    /// The connection failed; the subscriber tries again.
    Disconnected(Error),
}

impl PartialEq for Update {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reset, Self::Reset) => true,
            (Self::Events(a), Self::Events(b)) => a == b,
            _ => false,
        }
    }
}
