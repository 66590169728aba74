//! Chained hashes of prompt prefixes, one per block.
//!
//! The hash of a block stands for all tokens up to its end and for the salt, so one word names a
//! whole prefix. It is FNV-1a over token ids (one multiplication per token, the whole id at a
//! time) with the finaliser of splitmix64, the same on every machine, so that the blocks of
//! several engines can be compared. It is no defence against a *search*
//! for collisions: code that uses it for more than a hint compares the tokens, as
//! [`crate::PrefixTrie`] does.

use prelude_core::TokenId;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// Hash of a prefix of whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// Returns the empty prefix under a salt. No salt and the empty salt differ.
    #[must_use]
    pub fn root(salt: Option<&str>) -> Self {
        let Some(salt) = salt else {
            return Self(finish(FNV_OFFSET));
        };
        let bytes = salt.as_bytes().iter().map(|&b| u64::from(b));
        Self(finish(fold(finish(FNV_OFFSET), bytes) ^ 1))
    }

    /// Returns the hash of this prefix and one more block of `tokens`.
    #[must_use]
    pub fn then(self, tokens: &[TokenId]) -> Self {
        Self(finish(fold(self.0, tokens.iter().map(|&t| u64::from(t)))))
    }

    /// Returns the hashes of the prefixes that end with each whole block of `tokens`, which follow
    /// this prefix.
    pub fn blocks(self, tokens: &[TokenId], block_size: usize) -> impl Iterator<Item = Self> {
        tokens.chunks_exact(block_size).scan(self, |hash, block| {
            *hash = hash.then(block);
            Some(*hash)
        })
    }
}

fn fold(start: u64, words: impl Iterator<Item = u64>) -> u64 {
    // `w + 1`, so that token 0 changes the state like any other.
    words.fold(start, |h, w| (h ^ (w + 1)).wrapping_mul(FNV_PRIME))
}

/// Returns the finaliser of splitmix64: FNV alone leaves the high bits of short inputs nearly
/// alike.
const fn finish(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Routers and engines of different builds must agree: these values never change.
    #[test]
    fn hashes_are_stable() {
        assert_eq!(BlockHash::root(None), BlockHash(0xf52a_15e9_a9b5_e89b));
        assert_eq!(
            BlockHash::root(Some("a")).then(&[1, 2, 3]),
            BlockHash(0x1b3c_fb45_9ab5_7d6c)
        );
    }

    #[test]
    fn near_inputs_differ() {
        let mut seen = BTreeSet::new();
        for salt in [None, Some(""), Some("a"), Some("b")] {
            assert!(seen.insert(BlockHash::root(salt)));
            for a in 0..50 {
                for b in 0..50 {
                    assert!(seen.insert(BlockHash::root(salt).then(&[a, b])));
                }
                assert!(seen.insert(BlockHash::root(salt).then(&[a])));
                assert!(seen.insert(BlockHash::root(salt).then(&[a]).then(&[a])));
            }
        }
    }

    #[test]
    fn blocks_chains_whole_blocks_only() {
        let root = BlockHash::root(None);
        let hashes: Vec<_> = root.blocks(&[1, 2, 3, 4, 5], 2).collect();
        assert_eq!(
            hashes,
            [root.then(&[1, 2]), root.then(&[1, 2]).then(&[3, 4])]
        );
    }
}
