//! Byte-pair encoding of one word.
//!
//! A word starts as one token per byte. The pair of neighbours whose merge rule
//! comes first in the file, and of equal ones the leftmost, becomes one token,
//! until no rule applies ([`merge`]).
//!
//! Most words are a token themselves. For those the merges are skipped, if they
//! are known to lead to that token: this is proved for each token at load ([`prove`],
//! or the file says so with `ignore_merges`). Such words of up to
//! 12 bytes are found in [`WordTable`], longer ones in a table of strings. Words of
//! several tokens are remembered by the thread ([`crate::cache`]).

mod few;
mod image;
mod index;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod merge;
mod parts;
mod pending;
pub(crate) mod prove;
mod scratch;
mod words;

use crate::atoms::Atoms;
pub(crate) use crate::cache::MergeScratch;
use crate::cache::{Cache, LongKey, Owner};
use crate::compare::{self, Scalar};
use crate::pairs::PairTable;
use crate::pretokenize::Words;
use crate::table::{StringTable, StringTableBuilder};
use crate::vocab::Vocab;
use crate::words::{KEY_MAX, Key, WordTable};
use few::FEW_WORDS;
use merge::Merging;
use parts::AtOnce;
use pending::Pending;
pub(crate) use scratch::Scratch;
use std::ops::Range;
use words::EncodeWords;

/// In place of a byte's token: the vocabulary lacks it, and such bytes vanish from
/// words, as in the reference. StarCoder lacks eleven that start rare characters.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// The merges, and the words that are one token.
#[derive(Debug)]
pub(crate) struct Bpe {
    /// Token of each single byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    pairs: PairTable,
    /// Words of up to 12 bytes that are one token.
    words: WordTable,
    /// Those that do not fit there.
    long_words: StringTable,
    /// Lengths of the shortest and the longest of those.
    long_lens: (u32, u32),
    atoms: Atoms,
    /// Names this model in the threads' caches.
    owner: Owner,
    /// The same for parts of words, which `ignore_merges` does not speak about; equal
    /// to `owner` without it.
    parts_owner: Owner,
    /// Whether words that are one token are so by their merges.
    proved: bool,
    /// Whether a byte that text can have lacks a token.
    loses_bytes: bool,
}

impl Bpe {
    /// `byte_ids` gives the token of each byte, or [`NO_TOKEN`].
    pub(crate) fn new(byte_ids: [u32; 256], pairs: PairTable) -> Self {
        Self {
            byte_ids,
            pairs,
            words: WordTable::default(),
            long_words: StringTableBuilder::with_capacity(0).finish(),
            long_lens: (u32::MAX, 0),
            atoms: Atoms::default(),
            owner: Owner::NONE,
            parts_owner: Owner::NONE,
            proved: false,
            loses_bytes: loses_bytes(&byte_ids),
        }
    }

    /// Takes names for the threads' caches.
    fn name_owners(&mut self) {
        self.owner = Owner::new();
        self.parts_owner = if self.proved {
            self.owner
        } else {
            Owner::new()
        };
    }

    /// Appends the tokens of each of `words`, and the ids of those that are added tokens.
    pub(crate) fn encode_words(
        &self,
        words: &Words<'_>,
        vocab: &Vocab,
        scratch: &mut MergeScratch,
        out: &mut Vec<u32>,
    ) {
        if words.ends.len() <= FEW_WORDS {
            return self.encode_few(words, vocab, scratch.get(), out);
        }
        compare::run(EncodeWords {
            bpe: self,
            words,
            vocab,
            scratch,
            out,
        });
    }

    /// Appends the tokens of `word`.
    #[inline]
    pub(crate) fn encode(
        &self,
        word: &[u8],
        vocab: &Vocab,
        scratch: &mut MergeScratch,
        out: &mut Vec<u32>,
    ) {
        let key = Key::new(word, 0, word.len());
        let hash = key.hash();
        if let Some(id) = self.words.get::<Scalar>(key, self.words.home(hash)) {
            out.push(id);
            return;
        }
        let scratch = scratch.get();
        if let Some((four, tokens)) = scratch.cache.short(self.owner, key, hash) {
            out.extend_from_slice(&four[..tokens]);
            return;
        }
        if !self.encode_known(word, &scratch.cache, out) {
            let rest = (&mut *scratch.cache, &mut scratch.merging, &mut scratch.ids);
            self.encode_rare(word, (key, hash), vocab, rest, out);
        }
    }

    /// Appends the tokens of a word that is long, or has many, if they are remembered.
    fn encode_known(&self, word: &[u8], cache: &Cache, out: &mut Vec<u32>) -> bool {
        let known = Self::long_key(word).and_then(|key| cache.long(self.owner, key));
        out.extend_from_slice(known.unwrap_or_default());
        known.is_some()
    }

