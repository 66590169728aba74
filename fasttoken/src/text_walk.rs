//! The way of a text to its model: added tokens are cut out, and the text between them is normalized.

use crate::added::{AddedTokens, Part, Pass, Recognise};
use crate::normalize::Normalizer;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::{ControlFlow, Range};

/// The steps that a text passes before the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextSteps<'a> {
    pub(crate) added: &'a AddedTokens,
    pub(crate) normalizer: &'a Normalizer,
}

/// Normalized text between two added tokens, which the model splits into words.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub(crate) text: &'a str,
    /// The byte of the normalized segment at which the stretch begins.
    pub(crate) start: usize,
    /// Returns the byte of the whole text that a byte of the normalized segment comes from.
    pub(crate) origin: &'a dyn Fn(usize) -> usize,
}

/// A receiver of the parts of a text, in order, while it is encoded.
///
/// A *segment* is the raw text between two added tokens that were found there; positions of words and
/// of tokens found in normalized text count bytes of the segment's normalized text.
pub(crate) trait Visitor {
    /// Takes a segment as it is, and returns true, if the model needs no normalized text of it.
    /// `begins` is true at the beginning of the whole text.
    fn raw_segment(&mut self, _raw: &str, _begins: bool) -> bool {
        false
    }

    /// Begins a segment of these bytes of the text. `changed` is false only if its normalized text is
    /// known to equal the raw text.
    fn segment(&mut self, _raw: Range<usize>, _changed: bool) {}

    /// Takes a stretch of text.
    fn stretch(&mut self, stretch: Stretch<'_>) -> ControlFlow<()>;

    /// Takes an added token that was found in the raw text.
    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()>;

    /// Takes an added token that was found in the normalized segment, whose text is `normalized`. By
    /// default it is treated like a token of the raw text.
    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        _normalized: &str,
    ) -> ControlFlow<()> {
        self.raw_token(id, range)
    }
}

impl TextSteps<'_> {
    /// Calls `visitor` with the parts of `text`.
    pub(crate) fn walk(
        self,
        text: &str,
        recognise: Recognise,
        visitor: &mut impl Visitor,
    ) -> ControlFlow<()> {
        let Self { added, normalizer } = self;
        added.split(Pass::Raw, recognise, text, |part| {
            let range = match part {
                Part::Token(id, range) => return visitor.raw_token(id, range),
                Part::Text(range) => range,
            };
            let raw = &text[range.clone()];
            if visitor.raw_segment(raw, range.start == 0) {
                return ControlFlow::Continue(());
            }
            let normalized = normalizer.apply(raw);
            visitor.segment(range.clone(), matches!(normalized, Cow::Owned(_)));
            // Computed once for all stretches of the segment, and only if one needs it.
            let alignment = OnceCell::new();
            let origin = |at: usize| match &normalized {
                Cow::Borrowed(_) => range.start + at,
                Cow::Owned(_) => {
                    let alignment = alignment.get_or_init(|| normalizer.alignment(raw));
                    alignment.get(at).map_or(raw.len(), |from| from.0) + range.start
                }
            };
            added.split(
                Pass::Normalized,
                recognise,
                &normalized,
                |part| match part {
                    Part::Token(id, range) => visitor.normalized_token(id, range, &normalized),
                    Part::Text(range) => visitor.stretch(Stretch {
                        text: &normalized[range.clone()],
                        start: range.start,
                        origin: &origin,
                    }),
                },
            )
        })
    }
}
