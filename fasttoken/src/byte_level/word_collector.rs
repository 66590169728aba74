//! Collects the words of a whole text, across its added tokens, and encodes them together.
//!
//! The pipeline that looks words up ([`crate::bpe::Bpe::encode_words`]) has a cost to fill and to
//! drain. A conversation, with a few added tokens around each turn, would pay it for each segment
//! between them. Collecting the words of all segments makes new chat of turns of 180 and 700 bytes
//! 1.12 times as fast. An added token is collected as one more word, whose id is known.

use super::{ByteLevel, Ids};
use crate::ablation::FastPath;
use crate::added::{Part, Pass, Recognise};
use crate::pretokenize::{PreTokens, WordBuffer};
use crate::scan::{BLOCK, ENDS, Grammar, Scanner};
use crate::text_walk::TextSteps;
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// Collected words of one text that were not encoded yet.
struct WordCollector<'a, 'i> {
    ids: &'a mut Ids<'i>,
    steps: TextSteps<'a>,
    recognise: Recognise,
    grammar: Grammar,
    buffer: Box<WordBuffer>,
    /// The range of the text that the collected words cover.
    start: usize,
    end: usize,
}

impl ByteLevel {
    /// Appends the ids of `text`. The words of all segments are encoded together if one grammar
    /// alone decides over words.
    pub(super) fn walk_words(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        recognise: Recognise,
        ids: &mut Ids<'_>,
    ) {
        let only = self.pre_tokenizer.only_grammar();
        let Some(grammar) = only.filter(|_| FastPath::WordCollector.is_taken()) else {
            // This visitor never stops early.
            let _ = steps.walk(text, recognise, ids);
            return;
        };
        let buffer = ids.scratch.get().word_buffer.take();
        let mut collector = WordCollector {
            ids,
            steps,
            recognise,
            grammar,
            buffer: buffer.unwrap_or_default(),
            start: 0,
            end: 0,
        };
        collector.collect(text);
        let WordCollector { ids, buffer, .. } = collector;
        ids.scratch.get().word_buffer = Some(buffer);
    }
}

impl WordCollector<'_, '_> {
    fn collect(&mut self, text: &str) {
        let TextSteps { added, normalizer } = self.steps;
        // Nearly all texts are normalized already: one check of a whole chat takes a third of the
        // time of a check of each segment.
        let same = FastPath::WholeCheck.is_taken() && normalizer.leaves(text);
        let _ = added.split(Pass::Raw, self.recognise, text, |part| {
            match part {
                Part::Token(id, range) => self.token(text, id, range),
                Part::Text(range) if same => self.segment(text, range),
                Part::Text(range) => self.segment_to_normalize(text, range),
            }
            ControlFlow::Continue(())
        });
        self.flush(text, 0);
    }

    /// Collects the words of a raw segment of `text` that may have to be normalized.
    fn segment_to_normalize(&mut self, text: &str, segment: Range<usize>) {
        match self.steps.normalizer.apply(&text[segment.clone()]) {
            Cow::Borrowed(_) => self.segment(text, segment),
            Cow::Owned(normalized) => {
                self.flush(text, 0);
                self.segment(&normalized, 0..normalized.len());
                self.flush(&normalized, segment.end);
            }
        }
    }

    /// Collects the words of `segment` of `text`, which is normalized.
    fn segment(&mut self, text: &str, segment: Range<usize>) {
        let added = self.steps.added;
        if !added.has_normalized() {
            return self.words(text, segment);
        }
        let piece = &text[segment.clone()];
        let within = |range: Range<usize>| segment.start + range.start..segment.start + range.end;
        let _ = added.split(Pass::Normalized, self.recognise, piece, |part| {
            match part {
                Part::Token(id, range) => self.token(text, id, within(range)),
                Part::Text(range) => self.words(text, within(range)),
            }
            ControlFlow::Continue(())
        });
    }

    /// Collects the words of the range `piece` of `text`, which is split as if the text ended
    /// there.
    fn words(&mut self, text: &str, piece: Range<usize>) {
        self.follow(text, piece.start);
        // No grammar looks behind.
        let scanner = Scanner::new(&text[..piece.end]);
        while self.end < piece.end {
            self.flush_if_full(text);
            let WordBuffer { ends, count, .. } = &mut *self.buffer;
            *count = scanner.fill(self.grammar, self.end, ends, *count);
            self.end = ends[*count - 1];
        }
    }

    /// Collects an added token of `text`.
    fn token(&mut self, text: &str, id: u32, range: Range<usize>) {
        self.follow(text, range.start);
        self.flush_if_full(text);
        let WordBuffer {
            ends,
            count,
            tokens,
        } = &mut *self.buffer;
        tokens.push((*count, id));
        ends[*count] = range.end;
        *count += 1;
        self.end = range.end;
    }

    /// Encodes the collected words unless the last one ends at `start`. It may not: a token that takes
    /// blanks before it can begin inside of a token that took blanks after it.
    fn follow(&mut self, text: &str, start: usize) {
        if start != self.end {
            self.flush(text, start);
        }
    }

    /// Encodes the collected words if the words of another block may not fit.
    fn flush_if_full(&mut self, text: &str) {
        if self.buffer.count >= ENDS - BLOCK {
            self.flush(text, self.end);
        }
    }

    /// Encodes the collected words of `text`, and continues at byte `next` of this
    /// text or another.
    fn flush(&mut self, text: &str, next: usize) {
        let WordBuffer {
            ends,
            count,
            tokens,
        } = &mut *self.buffer;
        if *count > 0 {
            self.ids.words(&PreTokens {
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
    }
}
