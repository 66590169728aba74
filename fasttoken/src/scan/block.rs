//! Ends of words for 64 bytes at a time, by arithmetic on class masks.
//!
//! A block begins where a word begins. Since no pattern of the family looks behind,
//! nothing has to be carried from the block before it, and a block is a pure function
//! of its bytes. What depends on bytes after the block is left to the next one, which
//! begins at the last end that is certain. A word that fills a whole block is left to
//! the scalar scanner ([`super::Scanner`]), the plain version of this module.
//!
//! Bit `i` of a mask speaks about byte `i`, so `x << 1` asks about the byte before
//! and `x >> 1` about the byte after. Adding a bit to a run of ones clears the run
//! and sets the bit after it, which finds the ends of runs.

use super::Scanner;
use super::cased::add_cased;
use super::class_masks::{BLOCK, ClassMasks, InstructionSet, WideMasks};
use super::grammar::{Grammar, Shape, Tail, Word};
use crate::unicode::{Kind, char_at};

/// A grammar that is scanned in blocks.
pub(super) trait Blocks: Copy {
    /// Returns the ends that are certain among bytes 1 to 63 of a block, and whether they are the last
    /// before the end of the text. `None` when there is neither. The block is at `at` of the scanner's
    /// text, which has `valid` bytes of it; `last` if these are all that is left.
    fn certain_ends<I: InstructionSet>(
        self,
        scanner: Scanner<'_>,
        at: usize,
        block: &[u8; BLOCK],
        valid: usize,
        last: bool,
    ) -> Option<(u64, bool)>;
}

/// Ends of words that one call finds at most; a block adds up to 64 more.
pub(crate) const ENDS: usize = 2112;

/// Finds ends of words of `scanner`'s text from `at`, where a word begins, on, and writes
/// them after the first `count`; see [`Scanner::fill`].
#[inline(always)]
pub(super) fn fill<I: InstructionSet>(
    blocks: impl Blocks,
    grammar: Grammar,
    scanner: Scanner<'_>,
    mut at: usize,
    ends: &mut [usize; ENDS],
    mut count: usize,
) -> usize {
    let bytes = scanner.text.as_bytes();
    while at < bytes.len() && count < ENDS - BLOCK {
        let rest = &bytes[at..];
        let found = match rest.first_chunk::<BLOCK>() {
            Some(block) => blocks.certain_ends::<I>(scanner, at, block, BLOCK, rest.len() == BLOCK),
            None => {
                let block = I::padded(rest);
                blocks.certain_ends::<I>(scanner, at, &block, rest.len(), true)
            }
        };
        if let Some((mask, last)) = found {
            // Values beyond the last end are overwritten.
            let slots = ends[count..].first_chunk_mut::<BLOCK>();
            I::places(mask, at, slots.expect("there is room for a block's ends"));
            count += mask.count_ones() as usize;
            if last {
                ends[count] = bytes.len();
                count += 1;
                return count;
            }
            at += 63 - mask.leading_zeros() as usize;
        } else {
            at = scanner.end_of_match(grammar, at);
            ends[count] = at;
            count += 1;
        }
    }
    count
}

impl Blocks for Shape {
    #[inline(always)]
    fn certain_ends<I: InstructionSet>(
        self,
        scanner: Scanner<'_>,
        at: usize,
        block: &[u8; BLOCK],
        valid: usize,
        last: bool,
    ) -> Option<(u64, bool)> {
        let mut masks = I::class_masks(block);
        let valid_mask = u64::MAX >> (BLOCK - valid);
        if masks.non_ascii == 0 {
            // Bytes after the text are zero, which is in no class of the masks.
            let other = !(masks.letter | masks.number | masks.space) & valid_mask;
            let mask = word_ends::<false>(self, &masks, other, u64::MAX, block, valid_mask, last);
            return (mask != 0 || last).then_some((mask, last));
        }
        let wide = if self.is_cased() {
            let wide = add_cased::<I>(self.han, scanner, at, &mut masks, block)?;
            if masks.both != 0 && masks.quote & masks.letter << 1 != 0 {
                // A contraction ends a word, which the letters after it do not show.
                return None;
            }
            wide
        } else {
            add_wide::<I>(scanner, at, &mut masks, block)?
        };
        if self.digits_max > 1 && masks.number & wide.bytes != 0 {
            // Numbers of several bytes are counted by the plain scanner.
            return None;
        }
        let valid_mask = valid_mask & wide.valid_mask;
        let last = last && wide.valid_mask == u64::MAX;
        let other = !(masks.letter | masks.number | masks.space | masks.han) & valid_mask;
        let mask = word_ends::<true>(self, &masks, other, wide.leads, block, valid_mask, last);
        (mask != 0 || last).then_some((mask, last))
    }
}

