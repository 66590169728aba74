//! The ids of a text with their offsets and word ids, collected alike for all models that are not
//! byte-level.

use crate::added::TextSteps;
use crate::encoding::Encoding;
use crate::normalize::Normalizer;
use crate::pieces::Vocab;
use std::ops::{ControlFlow, Range};

/// The ids collected so far, and the limits at which collecting ends.
pub(crate) struct Collected<'a> {
    normalizer: &'a Normalizer,
    text: &'a str,
    /// True if offsets and word ids are wanted.
    pub(crate) wanted: bool,
    /// Number of ids with which the text ends at the next end of a word.
    stop_at: usize,
    /// Number of ids with which the text ends at once.
    break_at: usize,
    /// The byte of the text at which the segment begins.
    start: usize,
    /// The range in the raw segment of each byte of the normalized one.
    alignment: Vec<(usize, usize)>,
    /// The start of each word (`true`) and added token in the ids.
    starts: Vec<(usize, bool)>,
    out: Encoding,
}

impl<'a> Collected<'a> {
    fn new(normalizer: &'a Normalizer, text: &'a str, wanted: bool) -> Self {
        Self {
            normalizer,
            text,
            wanted,
            stop_at: usize::MAX,
            break_at: usize::MAX,
            start: 0,
            alignment: Vec::new(),
            starts: Vec::new(),
            out: Encoding::default(),
        }
    }

    /// Begins a segment of raw text at byte `start` of the text.
    pub(crate) fn begin_segment(&mut self, start: usize, raw: &str) {
        self.start = start;
        if self.wanted {
            self.alignment = self.normalizer.alignment(raw);
        }
    }

    /// Begins the only segment of a text, given the range in the text of each byte of the normalized
    /// segment.
    pub(crate) fn begin_aligned(&mut self, alignment: Vec<(usize, usize)>) {
        self.start = 0;
        self.alignment = alignment;
    }

    /// Begins a word.
    pub(crate) fn begin_word(&mut self) {
        self.starts.push((self.out.ids.len(), true));
    }

    /// Ends a word. Breaks if there are enough ids.
    pub(crate) fn end_word(&self) -> ControlFlow<()> {
        if self.out.ids.len() >= self.stop_at {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Returns the range in the text of the bytes `first..=last` of the normalized segment.
    pub(crate) fn range(&self, first: usize, last: usize) -> (usize, usize) {
        let of = |at: usize| self.alignment.get(at).copied().unwrap_or_default();
        (self.start + of(first).0, self.start + of(last).1)
    }

    /// Adds an id of the word that was begun last. Breaks if there are enough ids.
    pub(crate) fn push(&mut self, id: u32, range: (usize, usize)) -> ControlFlow<()> {
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

    /// Sets the text of the token that is added next, and what the vocabulary has for its id.
    pub(crate) fn spell(&mut self, text: &str, in_vocabulary: Option<&str>) {
        self.out.spell(text, in_vocabulary);
    }

    /// Adds an added token, given its range in the text.
    pub(crate) fn raw_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        vocab: &Vocab,
    ) -> ControlFlow<()> {
        let text = self.text;
        self.spell(&text[range.clone()], vocab.spelling(id));
        self.starts.push((self.out.ids.len(), false));
        self.push(id, (range.start, range.end))
    }

    /// Adds an added token, given its range in the normalized segment and the text of that.
    pub(crate) fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        normalized: &str,
        vocab: &Vocab,
    ) -> ControlFlow<()> {
        let text = normalized.get(range.clone()).unwrap_or_default();
        self.spell(text, vocab.spelling(id));
        self.starts.push((self.out.ids.len(), false));
        let range = self.range(range.start, range.end - 1);
        self.push(id, range)
    }
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

    /// Returns the first `max` ids of `text`, and the number of bytes before the next id.
    fn prefix(&self, steps: TextSteps<'_>, text: &str, max: usize) -> (Vec<u32>, usize) {
        let mut collected = Collected::new(steps.normalizer, text, true);
        collected.break_at = max.saturating_add(1);
        // The number of ids tells whether the limit was reached.
        let _ = self.collect(steps, text, &mut collected);
        let Encoding {
            mut ids, offsets, ..
        } = collected.out;
        let covered = offsets.get(max).map_or(text.len(), |next| next.0);
        ids.truncate(max);
        (ids, covered)
    }

    /// Encodes one text without a template. With `stop_at`, stops after the word in which that
    /// number of ids is reached. Returns the encoding, the start of each word (`true`) and added
    /// token in the ids, and true if it stopped early.
    fn encode_text(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        wanted: bool,
        stop_at: usize,
    ) -> (Encoding, Vec<(usize, bool)>, bool) {
        let mut collected = Collected::new(steps.normalizer, text, wanted);
        collected.stop_at = stop_at;
        let flow = self.collect(steps, text, &mut collected);
        (collected.out, collected.starts, flow.is_break())
    }
}
