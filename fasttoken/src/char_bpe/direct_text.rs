//! Text that needs no normalizing: where only blanks change, and `▁` may be put before it.
//!
//! That is what published files ask for, in one way or another, and what the spelling of
//! [`super::letter_table`] makes of a text by itself.

use super::letter_table::push_blanks;
use crate::added::AddedTokens;
use crate::normalize::{Blanks, Normalizer};
use crate::pieces::{META, Metaspace, Prepend};

/// The condition for a `▁` before a text between added tokens, which is never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direct {
    Never,
    Always,
    /// A `▁` stands before a text that does not begin with one.
    Bare,
    /// Unless it begins with one, and only at the beginning of the whole text.
    BareFirst,
}

impl Direct {
    /// Returns the condition, or `None` if texts need more changes than that. `metaspace` are the
    /// settings of the pre-tokenizer `Metaspace`, and `split_after` is the string after which the
    /// pre-tokenizer `Split` splits.
    pub(crate) fn new(
        normalizer: &Normalizer,
        metaspace: Option<Metaspace>,
        split_after: Option<&str>,
        added: &AddedTokens,
    ) -> Option<Self> {
        if added.has_normalized() {
            return None;
        }
        let blanks = normalizer.blanks(META.encode_utf8(&mut [0; 4]))?;
        match (blanks, metaspace) {
            (_, Some(Metaspace { split: true, .. })) => None,
            (Blanks::Prefixed, Some(_)) => Some(Self::Always),
            (_, Some(Metaspace { prepend, .. })) => Some(match prepend {
                Prepend::First => Self::BareFirst,
                Prepend::Always => Self::Bare,
                Prepend::Never => Self::Never,
            }),
            (Blanks::Kept, _) => None,
            // The string cannot occur once spaces are replaced.
            _ if split_after.is_some_and(|end| !end.contains(' ')) => None,
            (Blanks::Replaced, _) => Some(Self::Never),
            (Blanks::Prefixed, _) => Some(Self::Always),
        }
    }

    /// Appends the text of which `raw` is the usual spelling. `begins` says whether that is
    /// where the whole text does.
    pub(crate) fn push(self, raw: &str, begins: bool, out: &mut Vec<u8>) {
        let prefix = match self {
            Self::Never => false,
            Self::Always => true,
            Self::Bare => !raw.starts_with([' ', META]),
            Self::BareFirst => begins && !raw.starts_with([' ', META]),
        };
        out.extend(prefix.then_some(b' '));
        push_blanks(raw, out);
    }
}
