//! The split patterns that have a scanner.

use super::deepseek::DEEPSEEK3;

/// The regular expression that `ByteLevel` splits by when `use_regex` is set.
pub(crate) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Qwen 2, 2.5 and 3.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3, GPT-4 (cl100k) and many others.
pub(crate) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o and its successors.
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The hand-written scanner of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grammar {
    /// [`GPT2`]
    Gpt2,
    /// [`QWEN2`] (one digit) and [`CL100K`] (up to three).
    Cl100k {
        /// Longest run of digits in one piece.
        digits_max: u8,
    },
    /// [`O200K`]
    O200k,
    /// [`DEEPSEEK3`]
    DeepSeek3,
}

impl Grammar {
    /// The scanner for a pattern spelled exactly as one of the constants.
    pub(crate) fn recognise(pattern: &str) -> Option<Self> {
        match pattern {
            GPT2 => Some(Self::Gpt2),
            QWEN2 => Some(Self::Cl100k { digits_max: 1 }),
            CL100K => Some(Self::Cl100k { digits_max: 3 }),
            O200K => Some(Self::O200k),
            _ => None,
        }
    }

    /// The scanner for splits that follow each other and keep every piece, with exactly
    /// these patterns.
    pub(crate) fn recognise_sequence<S: AsRef<str>>(patterns: &[S]) -> Option<Self> {
        let patterns = patterns.iter().map(AsRef::as_ref);
        patterns.eq(DEEPSEEK3).then_some(Self::DeepSeek3)
    }
}
