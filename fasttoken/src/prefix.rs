//! Encoding only the beginning of a text.

use crate::added::Recognise;
use crate::bpe::ThreadScratch;
use crate::offsets::{Segment, position};
use crate::pretokenize::PreToken;
use crate::tokenizer::{Tokenizer, Visitor};
use crate::window::Windows;
use std::ops::{ControlFlow, Range};

impl Tokenizer {
    /// Returns the longest prefix of `encode(text, false)` of at most `max_tokens` ids, and the
    /// number of bytes of `text` that these ids cover.
    ///
    /// Reads only as much of the text as needed, if the file's split pattern is a common one and
    /// the text has spaces or Chinese or Japanese punctuation here and there. Models that are not
    /// byte-level read all of it.
    ///
    /// The number of bytes is the start of the first character that the ids do not cover
    /// completely, so it is a character boundary, and `text.len()` if there are no more ids. With
    /// WordPiece and Unigram, which drop blanks, it is the start of the next id. Text
    /// that is cut there need not encode to the same ids again.
    ///
    /// ```
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// let tokenizer = fasttoken::Tokenizer::from_file(file)?;
    /// let text = "Where is my card?";
    /// let (ids, bytes) = tokenizer.encode_prefix(text, 3);
    /// assert_eq!(ids, tokenizer.encode(text, false)[..3]);
    /// assert_eq!(&text[..bytes], "Where is my");
    /// # Ok::<(), fasttoken::Error>(())
    /// ```
    pub fn encode_prefix(&self, text: &str, max_tokens: usize) -> (Vec<u32>, usize) {
        if max_tokens == 0 {
            return (Vec::new(), 0);
        }
        if let Some(family) = &self.family {
            return family.prefix(self.text_steps(), text, max_tokens);
        }
        for (window, whole) in Windows::new(self, text, max_tokens) {
            let (ids, covered) = self.prefix_of(window, max_tokens);
            match covered {
                // Up to the end of the window and no further: an added token that takes
                // the blanks after it would take more in the whole text.
                Some(bytes) if whole || bytes < window.len() => return (ids, bytes),
                None if whole => return (ids, text.len()),
                _ => {}
            }
        }
        unreachable!("the last window is the whole text")
    }

    /// Returns the ids, and the number of bytes that they cover if the limit was reached.
    fn prefix_of(&self, text: &str, max_tokens: usize) -> (Vec<u32>, Option<usize>) {
        let mut visitor = Prefix {
            tokenizer: self,
            scratch: ThreadScratch::default(),
            segment: Segment::default(),
            out: Vec::new(),
            max_tokens,
            covered: 0,
        };
        let flow = self.walk(text, Recognise::All, &mut visitor);
        (visitor.out, flow.is_break().then_some(visitor.covered))
    }
}

struct Prefix<'a, 't> {
    tokenizer: &'a Tokenizer,
    scratch: ThreadScratch,
    segment: Segment<'t>,
    out: Vec<u32>,
    max_tokens: usize,
    covered: usize,
}

impl Prefix<'_, '_> {
    /// Stops if the limit is reached. `at` is the first byte of the segment that is not covered.
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
        self.covered = start + at;
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

    fn word(&mut self, word: PreToken<'_>) -> ControlFlow<()> {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        let before = self.out.len();
        bpe.encode(
            word.text.as_bytes(),
            vocab,
            &mut self.scratch,
            &mut self.out,
        );
        if self.out.len() < self.max_tokens {
            return ControlFlow::Continue(());
        }
        self.out.truncate(self.max_tokens);
        let covered = self.out[before..].iter().map(|id| vocab.piece(*id).len());
        let covered = covered.sum();
        // The first byte after the covered bytes, among the bytes that have a token.
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
        self.covered = range.end;
        ControlFlow::Break(())
    }

    fn normalized_token(&mut self, id: u32, range: Range<usize>, _: &str) -> ControlFlow<()> {
        self.out.push(id);
        self.stop_at(range.end)
    }
}
