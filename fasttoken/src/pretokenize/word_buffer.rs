//! Words of a text (pre-tokens), one by one and many at a time.

use crate::scan::ENDS;
use std::ops::ControlFlow;

/// A word, and its place in the normalized segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreToken<'a> {
    pub(crate) text: &'a str,
    /// Byte of the segment at which the word begins (after an inserted space).
    pub(crate) start: usize,
    /// True if the first byte of `text` is a space that the segment lacks.
    pub(crate) prefixed: bool,
}

/// Consecutive words of one text, none of them with an inserted space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreTokens<'a> {
    pub(crate) text: &'a str,
    /// Byte of `text` at which the first word begins.
    pub(crate) start: usize,
    /// The end of each word, which is the start of the next one.
    pub(crate) ends: &'a [usize],
    /// Byte of the segment at which `text` begins.
    pub(crate) base: usize,
    /// The numbers of the words that are added tokens, rising, and the ids of those tokens.
    pub(crate) tokens: &'a [(usize, u32)],
}

/// Ends of the words of a text while they are collected, before [`PreTokens`] are made of them.
///
/// A thread keeps one between calls, because clearing it would cost a short text more than its
/// words do.
#[derive(Debug)]
pub(crate) struct WordBuffer {
    /// Byte of the text at which each of the first `count` words ends.
    pub(crate) ends: [usize; ENDS],
    pub(crate) count: usize,
    /// Numbers of the words that are added tokens, rising, and the ids of those tokens.
    pub(crate) tokens: Vec<(usize, u32)>,
}

impl Default for WordBuffer {
    fn default() -> Self {
        Self {
            ends: [0; ENDS],
            count: 0,
            tokens: Vec::new(),
        }
    }
}

impl<'a> PreTokens<'a> {
    /// Calls `each` with every word, of which none is an added token.
    pub(crate) fn each(
        &self,
        mut each: impl FnMut(PreToken<'a>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        debug_assert!(self.tokens.is_empty(), "the words are of one segment");
        let mut start = self.start;
        for &end in self.ends {
            each(PreToken {
                text: &self.text[start..end],
                start: self.base + start,
                prefixed: false,
            })?;
            start = end;
        }
        ControlFlow::Continue(())
    }
}
