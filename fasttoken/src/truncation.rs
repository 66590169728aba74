//! Cutting encodings to a number of ids.

use crate::encode_error::EncodeError;
use crate::encoding::Encoding;
use serde::Deserialize;
use std::ops::Range;

/// The rules for cutting an input to a number of ids, as the reference does it.
///
/// ```
/// use fasttoken::{Side, Truncation, TruncationStrategy};
/// let truncation = Truncation::new(128)
///     .strategy(TruncationStrategy::OnlySecond)
///     .side(Side::Right)
///     .stride(16);
/// assert_eq!(truncation.max_length, 128);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Truncation {
    /// The most ids, with those that the template adds.
    pub max_length: usize,
    /// The text of a pair that is cut.
    pub strategy: TruncationStrategy,
    /// The end at which ids are cut off.
    #[serde(default, rename = "direction")]
    pub side: Side,
    /// The number of ids that each overflowing piece shares with the piece before it.
    pub stride: usize,
}

/// The text of a pair that truncation cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum TruncationStrategy {
    /// The longer one, and when that is not enough both to the same length.
    #[default]
    LongestFirst,
    /// Only the first text is cut.
    OnlyFirst,
    /// Only the second text is cut.
    OnlySecond,
}

/// An end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Side {
    /// The beginning.
    Left,
    /// The end.
    #[default]
    Right,
}

impl Truncation {
    /// Creates a truncation to at most `max_length` ids, which cuts the longer text at its end,
    /// without overlap of pieces.
    pub fn new(max_length: usize) -> Self {
        Self {
            max_length,
            strategy: TruncationStrategy::LongestFirst,
            side: Side::Right,
            stride: 0,
        }
    }

    /// Chooses the text that is cut.
    #[must_use]
    pub fn strategy(mut self, strategy: TruncationStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Chooses the end at which ids are cut off.
    #[must_use]
    pub fn side(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// Sets the number of ids that pieces of what overflows share.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.stride = stride;
        self
    }

    /// Returns the most ids worth making for text 0 or 1: the reference stops after the word in
    /// which it has that many.
    pub(crate) fn limit(&self, sequence: usize) -> Option<(usize, Side)> {
        let cut = self.strategy != TruncationStrategy::OnlySecond || sequence != 0;
        cut.then_some((self.max_length, self.side))
    }

    /// Cuts one text or two so that `added` more ids fit.
    pub(crate) fn apply(
        &self,
        texts: &mut [Encoding],
        added: usize,
        overflowing: bool,
    ) -> Result<(), EncodeError> {
        let Some(max) = self.max_length.checked_sub(added) else {
            return Err(EncodeError::TemplateTooLong {
                max_length: self.max_length,
                added,
            });
        };
        if max == 0 {
            texts.iter_mut().for_each(|text| text.cut_all(overflowing));
            return Ok(());
        }
        let total: usize = texts.iter().map(Encoding::len).sum();
        let Some(excess) = total.checked_sub(max).filter(|excess| *excess > 0) else {
            return Ok(());
        };
        match (self.strategy, texts) {
            (TruncationStrategy::LongestFirst, [a, b]) => {
                let (len_a, len_b) = longest_first(a.len(), b.len(), max);
                self.cut(a, len_a, overflowing)?;
                self.cut(b, len_b, overflowing)
            }
            (TruncationStrategy::LongestFirst, [a]) => self.cut(a, max, overflowing),
            (TruncationStrategy::OnlyFirst, [a, ..]) | (TruncationStrategy::OnlySecond, [_, a]) => {
                if a.len() <= excess {
                    return Err(EncodeError::TooShort {
                        excess,
                        len: a.len(),
                    });
                }
                self.cut(a, a.len() - excess, overflowing)
            }
            (TruncationStrategy::OnlySecond, _) => Err(EncodeError::NoSecondText),
            (_, _) => Ok(()),
        }
    }

    fn cut(&self, text: &mut Encoding, max: usize, overflowing: bool) -> Result<(), EncodeError> {
        if max >= text.len() {
            return Ok(());
        }
        if max == 0 {
            text.cut_all(overflowing);
            return Ok(());
        }
        if overflowing {
            text.cut(self.parts(text.len(), max)?);
        } else {
            text.cut(std::iter::once(match self.side {
                Side::Right => 0..max,
                Side::Left => text.len() - max..text.len(),
            }));
        }
        Ok(())
    }

    /// Pieces of up to `max` of `len` ids, each sharing `stride` with the one before.
    fn parts(&self, len: usize, max: usize) -> Result<Vec<Range<usize>>, EncodeError> {
        let step = match max.checked_sub(self.stride) {
            Some(step) if step > 0 => step,
            _ => {
                return Err(EncodeError::Stride {
                    stride: self.stride,
                    max,
                });
            }
        };
        // `len > max`, so there are at least two.
        let count = 1 + (len - max).div_ceil(step);
        EncodeError::check_overflowing(count.saturating_mul(max))?;
        let parts = (0..count).map(|n| {
            let start = n * step;
            let end = (start + max).min(len);
            match self.side {
                Side::Right => start..end,
                Side::Left => len - end..len - start,
            }
        });
        Ok(parts.collect())
    }
}

/// Returns the lengths to which two texts of `a` and `b` ids are cut; more than their own length
/// leaves a text as it is.
///
/// Only called when both together have more than `max`.
fn longest_first(a: usize, b: usize, max: usize) -> (usize, usize) {
    let short = a.min(b);
    let mut lengths = if short > max {
        (short, short)
    } else {
        (short, short.max(max - short))
    };
    if lengths.0 + lengths.1 > max {
        lengths = (max / 2, max / 2 + max % 2);
    }
    if a > b {
        (lengths.1, lengths.0)
    } else {
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_overlap_by_the_stride() {
        let check = |truncation: Truncation, len, expected: &[Range<usize>]| {
            let parts = truncation.parts(len, truncation.max_length).unwrap();
            assert_eq!(parts, expected);
        };
        check(Truncation::new(2), 5, &[0..2, 2..4, 4..5]);
        check(Truncation::new(3).stride(1), 6, &[0..3, 2..5, 4..6]);
        let left = Truncation::new(3).side(Side::Left);
        check(left, 7, &[4..7, 1..4, 0..1]);
        check(left.stride(2), 5, &[2..5, 1..4, 0..3]);
        let stuck = Truncation::new(3).stride(3).parts(5, 3);
        assert!(matches!(
            stuck,
            Err(EncodeError::Stride { stride: 3, max: 3 })
        ));
        let huge = Truncation::new(1 << 20)
            .stride((1 << 20) - 1)
            .parts(1 << 22, 1 << 20);
        assert!(matches!(huge, Err(EncodeError::TooMuchOverflow { .. })));
    }

    #[test]
    fn both_are_cut_when_one_is_not_enough() {
        assert_eq!(longest_first(3, 10, 8), (3, 5));
        assert_eq!(longest_first(10, 3, 8), (5, 3));
        assert_eq!(longest_first(10, 10, 7), (3, 4));
        assert_eq!(longest_first(20, 10, 7), (4, 3));
    }
}
