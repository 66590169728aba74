//! Where in the text ids come from: offsets, and encoding up to a limit.

use crate::added::Recognise;
use crate::alphabet;
use crate::bpe::MergeScratch;
use crate::postprocess::Piece;
use crate::pretokenize::Word;
use crate::tokenizer::{Tokenizer, Visitor};
use std::ops::{ControlFlow, Range};

/// Ids with the bytes of the text that each comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoding {
    /// The ids, as [`Tokenizer::encode`] gives them.
    pub ids: Vec<u32>,
    /// Start and end byte for each id. Tokens that share a character each have the
    /// whole character's range; ids from a template have `(0, 0)`.
    pub offsets: Vec<(usize, usize)>,
}

impl Tokenizer {
    /// The ids of `text` and the byte ranges they come from, as the reference's
    /// `encode` gives them.
    pub fn encode_with_offsets(&self, text: &str, add_special_tokens: bool) -> Encoding {
        let mut out = Encoding::default();
        for piece in &self.post_processor.single {
            match piece {
                Piece::A | Piece::B => self.encode_text_with_offsets(text, &mut out),
                Piece::Special(ids) if add_special_tokens => {
                    out.ids.extend_from_slice(ids);
                    out.offsets.resize(out.ids.len(), (0, 0));
                }
                Piece::Special(_) => {}
            }
        }
        out
    }

    fn encode_text_with_offsets(&self, text: &str, out: &mut Encoding) {
        let mut visitor = Offsets {
            tokenizer: self,
            scratch: MergeScratch::default(),
            segment: Segment::default(),
            alignment: Vec::new(),
            text,
            first: out.ids.len(),
            out,
        };
        // Never stops early.
        let _ = self.walk(text, Recognise::All, &mut visitor);
    }

    /// The longest beginning of `encode(text, false)` that has at most `max_tokens`
    /// ids, and the number of bytes of `text` that these ids cover. Stops at the
    /// limit instead of encoding everything.
    ///
    /// The number of bytes is where the first character begins that the ids do not
    /// cover wholly, so it is a character boundary, and `text.len()` when there are
    /// no more ids. Text that is cut there need not encode to the same ids again.
    pub fn encode_prefix(&self, text: &str, max_tokens: usize) -> (Vec<u32>, usize) {
        if max_tokens == 0 {
            return (Vec::new(), 0);
        }
        let mut visitor = Prefix {
            tokenizer: self,
            scratch: MergeScratch::default(),
            segment: Segment::default(),
            out: Vec::new(),
            max_tokens,
            consumed: 0,
        };
        let flow = self.walk(text, Recognise::All, &mut visitor);
        let consumed = match flow {
            ControlFlow::Continue(()) => text.len(),
            ControlFlow::Break(()) => visitor.consumed,
        };
        (visitor.out, consumed)
    }
}

/// The segment that the visitor is in.
#[derive(Debug, Clone, Copy, Default)]
struct Segment<'t> {
    start: usize,
    raw: &'t str,
    /// Whether the normalized text may differ from `raw`.
    changed: bool,
}

/// Byte of the normalized segment that byte `at` of the word stands for. An
/// inserted space stands for the character after it.
fn position(word: &Word<'_>, at: usize) -> usize {
    word.start + at.saturating_sub(usize::from(word.prefixed))
}

struct Prefix<'a, 't> {
    tokenizer: &'a Tokenizer,
    scratch: MergeScratch,
    segment: Segment<'t>,
    out: Vec<u32>,
    max_tokens: usize,
    consumed: usize,
}

impl Prefix<'_, '_> {
    /// Stops if the limit is reached, where `at` of the segment is not covered.
    fn stop_at(&mut self, at: usize) -> ControlFlow<()> {
        if self.out.len() < self.max_tokens {
            return ControlFlow::Continue(());
        }
        let Segment { start, raw, .. } = self.segment;
        let at = if self.segment.changed {
            let alignment = self.tokenizer.normalizer.alignment(raw);
            alignment.get(at).map_or(raw.len(), |range| range.0)
        } else {
            let mut at = at;
            while !raw.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        self.consumed = start + at;
        ControlFlow::Break(())
    }
}

impl<'t> Visitor<'t> for Prefix<'_, 't> {
    fn segment(&mut self, start: usize, raw: &'t str, changed: bool) {
        self.segment = Segment {
            start,
            raw,
            changed,
        };
    }

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        let before = self.out.len();
        bpe.encode(
            word.text.as_bytes(),
            vocab,
            &mut self.scratch,
            &mut self.out,
        );
        self.out.truncate(self.max_tokens);
        let covered = self.out[before..].iter().map(|id| vocab.piece(*id).len());
        let covered = covered.sum();
        // The first byte after those, of the bytes that have a token at all.
        let bytes = word.text.bytes().enumerate();
        let mut with_token = bytes.filter(|(_, byte)| bpe.has_byte(*byte));
        let at = with_token
            .nth(covered)
            .map_or(word.text.len(), |(at, _)| at);
        self.stop_at(position(&word, at))
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        if self.out.len() < self.max_tokens {
            return ControlFlow::Continue(());
        }
        self.consumed = range.end;
        ControlFlow::Break(())
    }

