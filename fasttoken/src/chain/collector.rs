//! The visitor that collects ids with their offsets and word ids.

use super::presplit::Word;
use super::walk::Visitor;
use super::{Chain, Found};
use crate::added::{Recognise, TextSteps};
use crate::collect::{Collect, Collected};
use std::ops::{ControlFlow, Range};

impl Collect for Chain {
    fn collect(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        collected: &mut Collected<'_>,
    ) -> ControlFlow<()> {
        let mut collector = Collector {
            chain: self,
            found: Found::default(),
            collected,
        };
        self.walk(steps, text, Recognise::All, &mut collector)
    }
}

/// Keeps ids, offsets and word ids.
struct Collector<'a, 'c> {
    chain: &'a Chain,
    /// The tokens of the word at hand.
    found: Found,
    collected: &'a mut Collected<'c>,
}

impl Visitor for Collector<'_, '_> {
    fn segment(&mut self, start: usize, raw: &str) {
        self.collected.begin_segment(start, raw);
    }

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Self {
            chain,
            found,
            collected,
        } = self;
        collected.begin_word();
        chain.model.encode(word.text, |_| false, found);
        for token in &found.tokens {
            let mut range = (0, 0);
            if collected.wanted {
                let last = token.end.saturating_sub(1).max(token.start);
                range = collected.range(word.place(token.start), word.place(last));
            }
            if chain.model.keeps_text_of(token.id) {
                let text = word.text.get(token.start..token.end).unwrap_or_default();
                collected.spell(text, chain.vocab.spelling(token.id));
            }
            collected.push(token.id, range)?;
        }
        collected.end_word()
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.collected.raw_token(id, range, &self.chain.vocab)
    }

    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        normalized: &str,
    ) -> ControlFlow<()> {
        let vocab = &self.chain.vocab;
        self.collected
            .normalized_token(id, range, normalized, vocab)
    }
}
