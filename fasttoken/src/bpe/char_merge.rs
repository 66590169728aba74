//! Models whose texts are characters and not bytes, as of SentencePiece ([`crate::char_bpe`]).
//!
//! They are models of bytes too: every character that has a token is premerged to it
//! ([`crate::premerge`]), and the bytes of other characters have tokens that no rule joins. So the
//! words of such models are looked up, cached and merged as all others.

use super::{Bpe, NO_TOKEN};
use crate::format::{CompiledError, Reader};
use crate::heap_merge::HeapMerge;
use crate::pairs::PairTable;
use crate::premerge::{NO_CHAR, NOT_PREMERGED, Premerged};
use crate::short_tokens::{Key, ShortTokenTable};
use std::str;

impl Bpe {
    /// Creates a model without single-token words. `byte_ids` holds the tokens of ASCII characters, and
    /// those of other bytes, which stand for characters that `premerged` lacks.
    pub(crate) fn of_chars(byte_ids: [u32; 256], pairs: PairTable, premerged: Premerged) -> Self {
        let mut this = Self::new(byte_ids, pairs);
        (this.premerged, this.of_chars) = (premerged, true);
        this.proved = true;
        this.name_owners();
        this
    }

    /// Reads a model of characters from a compiled tokenizer.
    pub(crate) fn read_of_chars(reader: &Reader) -> Result<Self, CompiledError> {
        let mut this = Self::read(reader)?;
        this.of_chars = true;
        Ok(this)
    }

    /// Sets the words that are a single token.
    pub(crate) fn set_words(&mut self, words: impl Iterator<Item = (Key, u32)> + Clone) {
        // A word without a slot is merged.
        self.words = ShortTokenTable::new(words).0;
    }

    pub(crate) fn pairs(&self) -> &PairTable {
        &self.pairs
    }

    /// Returns the token of a word, if it is a single one and short.
    #[inline]
    pub(crate) fn word_token(&self, word: &[u8]) -> Option<u32> {
        let key = Key::new(word, 0, word.len());
        self.words
            .get::<crate::compare::Scalar>(key, self.words.home(key.hash()))
    }

    /// Returns the token of a character, or [`NO_TOKEN`]. That of an ASCII character may stand for its
    /// byte.
    #[inline]
    pub(crate) fn char_token(&self, c: char) -> u32 {
        if c.is_ascii() {
            return self.byte_ids[c as usize];
        }
        match self.premerged.get(c.into(), (0, NO_CHAR), (NO_CHAR, 0)) {
            [NOT_PREMERGED, _] => NO_TOKEN,
            [token, _] => token,
        }
    }

    /// Returns false if no rule joins two neighbouring characters, by themselves or with others beside
    /// them.
    #[inline]
    pub(crate) fn may_join(&self, left: u32, right: u32) -> bool {
        self.premerged.may_join(left, right)
    }

    /// Merges a word of any length, beginning with the tokens of its characters.
    #[inline(never)]
    pub(super) fn merge_chars(&self, word: &[u8], heap: &mut HeapMerge, out: &mut Vec<u32>) {
        let mut symbols = Vec::with_capacity(word.len());
        // Words are cut between characters.
        for c in str::from_utf8(word).unwrap_or_default().chars() {
            match self.char_token(c) {
                NO_TOKEN => symbols.extend(self.byte_tokens(c.encode_utf8(&mut [0; 4]).as_bytes())),
                token => symbols.push(token),
            }
        }
        let symbols = symbols.into_iter().map(|id| (id, 1));
        heap.merge(&self.pairs, symbols, |id, _| out.push(id));
    }
}
