//! Offsets: the ranges of text that ids come from.

use crate::added::Recognise;
use crate::alphabet;
use crate::bpe::ThreadScratch;
use crate::encoding::Encoding;
use crate::family::Family;
use crate::pretokenize::PreToken;
use crate::tokenizer::{Tokenizer, Visitor};
use crate::truncation::Side;
use std::ops::{ControlFlow, Range};

/// The unit of the offsets of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offsets {
    /// No offsets: they are `(0, 0)` and word ids are `None`, which is the fastest.
    None,
    /// Bytes of UTF-8.
    #[default]
    Bytes,
    /// Unicode scalar values.
    Chars,
}

/// The segment that a visitor is in.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Segment<'t> {
    pub(crate) start: usize,
    pub(crate) raw: &'t str,
    /// True if the normalized text may differ from `raw`.
    pub(crate) changed: bool,
}

/// Returns the byte of the normalized segment that byte `at` of the word stands for. An inserted
/// space stands for the character after it.
pub(crate) fn position(word: &PreToken<'_>, at: usize) -> usize {
    word.start + at.saturating_sub(usize::from(word.prefixed))
}

impl Tokenizer {
    /// Encodes one text without a template. Offsets count bytes, and no sequences are set. With a
    /// limit, no more is encoded than the reference encodes.
    ///
    /// The flag says whether the limit was reached, so that more text after this one
    /// would change nothing.
    pub(crate) fn encode_text(
        &self,
        text: &str,
        offsets: Offsets,
        limit: Option<(usize, Side)>,
    ) -> (Encoding, bool) {
        if offsets == Offsets::None && limit.is_none() {
            let mut out = Encoding::default();
            out.ids.reserve(text.len() / 4 + 4);
            self.encode_recognising(text, Recognise::All, &mut out.ids);
            fill(&mut out, offsets);
            return (out, false);
        }
        if let Some(family) = &self.family {
            return self.encode_text_by(family, text, offsets, limit);
        }
        let mut collector = Collector {
            tokenizer: self,
            scratch: ThreadScratch::default(),
            segment: Segment::default(),
            alignment: Vec::new(),
            text,
            wanted: offsets != Offsets::None,
            trims: offsets != Offsets::None && self.post_processor.trims(),
            stop_at: match limit {
                Some((max, Side::Right)) => max,
                Some((_, Side::Left)) | None => usize::MAX,
            },
            starts: Vec::new(),
            left: matches!(limit, Some((_, Side::Left))),
            words: 0,
            word: Vec::new(),
            out: Encoding::default(),
        };
        let flow = self.walk(text, Recognise::All, &mut collector);
        let Collector {
            mut out,
            starts,
            words,
            ..
        } = collector;
        fill(&mut out, offsets);
        if let Some((max, Side::Left)) = limit {
            keep_right(&mut out, &starts, words, max);
        }
        (out, flow.is_break())
    }

    /// [`Tokenizer::encode_text`] for a model that is not byte-level.
    fn encode_text_by(
        &self,
        family: &Family,
        text: &str,
        offsets: Offsets,
        limit: Option<(usize, Side)>,
    ) -> (Encoding, bool) {
        let stop_at = match limit {
            Some((max, Side::Right)) => max,
            Some((_, Side::Left)) | None => usize::MAX,
        };
        let (mut out, starts, stopped) =
            family.encode_text(self.text_steps(), text, offsets != Offsets::None, stop_at);
        if offsets != Offsets::None && self.post_processor.trims() {
            out.blanks = self.blanks_of_added(text, &out);
        }
        fill(&mut out, offsets);
        if let Some((max, Side::Left)) = limit {
            let start = |&(at, is_word): &(usize, bool)| Start { at, is_word };
            let starts: Vec<Start> = starts.iter().map(start).collect();
            keep_right(&mut out, &starts, starts.len() as u32, max);
        }
        (out, stopped)
    }
}

