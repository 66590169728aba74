//! The chained hashes of a prompt's granules, which are all that a router looks at.
//!
//! Hashing is nearly all that a decision takes, and it needs no router: threads that share one
//! hash first ([`Prefix::new`]) and take its lock then.

use prelude_core::TokenId;
use serde::{Deserialize, Serialize};

use crate::random::mix;

/// The properties that prompts must have in common before they can share anything: the model, its
/// adapter, its tokenizer and the salt of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Root(pub u64);

impl Root {
    /// Returns the root of prompts for `model`, with an adapter and a cache salt if there are any.
    /// `tokenizer` names the revision of the tokenizer that made the tokens.
    #[must_use]
    pub fn new(model: &str, adapter: Option<&str>, tokenizer: &str, salt: Option<&str>) -> Self {
        let parts = [Some(model), adapter, Some(tokenizer), salt];
        let hash = parts.into_iter().fold(0, |hash, part| {
            // Lengths keep `ab` and `c` from being `a` and `bc`, and nothing from being empty.
            let len = part.map_or(0, |part| part.len() as u64 + 1);
            let bytes = part.unwrap_or_default().bytes();
            bytes.fold(mix(hash ^ len), |hash, byte| mix(hash ^ u64::from(byte)))
        });
        Self(hash)
    }

    /// Returns the root of the same prompts where they could not be tokenized: bytes and tokens must
    /// not be taken for each other.
    fn of_bytes(self) -> Self {
        Self(mix(!self.0))
    }
}

/// A prompt, as far as a router knows it.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// The prompt's tokens.
    Tokens(&'a [TokenId]),
    /// The bytes that came over the wire, where they cannot be tokenized: shared beginnings are
    /// found all the same, and four bytes count as one token.
    Bytes(&'a [u8]),
}

/// Bytes that count as one token.
const BYTES_PER_TOKEN: usize = 4;

/// The hashes of a prompt's prefixes, one for each whole granule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    granule_tokens: u32,
    root: u64,
    tokens: u32,
    hashes: Vec<u64>,
}

impl Prefix {
    /// Returns the prefixes of a prompt, in granules of so many tokens: of
    /// [`granule_tokens`](crate::RouterConfig::granule_tokens), for a router.
    ///
    /// # Panics
    /// If that is 0.
    #[must_use]
    pub fn new(root: Root, prompt: Prompt<'_>, granule_tokens: u32) -> Self {
        let mut prefix = Self::default();
        prefix.set(root, prompt, granule_tokens);
        prefix
    }

    /// Sets this prefix to what [`Prefix::new`] returns, in the memory that it has.
    pub(crate) fn set(&mut self, root: Root, prompt: Prompt<'_>, granule_tokens: u32) {
        let granule = granule_tokens as usize;
        self.granule_tokens = granule_tokens;
        self.hashes.clear();
        let (root, tokens) = match prompt {
            Prompt::Tokens(tokens) => {
                let granules = tokens.chunks_exact(granule);
                chain(root, granules.map(content), &mut self.hashes);
                (root, tokens.len())
            }
            Prompt::Bytes(bytes) => {
                let mut hasher = ByteHasher::new(root, granule_tokens);
                hasher.prefix.hashes = std::mem::take(&mut self.hashes);
                hasher.push(bytes);
                *self = hasher.finish();
                return;
            }
        };
        self.root = root.0;
        self.tokens = u32::try_from(tokens.max(1)).unwrap_or(u32::MAX);
    }

    /// Returns the number of tokens of a granule.
    #[must_use]
    pub fn granule_tokens(&self) -> u32 {
        self.granule_tokens
    }

    /// Returns the root of the prompt.
    #[must_use]
    pub fn root(&self) -> Root {
        Root(self.root)
    }

    /// Returns the number of tokens of the prompt, or about as many; at least 1.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Returns a number for each whole granule that stands for the prompt up to its end.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }
}

/// Hashes a prompt's bytes that come in pieces: the prefix is that of [`Prompt::Bytes`] with the
/// pieces joined, and no caller has to join them.
#[derive(Clone, Debug)]
pub struct ByteHasher {
    /// The hashes of whole granules so far.
    prefix: Prefix,
    /// The hash of all whole granules.
    hash: u64,
    bytes: usize,
    /// The bytes of the granule that is not whole yet.
    part: Vec<u8>,
    /// The words of a granule, kept for their memory.
    words: Vec<u32>,
}

impl ByteHasher {
    /// Returns a hasher of a prompt below `root`, in granules of so many tokens.
    ///
    /// # Panics
    /// If that is 0.
    #[must_use]
    pub fn new(root: Root, granule_tokens: u32) -> Self {
        assert!(granule_tokens > 0, "a granule has at least one token");
        let root = root.of_bytes().0;
        Self {
            prefix: Prefix {
                granule_tokens,
                root,
                ..Prefix::default()
            },
            hash: root,
            bytes: 0,
            part: Vec::new(),
            words: Vec::new(),
        }
    }

    fn granule_bytes(&self) -> usize {
        (self.prefix.granule_tokens as usize).saturating_mul(BYTES_PER_TOKEN)
    }

