//! The reasons why an input could not be encoded as asked.

/// Most ids in all pieces that overflow from one input: 16 million, of which each takes
/// some 50 bytes. The reference has no bound, and a stride close to the length makes the
/// pieces together as large as the square of the text.
const OVERFLOWING_IDS_MAX: usize = 1 << 24;

/// Most ids that padding adds to a batch, for the same reason: the length is that of the
/// longest text, or any number, and there are as many of it as texts and pieces.
const PADDING_IDS_MAX: usize = 1 << 24;

/// The reason why an input could not be encoded with the options that were given.
///
/// Only truncation and padding can fail; any text is fine by definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// `OnlySecond` was asked for, and a single text is too long.
    #[error("truncation is to cut the second text, but there is only one")]
    NoSecondText,
    /// The text that may be cut is not longer than what has to go.
    #[error(
        "truncation has to remove {excess} ids from a text of {len}; \
         cut the other text too (LongestFirst) or allow more ids"
    )]
    TooShort {
        /// Number of ids over the limit.
        excess: usize,
        /// Number of ids of the text that may be cut.
        len: usize,
    },
    /// The template alone has more ids than are allowed.
    #[error("at most {max_length} ids are allowed, but the template alone adds {added}")]
    TemplateTooLong {
        /// The limit.
        max_length: usize,
        /// Number of ids the template adds.
        added: usize,
    },
    /// Pieces of what overflows would not advance.
    #[error(
        "a stride of {stride} needs pieces of more than that many ids, and they have {max} \
         (the limit without the template's ids, and for a pair without the other text)"
    )]
    Stride {
        /// The stride asked for.
        stride: usize,
        /// Ids of a piece.
        max: usize,
    },
    /// The pieces of what overflows would take too much memory.
    #[error(
        "what overflows would have {ids} ids in all its pieces, more than {limit}; \
         choose a smaller stride, or switch it off"
    )]
    TooMuchOverflow {
        /// Number of ids.
        ids: usize,
        /// The limit.
        limit: usize,
    },
    /// Padding would take too much memory.
    #[error(
        "padding would add {ids} ids to all texts of the batch and what overflows from them, \
         more than {limit}; fill up to less, switch overflowing off, or take smaller batches"
    )]
    TooMuchPadding {
        /// Number of ids.
        ids: usize,
        /// The limit.
        limit: usize,
    },
    /// Padding would fill up to an absurd length.
    #[error("padding is to fill up to {length} ids, or a multiple of that; the most is {limit}")]
    PaddingTooLong {
        /// The length or multiple asked for.
        length: usize,
        /// The limit.
        limit: usize,
    },
}

impl EncodeError {
    /// Refuses `ids` in all pieces together, if that is too many.
    pub(crate) fn check_overflowing(ids: usize) -> Result<(), Self> {
        let limit = OVERFLOWING_IDS_MAX;
        if ids > limit {
            return Err(Self::TooMuchOverflow { ids, limit });
        }
        Ok(())
    }

    /// Refuses to add `ids` to a batch by padding, if that is too many.
    pub(crate) fn check_padding(ids: usize) -> Result<(), Self> {
        let limit = PADDING_IDS_MAX;
        if ids > limit {
            return Err(Self::TooMuchPadding { ids, limit });
        }
        Ok(())
    }
}
