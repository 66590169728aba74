//! General categories of an older Unicode version, as the reference's `BertNormalizer`,
//! `BertPreTokenizer` and `Punctuation` have them from the crate `unicode_categories`.

use super::old_table::RUNS;
use std::sync::LazyLock;

const OTHER: u8 = 1;
const MARK: u8 = 2;
const PUNCTUATION: u8 = 4;

/// The blocks of the flags of all characters.
static FLAGS: LazyLock<(Vec<u16>, Vec<u8>)> = LazyLock::new(|| super::blocks(RUNS));

#[inline]
fn has(c: char, flag: u8) -> bool {
    let (index, blocks) = &*FLAGS;
    let block = usize::from(index[c as usize >> 8]);
    blocks[block << 8 | c as usize & 0xFF] & flag != 0
}

/// Returns true for control, format and private-use characters.
pub(crate) fn is_old_other(c: char) -> bool {
    has(c, OTHER)
}

/// Returns true for nonspacing marks.
pub(crate) fn is_old_mark(c: char) -> bool {
    has(c, MARK)
}

/// Returns true for punctuation.
pub(crate) fn is_old_punctuation(c: char) -> bool {
    has(c, PUNCTUATION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_categories::UnicodeCategories as _;

    #[test]
    fn categories_are_those_of_the_reference() {
        let mut some = [0; 3];
        for c in '\0'..=char::MAX {
            let expected = [c.is_other(), c.is_mark_nonspacing(), c.is_punctuation()];
            let found = [is_old_other(c), is_old_mark(c), is_old_punctuation(c)];
            assert_eq!(found, expected, "{c:?}");
            for (count, is) in some.iter_mut().zip(found) {
                *count += usize::from(is);
            }
        }
        assert!(some.iter().all(|count| *count > 200), "{some:?}");
    }
}
