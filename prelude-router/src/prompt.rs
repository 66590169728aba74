//! What of a prompt a router looks at: the hashes of its granules.

use prelude_core::TokenId;
use prelude_kv::BlockHash;
use serde::{Deserialize, Serialize};

/// What prompts must have in common before they can share anything: the model, its adapter, its
/// tokenizer and the salt of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Root(pub u64);

impl Root {
    /// The root of prompts for `model`, with an adapter and a cache salt if there are any.
    /// `tokenizer` names the revision of the tokenizer that made the tokens.
    #[must_use]
    pub fn new(model: &str, adapter: Option<&str>, tokenizer: &str, salt: Option<&str>) -> Self {
        // Lengths and a mark keep `ab` + `c` from being `a` + `bc`, and nothing from being empty.
        let mut words = Vec::new();
        for part in [Some(model), adapter, Some(tokenizer), salt] {
            words.push(part.map_or(0, |part| part.len() as u32 + 1));
            words.extend(part.unwrap_or_default().bytes().map(u32::from));
        }
        Self(BlockHash::root(None).then(&words).0)
    }

    /// The root of the same prompts where nobody could tokenize them: bytes and tokens must not
    /// be taken for each other.
    fn of_bytes(self) -> Self {
        Self(BlockHash(self.0).then(&[u32::MAX]).0)
    }
}

/// A prompt, as far as a router knows it.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Its tokens.
    Tokens(&'a [TokenId]),
    /// What came over the wire, where it cannot be tokenized: shared beginnings are found all
    /// the same, in larger pieces, and four bytes count as one token.
    Bytes(&'a [u8]),
}

/// Bytes that count as one token.
const BYTES_PER_TOKEN: usize = 4;

impl Prompt<'_> {
    /// How many tokens it has, or may have; at least one.
    pub(crate) fn tokens(&self) -> u32 {
        let tokens = match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Bytes(bytes) => bytes.len().div_ceil(BYTES_PER_TOKEN),
        };
        u32::try_from(tokens.max(1)).unwrap_or(u32::MAX)
    }

    /// Puts the hashes of its prefixes into `hashes`: one for each whole granule of
    /// `granule` tokens. Returns under which root they are.
    pub(crate) fn hash(&self, root: Root, granule: u32, hashes: &mut Vec<u64>) -> Root {
        hashes.clear();
        match self {
            Self::Tokens(tokens) => {
                let blocks = BlockHash(root.0).blocks(tokens, granule as usize);
                hashes.extend(blocks.map(|hash| hash.0));
                root
            }
            Self::Bytes(bytes) => {
                let root = root.of_bytes();
                let mut hash = BlockHash(root.0);
                let mut words = Vec::with_capacity(granule as usize);
                for chunk in bytes.chunks_exact(granule as usize * BYTES_PER_TOKEN) {
                    let four = chunk.chunks_exact(BYTES_PER_TOKEN);
                    words.clear();
                    words.extend(four.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
                    hash = hash.then(&words);
                    hashes.push(hash.0);
                }
                root
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(root: Root, prompt: Prompt<'_>) -> Vec<u64> {
        let mut hashes = Vec::new();
        prompt.hash(root, 4, &mut hashes);
        hashes
    }

    #[test]
    fn roots_differ_in_each_part() {
        let all = [
            Root::new("m", None, "t", None),
            Root::new("m", None, "t", Some("")),
            Root::new("m", Some(""), "t", None),
            Root::new("m", None, "u", None),
            Root::new("mt", None, "", None),
            Root::new("", None, "mt", None),
        ];
        for (n, a) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|b| a != b), "{n}");
        }
    }

    #[test]
    fn whole_granules_count_and_chain() {
        let root = Root::new("m", None, "t", None);
        let a = hashes(root, Prompt::Tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
        let b = hashes(root, Prompt::Tokens(&[1, 2, 3, 4, 0, 6, 7, 8]));
        assert_eq!((a.len(), b.len()), (2, 2));
        assert_eq!(a[0], b[0]);
        assert_ne!(a[1], b[1]);
        assert!(hashes(root, Prompt::Tokens(&[1, 2, 3])).is_empty());
    }

    #[test]
    fn bytes_are_never_taken_for_tokens() {
        let root = Root::new("m", None, "t", None);
        let bytes: Vec<u8> = [1u32, 2, 3, 4]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        let a = hashes(root, Prompt::Bytes(&bytes));
        assert_eq!(a.len(), 1);
        assert_ne!(a, hashes(root, Prompt::Tokens(&[1, 2, 3, 4])));
        assert_eq!(Prompt::Bytes(&bytes).tokens(), 4);
        assert_eq!(Prompt::Bytes(&[]).tokens(), 1);
    }
}