impl Shape {
    /// Returns true for words of GPT-2: only a space may precede letters, it may also precede digits,
    /// line ends are blanks like others, and contractions keep to lower case.
    #[inline(always)]
    fn is_plain(self) -> bool {
        matches!(self.word, Word::Plain)
    }

    /// Returns true for words of o200k: words also end between lower and upper case, and contractions
    /// belong to the word before them.
    #[inline(always)]
    fn is_cased(self) -> bool {
        matches!(self.word, Word::Cased)
    }
}

impl ClassMasks {
    pub(super) fn and(self, mask: u64) -> Self {
        Self {
            letter: self.letter & mask,
            upper: self.upper & mask,
            number: self.number & mask,
            space: self.space & mask,
            blank: self.blank & mask,
            newline: self.newline & mask,
            quote: self.quote & mask,
            slash: self.slash & mask,
            both: self.both & mask,
            han: self.han & mask,
            non_ascii: self.non_ascii & mask,
        }
    }
}

/// The bytes of characters of several bytes in a block.
pub(super) struct Wide {
    /// First bytes of characters, ASCII too.
    pub(super) leads: u64,
    /// The bytes of characters beyond ASCII.
    pub(super) bytes: u64,
    /// The bytes of the block without a last character that the block cuts.
    pub(super) valid_mask: u64,
}

/// Adds the characters beyond ASCII to the masks, all their bytes to the mask of
/// their kind. `None` if the first character is cut, which cannot be in a block of
/// 64 bytes that begins with a character.
#[inline(always)]
fn add_wide<I: InstructionSet>(
    scanner: Scanner<'_>,
    at: usize,
    masks: &mut ClassMasks,
    block: &[u8; BLOCK],
) -> Option<Wide> {
    // Most letters of some scripts are told by their first bytes, all at once. Those that
    // the block cuts are left to the loop.
    let WideMasks {
        tail,
        two,
        three,
        punctuation,
    } = I::wide(block);
    let (two, three) = (two << 1 >> 1, three << 2 >> 2);
    let whole = |three: u64| three | three << 1 | three << 2;
    let letters = two | two << 1 | whole(three);
    masks.letter |= letters;
    // Punctuation is in no class.
    let mut left = masks.non_ascii & !letters & !whole(punctuation);
    let leads = !tail;
    let mut valid_mask = u64::MAX;
    while left != 0 {
        let offset = left.trailing_zeros() as usize;
        let lead = block[offset];
        let len = 2 + usize::from(lead >= 0xE0) + usize::from(lead >= 0xF0);
        if offset + len > BLOCK {
            valid_mask = (1 << offset) - 1;
            left = 0;
        } else {
            let bits = ((1u64 << len) - 1) << offset;
            left &= !bits;
            let kind = match char_at(scanner.text, at + offset) {
                Some(c) => scanner.classes.kind(c),
                None => return None,
            };
            match kind {
                Kind::Letter => masks.letter |= bits,
                Kind::Number => masks.number |= bits,
                Kind::Space => masks.space |= bits,
                Kind::Other => {}
            }
        }
    }
    let bytes = masks.non_ascii;
    *masks = masks.and(valid_mask);
    (valid_mask != 0).then_some(Wide {
        leads: leads & valid_mask,
        bytes,
        valid_mask,
    })
}

/// Returns the bytes whose word is certain to begin at or before them: the last run of one kind may
/// go on after the block, and what follows it decides over its inside.
#[inline(always)]
fn certain(shape: Shape, masks: &ClassMasks, other: u64, valid_mask: u64) -> u64 {
    let ClassMasks {
        letter,
        number,
        space,
        ..
    } = *masks;
    let valid = 64 - valid_mask.leading_zeros();
    let change = |mask: u64| mask ^ mask << 1;
    let han = masks.han;
    let starts = change(letter) | change(number) | change(space) | change(other) | change(han);
    let starts = starts & valid_mask;
    let run = 63 - (starts | 1).leading_zeros();
    if shape.digits_max == 1 && number >> (valid - 1) & 1 == 1 {
        u64::MAX
    } else {
        u64::MAX >> (63 - run)
    }
}

