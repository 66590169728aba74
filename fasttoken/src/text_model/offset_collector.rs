//! The visitor that collects ids with their offsets and word ids.

use super::word_splitter::Word;
use super::{Found, TextModel};
use crate::added::Recognise;
use crate::collect::{Collect, Collected};
use crate::text_walk::{Stretch, TextSteps, Visitor};
use std::ops::{ControlFlow, Range};

impl Collect for TextModel {
    fn collect(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        collected: &mut Collected<'_>,
    ) -> ControlFlow<()> {
        let mut collector = Collector {
            family: self,
            found: Found::default(),
            collected,
        };
        steps.walk(text, Recognise::All, &mut collector)
    }
}

/// Keeps ids, offsets and word ids.
struct Collector<'a, 'c> {
    family: &'a TextModel,
    /// The tokens of the word at hand.
    found: Found,
    collected: &'a mut Collected<'c>,
}

impl Visitor for Collector<'_, '_> {
    fn segment(&mut self, raw: Range<usize>, changed: bool) {
        self.collected.begin_segment(raw, changed);
    }

    fn stretch(&mut self, stretch: Stretch<'_>) -> ControlFlow<()> {
        let family = self.family;
        family.splitter.split(stretch, &mut |word| self.word(word))
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        let known = self.family.vocab.spelling(id);
        self.collected.raw_token(id, range, known)
    }

    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        normalized: &str,
    ) -> ControlFlow<()> {
        let known = self.family.vocab.spelling(id);
        self.collected
            .normalized_token(id, range, normalized, known)
    }
}

impl Collector<'_, '_> {
    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Self {
            family,
            found,
            collected,
        } = self;
        let TextModel { model, vocab, .. } = *family;
        collected.begin_word();
        model.encode(word.text, found, |tokens| {
            for token in tokens {
                let mut range = (0, 0);
                if collected.wanted {
                    let last = token.end.saturating_sub(1).max(token.start);
                    range = collected.range(word.place(token.start), word.place(last));
                }
                if model.keeps_text_of(token.id) {
                    let text = word.text.get(token.start..token.end).unwrap_or_default();
                    collected.spell(text, vocab.spelling(token.id));
                }
                collected.push(token.id, range, "")?;
            }
            ControlFlow::Continue(())
        })?;
        collected.end_word()
    }
}
