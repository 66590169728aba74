//! Byte-pair encoding (BPE) of words.
//!
//! A *word* is a pre-token: a range of text that the split pattern yields, and that no merge
//! crosses. A *piece* is the range of a word that is merged at one time. The *symbols* of a piece
//! are its tokens so far.
//!
//! A word starts as one token per byte. The pair of neighbouring symbols with the lowest merge
//! rank, and the leftmost of equal pairs, becomes one token, until no pair has a merge ([`byte_merge`]).
//!
//! Most words are a single token. Merging them is skipped if it is known to end at that token:
//! loading proves it for each token ([`prove`]), or the file states it with `ignore_merges`.
//! Single-token words of up to 12 bytes are found in a [`ShortTokenTable`], longer ones in a
//! [`StringTable`]. The tokens of all other words are kept in the thread's cache
//! ([`crate::cache`]).

mod byte_merge;
mod compiled_bpe;
mod piece_splitter;
mod pipeline;
pub(crate) mod prove;
mod scratch;
mod short_text;
mod thread_scratch;
mod word_index;

use crate::ablation::FastPath;
use crate::cache::{Cache, LongKey, Owner};
use crate::compare::{self, Scalar};
use crate::heap_merge::HeapMerge;
use crate::pairs::PairTable;
use crate::premerge::Premerged;
use crate::pretokenize::PreTokens;
use crate::short_tokens::{Key, MAX_KEY_BYTES, ShortTokenTable};
use crate::string_table::{StringTable, StringTableBuilder};
use crate::vocab::{NO_TOKEN, Vocab};
use pipeline::EncodeWords;
pub(crate) use scratch::Scratch;
use short_text::SHORT_TEXT_WORDS;
pub(crate) use thread_scratch::ThreadScratch;

/// The merges of a byte-level model, and the tables of words that are a single token.
#[derive(Debug)]
pub(crate) struct Bpe {
    /// The token of each single byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    pairs: PairTable,
    /// The single-token words of up to 12 bytes.
    words: ShortTokenTable,
    /// The single-token words that do not fit into `words`.
    long_words: StringTable,
    /// The byte lengths of the shortest and the longest entry of `long_words`.
    long_lens: (u32, u32),
    premerged: Premerged,
    /// The id of this model's words in the threads' caches.
    owner: Owner,
    /// True if merging a single-token word is known to end at that token.
    proved: bool,
    /// True if the vocabulary lacks a byte that UTF-8 text can contain.
    loses_bytes: bool,
}

impl Bpe {
    /// Creates a model without single-token words. `byte_ids` holds the token of each byte, or
    /// [`NO_TOKEN`].
    pub(crate) fn new(byte_ids: [u32; 256], pairs: PairTable) -> Self {
        Self {
            byte_ids,
            pairs,
            words: ShortTokenTable::default(),
            long_words: StringTableBuilder::with_capacity(0).finish(),
            long_lens: (u32::MAX, 0),
            premerged: Premerged::default(),
            owner: Owner::NONE,
            proved: false,
            loses_bytes: loses_bytes(&byte_ids),
        }
    }

    /// Registers this model's ids for the threads' caches.
    fn name_owners(&mut self) {
        if !FastPath::ThreadCache.is_taken() {
            return;
        }
        self.owner = Owner::new();
    }

