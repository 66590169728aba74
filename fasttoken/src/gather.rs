//! Words of a whole text, many at a time, whatever added tokens are between them.
//!
//! Looking words up is a pipeline ([`crate::bpe::Bpe::encode_words`]), which a conversation,
//! with a few added tokens around each turn, would fill and drain for each of them. Gathering
//! the words of all segments makes new chat of turns of 180 and 700 bytes 1.12 times as fast.
//! An added token is one more word then, whose id is known.

use crate::added::{Part, Pass, Recognise};
use crate::bpe::MergeScratch;
use crate::pretokenize::Words;
use crate::scan::{BLOCK, ENDS, Grammar, Scanner};
use crate::tokenizer::{Tokenizer, Visitor};
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// A visitor that wants to know nothing of segments.
pub(crate) trait Ids<'t>: Visitor<'t> {
    fn scratch(&mut self) -> &mut MergeScratch;
}

/// What a thread keeps of this between calls, so that a text of a few words need not clear it.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// Where words end, the first `count` of them.
    ends: [usize; ENDS],
    count: usize,
    /// Which of the words are added tokens, and their ids.
    tokens: Vec<(usize, u32)>,
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            ends: [0; ENDS],
            count: 0,
            tokens: Vec::new(),
        }
    }
}

/// Consecutive words of one text that the visitor has not seen yet.
struct Gather<'a, V> {
    visitor: &'a mut V,
    grammar: Grammar,
    gathered: Box<Gathered>,
    /// Where the first of them begins and the last one ends.
    start: usize,
    end: usize,
}

impl Tokenizer {
    /// [`Tokenizer::walk`] for visitors that take words of all segments together.
    pub(crate) fn walk_words<'t, V: Ids<'t>>(
        &self,
        text: &'t str,
        recognise: Recognise,
        visitor: &mut V,
    ) -> ControlFlow<()> {
        let Some(grammar) = self.pre_tokenizer.only_grammar() else {
            return self.walk(text, recognise, visitor);
        };
        let gathered = visitor.scratch().get().gathered.take();
        let mut gather = Gather {
            visitor,
            grammar,
            gathered: gathered.unwrap_or_default(),
            start: 0,
            end: 0,
        };
        let flow = self.gather(text, recognise, &mut gather);
        let Gather {
            visitor, gathered, ..
        } = gather;
        visitor.scratch().get().gathered = Some(gathered);
        flow
    }

    fn gather<'t, V: Visitor<'t>>(
        &self,
        text: &'t str,
        recognise: Recognise,
        gather: &mut Gather<'_, V>,
    ) -> ControlFlow<()> {
        // Nearly all texts are left as they are: one look at all of a chat takes a third of
        // what one at each of its segments does.
        let same = self.normalizer.leaves(text);
        self.added
            .split(Pass::Raw, recognise, text, |part| match part {
                Part::Token(id, range) => gather.token(text, id, range),
                Part::Text(range) if same => self.gather_segment(text, range, recognise, gather),
                Part::Text(range) => self.gather_unsure(text, range, recognise, gather),
            })?;
        gather.flush(text, 0)
    }

    /// Gathers the words of a raw segment of `text` that may have to be normalized.
    fn gather_unsure<'t, V: Visitor<'t>>(
        &self,
        text: &str,
        segment: Range<usize>,
        recognise: Recognise,
        gather: &mut Gather<'_, V>,
    ) -> ControlFlow<()> {
        match self.normalizer.apply(&text[segment.clone()]) {
            Cow::Borrowed(_) => self.gather_segment(text, segment, recognise, gather),
            Cow::Owned(normalized) => {
                gather.flush(text, 0)?;
                let all = 0..normalized.len();
                self.gather_segment(&normalized, all, recognise, gather)?;
                gather.flush(&normalized, segment.end)
            }
        }
    }

    /// Gathers the words of a segment, which is normalized and stands somewhere in `text`.
    fn gather_segment<'t, V: Visitor<'t>>(
        &self,
        text: &str,
        segment: Range<usize>,
        recognise: Recognise,
        gather: &mut Gather<'_, V>,
    ) -> ControlFlow<()> {
        if !self.added.has_normalized() {
            return gather.words(text, segment);
        }
        let piece = &text[segment.clone()];
        let within = |range: Range<usize>| segment.start + range.start..segment.start + range.end;
        self.added
            .split(Pass::Normalized, recognise, piece, |part| match part {
                Part::Token(id, range) => gather.token(text, id, within(range)),
                Part::Text(range) => gather.words(text, within(range)),
            })
    }
}

impl<'t, V: Visitor<'t>> Gather<'_, V> {
    /// Gathers the words of a piece of `text`, which are split as if it ended there.
    fn words(&mut self, text: &str, piece: Range<usize>) -> ControlFlow<()> {
        self.follow(text, piece.start)?;
        // No grammar looks behind.
        let scanner = Scanner::new(&text[..piece.end]);
        while self.end < piece.end {
            self.make_room(text)?;
            let Gathered { ends, count, .. } = &mut *self.gathered;
            *count = scanner.fill(self.grammar, self.end, ends, *count);
            self.end = ends[*count - 1];
        }
        ControlFlow::Continue(())
    }

    /// Gathers an added token that stands in `text`.
    fn token(&mut self, text: &str, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.follow(text, range.start)?;
        self.make_room(text)?;
        let Gathered {
            ends,
            count,
            tokens,
        } = &mut *self.gathered;
        tokens.push((*count, id));
        ends[*count] = range.end;
        *count += 1;
        self.end = range.end;
        ControlFlow::Continue(())
    }

    /// Sees to it that what follows begins where what was gathered ends. That is not so for
    /// a token in the blanks that the one before it took, which are text of both.
    fn follow(&mut self, text: &str, start: usize) -> ControlFlow<()> {
        if start == self.end {
            return ControlFlow::Continue(());
        }
        self.flush(text, start)
    }

    fn make_room(&mut self, text: &str) -> ControlFlow<()> {
        if self.gathered.count < ENDS - BLOCK {
            return ControlFlow::Continue(());
        }
        self.flush(text, self.end)
    }

    /// Shows the visitor what was gathered of `text`, and goes on at `next`, of this text or
    /// another.
    fn flush(&mut self, text: &str, next: usize) -> ControlFlow<()> {
        let Gathered {
            ends,
            count,
            tokens,
        } = &mut *self.gathered;
        let mut flow = ControlFlow::Continue(());
        if *count > 0 {
            flow = self.visitor.words(Words {
                text,
                start: self.start,
                ends: &ends[..*count],
                base: 0,
                tokens,
            });
        }
        (self.start, self.end) = (next, next);
        *count = 0;
        tokens.clear();
        flow
    }
}
