//! The ids of a word, for models that have a token or bytes for every character.
//!
//! A word, which may be a whole text, is cut where no rule joins two characters
//! ([`super::borders`]). Most pieces are a word of a language with the blank before it, or
//! one character of a script with few tokens. So a text goes in runs of some thousand
//! characters through loops that do one thing to all of them:
//!
//! 1. what each character is, and whether something joins it with the one before it, without
//!    a branch on either ([`super::characters`]);
//! 2. which pieces have several characters, and keys of these ([`Run::sort`], [`Run::seek`]);
//! 3. what the thread remembers of them ([`crate::cache`]), or the table of words
//!    ([`Run::look`]);
//! 4. what is not known is merged, beginning with the ranks of pairs of characters, which
//!    cutting has found ([`Run::merge`]);
//! 5. all ids, in the order of the text ([`Run::put`]).
//!
//! The last piece of a run waits for the next one, unless it is longer than what runs have
//! room for.

use super::characters::{Read, spell};
use super::letters::push_swapped;
use super::merge::{Model, Scratch};
use super::run::Run;
use crate::cache::{Cache, MergeScratch};
use crate::compare::{self, Compare, Work};

/// Memory for a text and its pieces, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    text: Vec<u8>,
    /// Made when it is needed first: threads that only see models of the other family go
    /// without. Never on a stack, for which it is large.
    run: Option<Box<Run>>,
}

impl Pieces {
    /// Gives back what a text longer than `kept` took.
    pub(crate) fn shrink(&mut self, kept: usize) {
        if self.text.capacity() > kept {
            self.text = Vec::new();
        }
    }
}

/// Encodes pieces of a text; compiled for several instruction sets.
struct EncodePieces<'a> {
    model: &'a Model,
    /// As [`spell`] made it, and where it ends.
    text: &'a [u8],
    end: usize,
    run: &'a mut Run,
    cache: &'a mut Cache,
    scratch: &'a mut Scratch,
    out: &'a mut Vec<u32>,
}

impl Work for EncodePieces<'_> {
    #[inline(always)]
    fn run<C: Compare>(self) {
        let Self {
            model,
            text,
            end,
            run,
            cache,
            scratch,
            out,
        } = self;
        run.characters.begin();
        loop {
            let characters = &mut run.characters;
            compare::run(Read {
                characters,
                model,
                text,
                end,
            });
            let is_last = characters.at == end;
            let whole = if is_last {
                characters.firsts[characters.cuts] = characters.count as u16;
                characters.starts[characters.count] = end;
                characters.cuts
            } else {
                characters.cuts - 1
            };
            let (shorts, longs) = run.sort(whole);
            run.seek(model, cache, text, shorts, longs);
            let missing = run.look::<C>(model, cache, shorts, longs);
            run.merge(model, cache, scratch, missing);
            run.put(model, text, whole, out);
            if is_last {
                break;
            }
            let characters = &mut run.characters;
            characters.keep_last();
            if characters.is_full() {
                // The piece that waits is too long for a run.
                let ids = characters.rest_of_piece(model, text, end);
                model.merge_many(ids.into_iter(), scratch, |id| out.push(id));
            }
        }
    }
}

impl Model {
    /// Whether [`Model::encode_word`] may be asked.
    pub(super) fn is_simple(&self) -> bool {
        self.complete && self.whole.is_none()
    }

    /// Appends the ids of a word.
    pub(super) fn encode_word(
        &self,
        word: &str,
        memory: &mut MergeScratch,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        self.encode_spelled(memory, scratch, out, |text| push_swapped(word, text));
    }

    /// Appends the ids of the text that `push` appends in the spelling of texts.
    pub(super) fn encode_spelled(
        &self,
        memory: &mut MergeScratch,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
        push: impl FnOnce(&mut Vec<u8>),
    ) {
        let (cache, pieces) = memory.get().pieces();
        let Pieces { text, run } = pieces;
        let end = spell(text, push);
        compare::run(EncodePieces {
            model: self,
            text,
            end,
            run: run.get_or_insert_with(bytemuck::zeroed_box),
            cache,
            scratch,
            out,
        });
    }
}
