//! Filling encodings up to a common length.

use crate::encode_error::EncodeError;
use crate::encoding::Encoding;
use crate::truncation::Side;
use serde::Deserialize;

/// Longest length to which padding may fill: far above any context, and neither a damaged
/// file nor a caller's slip can ask for gigabytes.
const LENGTH_MAX: usize = 1 << 24;

/// The rules for filling up encodings, as the reference does it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Padding {
    /// The length to fill up to.
    #[serde(rename = "strategy")]
    pub length: PaddingLength,
    /// The end at which ids are added.
    #[serde(rename = "direction")]
    pub side: Side,
    /// Fills up further, to a multiple of this.
    pub pad_to_multiple_of: Option<usize>,
    /// The id that is added.
    #[serde(rename = "pad_id")]
    pub id: u32,
    /// The type of the ids that are added.
    #[serde(rename = "pad_type_id")]
    pub type_id: u32,
    /// The token that is added, which only names it: `id` is what is used.
    #[serde(rename = "pad_token")]
    pub token: String,
}

/// The length to which padding fills up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PaddingLength {
    /// The length of the longest encoding of a batch. An encoding alone is the longest.
    BatchLongest,
    /// A fixed number of ids. Longer encodings keep their length.
    Fixed(usize),
}

impl Padding {
    /// Fills up to the longest of a batch with `id` at the end.
    pub fn new(id: u32, token: impl Into<String>) -> Self {
        Self {
            length: PaddingLength::BatchLongest,
            side: Side::Right,
            pad_to_multiple_of: None,
            id,
            type_id: 0,
            token: token.into(),
        }
    }

    /// Chooses the length.
    #[must_use]
    pub fn length(mut self, length: PaddingLength) -> Self {
        self.length = length;
        self
    }

    /// Chooses the end at which ids are added.
    #[must_use]
    pub fn side(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// Fills up to a multiple of `n`; 0 is as if it was not asked for.
    #[must_use]
    pub fn pad_to_multiple_of(mut self, n: usize) -> Self {
        self.pad_to_multiple_of = Some(n);
        self
    }

    /// Sets the type of the ids that are added.
    #[must_use]
    pub fn type_id(mut self, type_id: u32) -> Self {
        self.type_id = type_id;
        self
    }

    /// Refuses lengths that would exhaust memory.
    pub(crate) fn check(&self) -> Result<(), EncodeError> {
        let fixed = match self.length {
            PaddingLength::BatchLongest => 0,
            PaddingLength::Fixed(length) => length,
        };
        let length = fixed.max(self.pad_to_multiple_of.unwrap_or(0));
        if length > LENGTH_MAX {
            return Err(EncodeError::PaddingTooLong {
                length,
                limit: LENGTH_MAX,
            });
        }
        Ok(())
    }

    /// Fills up `encodings`, which are one batch.
    pub(crate) fn apply(&self, encodings: &mut [Encoding]) -> Result<(), EncodeError> {
        self.check()?;
        let longest = encodings.iter().map(Encoding::len).max().unwrap_or(0);
        let mut length = match self.length {
            PaddingLength::BatchLongest => longest,
            PaddingLength::Fixed(length) => length,
        };
        if let Some(multiple) = self.pad_to_multiple_of.filter(|n| *n > 0) {
            length = length.next_multiple_of(multiple);
        }
        let added = |encoding: &Encoding| encoding.missing(length);
        let added = encodings.iter().map(added).fold(0, usize::saturating_add);
        EncodeError::check_padding(added)?;
        for encoding in encodings {
            encoding.pad(length, self.id, self.type_id, self.side == Side::Left);
        }
        Ok(())
    }
}
