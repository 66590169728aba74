//! Identifiers. Newtypes, so that an id of one kind never passes for another.

use serde::{Deserialize, Serialize};

/// A token of the model's vocabulary.
///
/// An alias rather than a newtype: ids come from `fasttoken` in vectors of `u32`, which may
/// not know this crate, and they are copied in bulk on the request path; a newtype would
/// force a copy or an unsafe cast per request and catch no mistake seen so far.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// The id of a request as the caller sees it: admitted, answered and cancelled as a unit.
    RequestId(u64)
}
id! {
    /// The id of a `Decode` sequence inside a scheduler: a row that outlives a step.
    ///
    /// An executor may attach persistent state to it (a slot of token counts, say) until the
    /// scheduler says that it is gone.
    SeqId(u64)
}
id! {
    /// The id of a KV block of `block_size` token positions. Only an executor turns it into an
    /// address.
    BlockId(u32)
}
id! {
    /// The id of the room for one KV block in host memory. Only an executor turns it into an
    /// address.
    HostBlockId(u32)
}
id! {
    /// The id of a forward pass; the scheduler counts them from 0 without gaps.
    StepId(u64)
}
id! {
    /// The id of a pass: one-shot work that several steps compute in slices.
    PassId(u64)
}

impl BlockId {
    /// Returns the id as an index into per-block arrays.
    #[must_use]
    pub fn index(self) -> usize {
        // u32 always fits: Prelude supports no target with a smaller usize.
        self.0 as usize
    }
}

impl HostBlockId {
    /// Returns the id as an index into per-block arrays.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
