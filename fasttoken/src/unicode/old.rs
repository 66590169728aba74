//! General categories of an older Unicode version, as the reference's `BertNormalizer`,
//! `BertPreTokenizer` and `Punctuation` have them from the crate `unicode_categories`.

use super::old_table::RUNS;
use std::sync::LazyLock;

const OTHER: u8 = 1;
const MARK: u8 = 2;
const PUNCTUATION: u8 = 4;

/// Flags of all characters, 256 in a block; equal blocks that follow each other are stored once.
struct Flags {
    index: Vec<u8>,
    blocks: Vec<[u8; 256]>,
}

static FLAGS: LazyLock<Flags> = LazyLock::new(|| {
    let mut this = Flags {
        index: Vec::with_capacity(0x1100),
        blocks: Vec::new(),
    };
    let mut runs = RUNS.iter().peekable();
    let mut flags = 0;
    for begin in (0..0x11_0000).step_by(256) {
        let mut block = [flags; 256];
        while let Some((start, next)) = runs.next_if(|(start, _)| *start < begin + 256) {
            block[(start - begin) as usize..].fill(*next);
            flags = *next;
        }
        if this.blocks.last() != Some(&block) {
            this.blocks.push(block);
        }
        this.index
            .push(u8::try_from(this.blocks.len() - 1).expect("few blocks have flags"));
    }
    this
});

#[inline]
fn has(c: char, flag: u8) -> bool {
    let (block, at) = (c as usize >> 8, c as usize & 0xFF);
    let flags = &*FLAGS;
    flags.blocks[usize::from(flags.index[block])][at] & flag != 0
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
