//! Class masks of 64 bytes: bit `i` of a class's mask is set if byte `i` belongs to the class.
//!
//! Everything here classifies ASCII; bytes of other characters are in
//! [`ClassMasks::non_ascii`] and in no class.
#![expect(unsafe_code, reason = "vector instructions chosen at run time")]

#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(test)]
pub(super) mod class_masks_tests;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Bytes in a block.
pub(crate) const BLOCK: usize = 64;

/// Bit masks of the ASCII classes of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ClassMasks {
    /// `A-Z` and `a-z`
    pub(super) letter: u64,
    /// `A-Z`
    pub(super) upper: u64,
    /// `0-9`
    pub(super) number: u64,
    /// U+0009 to U+000D and U+0020
    pub(super) space: u64,
    /// U+0020
    pub(super) blank: u64,
    /// `\r` and `\n`
    pub(super) newline: u64,
    /// `'`
    pub(super) quote: u64,
    /// `/`
    pub(super) slash: u64,
    /// bytes of characters beyond ASCII
    pub(super) non_ascii: u64,
    /// bytes of letters without case (`Lm`, `Lo`), for patterns that tell case; none of ASCII
    pub(super) both: u64,
    /// bytes of letters of the script Han, which are no `letter`, for patterns of which a run of
    /// them is a word; none of ASCII
    pub(super) han: u64,
}

/// Bytes of characters beyond ASCII, of a block of UTF-8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WideMasks {
    /// bytes 80 to BF, which begin no character
    pub(super) tail: u64,
    /// first bytes of letters of two bytes: of Latin, Greek, Cyrillic, Hebrew and Arabic,
    /// U+00C0 to U+027F but `×` and `÷`, U+0391 to U+03F5 but U+03A2, U+0400 to U+047F,
    /// U+048A to U+04FF, U+05D0 to U+05EA, U+0620 to U+064A without U+0640, and U+0671 to
    /// U+06D3
    pub(super) two: u64,
    /// first bytes of letters of three bytes: U+4000 to U+9FFF but the hexagrams,
    /// U+AC00 to U+D77F, U+1E00 to U+1EFF, and Kana
    pub(super) three: u64,
    /// first bytes of punctuation of three bytes: what is common beside Han and Kana,
    /// U+2010 to U+2027, U+3001 to U+3004, U+3008 to U+3020, U+FF01 to U+FF0F, U+FF1A to
    /// U+FF20
    pub(super) punctuation: u64,
}

impl WideMasks {
    /// Classifies the characters of a block; `within(first, count)` gives the bytes of the block
    /// that are one of `count` values from `first` on.
    #[inline(always)]
    fn new(tail: u64, within: impl Fn(u8, u8) -> u64) -> Self {
        let equal = |byte| within(byte, 1);
        let signs = equal(0x97) | equal(0xB7);
        let mut this = Self {
            tail,
            two: within(0xD0, 2) | within(0xC4, 6) | equal(0xC3) & !(signs >> 1),
            three: within(0xE5, 5) | within(0xEB, 2) | equal(0xE4) & !(equal(0xB7) >> 1),
            punctuation: 0,
        };
        let second = |from, count| within(from, count) >> 1;
        // Scripts of which the second bytes decide as well.
        if within(0xD7, 5) != 0 {
            let arabic = equal(0xD8) & second(0xA0, 32)
                | equal(0xD9) & (second(0x81, 10) | second(0xB1, 15))
                | equal(0xDA)
                | equal(0xDB) & second(0x80, 20);
            this.two |= arabic | equal(0xD7) & second(0x90, 27);
        }
        if within(0xCE, 6) & !within(0xD0, 2) != 0 {
            this.two |= equal(0xCE) & (second(0x91, 17) | second(0xA3, 29))
                | equal(0xCF) & second(0x80, 54)
                | equal(0xD2) & second(0x8A, 54)
                | equal(0xD3);
        }
        let (e1, ea, ed) = (equal(0xE1), equal(0xEA), equal(0xED));
        if e1 | ea | ed != 0 {
            this.three |= ea & second(0xB0, 16) | ed & second(0x80, 30) | e1 & second(0xB8, 4);
        }
        let (e2, e3, ef) = (equal(0xE2), equal(0xE3), equal(0xEF));
        if e2 | e3 | ef != 0 {
            let second = |byte| equal(byte) >> 1;
            let third = |from, count| within(from, count) >> 2;
            // U+3040; U+3097 to U+309C and U+30A0; U+30FB.
            let kana = second(0x81) & !third(0x80, 1)
                | second(0x82) & !(third(0x97, 6) | third(0xA0, 1))
                | second(0x83) & !third(0xBB, 1);
            this.three |= e3 & kana;
            this.punctuation = e3 & second(0x80) & (third(0x81, 4) | third(0x88, 25))
                | ef & second(0xBC) & (third(0x81, 15) | third(0x9A, 7))
                | e2 & second(0x80) & third(0x90, 24);
        }
        this
    }
}

/// The vector operations of one instruction set, from which class masks are made.
pub(super) trait InstructionSet {
    /// Returns the bytes that, with the bits of `case` set, are one of the `count` values from
    /// `first` on; `count` is at least one.
    fn cased_within(block: &[u8; BLOCK], case: u8, first: u8, count: u8) -> u64;
    /// Returns the bytes that are one of the `count` values from `first` on; `count` is at least
    /// one.
    #[inline(always)]
    fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
        Self::cased_within(block, 0, first, count)
    }
    #[inline(always)]
    fn class_masks(block: &[u8; BLOCK]) -> ClassMasks {
        let within = |first, count| Self::within(block, first, count);
        let blank = within(b' ', 1);
        ClassMasks {
            letter: Self::cased_within(block, 0x20, b'a', 26),
            upper: within(b'A', 26),
            number: within(b'0', 10),
            space: within(b'\t', 5) | blank,
            blank,
            newline: within(b'\n', 1) | within(b'\r', 1),
            quote: within(b'\'', 1),
            slash: within(b'/', 1),
            non_ascii: within(0x80, 0x80),
            both: 0,
            han: 0,
        }
    }
    #[inline(always)]
    fn wide(block: &[u8; BLOCK]) -> WideMasks {
        let within = |first: u8, count: u8| Self::within(block, first, count);
        WideMasks::new(within(0x80, 0x40), within)
    }
    /// Writes `at` and the place of each bit that is set in `mask`, then anything.
    #[inline(always)]
    fn places(mask: u64, at: usize, slots: &mut [usize; BLOCK]) {
        let mut left = mask;
        // Most blocks have about a dozen words: eight at a time is mostly twice, so that the
        // branch is predicted.
        for slots in slots.chunks_exact_mut(8) {
            for slot in slots {
                *slot = at + left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
            }
            if left == 0 {
                break;
            }
        }
    }
    /// Returns the first bytes of `rest`, and zeros.
    #[inline(always)]
    fn padded(rest: &[u8]) -> [u8; BLOCK] {
        let (mut block, len) = ([0; BLOCK], rest.len().min(BLOCK));
        block[..len].copy_from_slice(&rest[..len]);
        block
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;