    /// Appends the tokens of a word that neither the table of words nor the cache has, and
    /// remembers them.
    #[inline(never)]
    fn encode_rare(
        &self,
        word: &[u8],
        (key, hash): (Key, u64),
        vocab: &Vocab,
        (cache, merging, ids): (&mut Cache, &mut Merging, &mut Vec<u32>),
        out: &mut Vec<u32>,
    ) {
        // Clauses of Chinese and Japanese rarely come back as a whole.
        if self.is_clause_of_parts(word) {
            return self.merge_parts(word, (cache, merging), &mut AtOnce, out);
        }
        if self.look_long(word, (key, hash), vocab, cache, out) {
            return;
        }
        ids.clear();
        self.merge_parts(word, (&mut *cache, merging), &mut AtOnce, ids);
        self.remember(word, (key, hash), cache, ids);
        out.extend_from_slice(ids);
    }

    /// [`Bpe::encode_rare`] for the word at `place` of a text, of which parts may wait: then
    /// there is room for their tokens in `out`.
    #[inline(never)]
    fn encode_later(
        &self,
        (bytes, place): (&[u8], Range<usize>),
        (key, hash): (Key, u64),
        vocab: &Vocab,
        (cache, merging, pending): (&mut Cache, &mut Merging, &mut Pending),
        out: &mut Vec<u32>,
    ) {
        let word = &bytes[place.clone()];
        if self.is_clause_of_parts(word) {
            return self.merge_parts(word, (cache, merging), &mut AtOnce, out);
        }
        if self.look_long(word, (key, hash), vocab, cache, out) {
            return;
        }
        if is_clause(word) {
            // Their parts are short, and merged as soon as they could have been put aside.
            let before = out.len();
            self.merge_parts(word, (&mut *cache, merging), &mut AtOnce, out);
            self.remember(word, (key, hash), cache, &out[before..]);
        } else {
            pending.word(self, bytes, place, (key, hash), (cache, merging), out);
        }
    }

    /// Whether a word is not looked for as a whole, but in parts.
    fn is_clause_of_parts(&self, word: &[u8]) -> bool {
        self.proved && word.len() > KEY_MAX && is_clause(word)
    }

    /// The key of a long word; none of those that do not come back.
    fn long_key(word: &[u8]) -> Option<LongKey> {
        (!is_clause(word)).then(|| LongKey::new(word)).flatten()
    }

    /// Looks for a word in the table of long ones, and appends its token. Returns whether it
    /// was found.
    fn look_long(
        &self,
        word: &[u8],
        (key, hash): (Key, u64),
        vocab: &Vocab,
        cache: &mut Cache,
        out: &mut Vec<u32>,
    ) -> bool {
        // Hashing a long word for nothing takes as long as a merge or two.
        let (shortest, longest) = self.long_lens;
        let whole = (shortest as usize..=longest as usize)
            .contains(&word.len())
            .then(|| self.long_words.get(word, |id| vocab.piece(id)));
        let Some(id) = whole.flatten() else {
            return false;
        };
        self.remember(word, (key, hash), cache, &[id]);
        out.push(id);
        true
    }

    /// Remembers the tokens of a word that was merged.
    fn remember(&self, word: &[u8], (key, hash): (Key, u64), cache: &mut Cache, ids: &[u32]) {
        // A word that is too long for a short key is remembered as a long one however few
        // its tokens are: of Russian words of 16 to 31 bytes, three in four come back.
        if (key.is_none() || !cache.remember_short(self.owner, key, hash, ids))
            && let Some(long) = Self::long_key(word)
        {
            cache.remember_long(self.owner, &long, ids);
        }
    }

    /// Appends one token per byte, without merging.
    pub(crate) fn encode_bytes(&self, word: &[u8], out: &mut Vec<u32>) {
        out.extend(self.byte_tokens(word));
    }

    /// The tokens of the bytes of `word`, of those that have one.
    fn byte_tokens(&self, word: &[u8]) -> impl Iterator<Item = u32> {
        let tokens = word.iter().map(|&byte| self.byte_ids[usize::from(byte)]);
        tokens.filter(|&id| id != NO_TOKEN)
    }

    /// Whether the vocabulary has a token for `byte`.
    pub(crate) fn has_byte(&self, byte: u8) -> bool {
        self.byte_ids[usize::from(byte)] != NO_TOKEN
    }
}

/// Whether a long word is a clause of Chinese or Japanese.
#[inline(always)]
fn is_clause(word: &[u8]) -> bool {
    matches!(word.first(), Some(0xE3..=0xE9 | 0xEF))
}

/// Whether the vocabulary lacks a byte that UTF-8 uses.
fn loses_bytes(byte_ids: &[u32; 256]) -> bool {
    let never = |byte: usize| matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let mut lacking = byte_ids.iter().enumerate();
    lacking.any(|(byte, id)| *id == NO_TOKEN && !never(byte))
}

#[cfg(test)]
mod tests;