    /// Appends the tokens of each word of `words`, and the ids of the words that are added tokens.
    pub(crate) fn encode_words(
        &self,
        words: &PreTokens<'_>,
        vocab: &Vocab,
        scratch: &mut ThreadScratch,
        out: &mut Vec<u32>,
    ) {
        if words.ends.len() <= SHORT_TEXT_WORDS && FastPath::ShortText.is_taken() {
            return self.encode_short_text(words, vocab, scratch.get(), out);
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
        scratch: &mut ThreadScratch,
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
        if !self.encode_cached(word, &scratch.cache, out) {
            let rest = (&mut *scratch.cache, &mut scratch.merging, &mut scratch.ids);
            self.encode_uncached(word, (key, hash), vocab, rest, out);
        }
    }

    /// Appends the cached tokens of a long word or a word of many tokens. Returns false if the
    /// cache lacks the word.
    fn encode_cached(&self, word: &[u8], cache: &Cache, out: &mut Vec<u32>) -> bool {
        let known = Self::long_key(word).and_then(|key| cache.long(self.owner, key));
        out.extend_from_slice(known.unwrap_or_default());
        known.is_some()
    }

    /// Appends the tokens of a word that is neither in the word table nor in the cache, and caches
    /// them.
    #[inline(never)]
    fn encode_uncached(
        &self,
        word: &[u8],
        (key, hash): (Key, u64),
        vocab: &Vocab,
        (cache, merging, ids): (&mut Cache, &mut HeapMerge, &mut Vec<u32>),
        out: &mut Vec<u32>,
    ) {
        // Long clauses of Chinese and Japanese rarely repeat as a whole.
        if self.proved && word.len() > MAX_KEY_BYTES && is_clause(word) {
            return self.merge_pieces(word, merging, out);
        }
        if self.find_long_token(word, (key, hash), vocab, cache, out) {
            return;
        }
        ids.clear();
        self.merge_pieces(word, merging, ids);
        self.cache_tokens(word, (key, hash), cache, ids);
        out.extend_from_slice(ids);
    }

    /// Returns the cache key of a long word, or `None` for a clause, since clauses rarely repeat.
    fn long_key(word: &[u8]) -> Option<LongKey> {
        (!is_clause(word)).then(|| LongKey::new(word)).flatten()
    }

    /// Looks a word up in the table of long single-token words and appends its token. Returns true
    /// if the word was found.
    fn find_long_token(
        &self,
        word: &[u8],
        (key, hash): (Key, u64),
        vocab: &Vocab,
        cache: &mut Cache,
        out: &mut Vec<u32>,
    ) -> bool {
        // A wasted hash of a long word costs as much as a merge or two.
        let (shortest, longest) = self.long_lens;
        let whole = (shortest as usize..=longest as usize)
            .contains(&word.len())
            .then(|| self.long_words.get(word, |id| vocab.piece(id)));
        let Some(id) = whole.flatten() else {
            return false;
        };
        self.cache_tokens(word, (key, hash), cache, &[id]);
        out.push(id);
        true
    }

    /// Stores the tokens of a merged word in the cache.
    #[inline(always)]
    fn cache_tokens(&self, word: &[u8], (key, hash): (Key, u64), cache: &mut Cache, ids: &[u32]) {
        // A word that is too long for a short key gets a long entry however few its tokens
        // are: three in four Russian words of 16 to 31 bytes repeat.
        if (key.is_none() || !cache.insert_short(self.owner, key, hash, ids))
            && let Some(long) = Self::long_key(word)
        {
            cache.insert_long(self.owner, &long, ids);
        }
    }

    /// Appends one token per byte, without merging.
    pub(crate) fn encode_bytes(&self, word: &[u8], out: &mut Vec<u32>) {
        out.extend(self.byte_tokens(word));
    }

    /// Returns the tokens of the bytes of `word`, skipping bytes without a token.
    fn byte_tokens(&self, word: &[u8]) -> impl Iterator<Item = u32> {
        let tokens = word.iter().map(|&byte| self.byte_ids[usize::from(byte)]);
        tokens.filter(|&id| id != NO_TOKEN)
    }

    /// Returns true if the vocabulary has a token for `byte`.
    pub(crate) fn has_byte(&self, byte: u8) -> bool {
        self.byte_ids[usize::from(byte)] != NO_TOKEN
    }
}

/// Returns true if a long word is a clause of Chinese or Japanese, by its first byte.
#[inline(always)]
fn is_clause(word: &[u8]) -> bool {
    matches!(word.first(), Some(0xE3..=0xE9 | 0xEF)) && FastPath::Clauses.is_taken()
}

/// Returns true if the vocabulary lacks a byte that UTF-8 uses.
fn loses_bytes(byte_ids: &[u32; 256]) -> bool {
    let never = |byte: usize| matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let mut lacking = byte_ids.iter().enumerate();
    lacking.any(|(byte, id)| *id == NO_TOKEN && !never(byte))
}

#[cfg(test)]
mod bpe_tests;
