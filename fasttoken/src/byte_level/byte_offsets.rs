//! The ranges of text that the ids of a byte-level model come from.

use super::ByteLevel;
use crate::added::Recognise;
use crate::alphabet;
use crate::bpe::ThreadScratch;
use crate::collect::{Collect, Collected};
use crate::pretokenize::PreToken;
use crate::text_walk::{Stretch, TextSteps, Visitor};
use std::ops::{ControlFlow, Range};

/// Returns the byte of the normalized segment that byte `at` of the word stands for. An inserted
/// space stands for the character after it.
fn position(word: &PreToken<'_>, at: usize) -> usize {
    word.start + at.saturating_sub(usize::from(word.prefixed))
}

impl Collect for ByteLevel {
    fn collect(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        collected: &mut Collected<'_>,
    ) -> ControlFlow<()> {
        let mut collector = Collector {
            model: self,
            scratch: ThreadScratch::default(),
            word: Vec::new(),
            collected,
        };
        steps.walk(text, Recognise::All, &mut collector)
    }
}

/// Collects the ids of a byte-level model.
struct Collector<'a, 'c> {
    model: &'a ByteLevel,
    scratch: ThreadScratch,
    /// Ids of the word at hand.
    word: Vec<u32>,
    collected: &'a mut Collected<'c>,
}

impl Collector<'_, '_> {
    fn word(&mut self, word: &PreToken<'_>) -> ControlFlow<()> {
        self.collected.begin_word();
        let ByteLevel { bpe, vocab, .. } = self.model;
        let text = word.text.as_bytes();
        if self.collected.wanted {
            let mut ids = std::mem::take(&mut self.word);
            ids.clear();
            bpe.encode(text, vocab, &mut self.scratch, &mut ids);
            self.word_offsets(word, &ids);
            self.word = ids;
        } else {
            bpe.encode(text, vocab, &mut self.scratch, &mut self.collected.out.ids);
        }
        self.collected.end_word()
    }

    fn word_offsets(&mut self, word: &PreToken<'_>, ids: &[u32]) {
        let ByteLevel { bpe, vocab, .. } = self.model;
        if !word.text.bytes().all(|byte| bpe.has_byte(byte)) {
            return self.word_with_gaps(word, ids);
        }
        let mut at = 0;
        for &id in ids {
            let end = at + vocab.piece(id).len();
            // The range ends with the last byte, since an inserted space has no place of its own.
            let (first, last) = within(at, end, word.text.len());
            self.push(id, word, (first, last));
            at = end;
        }
    }

    /// Checks a word with bytes that the vocabulary lacks. The reference counts positions in the
    /// spelling of the word, where a byte takes one or two, and skips what vanished without leaving
    /// room for it: the tokens after it move to the left.
    fn word_with_gaps(&mut self, word: &PreToken<'_>, ids: &[u32]) {
        let vocab = &self.model.vocab;
        let mut byte_at = Vec::with_capacity(2 * word.text.len());
        for (at, byte) in word.text.bytes().enumerate() {
            byte_at.extend(std::iter::repeat_n(at, alphabet::spelling(byte).len_utf8()));
        }
        let mut at = 0;
        for &id in ids {
            let end = at + vocab.spelling(id).unwrap_or_default().len();
            let (first, last) = within(at, end, byte_at.len());
            self.push(id, word, (byte_at[first], byte_at[last]));
            at = end;
        }
    }

    /// Adds an id that stands for the bytes from `first` to `last` of a word.
    fn push(&mut self, id: u32, word: &PreToken<'_>, (first, last): (usize, usize)) {
        let range = self
            .collected
            .range(position(word, first), position(word, last));
        let spelling = match self.collected.trims {
            true => self.model.vocab.spelling(id).unwrap_or_default(),
            false => "".into(),
        };
        // Byte-level texts end between words only.
        let _ = self.collected.push(id, range, &spelling);
    }
}

/// Returns the first and last position of `start..end`, bounded to `0..len`. Tokens cover their
/// word exactly, except in a forged compiled tokenizer.
fn within(start: usize, end: usize, len: usize) -> (usize, usize) {
    let last = end.clamp(1, len.max(1)) - 1;
    (start.min(last), last)
}

impl Visitor for Collector<'_, '_> {
    fn segment(&mut self, raw: Range<usize>, changed: bool) {
        self.collected.begin_segment(raw, changed);
    }

    fn stretch(&mut self, stretch: Stretch<'_>) -> ControlFlow<()> {
        let model = self.model;
        model.split(stretch, |word| self.word(&word))
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        let known = self.model.vocab.spelling(id);
        self.collected.raw_token(id, range, known.as_deref())
    }

    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        normalized: &str,
    ) -> ControlFlow<()> {
        let known = self.model.vocab.spelling(id);
        self.collected
            .normalized_token(id, range, normalized, known.as_deref())
    }
}