impl Tokenizer {
    /// Returns the blanks of each token where those of words have none: an added token may have taken
    /// the blanks beside it.
    fn blanks_of_added(&self, text: &str, out: &Encoding) -> Vec<(u32, u32)> {
        let of_token = |(&id, &(start, end)): (&u32, &(usize, usize))| {
            let taken = text.get(start..end).unwrap_or_default();
            let is_added = || {
                let mut added = self.added_tokens();
                added.any(|(other, token)| other == id && token.content == taken.trim())
            };
            match blanks(taken) {
                (0, 0) => (0, 0),
                some if is_added() => some,
                _ => (0, 0),
            }
        };
        out.ids.iter().zip(&out.offsets).map(of_token).collect()
    }
}

/// Makes all columns as long as the ids.
fn fill(out: &mut Encoding, offsets: Offsets) {
    let len = out.ids.len();
    out.type_ids = vec![0; len];
    out.special_tokens_mask = vec![0; len];
    out.attention_mask = vec![1; len];
    if !matches!(offsets, Offsets::None) {
        debug_assert_eq!(out.offsets.len(), len);
    } else {
        out.offsets = vec![(0, 0); len];
        out.word_ids = vec![None; len];
    }
}

/// The start of a word or an added token in the ids, for cutting at the left.
#[derive(Debug, Clone, Copy)]
struct Start {
    at: usize,
    is_word: bool,
}

/// Keeps the ids from the last word with which there are at least `max`.
fn keep_right(out: &mut Encoding, starts: &[Start], words: u32, max: usize) {
    let len = out.ids.len();
    let Some(first) = starts
        .iter()
        .rposition(|start| start.is_word && len - start.at >= max)
    else {
        return;
    };
    debug_assert_eq!(starts.len(), words as usize);
    let at = starts[first].at;
    // The kept ids are a text of their own, whose words count from 0.
    let blanks = out.blanks.split_off(at.min(out.blanks.len()));
    out.cut(std::iter::once(at..len));
    out.blanks = blanks;
    for word in out.word_ids.iter_mut().flatten() {
        *word -= first as u32;
    }
}

struct Collector<'a, 't> {
    tokenizer: &'a Tokenizer,
    scratch: ThreadScratch,
    segment: Segment<'t>,
    /// The range of each normalized byte of a changed segment.
    alignment: Vec<(usize, usize)>,
    text: &'t str,
    /// True if offsets and word ids are wanted.
    wanted: bool,
    /// True if blanks are wanted.
    trims: bool,
    /// Number of ids with which the text ends at the next end of a word.
    stop_at: usize,
    /// True if `starts` is wanted.
    left: bool,
    starts: Vec<Start>,
    /// Words and added tokens so far.
    words: u32,
    /// Ids of the word at hand.
    word: Vec<u32>,
    out: Encoding,
}

impl Collector<'_, '_> {
    /// Range in the text of the bytes `from..to` of the segment.
    fn range(&self, from: usize, to: usize) -> (usize, usize) {
        let Segment {
            start,
            raw,
            changed,
        } = self.segment;
        let last = to.saturating_sub(1).max(from);
        let (low, high) = if changed {
            let of = |at: usize| {
                self.alignment
                    .get(at)
                    .copied()
                    .unwrap_or((raw.len(), raw.len()))
            };
            (of(from).0, of(last).1)
        } else {
            let (mut low, mut high) = (from, last + 1);
            while !raw.is_char_boundary(low) {
                low -= 1;
            }
            while !raw.is_char_boundary(high) {
                high += 1;
            }
            (low, high)
        };
        (start + low, start + high)
    }

    fn begin(&mut self, is_word: bool) {
        if self.left {
            self.starts.push(Start {
                at: self.out.ids.len(),
                is_word,
            });
        }
        self.words += 1;
    }

