//! The visitor that collects ids with their offsets and word ids.

use super::SentencePiece;
use super::encode::Visitor;
use super::merge::Scratch;
use super::split::{Part, Word};
use crate::encoding::Encoding;
use crate::normalize::Normalizer;
use crate::pieces::META;
use std::ops::{ControlFlow, Range};

/// Keeps ids, offsets and word ids.
pub(super) struct Collector<'a> {
    family: &'a SentencePiece,
    normalizer: &'a Normalizer,
    scratch: Scratch,
    /// True if offsets and word ids are wanted.
    wanted: bool,
    /// Number of ids with which the text ends at the next end of a word.
    pub(super) stop_at: usize,
    /// Number of ids with which the text ends at once.
    pub(super) break_at: usize,
    start: usize,
    /// The range in the raw segment of each byte of the normalized one.
    alignment: Vec<(usize, usize)>,
    normalized: String,
    /// The byte in the normalized segment of each byte of the current part.
    places: Vec<usize>,
    /// The part that `places` describes.
    placed: Option<Range<usize>>,
    pub(super) starts: Vec<(usize, bool)>,
    words: u32,
    pub(super) out: Encoding,
}

impl<'a> Collector<'a> {
    pub(super) fn new(family: &'a SentencePiece, normalizer: &'a Normalizer, wanted: bool) -> Self {
        Self {
            family,
            normalizer,
            scratch: Scratch::default(),
            wanted,
            stop_at: usize::MAX,
            break_at: usize::MAX,
            start: 0,
            alignment: Vec::new(),
            normalized: String::new(),
            places: Vec::new(),
            placed: None,
            starts: Vec::new(),
            words: 0,
            out: Encoding::default(),
        }
    }

    fn begin(&mut self, is_word: bool) {
        self.starts.push((self.out.ids.len(), is_word));
        self.words += 1;
    }

    /// Finds where the bytes of a part's text come from.
    fn place(&mut self, part: &Part) {
        if self.placed.as_ref() == Some(&part.range) {
            return;
        }
        self.places.clear();
        let from = part.range.start;
        let meta = META.len_utf8();
        self.places.extend(std::iter::repeat_n(
            from,
            if part.prefixed { meta } else { 0 },
        ));
        for (at, byte) in self.normalized[part.range.clone()].bytes().enumerate() {
            let times = if part.replaced && byte == b' ' {
                meta
            } else {
                1
            };
            self.places.extend(std::iter::repeat_n(from + at, times));
        }
        self.placed = Some(part.range.clone());
    }

    /// Range in the text of bytes of the normalized segment.
    fn range(&self, first: usize, last: usize) -> (usize, usize) {
        let of = |at: usize| self.alignment.get(at).copied().unwrap_or_default();
        (self.start + of(first).0, self.start + of(last).1)
    }

    fn push(&mut self, id: u32, range: (usize, usize)) -> ControlFlow<()> {
        self.out.ids.push(id);
        if self.wanted {
            self.out.offsets.push(range);
            self.out.word_ids.push(Some(self.words - 1));
        }
        if self.out.ids.len() >= self.break_at {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Collector<'_> {
    fn segment(&mut self, start: usize, raw: &str, normalized: &str) {
        self.start = start;
        self.placed = None;
        if self.wanted {
            self.alignment = self.normalizer.alignment(raw);
            self.normalized.clear();
            self.normalized.push_str(normalized);
        }
    }

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        self.begin(true);
        if self.wanted {
            self.place(word.part);
        }
        let model = &self.family.model;
        let mut scratch = std::mem::take(&mut self.scratch);
        // Positions count the bytes of symbols; vanishing characters have none.
        let mut at = word.at;
        let mut ids: Vec<(u32, u32)> = Vec::new();
        let flow = if let Some(id) = model.whole_word(word.text) {
            let end = at + word.text.len();
            self.add(id, at, end)
        } else {
            model.pieces(word.text, |piece| {
                ids.clear();
                model.merge(piece, &mut scratch, |id, len| ids.push((id, len)));
                for &(id, len) in &ids {
                    let end = at + len as usize;
                    self.add(id, at, end)?;
                    at = end;
                }
                ControlFlow::Continue(())
            })
        };
        self.scratch = scratch;
        flow?;
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

impl Collector<'_> {
    /// Adds an id that stands for bytes `at..end` of its part's text.
    fn add(&mut self, id: u32, at: usize, end: usize) -> ControlFlow<()> {
        let mut range = (0, 0);
        if self.wanted
            && let (Some(&first), Some(&last)) = (self.places.get(at), self.places.get(end - 1))
        {
            range = self.range(first, last);
        }
        self.push(id, range)
    }
}
