//! General categories of an older Unicode version, as the reference's `BertNormalizer`,
//! `BertPreTokenizer` and `Punctuation` have them from the crate `unicode_categories`.

use std::sync::OnceLock;
use unicode_categories::UnicodeCategories as _;

const OTHER: u8 = 1;
const MARK: u8 = 2;
const PUNCTUATION: u8 = 4;

/// The flags of each 256 characters, made when one of them is first asked for: the crate searches a
/// list of characters for each of eleven categories.
static BLOCKS: [OnceLock<[u8; 256]>; 0x1100] = [const { OnceLock::new() }; 0x1100];

#[inline]
fn has(c: char, flag: u8) -> bool {
    // Ideographs and syllables of Hangul, of which texts are full, have no flags.
    if matches!(c, '\u{4E00}'..='\u{9FA5}' | '\u{AC00}'..='\u{D7A3}') {
        return false;
    }
    let code = c as usize;
    let known = BLOCKS[code >> 8].get();
    let block = known.unwrap_or_else(|| make_block(code >> 8));
    block[code & 0xFF] & flag != 0
}

#[cold]
fn make_block(n: usize) -> &'static [u8; 256] {
    BLOCKS[n].get_or_init(|| {
        std::array::from_fn(|at| char::from_u32((n << 8 | at) as u32).map_or(0, flags))
    })
}

fn flags(c: char) -> u8 {
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    flag(c.is_other(), OTHER)
        | flag(c.is_mark_nonspacing(), MARK)
        | flag(c.is_punctuation(), PUNCTUATION)
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
