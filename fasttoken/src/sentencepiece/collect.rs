//! The visitor that collects ids with their offsets and word ids.

use super::SentencePiece;
use super::encode::Visitor;
use super::merge::Scratch;
use super::split::{Part, Word};
use crate::added::{Recognise, TextSteps};
use crate::collect::{Collect, Collected};
use crate::pieces::META;
use std::ops::{ControlFlow, Range};

impl Collect for SentencePiece {
    fn collect(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        collected: &mut Collected<'_>,
    ) -> ControlFlow<()> {
        let mut collector = Collector {
            family: self,
            scratch: Scratch::default(),
            normalized: String::new(),
            places: Vec::new(),
            placed: None,
            collected,
        };
        self.walk(steps, text, Recognise::All, &mut collector)
    }
}

/// Keeps ids, offsets and word ids.
struct Collector<'a, 'c> {
    family: &'a SentencePiece,
    scratch: Scratch,
    normalized: String,
    /// The byte in the normalized segment of each byte of the current part.
    places: Vec<usize>,
    /// The part that `places` describes.
    placed: Option<Range<usize>>,
    collected: &'a mut Collected<'c>,
}

impl Collector<'_, '_> {
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

    /// Adds an id that stands for bytes `at..end` of its part's text.
    fn add(&mut self, id: u32, at: usize, end: usize) -> ControlFlow<()> {
        let mut range = (0, 0);
        if self.collected.wanted
            && let (Some(&first), Some(&last)) = (self.places.get(at), self.places.get(end - 1))
        {
            range = self.collected.range(first, last);
        }
        self.collected.push(id, range)
    }
}

impl Visitor for Collector<'_, '_> {
    fn segment(&mut self, start: usize, raw: &str, normalized: &str) {
        self.collected.begin_segment(start, raw);
        self.placed = None;
        if self.collected.wanted {
            self.normalized.clear();
            self.normalized.push_str(normalized);
        }
    }

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        self.collected.begin_word();
        if self.collected.wanted {
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
        self.collected.end_word()
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.collected.raw_token(id, range, &self.family.vocab)
    }

    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        normalized: &str,
    ) -> ControlFlow<()> {
        let vocab = &self.family.vocab;
        self.collected
            .normalized_token(id, range, normalized, vocab)
    }
}
