//! Every way to compute masks gives the masks of the plain version.

use super::*;
use crate::unicode::{Kind, classes};
use proptest::prelude::*;

/// The plain version.
pub(crate) struct Naive;

impl InstructionSet for Naive {
    fn class_masks(block: &[u8; BLOCK]) -> ClassMasks {
        let mask = |holds: fn(u8) -> bool| {
            let bits = block.iter().enumerate();
            bits.fold(0, |all, (at, b)| all | u64::from(holds(*b)) << at)
        };
        ClassMasks {
            letter: mask(|b| b.is_ascii_alphabetic()),
            upper: mask(|b| b.is_ascii_uppercase()),
            number: mask(|b| b.is_ascii_digit()),
            space: mask(|b| matches!(b, 9..=13 | b' ')),
            blank: mask(|b| b == b' '),
            newline: mask(|b| matches!(b, b'\r' | b'\n')),
            quote: mask(|b| b == b'\''),
            slash: mask(|b| b == b'/'),
            non_ascii: mask(|b| b >= 0x80),
            both: 0,
            han: 0,
        }
    }

    fn wide(block: &[u8; BLOCK]) -> WideMasks {
        let mut masks = WideMasks::default();
        for (at, byte) in block.iter().enumerate() {
            let next = block.get(at + 1).copied().unwrap_or(0);
            let third = block.get(at + 2).copied().unwrap_or(0);
            let punctuation = matches!(
                (byte, next, third),
                (0xE3, 0x80, 0x81..=0x84 | 0x88..=0xA0)
                    | (0xEF, 0xBC, 0x81..=0x8F | 0x9A..=0xA0)
                    | (0xE2, 0x80, 0x90..=0xA7)
            );
            masks.punctuation |= u64::from(punctuation) << at;
            let kana = match next {
                0x81 => third != 0x80,
                0x82 => !matches!(third, 0x97..=0x9C | 0xA0),
                0x83 => third != 0xBB,
                _ => false,
            };
            let two = match byte {
                0xC3 => next != 0x97 && next != 0xB7,
                0xCE => matches!(next, 0x91..=0xA1 | 0xA3..=0xBF),
                0xCF => matches!(next, 0x80..=0xB5),
                0xD2 => matches!(next, 0x8A..=0xBF),
                0xD7 => matches!(next, 0x90..=0xAA),
                0xD8 => matches!(next, 0xA0..=0xBF),
                0xD9 => matches!(next, 0x81..=0x8A | 0xB1..=0xBF),
                0xDB => matches!(next, 0x80..=0x93),
                0xC4..=0xC9 | 0xD0 | 0xD1 | 0xD3 | 0xDA => true,
                _ => false,
            };
            let three = match byte {
                0xE1 => matches!(next, 0xB8..=0xBB),
                0xE3 => kana,
                0xE4 => next != 0xB7,
                0xEA => matches!(next, 0xB0..=0xBF),
                0xED => matches!(next, 0x80..=0x9D),
                0xE5..=0xE9 | 0xEB | 0xEC => true,
                _ => false,
            };
            masks.two |= u64::from(two) << at;
            masks.three |= u64::from(three) << at;
            masks.tail |= u64::from((0x80..0xC0).contains(byte)) << at;
        }
        masks
    }

    fn cased_within(block: &[u8; BLOCK], case: u8, first: u8, count: u8) -> u64 {
        let values: Vec<u8> = (0..count).map(|n| first.wrapping_add(n)).collect();
        let bits = block.iter().enumerate();
        bits.fold(0, |all, (at, b)| {
            all | u64::from(values.contains(&(b | case))) << at
        })
    }
}

/// Ranges that are asked for, and the largest one.
const RANGES: [(u8, u8); 4] = [(0, 0x20), (0x7F, 1), (0x80, 0x26), (1, 255)];

/// Lengths of what is left of a text.
const RESTS: [usize; 6] = [0, 1, 5, 32, 33, BLOCK - 1];

type Padded = [[u8; BLOCK]; RESTS.len()];
type All = (
    ClassMasks,
    WideMasks,
    [u64; RANGES.len()],
    Padded,
    [Vec<usize>; 3],
);

