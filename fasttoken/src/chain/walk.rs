//! Encoding: the way of a text through added tokens, normalizers and pre-tokenizers to the model.

use super::presplit::Word;
use super::{Chain, Found};
use crate::added::{Part, Pass, Recognise, TextSteps};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::{ControlFlow, Range};

/// A receiver of the parts of a text, in order, while it is encoded.
pub(super) trait Visitor {
    /// Begins a segment of raw text between two added tokens.
    fn segment(&mut self, _start: usize, _raw: &str) {}
    fn word(&mut self, word: Word<'_>) -> ControlFlow<()>;
    /// An added token; its range counts bytes of the text.
    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()>;
    /// An added token; its range counts bytes of the normalized segment, whose text is given.
    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        _normalized: &str,
    ) -> ControlFlow<()> {
        self.raw_token(id, range)
    }
}

impl Chain {
    pub(super) fn walk(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        recognise: Recognise,
        visitor: &mut impl Visitor,
    ) -> ControlFlow<()> {
        let TextSteps { added, normalizer } = steps;
        added.split(Pass::Raw, recognise, text, |found| {
            let range = match found {
                Part::Token(id, range) => return visitor.raw_token(id, range),
                Part::Text(range) => range,
            };
            let raw = &text[range.clone()];
            visitor.segment(range.start, raw);
            let normalized = normalizer.apply(raw);
            // Computed once for all parts of the segment, and only if a part needs it.
            let alignment = OnceCell::new();
            let origin = |at: usize| match &normalized {
                Cow::Borrowed(_) => range.start + at,
                Cow::Owned(_) => {
                    let alignment = alignment.get_or_init(|| normalizer.alignment(raw));
                    alignment.get(at).map_or(raw.len(), |from| from.0) + range.start
                }
            };
            added.split(Pass::Normalized, recognise, &normalized, |found| {
                let part = match found {
                    Part::Token(id, range) => {
                        return visitor.normalized_token(id, range, &normalized);
                    }
                    Part::Text(part) => part,
                };
                let (text, start) = (&normalized[part.clone()], part.start);
                self.presplit
                    .split(text, start, &origin, &mut |word| visitor.word(word))
            })
        })
    }

    /// Appends the ids of `text`. If `plain`, text does not become added tokens.
    pub(crate) fn encode(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        (recognise, plain): (Recognise, bool),
        out: &mut Vec<u32>,
    ) {
        let mut visitor = Ids {
            chain: self,
            found: Found::default(),
            out,
            plain,
        };
        // The visitor never stops early.
        let _ = self.walk(steps, text, recognise, &mut visitor);
    }
}

/// Appends ids.
struct Ids<'a> {
    chain: &'a Chain,
    /// The tokens of the word at hand.
    found: Found,
    out: &'a mut Vec<u32>,
    /// True if words must not become added tokens.
    plain: bool,
}

impl Visitor for Ids<'_> {
    #[inline]
    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Chain { model, vocab, .. } = self.chain;
        if self.plain {
            let unk = model.unk();
            let taken = |id: u32| id != unk && vocab.is_added(id);
            model.encode(word.text, taken, &mut self.found);
        } else {
            model.encode(word.text, |_| false, &mut self.found);
        }
        self.out
            .extend(self.found.tokens.iter().map(|token| token.id));
        ControlFlow::Continue(())
    }

    fn raw_token(&mut self, id: u32, _: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        ControlFlow::Continue(())
    }
}
