//! The ids of a text with their offsets and word ids, collected alike for all models.

use crate::encoding::Encoding;
use crate::normalize::Normalizer;
use crate::text_walk::TextSteps;
use crate::window::Windows;
use std::ops::{ControlFlow, Range};

/// The ids collected so far, and the limits at which collecting ends.
pub(crate) struct Collected<'a> {
    normalizer: &'a Normalizer,
    text: &'a str,
    /// True if offsets and word ids are wanted.
    pub(crate) wanted: bool,
    /// True if the blanks of tokens are wanted too.
    pub(crate) trims: bool,
    /// True if `starts` are wanted.
    pub(crate) left: bool,
    /// Number of ids with which the text ends at the next end of a word.
    pub(crate) stop_at: usize,
    /// Number of ids with which the text ends at once.
    break_at: usize,
    /// The raw text of the segment, and true if its normalized text may differ.
    segment: Range<usize>,
    changed: bool,
    /// The range in the segment of each byte of its normalized text, if that may differ.
    alignment: Vec<(usize, usize)>,
    /// Words and added tokens so far.
    words: u32,
    /// The start of each word (`true`) and added token in the ids.
    pub(crate) starts: Vec<(usize, bool)>,
    pub(crate) out: Encoding,
}

impl<'a> Collected<'a> {
    /// Creates a collector for `text`; `wanted` says whether offsets and word ids are wanted.
    pub(crate) fn new(normalizer: &'a Normalizer, text: &'a str, wanted: bool) -> Self {
        Self {
            normalizer,
            text,
            wanted,
            trims: false,
            left: false,
            stop_at: usize::MAX,
            break_at: usize::MAX,
            segment: 0..0,
            changed: false,
            alignment: Vec::new(),
            words: 0,
            starts: Vec::new(),
            out: Encoding::default(),
        }
    }

    /// Begins a segment of these bytes of the text. `changed` is false only if its normalized text is
    /// known to equal the raw text.
    pub(crate) fn begin_segment(&mut self, raw: Range<usize>, changed: bool) {
        if changed && self.wanted {
            self.alignment = self.normalizer.alignment(&self.text[raw.clone()]);
        }
        (self.segment, self.changed) = (raw, changed);
    }

    /// Begins the only segment of a text, given the range in the text of each byte of the normalized
    /// segment.
    pub(crate) fn begin_aligned(&mut self, alignment: Vec<(usize, usize)>) {
        self.segment = 0..self.text.len();
        self.changed = true;
        self.alignment = alignment;
    }

    /// Begins a word.
    pub(crate) fn begin_word(&mut self) {
        self.begin(true);
    }

    fn begin(&mut self, is_word: bool) {
        if self.left {
            self.starts.push((self.out.ids.len(), is_word));
        }
        self.words += 1;
    }

    /// Ends a word. Breaks if there are enough ids.
    pub(crate) fn end_word(&self) -> ControlFlow<()> {
        if self.out.ids.len() >= self.stop_at.min(self.break_at) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Returns the range in the text of the bytes `first..=last` of the normalized segment.
    pub(crate) fn range(&self, first: usize, last: usize) -> (usize, usize) {
        let Range { start, end } = self.segment;
        let last = last.max(first);
        if self.changed {
            let of = |at: usize| self.alignment.get(at).copied();
            let of = |at: usize| of(at).unwrap_or((end - start, end - start));
            return (start + of(first).0, start + of(last).1);
        }
        let (mut low, mut high) = ((start + first).min(end), (start + last + 1).min(end));
        while !self.text.is_char_boundary(low) {
            low -= 1;
        }
        while !self.text.is_char_boundary(high) {
            high += 1;
        }
        (low, high)
    }

    /// Adds an id of the word that was begun last, given the token as it is spelled, whose blanks may
    /// be wanted. Breaks if there are enough ids.
    #[inline]
    pub(crate) fn push(
        &mut self,
        id: u32,
        range: (usize, usize),
        spelling: &str,
    ) -> ControlFlow<()> {
        self.out.ids.push(id);
        if self.wanted {
            self.out.offsets.push(range);
            self.out.word_ids.push(Some(self.words - 1));
        }
        if self.trims {
            self.out.blanks.push(blanks(spelling));
        }
        if self.out.ids.len() >= self.break_at {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Sets the text of the token that is added next, and what the vocabulary has for its id.
    pub(crate) fn spell(&mut self, text: &str, in_vocabulary: Option<&str>) {
        self.out.spell(text, in_vocabulary);
    }

    /// Adds an added token, given its range in the text and what the vocabulary has for its id.
    pub(crate) fn raw_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        in_vocabulary: Option<&str>,
    ) -> ControlFlow<()> {
        let text = self.text;
        let spelling = &text[range.clone()];
        self.spell(spelling, in_vocabulary);
        self.begin(false);
        self.push(id, (range.start, range.end), spelling)
    }

    /// Adds an added token, given its range in the normalized segment, the text of that, and what the
    /// vocabulary has for its id.
    pub(crate) fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        normalized: &str,
        in_vocabulary: Option<&str>,
    ) -> ControlFlow<()> {
        let spelling = normalized.get(range.clone()).unwrap_or_default();
        self.spell(spelling, in_vocabulary);
        self.begin(false);
        let mut place = (0, 0);
        if self.wanted {
            place = self.range(range.start, range.end.saturating_sub(1));
        }
        self.push(id, place, spelling)
    }
}

/// Returns the blanks at both ends of a token, as `trim_offsets` counts them.
fn blanks(spelling: &str) -> (u32, u32) {
    let is_space = |c: &char| *c == 'Ġ' || c.is_whitespace();
    let leading = spelling.chars().take_while(is_space).count();
    let trailing = spelling.chars().rev().take_while(is_space).count();
    (leading as u32, trailing as u32)
}

/// A model that collects ids with their offsets.
pub(crate) trait Collect {
    /// Collects the ids of `text`. Breaks if a limit was reached.
    fn collect(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        collected: &mut Collected<'_>,
    ) -> ControlFlow<()>;

    /// Returns the first `max` ids of `text`, and the number of bytes before the next id. `safe_cuts`
    /// says whether texts can be cut at the places of [`crate::window`].
    fn prefix(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        max: usize,
        safe_cuts: bool,
    ) -> (Vec<u32>, usize) {
        for (window, whole) in Windows::new(safe_cuts, text, max) {
            let mut collected = Collected::new(steps.normalizer, window, true);
            collected.break_at = max.saturating_add(1);
            // The number of ids tells whether the limit was reached.
            let _ = self.collect(steps, window, &mut collected);
            let Encoding {
                mut ids, offsets, ..
            } = collected.out;
            let next = offsets.get(max).map(|next| next.0);
            if whole || next.is_some() {
                ids.truncate(max);
                return (ids, next.unwrap_or(text.len()));
            }
        }
        unreachable!("the last window is the whole text")
    }
}