/// Returns the starts of words of blanks, and of words that begin with the last blank of a run.
#[inline(always)]
fn space_starts<const WIDE: bool>(
    shape: Shape,
    words_space: u64,
    newline: u64,
    leads: u64,
    valid_mask: u64,
) -> u64 {
    // A run of blanks leaves its last blank to the next word.
    let run_end = words_space & !(words_space >> 1) & valid_mask >> 1;
    let mut last_blank = if shape.is_plain() {
        run_end
    } else {
        run_end & !newline
    };
    if WIDE {
        let tail = !leads;
        last_blank = last_blank & leads | (last_blank & tail) >> 1;
        last_blank = last_blank & leads | (last_blank & tail) >> 1;
    }
    let mut starts = words_space & !(words_space << 1) | last_blank;
    if !shape.is_plain() {
        // Up to the last line end a run of blanks is one word.
        let inner = words_space & !newline;
        starts |= after_last_newline(inner, newline);
    }
    starts
}

/// Returns the runs of line ends (and slashes) that begin right after a character of `other`.
#[inline(always)]
fn line_ends_after(shape: Shape, other: u64, newline: u64, slash: u64) -> u64 {
    let after = other << 1 & newline;
    if after == 0 {
        return 0;
    }
    let tail = match shape.tail {
        Tail::None => return 0,
        Tail::LineEnds => newline,
        Tail::LineEndsAndSlashes => newline | slash,
    };
    // The run may begin before its first line end, with a slash that is in the
    // run of other characters, and have several line ends after slashes: the
    // sum clears from the first of `after` on and sets the further ones.
    tail & !tail.wrapping_add(after) | after
}

/// Ends of words in bytes 1 to 63. With `WIDE`, characters may have several bytes,
/// of which `leads` are the first.
#[inline(always)]
fn word_ends<const WIDE: bool>(
    shape: Shape,
    masks: &ClassMasks,
    other: u64,
    leads: u64,
    block: &[u8; BLOCK],
    valid_mask: u64,
    last: bool,
) -> u64 {
    let ClassMasks {
        letter,
        number,
        space,
        blank,
        newline,
        ..
    } = *masks;
    let valid = 64 - valid_mask.leading_zeros();

    let mut limit = if last {
        u64::MAX
    } else {
        certain(shape, masks, other, valid_mask)
    };

    // Line ends (and slashes) right after other characters belong to their word.
    let taken = line_ends_after(shape, other, newline, masks.slash);
    let other = other & !taken;
    let words_space = space & !taken;
    let newline = newline & !taken;

    let letter_start = letter & !(letter << 1);
    let other_start = other & !(other << 1);
    let own_other_start = other_start & !(blank << 1);

    let mut starts = own_other_start;
    if shape.is_plain() {
        starts |= letter_start & !(blank << 1);
        starts |= number & !(number << 1) & !(blank << 1);
    } else {
        // One character of almost any kind may precede letters: the last blank of
        // a run, or another character that is alone.
        let mut prefix = own_other_start;
        if WIDE {
            let tail = !leads;
            prefix |= prefix << 1 & tail;
            prefix |= prefix << 1 & tail;
            prefix |= prefix << 1 & tail;
        }
        starts |= letter_start & !((prefix | words_space & !newline) << 1);
        if WIDE && shape.han {
            starts |= masks.han & !(masks.han << 1);
        }
        if shape.is_cased() {
            starts |= case_starts::<WIDE>(masks);
        }
        starts |= number_starts(shape, number, leads);
    }

    starts |= space_starts::<WIDE>(shape, words_space, newline, leads, valid_mask);
    if shape.last_blanks && last {
        starts &= without_last_blanks(words_space, valid_mask);
    }

    let before = if shape.is_cased() {
        letter << 1
    } else {
        own_other_start
    };
    let candidates = masks.quote & before;
    if shape.contractions && candidates != 0 {
        let change = match (shape.is_plain(), shape.is_cased()) {
            (true, _) => contractions::<true, false>,
            (false, false) => contractions::<false, false>,
            (false, true) => contractions::<false, true>,
        };
        starts = change(candidates, block, valid, last, starts, &mut limit);
    }
    starts & limit & !1 & valid_mask
}