    fn normalized_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        self.stop_at(range.end)
    }
}

struct Offsets<'a, 't> {
    tokenizer: &'a Tokenizer,
    scratch: MergeScratch,
    segment: Segment<'t>,
    /// For a changed segment, the range of each normalized byte.
    alignment: Vec<(usize, usize)>,
    text: &'t str,
    /// Number of ids before those of this text.
    first: usize,
    out: &'a mut Encoding,
}

impl Offsets<'_, '_> {
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

    /// A word with bytes that the vocabulary lacks. The reference counts positions
    /// in the spelling of the word, where a byte takes one or two, and skips what
    /// vanished without leaving room for it: the tokens after it move to the left.
    fn word_with_gaps(&mut self, word: &Word<'_>, ids: &[u32]) -> ControlFlow<()> {
        let vocab = &self.tokenizer.vocab;
        let mut byte_at = Vec::with_capacity(2 * word.text.len());
        for (at, byte) in word.text.bytes().enumerate() {
            byte_at.extend(std::iter::repeat_n(at, alphabet::spelling(byte).len_utf8()));
        }
        let mut at = 0;
        for &id in ids {
            let spelling = vocab.spelling(id).unwrap_or_default();
            let end = at + spelling.len();
            let (first, last) = (byte_at[at], byte_at[end - 1]);
            let range = self.range(position(word, first), position(word, last) + 1);
            self.push(id, spelling, range);
            at = end;
        }
        ControlFlow::Continue(())
    }

    fn push(&mut self, id: u32, spelling: &str, mut range: (usize, usize)) {
        let first = self.out.ids.len() == self.first;
        for &add_prefix_space in &self.tokenizer.post_processor.trims {
            trim(spelling, add_prefix_space, first, &mut range);
        }
        self.out.ids.push(id);
        self.out.offsets.push(range);
    }
}

impl<'t> Visitor<'t> for Offsets<'_, 't> {
    fn segment(&mut self, start: usize, raw: &'t str, changed: bool) {
        self.segment = Segment {
            start,
            raw,
            changed,
        };
        if self.segment.changed {
            self.alignment = self.tokenizer.normalizer.alignment(raw);
        }
    }

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let tokenizer = self.tokenizer;
        let Tokenizer { bpe, vocab, .. } = tokenizer;
        let mut ids = Vec::new();
        bpe.encode(word.text.as_bytes(), vocab, &mut self.scratch, &mut ids);
        if !word.text.bytes().all(|byte| bpe.has_byte(byte)) {
            return self.word_with_gaps(&word, &ids);
        }
        let mut at = 0;
        for id in ids {
            let end = at + vocab.piece(id).len();
            // Through the last byte, since an inserted space has no place of its own.
            let range = self.range(position(&word, at), position(&word, end - 1) + 1);
            self.push(id, vocab.spelling(id).unwrap_or_default(), range);
            at = end;
        }
        ControlFlow::Continue(())
    }

    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        let spelling = &self.text[range.clone()];
        self.push(id, spelling, (range.start, range.end));
        ControlFlow::Continue(())
    }

    fn normalized_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()> {
        let range = self.range(range.start, range.end);
        let spelling = self.text.get(range.0..range.1).unwrap_or_default();
        self.push(id, spelling, range);
        ControlFlow::Continue(())
    }
}

/// `trim_offsets` of the `ByteLevel` post-processor. It counts characters and moves
/// bytes, as the reference does.
fn trim(spelling: &str, add_prefix_space: bool, first: bool, range: &mut (usize, usize)) {
    let is_space = |c: &char| *c == 'Ġ' || c.is_whitespace();
    let mut leading = spelling.chars().take_while(is_space).count();
    let trailing = spelling.chars().rev().take_while(is_space).count();
    if leading == 1 && add_prefix_space && (first || range.0 == 0) {
        // The space was inserted.
        leading = 0;
    }
    range.0 = (range.0 + leading).min(range.1);
    if trailing > 0 && range.1 >= trailing {
        range.1 = (range.1 - trailing).max(range.0);
    }
}