#[inline(always)]
fn all<I: InstructionSet>(block: &[u8; BLOCK]) -> All {
    let within = RANGES.map(|(first, count)| I::within(block, first, count));
    let padded = RESTS.map(|len| I::padded(&block[..len]));
    let masks = I::class_masks(block);
    // Few, many, and all.
    let places = [masks.space, masks.letter | masks.non_ascii, u64::MAX].map(|mask| {
        let mut slots = [0; BLOCK];
        I::places(mask, 7, &mut slots);
        slots[..mask.count_ones() as usize].to_vec()
    });
    (masks, I::wide(block), within, padded, places)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bw,avx512vbmi2")]
fn avx512(block: &[u8; BLOCK]) -> All {
    all::<Avx512>(block)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(block: &[u8; BLOCK]) -> All {
    all::<Avx2>(block)
}

fn check(block: &[u8; BLOCK]) {
    let expected = all::<Naive>(block);
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi2") {
            // SAFETY: just asked for.
            assert_eq!(unsafe { avx512(block) }, expected);
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: just asked for.
            assert_eq!(unsafe { avx2(block) }, expected);
        }
    }
    #[cfg(target_arch = "aarch64")]
    assert_eq!(all::<Neon>(block), expected);
    let _ = expected;
}

#[test]
fn every_byte_at_every_place() {
    for byte in 0..=255u8 {
        for at in 0..BLOCK {
            let mut block = [b'x'; BLOCK];
            block[at] = byte;
            check(&block);
        }
    }
}

/// First bytes of letters that are told by them, and their neighbours, each with
/// second bytes that decide and others; also across the end of a block.
#[test]
fn every_first_byte_at_every_place() {
    for first in 0xC2..=0xEE {
        for second in 0x7F..=0xC0 {
            for at in [0, 1, 2, 3, 30, 31, 32, 33, 60, 61, 62, 63] {
                // As it is everywhere, alone, and beside others of its kind.
                for around in [b'x', 0xE5, 0xC3, 0xB7, 0xD9, 0xEA] {
                    let mut block = [around; BLOCK];
                    block[at] = first;
                    if let Some(next) = block.get_mut(at + 1) {
                        *next = second;
                    }
                    check(&block);
                }
            }
        }
    }
}

/// Kana and punctuation, whole and cut, alone and beside each other.
#[test]
fn every_third_byte_at_every_place() {
    for [first, second] in [
        [0xE2, 0x80],
        [0xE2, 0x81],
        [0xE3, 0x80],
        [0xE3, 0x81],
        [0xE3, 0x82],
        [0xE3, 0x83],
        [0xE3, 0x84],
        [0xEF, 0xBC],
        [0xEF, 0xBD],
    ] {
        for third in 0x7F..=0xC0 {
            for at in 0..BLOCK {
                for around in [[b'x'; 3], [0xE3, 0x81, 0x82], [0xEF, 0xBC, 0x8C]] {
                    let mut block: [u8; BLOCK] = std::array::from_fn(|n| around[n % 3]);
                    for (n, byte) in [first, second, third].into_iter().enumerate() {
                        if let Some(place) = block.get_mut(at + n) {
                            *place = byte;
                        }
                    }
                    check(&block);
                }
            }
        }
    }
}

/// Each letter that is told by its first byte is one.
#[test]
fn wide_letters_are_letters() {
    for c in '\u{80}'..='\u{FFFF}' {
        let mut block = [0; BLOCK];
        let len = c.encode_utf8(&mut block).len();
        let masks = Naive::wide(&block);
        let letter = classes().kind(c) == Kind::Letter;
        let found = masks.two & 1 == 1 || masks.three & 1 == 1;
        assert!(letter || !found, "{c:?}");
        let punctuation = masks.punctuation & 1 == 1;
        assert!(!punctuation || classes().kind(c) == Kind::Other, "{c:?}");
        let told = matches!(
            c,
            '\u{2010}'..='\u{2027}' | '\u{3001}'..='\u{3004}' | '\u{3008}'..='\u{3020}'
                | '\u{FF01}'..='\u{FF0F}' | '\u{FF1A}'..='\u{FF20}'
        );
        assert_eq!(punctuation, told, "{c:?}");
        assert!(!found || len == 2 + usize::from(masks.three & 1 == 1));
        let told = matches!(
            c,
            '\u{C0}'..='\u{27F}' | '\u{391}'..='\u{3F5}' | '\u{400}'..='\u{47F}'
                | '\u{48A}'..='\u{4FF}' | '\u{5D0}'..='\u{5EA}' | '\u{620}'..='\u{63F}'
                | '\u{641}'..='\u{64A}' | '\u{671}'..='\u{6D3}' | '\u{1E00}'..='\u{1EFF}'
                | '\u{3041}'..='\u{30FF}' | '\u{4000}'..='\u{9FFF}' | '\u{AC00}'..='\u{D77F}'
        );
        // The two signs between letters, the hexagrams, and what is between Kana.
        let sign = matches!(
            c,
            '×' | '÷' | '\u{3A2}' | '\u{4DC0}'..='\u{4DFF}' | '\u{3097}'..='\u{309C}' | '\u{30A0}' | '・'
        );
        assert_eq!(found, told && !sign, "{c:?}");
    }
}

proptest! {
    #[test]
    fn class_masks_are_those_of_the_twin(block in any::<[u8; 64]>()) {
        check(&block);
    }
}
