//! The visitor that collects ids with their offsets and word ids.

use super::presplit::Word;
use super::walk::Visitor;
use super::{Chain, Found};
use crate::encoding::Encoding;
use crate::normalize::Normalizer;
use std::ops::{ControlFlow, Range};

/// Keeps ids, offsets and word ids.
pub(super) struct Collector<'a> {
    chain: &'a Chain,
    normalizer: &'a Normalizer,
    /// True if offsets and word ids are wanted.
    wanted: bool,
    /// Number of ids with which the text ends at the next end of a word.
    pub(super) stop_at: usize,
    /// Number of ids with which the text ends at once.
    pub(super) break_at: usize,
    /// The byte of the text at which the segment begins.
    start: usize,
    /// The range in the raw segment of each byte of the normalized one.
    alignment: Vec<(usize, usize)>,
    /// The tokens of the word at hand.
    found: Found,
    /// The start of each word (`true`) and added token in the ids.
    pub(super) starts: Vec<(usize, bool)>,
    pub(super) out: Encoding,
}

impl<'a> Collector<'a> {
    pub(super) fn new(chain: &'a Chain, normalizer: &'a Normalizer, wanted: bool) -> Self {
        Self {
            chain,
            normalizer,
            wanted,
            stop_at: usize::MAX,
            break_at: usize::MAX,
            start: 0,
            alignment: Vec::new(),
            found: Found::default(),
            starts: Vec::new(),
            out: Encoding::default(),
        }
    }

    fn begin(&mut self, is_word: bool) {
        self.starts.push((self.out.ids.len(), is_word));
    }

    /// Returns the range in the text of some bytes of the normalized segment.
    fn range(&self, first: usize, last: usize) -> (usize, usize) {
        let of = |at: usize| self.alignment.get(at).copied().unwrap_or_default();
        (self.start + of(first).0, self.start + of(last).1)
    }

    fn push(&mut self, id: u32, range: (usize, usize)) -> ControlFlow<()> {
        self.out.ids.push(id);
        if self.wanted {
            self.out.offsets.push(range);
            self.out.word_ids.push(Some(self.starts.len() as u32 - 1));
        }
        if self.out.ids.len() >= self.break_at {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Collector<'_> {
    fn segment(&mut self, start: usize, raw: &str) {
        self.start = start;
        if self.wanted {
            self.alignment = self.normalizer.alignment(raw);
        }
    }

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        self.begin(true);
        let mut found = std::mem::take(&mut self.found);
        self.chain.model.encode(word.text, |_| false, &mut found);
        for token in &found.tokens {
            let mut range = (0, 0);
            if self.wanted {
                let last = token.end.saturating_sub(1).max(token.start);
                range = self.range(word.place(token.start), word.place(last));
            }
            self.push(token.id, range)?;
        }
        self.found = found;
        if self.out.ids.len() >= self.stop_at {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.begin(false);
        self.push(id, (range.start, range.end))
    }

    fn normalized_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.begin(false);
        let range = self.range(range.start, range.end - 1);
        self.push(id, range)
    }
}