/// Returns the starts of words of numbers.
#[inline(always)]
fn number_starts(shape: Shape, number: u64, leads: u64) -> u64 {
    let number_start = number & !(number << 1);
    match shape.digits_max {
        0 => number_start,
        1 => number & leads,
        _ => {
            let (mut starts, mut third) = (0, number_start);
            while third != 0 {
                starts |= third;
                third = third << 3 & number & number << 1 & number << 2;
            }
            starts
        }
    }
}

/// Returns all bytes but those inside of the run of blanks that ends with the text, which is one word.
#[inline(always)]
fn without_last_blanks(words_space: u64, valid_mask: u64) -> u64 {
    let valid = 64 - valid_mask.leading_zeros();
    let run = 64 - (!words_space & valid_mask).leading_zeros();
    if run < valid {
        u64::MAX >> (63 - run)
    } else {
        u64::MAX
    }
}

/// Returns the upper-case letters with which a word begins inside of a run of letters.
///
/// A word is upper case, then lower case, and letters without case count as both. So it ends before
/// an upper-case letter that follows lower case, or lower case and letters without case. A run of
/// letters that ends in upper case would be a word without lower case: if letters without case are
/// before these last ones, the word ends with them.
#[inline(always)]
fn case_starts<const WIDE: bool>(masks: &ClassMasks) -> u64 {
    let ClassMasks {
        letter,
        upper,
        both,
        ..
    } = *masks;
    if !WIDE {
        return upper & (letter & !upper) << 1;
    }
    let after_lower = (letter & !upper & !both) << 1;
    let caseless = both & after_lower;
    let mut starts = upper & (after_lower | both.wrapping_add(caseless) & !both);
    let mut left = upper & both << 1;
    while left != 0 {
        let start = left & left.wrapping_neg();
        left &= left - 1;
        // The bit after the run, or none at the end of the block.
        let after = upper.wrapping_add(start) & !upper;
        if after & letter == 0 {
            starts |= start;
        }
    }
    starts
}

/// Returns the starts of runs of `inner`, blanks that are no line ends, after the last line end of
/// their run of blanks.
#[inline(always)]
pub(super) fn after_last_newline(inner: u64, newline: u64) -> u64 {
    let after_newline = newline << 1 & inner;
    let landed = inner.wrapping_add(after_newline) & !inner;
    if landed & newline == 0 {
        after_newline
    } else {
        not_before_newline(inner, newline, after_newline)
    }
}

/// Returns the bits of `starts` whose run of `inner` does not end at a line end.
#[cold]
fn not_before_newline(inner: u64, newline: u64, starts: u64) -> u64 {
    let (mut left, mut kept) = (starts, 0);
    while left != 0 {
        let start = left & left.wrapping_neg();
        left &= left - 1;
        let landed = inner.wrapping_add(start) & !inner;
        if landed & newline == 0 {
            kept |= start;
        }
    }
    kept
}

/// Moves the ends of words where an apostrophe begins a contraction.
#[inline(never)]
fn contractions<const PLAIN: bool, const CASED: bool>(
    candidates: u64,
    block: &[u8; BLOCK],
    valid: u32,
    last: bool,
    mut starts: u64,
    limit: &mut u64,
) -> u64 {
    let mut left = candidates;
    let mut done = 0;
    while left != 0 {
        let at = left.trailing_zeros();
        left &= left - 1;
        if CASED && at == done {
            // Right after a contraction: begins the next word.
            continue;
        }
        if at + 2 >= valid && !last {
            // Whether the next bytes are a contraction is not known yet.
            *limit &= if CASED {
                (1 << at) - 1
            } else {
                u64::MAX >> (63 - at)
            };
            break;
        }
        let end = (at + 1).min(63) as usize;
        let next = if at + 1 < valid { block[end] } else { 0 };
        let end = (at + 2).min(63) as usize;
        let second = if at + 2 < valid { block[end] } else { 0 };
        let fold = |b: u8| if PLAIN { b } else { b.to_ascii_lowercase() };
        let len = match (fold(next), fold(second)) {
            (b's' | b't' | b'm' | b'd', _) => 2,
            (b'r' | b'v', b'e') | (b'l', b'l') => 3,
            // U+017F, a long s, in UTF-8
            (0xC5, 0xBF) if !PLAIN => 3,
            _ => continue,
        };
        done = at + len;
        // The first byte keeps its end, unless the contraction belongs to the word.
        let first = at + u32::from(!CASED);
        starts &= !(((1u64 << (done - first)) - 1) << first);
        if done < valid.min(64) {
            starts |= 1u64 << done;
        }
    }
    starts
}
