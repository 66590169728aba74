//! Encoding: the way of a text through added tokens, normalizers and pre-tokenizers to the model.

use super::collector::Collector;
use super::presplit::Word;
use super::{Chain, Found};
use crate::added::{Part, Pass, Recognise, TextSteps};
use crate::encoding::Encoding;
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
    /// An added token; its range counts bytes of the normalized segment.
    fn normalized_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.raw_token(id, range)
    }
}

impl Chain {
    fn walk(
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
                    Part::Token(id, range) => return visitor.normalized_token(id, range),
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

    /// Returns the first `max` ids of `text`, and the number of bytes before the next id.
    pub(crate) fn prefix(&self, steps: TextSteps<'_>, text: &str, max: usize) -> (Vec<u32>, usize) {
        let mut collector = Collector::new(self, steps.normalizer, true);
        collector.break_at = max.saturating_add(1);
        // The number of ids tells whether the limit was reached.
        let _ = self.walk(steps, text, Recognise::All, &mut collector);
        let Encoding {
            mut ids, offsets, ..
        } = collector.out;
        let covered = offsets.get(max).map_or(text.len(), |next| next.0);
        ids.truncate(max);
        (ids, covered)
    }

    /// Encodes one text without a template. With `stop_at`, stops after the word in which that
    /// number of ids is reached. Returns the encoding, the start of each word (`true`) and added
    /// token in the ids, and true if it stopped early.
    pub(crate) fn encode_text(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        wanted: bool,
        stop_at: usize,
    ) -> (Encoding, Vec<(usize, bool)>, bool) {
        let mut collector = Collector::new(self, steps.normalizer, wanted);
        collector.stop_at = stop_at;
        let flow = self.walk(steps, text, Recognise::All, &mut collector);
        (collector.out, collector.starts, flow.is_break())
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
