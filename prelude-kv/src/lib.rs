//! KV-cache bookkeeping: a reference-counted block pool and a block-level prefix trie.
//!
//! This crate knows which KV blocks are free, used, shared and cached; it knows no device
//! pointer, no tensor, no clock. An executor turns a [`prelude_core::BlockId`] into an address.
//!
//! Read first: [`KvCache`], the door to both parts; then [`BlockPool`] (who holds a block) and
//! [`PrefixTrie`] (which tokens a block was computed from).
//!
//! The idea is Kwon et al., `PagedAttention` (SOSP 2023), §4, with prefixes shared between
//! requests; we share whole blocks only, and compare tokens on every match, so that a hash
//! collision can cost a recomputation but never give wrong keys and values.
//!
//! ```
//! use prelude_kv::{KvCache, Reclaim};
//!
//! let mut cache = KvCache::new(8, 4);
//! let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9];
//!
//! // The first request computes two whole blocks and publishes them.
//! let mut blocks = vec![
//!     cache.allocate(Reclaim::Evict).expect("the pool is empty"),
//!     cache.allocate(Reclaim::Evict).expect("the pool is empty"),
//! ];
//! assert_eq!(cache.publish(None, None, &prompt[..8], &mut blocks), 2);
//! cache.release_all(blocks);
//! assert_eq!((cache.used_blocks(), cache.cached_blocks(), cache.free_blocks()), (0, 2, 6));
//!
//! // The next one finds them, and holds them until it releases them.
//! let found = cache.match_prefix(None, &prompt, 8);
//! assert_eq!(found.blocks().len(), 2);
//! cache.release_all(found.into_blocks());
//! ```
#![forbid(unsafe_code)]

mod cache;
mod event_log;
pub mod hash;
mod host_tier;
mod pool;
mod trie;
mod uses;

pub use cache::{KvCache, PrefixMatch, Reclaim};
pub use hash::BlockHash;
pub use pool::{BlockPool, Released};
pub use trie::{Evicted, PrefixTrie};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
