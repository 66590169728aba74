//! `Metaspace` as the last pre-tokenizer: spaces become `▁`, and each of them begins a word.

use super::word_splitter::{Each, Word};
use crate::normalize::push_replaced;
use crate::pieces::{META, Metaspace, Prepend};
use std::ops::ControlFlow;

/// A piece of normalized text with `▁` for its spaces.
#[derive(Debug, Default)]
pub(super) struct Part {
    text: String,
    /// The byte of the normalized segment at which the piece begins.
    pub(super) start: usize,
    /// True if a `▁` was put before the piece.
    prefixed: bool,
    /// The end in the text, without the first `▁`, of each space's `▁`.
    ends: Vec<usize>,
}

impl Part {
    fn fill(&mut self, piece: Word<'_>, prefixed: bool) {
        self.start = piece.start;
        self.prefixed = prefixed;
        self.text.clear();
        self.text.extend(prefixed.then_some(META));
        push_replaced(
            piece.text,
            b' ',
            META.encode_utf8(&mut [0; 4]),
            &mut self.text,
        );
        self.ends.clear();
        let spaces = memchr::memchr_iter(b' ', piece.text.as_bytes()).enumerate();
        let meta = META.len_utf8();
        self.ends
            .extend(spaces.map(|(n, space)| space + n * (meta - 1) + meta));
    }

    /// Returns the byte of the normalized segment that a byte of the text stands for.
    pub(super) fn place(&self, at: usize) -> usize {
        let meta = META.len_utf8();
        let prefix = if self.prefixed { meta } else { 0 };
        let Some(at) = at.checked_sub(prefix) else {
            return self.start;
        };
        let passed = self.ends.partition_point(|end| *end <= at);
        let longer = passed * (meta - 1);
        let begin = self.ends.get(passed).map(|end| end - meta);
        // All of a `▁` stands for its space.
        self.start + begin.filter(|begin| *begin <= at).unwrap_or(at) - longer
    }
}

impl Metaspace {
    /// Calls `each` with the words of a piece. `origin` returns the byte of the whole text that a
    /// byte of the normalized segment comes from.
    pub(super) fn split(
        &self,
        piece: Word<'_>,
        origin: &dyn Fn(usize) -> usize,
        part: &mut Part,
        each: &mut Each<'_>,
    ) -> ControlFlow<()> {
        let bare = !piece.text.starts_with([' ', META]);
        let prefixed = bare
            && match self.prepend {
                Prepend::First => origin(piece.start) == 0,
                Prepend::Always => true,
                Prepend::Never => false,
            };
        part.fill(piece, prefixed);
        let text = part.text.as_str();
        let mut word = |from: usize, to: usize| {
            each(Word {
                text: &text[from..to],
                start: from,
                part: Some(part),
            })
        };
        if !self.split {
            return word(0, text.len());
        }
        let mut from = 0;
        for (at, _) in text.match_indices(META) {
            if from < at {
                word(from, at)?;
            }
            from = at;
        }
        word(from, text.len())
    }
}
