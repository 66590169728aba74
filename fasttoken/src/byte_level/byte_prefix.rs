//! Encoding only the beginning of a text with a byte-level model.

use super::ByteLevel;
use super::byte_offsets::position;
use crate::added::Recognise;
use crate::bpe::ThreadScratch;
use crate::pretokenize::PreToken;
use crate::text_walk::{Stretch, TextSteps, Visitor};
use crate::window::Windows;
use std::ops::{ControlFlow, Range};

impl ByteLevel {
    /// Returns the first `max` ids of `text`, at least one, and the number of bytes that they cover.
    pub(crate) fn prefix(&self, steps: TextSteps<'_>, text: &str, max: usize) -> (Vec<u32>, usize) {
        for (window, whole) in Windows::new(self.safe_cuts, text, max) {
            let (ids, covered) = self.prefix_of(steps, window, max);
            match covered {
                // Up to the end of the window and no further: an added token that takes
                // the blanks after it would take more in the whole text.
                Some(bytes) if whole || bytes < window.len() => return (ids, bytes),
                None if whole => return (ids, text.len()),
                _ => {}
            }
        }
        unreachable!("the last window is the whole text")
    }

    /// Returns the ids, and the number of bytes that they cover if the limit was reached.
    fn prefix_of(&self, steps: TextSteps<'_>, text: &str, max: usize) -> (Vec<u32>, Option<usize>) {
        let mut visitor = Prefix {
            model: self,
            steps,
            text,
            scratch: ThreadScratch::default(),
            segment: 0..0,
            changed: false,
            out: Vec::new(),
            max,
            covered: 0,
        };
        let flow = steps.walk(text, Recognise::All, &mut visitor);
        (visitor.out, flow.is_break().then_some(visitor.covered))
    }
}

/// Collects the first ids of a text.
struct Prefix<'a> {
    model: &'a ByteLevel,
    steps: TextSteps<'a>,
    text: &'a str,
    scratch: ThreadScratch,
    /// The raw text of the segment, and true if its normalized text may differ.
    segment: Range<usize>,
    changed: bool,
    out: Vec<u32>,
    max: usize,
    covered: usize,
}

impl Prefix<'_> {
    /// Stops if the limit is reached. `at` is the first byte of the segment that is not covered.
    fn stop_at(&mut self, at: usize) -> ControlFlow<()> {
        if self.out.len() < self.max {
            return ControlFlow::Continue(());
        }
        let raw = &self.text[self.segment.clone()];
        let at = if self.changed {
            let alignment = self.steps.normalizer.alignment(raw);
            alignment.get(at).map_or(raw.len(), |range| range.0)
        } else {
            let mut at = at;
            while !raw.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        self.covered = self.segment.start + at;
        ControlFlow::Break(())
    }

    fn word(&mut self, word: &PreToken<'_>) -> ControlFlow<()> {
        let ByteLevel { bpe, vocab, .. } = self.model;
        let before = self.out.len();
        let text = word.text.as_bytes();
        bpe.encode(text, vocab, &mut self.scratch, &mut self.out);
        if self.out.len() < self.max {
            return ControlFlow::Continue(());
        }
        self.out.truncate(self.max);
        let covered = self.out[before..].iter().map(|id| vocab.piece(*id).len());
        let covered = covered.sum();
        // The first byte after the covered bytes, among the bytes that have a token.
        let bytes = text.iter().enumerate();
        let mut with_token = bytes.filter(|(_, byte)| bpe.has_byte(**byte));
        let at = with_token.nth(covered).map_or(text.len(), |(at, _)| at);
        self.stop_at(position(word, at))
    }
}

impl Visitor for Prefix<'_> {
    fn segment(&mut self, raw: Range<usize>, changed: bool) {
        (self.segment, self.changed) = (raw, changed);
    }

    fn stretch(&mut self, stretch: Stretch<'_>) -> ControlFlow<()> {
        let model = self.model;
        model.split(stretch, |word| self.word(&word))
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        if self.out.len() < self.max {
            return ControlFlow::Continue(());
        }
        self.covered = range.end;
        ControlFlow::Break(())
    }

    fn normalized_token(&mut self, id: u32, range: Range<usize>, _: &str) -> ControlFlow<()> {
        self.out.push(id);
        self.stop_at(range.end)
    }
}
