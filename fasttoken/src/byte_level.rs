//! Byte-level models: a text is split into words by a pattern, and the bytes of a word are merged.

mod byte_offsets;
mod held_bytes;
mod word_collector;

use crate::added::{AddedTokens, Recognise};
use crate::bpe::{Bpe, ThreadScratch};
use crate::pretokenize::{PreToken, PreTokenizer, PreTokens, SplitScratch};
use crate::text_walk::{Stretch, TextSteps, Visitor};
use crate::vocab::Vocab;
use crate::window;
pub(crate) use held_bytes::HeldBytes;
use std::ops::{ControlFlow, Range};

/// A byte-level model with its pre-tokenizer and vocabulary.
#[derive(Debug)]
pub(crate) struct ByteLevel {
    pub(crate) pre_tokenizer: PreTokenizer,
    pub(crate) vocab: Vocab,
    bpe: Bpe,
    /// True if texts can be cut at the places of [`crate::window`].
    pub(crate) safe_cuts: bool,
}

impl ByteLevel {
    /// Creates a model for texts with these added tokens.
    pub(crate) fn new(
        pre_tokenizer: PreTokenizer,
        vocab: Vocab,
        bpe: Bpe,
        added: &AddedTokens,
    ) -> Self {
        Self {
            safe_cuts: window::cuts_are_safe(&pre_tokenizer, added),
            pre_tokenizer,
            vocab,
            bpe,
        }
    }

    pub(crate) fn write(&self, writer: &mut crate::format::Writer) {
        self.vocab.write(writer);
        self.bpe.write(writer);
    }

    /// Appends the ids of `text`. If `plain`, words do not become added tokens.
    pub(crate) fn encode(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        (recognise, plain): (Recognise, bool),
        out: &mut Vec<u32>,
    ) {
        let mut visitor = Ids {
            model: self,
            scratch: ThreadScratch::default(),
            out,
            plain,
        };
        self.walk_words(steps, text, recognise, &mut visitor);
    }

    /// Calls `each` with the words of a stretch of text.
    fn split(
        &self,
        stretch: Stretch<'_>,
        mut each: impl FnMut(PreToken<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Stretch { text, start, .. } = stretch;
        let scratch = &mut SplitScratch::default();
        match self.pre_tokenizer.only_grammar() {
            Some(grammar) => {
                PreTokenizer::split_by_grammar(grammar, text, start, scratch, |words| {
                    words.each(&mut each)
                })
            }
            None => self.pre_tokenizer.split(text, start, scratch, &mut each),
        }
    }

    /// Returns the bytes of `ids`, which need not be UTF-8.
    pub(crate) fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        self.vocab.pieces(ids, skip_special_tokens)
    }
}

/// Appends ids.
struct Ids<'a> {
    model: &'a ByteLevel,
    scratch: ThreadScratch,
    out: &'a mut Vec<u32>,
    /// True if words must not become added tokens.
    plain: bool,
}

impl Visitor for Ids<'_> {
    fn stretch(&mut self, stretch: Stretch<'_>) -> ControlFlow<()> {
        let model = self.model;
        model.split(stretch, |word| {
            self.word(word);
            ControlFlow::Continue(())
        })
    }

    fn raw_token(&mut self, id: u32, _: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        ControlFlow::Continue(())
    }
}

impl Ids<'_> {
    /// Appends the ids of a word.
    #[inline]
    fn word(&mut self, word: PreToken<'_>) {
        let ByteLevel { bpe, vocab, .. } = self.model;
        let (word, before) = (word.text.as_bytes(), self.out.len());
        bpe.encode(word, vocab, &mut self.scratch, self.out);
        if self.plain && self.out[before..].iter().any(|id| vocab.is_added(*id)) {
            self.out.truncate(before);
            bpe.encode_bytes(word, self.out);
        }
    }

    /// Appends the ids of several words.
    fn words(&mut self, words: &PreTokens<'_>) {
        let ByteLevel { bpe, vocab, .. } = self.model;
        let before = self.out.len();
        bpe.encode_words(words, vocab, &mut self.scratch, self.out);
        if self.plain && self.out[before..].iter().any(|id| vocab.is_added(*id)) {
            self.out.truncate(before);
            let _ = words.each(|word| {
                self.word(word);
                ControlFlow::Continue(())
            });
        }
    }
}
