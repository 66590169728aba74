//! The visitor that appends ids.

use super::word_splitter::Word;
use super::{Found, Model, TextModel};
use crate::ablation::FastPath;
use crate::added::Recognise;
use crate::bpe::ThreadScratch;
use crate::text_walk::{Stretch, TextSteps, Visitor};
use std::ops::{ControlFlow, Range};

impl TextModel {
    /// Appends the ids of `text`. If `plain`, text does not become added tokens.
    pub(crate) fn encode(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        (recognise, plain): (Recognise, bool),
        out: &mut Vec<u32>,
    ) {
        let mut visitor = Ids {
            family: self,
            found: Found::default(),
            memory: ThreadScratch::default(),
            out,
            plain,
        };
        // The visitor never stops early.
        let _ = steps.walk(text, recognise, &mut visitor);
    }
}

/// Appends ids.
struct Ids<'a> {
    family: &'a TextModel,
    /// The tokens of the word at hand.
    found: Found,
    memory: ThreadScratch,
    out: &'a mut Vec<u32>,
    /// True if words must not become added tokens.
    plain: bool,
}

impl Visitor for Ids<'_> {
    fn raw_segment(&mut self, raw: &str, begins: bool) -> bool {
        let (Model::Bpe(model), Some(direct)) = (&self.family.model, self.family.direct) else {
            return false;
        };
        if self.plain || !model.is_simple() || !FastPath::Direct.is_taken() {
            return false;
        }
        let push = |text: &mut Vec<u8>| direct.push(raw, begins, text);
        let scratch = &mut self.found.merging;
        model.encode_spelled(&mut self.memory, scratch, self.out, push);
        true
    }

    fn stretch(&mut self, stretch: Stretch<'_>) -> ControlFlow<()> {
        let family = self.family;
        family.splitter.split(stretch, &mut |word| self.word(word))
    }

    fn raw_token(&mut self, id: u32, _: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        ControlFlow::Continue(())
    }
}

impl Ids<'_> {
    #[inline]
    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Self {
            family,
            found,
            memory,
            out,
            plain,
        } = self;
        let TextModel { model, vocab, .. } = *family;
        match model {
            _ if *plain => {
                let unk = model.unk();
                let taken = |id: u32| id != unk && vocab.is_added(id);
                model.push_ids(word.text, taken, found, out);
            }
            Model::Bpe(model) if model.is_simple() => {
                model.encode_word(word.text, memory, &mut found.merging, out);
            }
            _ => model.push_ids(word.text, |_| false, found, out),
        }
        ControlFlow::Continue(())
    }
}
