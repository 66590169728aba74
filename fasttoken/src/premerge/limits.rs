//! Upper bounds of the work that a file can cause at load.

use super::TOKEN_BITS;

/// Upper bound of the characters of one context, counted once for each rule. Of eight vocabularies
/// of published models, Llama 3's has the most: 16.
pub(super) const CHARS_MAX: usize = 1 << 12;
/// Upper bound of the rules that are visited for all contexts of a file, which also bounds their
/// characters to 16 MiB. Of the same vocabularies, Qwen 3's needs the most: 17,319.
pub(super) const RULES_MAX: usize = 1 << 22;
/// Upper bound of different contexts: those that the upper bits of an entry can index, without the
/// one that would make the entry [`super::NOT_PREMERGED`].
pub(super) const SETS_MAX: usize = (1 << (32 - TOKEN_BITS)) - 1;

/// The bounds of [`super::Premerged::new`]. Characters beyond a bound are not premerged, which
/// costs time when their text is encoded and changes no result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// [`SETS_MAX`]
    pub(super) sets: usize,
    /// [`CHARS_MAX`]
    pub(super) chars: usize,
    /// [`RULES_MAX`]
    pub(super) rules: usize,
}

impl Limits {
    pub(super) const USUAL: Self = Self {
        sets: SETS_MAX,
        chars: CHARS_MAX,
        rules: RULES_MAX,
    };
}
