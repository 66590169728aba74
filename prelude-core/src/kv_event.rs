//! Events of a KV cache: the blocks that it stores and drops.

use std::sync::Arc;

use crate::TokenId;

/// A change of the blocks that a KV cache holds for later requests.
///
/// A hash names a prefix of whole blocks: all tokens up to the end of the block, and the salt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks were stored, each behind the one before it.
    Stored(StoredBlocks),
    /// The blocks with these hashes were dropped.
    Removed(Vec<u64>),
    /// All blocks were dropped.
    Cleared,
}

/// A run of blocks that were stored one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The hash of each block.
    pub hashes: Vec<u64>,
    /// The hash of the block that the first one follows; `None` where a prompt starts.
    pub parent: Option<u64>,
    /// The tokens of all blocks, equally many of each.
    pub tokens: Vec<TokenId>,
    /// The salt of the prompt, if `parent` is `None` and the prompt has one. Blocks with a parent
    /// have the salt of their parent.
    pub salt: Option<Arc<str>>,
}

impl StoredBlocks {
    /// Returns the number of tokens of a block; 0 if there is no block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.tokens
            .len()
            .checked_div(self.hashes.len())
            .unwrap_or(0)
    }
}

impl KvEvent {
    /// Returns the number of blocks that the event names.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.hashes.len(),
            Self::Removed(hashes) => hashes.len(),
            Self::Cleared => 0,
        }
    }
}
