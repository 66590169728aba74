//! What a file can make us prepare.

use super::TOKEN_BITS;

/// Characters of one context, counted for each rule with them. Of eight vocabularies that
/// models use, Llama 3's has the most: 16.
pub(super) const CHARS_MAX: usize = 1 << 12;
/// Rules looked at for all contexts of a file, and so at most 16 MiB of characters. Of the
/// same vocabularies, Qwen 3's needs the most: 17,319.
pub(super) const RULES_MAX: usize = 1 << 22;
/// More different sets than the upper bits can name, without the one that would make an
/// entry [`super::NO_ATOM`]: later characters are no atoms.
pub(super) const SETS_MAX: usize = (1 << (32 - TOKEN_BITS)) - 1;

/// What a file can make [`super::Atoms::new`] do. Characters beyond a limit are no atoms, which
/// costs time when text with them is encoded and changes nothing else.
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
