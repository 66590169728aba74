//! The ids of a word, for models that have a token or bytes for every character.
//!
//! A word, which may be a whole text, is cut where no rule joins two characters
//! ([`super::cut_table`]). Most pieces are a word of a language with the blank before it, or
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

use super::char_run::Run;
use super::characters::{Read, spell};
use super::letter_table::push_swapped;
use super::{CharBpe, Scratch};
use crate::ablation::FastPath;
use crate::bpe::ThreadScratch;
use crate::cache::Cache;
use crate::compare::{self, Compare, Work};
use std::cell::Cell;

/// The bytes of text for which a thread keeps memory; memory for longer texts is given back
/// after the call.
const KEPT_BYTES: usize = 1 << 19;

/// Memory for a text and its pieces, which a thread keeps between calls.
#[derive(Debug, Default)]
pub(crate) struct PieceScratch {
    text: Vec<u8>,
    /// Allocated at its first use, and never on a stack, for which it is too large.
    run: Option<Box<Run>>,
}

thread_local! {
    static KEPT: Cell<Option<PieceScratch>> = const { Cell::new(None) };
}

impl PieceScratch {
    /// Takes the memory of this thread. A call inside of a call gets memory of its own.
    fn take() -> Self {
        KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    /// Gives the memory back to this thread, without that of a very long text.
    fn keep(mut self) {
        if self.text.capacity() > KEPT_BYTES {
            self.text = Vec::new();
        }
        // A thread that is ending has no place for the memory.
        let _ = KEPT.try_with(|kept| kept.set(Some(self)));
    }
}

/// Encodes pieces of a text; compiled for several instruction sets.
struct EncodePieces<'a> {
    model: &'a CharBpe,
    /// The text in the form of [`spell`], and its end.
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
                // The kept piece is too long for a run.
                let ids = characters.rest_of_piece(model, text, end);
                model.merge_many(ids.into_iter(), scratch, |id| out.push(id));
            }
        }
    }
}

impl CharBpe {
    /// Returns true if [`CharBpe::encode_word`] can encode words of this model.
    pub(crate) fn is_simple(&self) -> bool {
        self.complete && self.whole.is_none() && FastPath::Runes.is_taken()
    }

    /// Appends the ids of a word.
    pub(crate) fn encode_word(
        &self,
        word: &str,
        memory: &mut ThreadScratch,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        self.encode_spelled(memory, scratch, out, |text| push_swapped(word, text));
    }

    /// Appends the ids of the text that `push` appends in the spelling of texts.
    pub(crate) fn encode_spelled(
        &self,
        memory: &mut ThreadScratch,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
        push: impl FnOnce(&mut Vec<u8>),
    ) {
        let cache = memory.get().cache();
        let mut pieces = PieceScratch::take();
        let PieceScratch { text, run } = &mut pieces;
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
        pieces.keep();
    }
}