    fn word_offsets(&mut self, word: &PreToken<'_>, ids: &[u32]) {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        if !word.text.bytes().all(|byte| bpe.has_byte(byte)) {
            return self.word_with_gaps(word, ids);
        }
        let mut at = 0;
        for &id in ids {
            let end = at + vocab.piece(id).len();
            // Through the last byte, since an inserted space has no place of its own.
            let (first, last) = within(at, end, word.text.len());
            let range = self.range(position(word, first), position(word, last) + 1);
            self.push(id, &vocab.spelling(id).unwrap_or_default(), range);
            at = end;
        }
    }

    /// A word with bytes that the vocabulary lacks. The reference counts positions
    /// in the spelling of the word, where a byte takes one or two, and skips what
    /// vanished without leaving room for it: the tokens after it move to the left.
    fn word_with_gaps(&mut self, word: &PreToken<'_>, ids: &[u32]) {
        let vocab = &self.tokenizer.vocab;
        let mut byte_at = Vec::with_capacity(2 * word.text.len());
        for (at, byte) in word.text.bytes().enumerate() {
            byte_at.extend(std::iter::repeat_n(at, alphabet::spelling(byte).len_utf8()));
        }
        let mut at = 0;
        for &id in ids {
            let spelling = vocab.spelling(id).unwrap_or_default();
            let end = at + spelling.len();
            let (first, last) = within(at, end, byte_at.len());
            let (first, last) = (byte_at[first], byte_at[last]);
            let range = self.range(position(word, first), position(word, last) + 1);
            self.push(id, &spelling, range);
            at = end;
        }
    }

    /// Adds an added token of the text `spelling`.
    fn added_token(&mut self, id: u32, spelling: &str, range: impl Fn(&Self) -> (usize, usize)) {
        self.begin(false);
        let known = self.tokenizer.vocab.spelling(id);
        self.out.spell(spelling, known.as_deref());
        if self.wanted {
            let range = range(self);
            self.push(id, spelling, range);
        } else {
            self.out.ids.push(id);
        }
    }

    /// Adds an id of the word that began last.
    fn push(&mut self, id: u32, spelling: &str, range: (usize, usize)) {
        self.out.ids.push(id);
        self.out.offsets.push(range);
        self.out.word_ids.push(Some(self.words - 1));
        if self.trims {
            self.out.blanks.push(blanks(spelling));
        }
    }
}

/// The blanks at both ends of a token, as `trim_offsets` counts them.
fn blanks(spelling: &str) -> (u32, u32) {
    let is_space = |c: &char| *c == 'Ġ' || c.is_whitespace();
    let leading = spelling.chars().take_while(is_space).count();
    let trailing = spelling.chars().rev().take_while(is_space).count();
    (leading as u32, trailing as u32)
}

/// Returns the first and last position of `start..end`, bounded to `0..len`. Tokens cover their
/// word exactly, except in a forged compiled tokenizer.
fn within(start: usize, end: usize, len: usize) -> (usize, usize) {
    let last = end.clamp(1, len.max(1)) - 1;
    (start.min(last), last)
}

impl<'t> Visitor<'t> for Collector<'_, 't> {
    fn segment(&mut self, start: usize, raw: &'t str, changed: bool) {
        self.segment = Segment {
            start,
            raw,
            changed,
        };
        if changed && self.wanted {
            let normalizer = &self.tokenizer.normalizer;
            self.alignment = normalizer.alignment(raw);
        }
    }

    fn word(&mut self, word: PreToken<'_>) -> ControlFlow<()> {
        self.begin(true);
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        let text = word.text.as_bytes();
        if self.wanted {
            let mut ids = std::mem::take(&mut self.word);
            ids.clear();
            bpe.encode(text, vocab, &mut self.scratch, &mut ids);
            self.word_offsets(&word, &ids);
            self.word = ids;
        } else {
            bpe.encode(text, vocab, &mut self.scratch, &mut self.out.ids);
        }
        if self.out.ids.len() >= self.stop_at {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        let spelling = &self.text[range.clone()];
        self.added_token(id, spelling, |_| (range.start, range.end));
        ControlFlow::Continue(())
    }

    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        normalized: &str,
    ) -> ControlFlow<()> {
        let spelling = normalized.get(range.clone()).unwrap_or_default();
        self.added_token(id, spelling, |this| this.range(range.start, range.end));
        ControlFlow::Continue(())
    }
}