    /// Appends the next piece of the prompt.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let granule = self.granule_bytes();
        self.bytes = self.bytes.saturating_add(bytes.len());
        if !self.part.is_empty() {
            let missing = granule - self.part.len();
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            self.part.extend_from_slice(head);
            if self.part.len() < granule {
                return;
            }
            let mut part = std::mem::take(&mut self.part);
            self.add(&part);
            part.clear();
            self.part = part;
            bytes = rest;
        }
        let mut granules = bytes.chunks_exact(granule);
        for bytes in &mut granules {
            self.add(bytes);
        }
        self.part.extend_from_slice(granules.remainder());
    }

    /// Adds a whole granule.
    fn add(&mut self, bytes: &[u8]) {
        let four = bytes.chunks_exact(BYTES_PER_TOKEN);
        let words = four.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        self.words.clear();
        self.words.extend(words);
        self.hash = chained(self.hash, content(&self.words));
        self.prefix.hashes.push(self.hash);
    }

    /// Returns the prefix of all pieces.
    #[must_use]
    pub fn finish(mut self) -> Prefix {
        let tokens = self.bytes.div_ceil(BYTES_PER_TOKEN).max(1);
        self.prefix.tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.prefix
    }
}

/// Returns the hash of all up to the end of a granule.
fn chained(hash: u64, content: u64) -> u64 {
    mix(hash.rotate_left(1) ^ content)
}

/// Makes hashes of what is in granules into hashes of all up to their ends.
fn chain(root: Root, granules: impl Iterator<Item = u64>, hashes: &mut Vec<u64>) {
    hashes.extend(granules.scan(root.0, |hash, content| {
        *hash = chained(*hash, content);
        Some(*hash)
    }));
}

/// Returns a hash of some tokens. Four sums at once, of two tokens at a time: a multiplication for each
/// token after the other takes four times as long, and that was nearly all of a decision.
fn content(tokens: &[u32]) -> u64 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(PRIME).rotate_left(29);
    let mut sums = [1, 2, 3, 4];
    let mut eights = tokens.chunks_exact(8);
    for eight in &mut eights {
        for (sum, pair) in sums.iter_mut().zip(eight.chunks_exact(2)) {
            *sum = step(*sum, u64::from(pair[0]) | u64::from(pair[1]) << 32);
        }
    }
    for (at, token) in eights.remainder().iter().enumerate() {
        sums[at % 4] = step(sums[at % 4], u64::from(*token));
    }
    sums.into_iter().fold(0, |hash, sum| mix(hash ^ sum))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn hashes(root: Root, prompt: Prompt<'_>) -> Vec<u64> {
        Prefix::new(root, prompt, 4).hashes
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
        let c = hashes(root, Prompt::Tokens(&[1, 2, 3, 0, 5, 6, 7, 8]));
        assert_eq!((a.len(), b.len(), c.len()), (2, 2, 2));
        assert_eq!(a[0], b[0]);
        assert_ne!(a[1], b[1]);
        assert_ne!(a[1], c[1], "it stands for all that is before");
        assert!(hashes(root, Prompt::Tokens(&[1, 2, 3])).is_empty());
        assert_ne!(a[0], hashes(Root(1), Prompt::Tokens(&[1, 2, 3, 4]))[0]);
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
        let tokens = |bytes| Prefix::new(root, Prompt::Bytes(bytes), 4).tokens();
        assert_eq!((tokens(&bytes[..]), tokens(&[])), (4, 1));
    }

    /// The hash of a granule of bytes is that of the tokens which its words are, below another root.
    #[test]
    fn words_of_bytes_are_hashed_as_tokens() {
        let root = Root::new("m", None, "t", None);
        let words: Vec<u32> = (0..9).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = hashes(root, Prompt::Bytes(&bytes));
        assert_eq!(found, hashes(root.of_bytes(), Prompt::Tokens(&words)));
    }

    proptest::proptest! {
        #[test]
        fn pieces_are_hashed_as_if_joined(
            pieces in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..50), 0..8),
            granule in 1u32..9,
        ) {
            let root = Root::new("m", None, "t", None);
            let mut hasher = ByteHasher::new(root, granule);
            for piece in &pieces {
                hasher.push(piece);
            }
            let joined = pieces.concat();
            let prefix = Prefix::new(root, Prompt::Bytes(&joined), granule);
            proptest::prop_assert_eq!(prefix.hashes.len(), joined.len() / (granule as usize * 4));
            proptest::prop_assert_eq!(hasher.finish(), prefix);
        }
    }

    /// Near granules of every length, each of which differs from all others.
    #[test]
    fn near_granules_differ() {
        let mut seen = BTreeSet::new();
        for len in 1..40usize {
            let plain: Vec<u32> = (0..len as u32).collect();
            assert!(seen.insert(content(&plain)), "{len}");
            for at in 0..len {
                for by in [1, 2, 1 << 16, 1 << 31] {
                    let mut other = plain.clone();
                    other[at] ^= by;
                    // Where it is no other one of these.
                    assert!(seen.insert(content(&other)), "{at} of {len} by {by}");
                }
            }
            for at in 1..len {
                let mut other = plain.clone();
                other.swap(at - 1, at);
                seen.insert(content(&other));
                assert_ne!(content(&other), content(&plain));
            }
        }
    }
}
