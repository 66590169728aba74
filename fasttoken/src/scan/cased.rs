//! Letters beyond ASCII of a block, by case, for patterns of which words end between lower and upper
//! case.

use super::Scanner;
use super::block::Wide;
use super::class_masks::{BLOCK, ClassMasks, InstructionSet, WideMasks};
use crate::unicode::{Kind, char_at, is_han};

/// The class mask that the bytes of a character are added to.
enum Place {
    Upper,
    Lower,
    Both,
    Han,
    Number,
    Space,
    Other,
    /// The character may be a letter and another character too, or Han and no letter: what is from
    /// it on is left to the next block, and at last to the scalar scanner.
    Ambiguous,
}

/// Adds the characters beyond ASCII to the masks up to an ambiguous one, all their bytes to the mask
/// of their kind. Returns `None` if the first character is ambiguous.
#[inline(always)]
pub(super) fn add_cased<I: InstructionSet>(
    han: bool,
    scanner: Scanner<'_>,
    at: usize,
    masks: &mut ClassMasks,
    block: &[u8; BLOCK],
) -> Option<Wide> {
    // Most letters of some scripts are told by their bytes, all at once. Those that the block cuts
    // are left to the loop.
    let wide = I::wide(block);
    add_by_bytes::<I>(han, masks, block, &wide);
    let known = (masks.letter | masks.han) & masks.non_ascii;
    let punctuation = wide.punctuation << 2 >> 2;
    let punctuation = punctuation | punctuation << 1 | punctuation << 2;
    let mut left = masks.non_ascii & !known & !punctuation;
    let mut valid_mask = u64::MAX;
    while left != 0 {
        let offset = left.trailing_zeros() as usize;
        let lead = block[offset];
        let len = 2 + usize::from(lead >= 0xE0) + usize::from(lead >= 0xF0);
        let bits = ((1u64 << len) - 1) << offset;
        left &= !bits;
        let place = if offset + len > BLOCK {
            Place::Ambiguous
        } else {
            place(han, scanner, char_at(scanner.text, at + offset)?)
        };
        match place {
            Place::Upper => masks.upper |= bits,
            Place::Both => masks.both |= bits,
            Place::Han => masks.han |= bits,
            Place::Number => masks.number |= bits,
            Place::Space => masks.space |= bits,
            Place::Lower | Place::Other => {}
            Place::Ambiguous => {
                valid_mask = (1 << offset) - 1;
                left = 0;
            }
        }
        if matches!(place, Place::Upper | Place::Lower | Place::Both) {
            masks.letter |= bits;
        }
    }
    let bytes = masks.non_ascii;
    *masks = masks.and(valid_mask);
    (valid_mask != 0).then_some(Wide {
        leads: !wide.tail & valid_mask,
        bytes,
        valid_mask,
    })
}

/// Adds the letters that are told by their bytes: Cyrillic of Russian, and scripts without case.
#[inline(always)]
fn add_by_bytes<I: InstructionSet>(
    han: bool,
    masks: &mut ClassMasks,
    block: &[u8; BLOCK],
    wide: &WideMasks,
) {
    let within = |first, count| I::within(block, first, count);
    let (two, three) = (wide.two << 1 >> 1, wide.three << 2 >> 2);
    let pair = |bits: u64| bits | bits << 1;
    let triple = |bits: u64| bits | bits << 1 | bits << 2;
    if two != 0 {
        // U+0400 to U+042F, then U+0430 to U+045F.
        let (d0, d1) = (within(0xD0, 1), within(0xD1, 1));
        let upper = two & d0 & within(0x80, 0x30) >> 1;
        let lower = two & (d0 & within(0xB0, 0x10) >> 1 | d1 & within(0x80, 0x20) >> 1);
        // Hebrew and Arabic.
        let both = pair(two & within(0xD7, 5));
        masks.upper |= pair(upper);
        masks.both |= both;
        masks.letter |= pair(upper | lower) | both;
    }
    // All but Latin of U+1E00 to U+1EFF.
    let three = three & !within(0xE1, 1);
    // U+4000 to U+9FFF are Han, the others Hangul and Kana.
    let ideographs = if han { three & within(0xE4, 6) } else { 0 };
    let both = triple(three & !ideographs);
    masks.han |= triple(ideographs);
    masks.both |= both;
    masks.letter |= both;
}

fn place(han: bool, scanner: Scanner<'_>, c: char) -> Place {
    let is_han = han && is_han(c);
    // Categories in the order of `unicode::CATEGORIES`.
    match scanner.classes.class(c).category() {
        3 | 4 if is_han => Place::Han,
        0 | 2 => Place::Upper,
        1 => Place::Lower,
        3 | 4 => Place::Both,
        5..=7 => Place::Ambiguous,
        _ if is_han => Place::Ambiguous,
        _ => match scanner.classes.kind(c) {
            Kind::Number => Place::Number,
            Kind::Space => Place::Space,
            Kind::Letter | Kind::Other => Place::Other,
        },
    }
}
