//! Encoding with SentencePiece-style models: ids and offsets.

use super::SentencePiece;
use super::direct::Direct;
use super::merge::Scratch;
use super::split::Word;
use crate::ablation::FastPath;
use crate::added::{Part as Found, Pass, Recognise, TextSteps};
use crate::bpe::ThreadScratch;
use std::cell::OnceCell;
use std::ops::{ControlFlow, Range};

/// A receiver of the parts of a text, in order, while it is encoded.
pub(super) trait Visitor {
    /// Begins a segment of raw text between two added tokens, given its normalized text.
    fn segment(&mut self, _start: usize, _raw: &str, _normalized: &str) {}
    /// Takes a segment of raw text that needs no normalizing, and returns true, unless the visitor
    /// wants normalized words. `begins` is true at the beginning of the whole text.
    fn direct(&mut self, _direct: Direct, _raw: &str, _begins: bool) -> bool {
        false
    }
    fn word(&mut self, word: Word<'_>) -> ControlFlow<()>;
    /// An added token; its range counts bytes of the text.
    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()>;
    /// An added token; its range counts bytes of the normalized segment, whose text is given.
    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        _normalized: &str,
    ) -> ControlFlow<()> {
        self.raw_token(id, range)
    }
}

impl SentencePiece {
    pub(super) fn walk(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        recognise: Recognise,
        visitor: &mut dyn Visitor,
    ) -> ControlFlow<()> {
        let TextSteps { added, normalizer } = steps;
        let mut buffer = String::new();
        added.split(Pass::Raw, recognise, text, |found| {
            let range = match found {
                Found::Token(id, range) => return visitor.raw_token(id, range),
                Found::Text(range) => range,
            };
            let raw = &text[range.clone()];
            if let Some(direct) = self.direct
                && FastPath::Direct.is_taken()
                && visitor.direct(direct, raw, range.start == 0)
            {
                return ControlFlow::Continue(());
            }
            let normalized = normalizer.apply(raw);
            visitor.segment(range.start, raw, &normalized);
            // Computed once for all parts of the segment, and only if a part needs it.
            let alignment = OnceCell::new();
            added.split(Pass::Normalized, recognise, &normalized, |found| {
                let part = match found {
                    Found::Token(id, range) => {
                        return visitor.normalized_token(id, range, &normalized);
                    }
                    Found::Text(part) => part,
                };
                let begins = || {
                    // Where the part begins in the text; the first part of the first
                    // segment mostly needs no look.
                    let alignment = || alignment.get_or_init(|| normalizer.alignment(raw));
                    let own = || alignment().get(part.start).map(|from| from.0);
                    let first = part.start == 0 && normalizer.keeps_beginnings();
                    range.start == 0 && (first || own() == Some(0))
                };
                let mut each = |word: Word<'_>| visitor.word(word);
                let part = part.clone();
                self.splitter
                    .split(&normalized, part, begins, &mut buffer, &mut each)
            })
        })
    }

    /// Appends the ids of `text`. If `plain`, text that would become an added token is left in
    /// characters, or bytes.
    pub(crate) fn encode(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        (recognise, plain): (Recognise, bool),
        out: &mut Vec<u32>,
    ) {
        let mut visitor = Ids {
            family: self,
            scratch: Scratch::default(),
            memory: ThreadScratch::default(),
            out,
            plain,
        };
        // The visitor never stops early.
        let _ = self.walk(steps, text, recognise, &mut visitor);
    }
}

/// Appends ids.
struct Ids<'a> {
    family: &'a SentencePiece,
    scratch: Scratch,
    memory: ThreadScratch,
    out: &'a mut Vec<u32>,
    /// True if words must not become added tokens.
    plain: bool,
}

impl Visitor for Ids<'_> {
    fn direct(&mut self, direct: Direct, raw: &str, begins: bool) -> bool {
        let model = &self.family.model;
        if self.plain || !model.is_simple() {
            return false;
        }
        let (memory, scratch) = (&mut self.memory, &mut self.scratch);
        let push = |text: &mut Vec<u8>| direct.push(raw, begins, text);
        model.encode_spelled(memory, scratch, self.out, push);
        true
    }

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Self {
            family,
            scratch,
            memory,
            out,
            plain,
        } = self;
        let SentencePiece { model, vocab, .. } = family;
        if model.is_simple() && !*plain {
            model.encode_word(word.text, memory, scratch, out);
            return ControlFlow::Continue(());
        }
        let taken = |id: u32| Some(id) != model.unk && vocab.is_added(id);
        if let Some(id) = model
            .whole_word(word.text)
            .filter(|id| !(*plain && taken(*id)))
        {
            out.push(id);
            return ControlFlow::Continue(());
        }
        model.pieces(word.text, |piece| {
            let before = out.len();
            model.merge(piece, scratch, |id, _| out.push(id));
            if *plain && out[before..].iter().any(|id| taken(*id)) {
                out.truncate(before);
                model.unmerged(piece, taken, out);
            }
            ControlFlow::Continue(())
        })
    }

    fn raw_token(&mut self, id: u32, _: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        ControlFlow::Continue(())
    }
}
