//! Class bit planes of 64 bytes: bit `i` of a plane speaks about byte `i`.
//!
//! Everything here classifies ASCII; bytes of other characters are in
//! [`Planes::non_ascii`] and in no class.
#![expect(unsafe_code, reason = "vector instructions chosen at run time")]

/// Bytes in a block.
pub(crate) const BLOCK: usize = 64;

/// Which bytes of a block are of which ASCII class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Planes {
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
}

/// Bytes of characters beyond ASCII, of a block of UTF-8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WidePlanes {
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

impl WidePlanes {
    /// Given the bytes in which each byte is one of some values.
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

/// A way to compute planes that this machine has.
pub(super) trait Lanes {
    fn planes(block: &[u8; BLOCK]) -> Planes;
    fn wide(block: &[u8; BLOCK]) -> WidePlanes;
    /// Which bytes are one of the `count` values from `first` on, at least one.
    fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64;
    /// The first bytes of `rest`, and zeros.
    #[inline(always)]
    fn padded(rest: &[u8]) -> [u8; BLOCK] {
        let (mut block, len) = ([0; BLOCK], rest.len().min(BLOCK));
        block[..len].copy_from_slice(&rest[..len]);
        block
    }
}

/// Instruction sets in the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// No vectors: blocks cost more than walking the text.
    #[cfg(not(target_arch = "aarch64"))]
    Scalar,
    /// Part of every aarch64 machine.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Level {
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn detect() -> Self {
        let bits = crate::cpu::has_bit_instructions();
        if bits && is_x86_feature_detected!("avx512bw") {
            Self::Avx512
        } else if bits && is_x86_feature_detected!("avx2") {
            Self::Avx2
        } else {
            Self::Scalar
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[inline]
    pub(super) fn detect() -> Self {
        Self::Neon
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    #[inline]
    pub(super) fn detect() -> Self {
        Self::Scalar
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK, Lanes, Planes, WidePlanes};
    use std::arch::x86_64::*;

    /// Only for use inside functions compiled for AVX-512BW.
    pub(crate) struct Avx512;

    impl Lanes for Avx512 {
        #[inline(always)]
        fn planes(block: &[u8; BLOCK]) -> Planes {
            // SAFETY: the caller is compiled for AVX-512BW, as this type's contract
            // says, so the machine has it.
            unsafe { avx512(block) }
        }

        #[inline(always)]
        fn wide(block: &[u8; BLOCK]) -> WidePlanes {
            // SAFETY: as above.
            unsafe { avx512_wide(block) }
        }

        #[inline(always)]
        fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
            // SAFETY: as above.
            unsafe { avx512_within(block, first, count) }
        }

        /// To load what was just copied has to wait for the copy: with this, a text of five
        /// bytes takes 8 ns less.
        #[inline(always)]
        fn padded(rest: &[u8]) -> [u8; BLOCK] {
            // SAFETY: as above.
            unsafe { avx512_padded(rest) }
        }
    }

    /// Only for use inside functions compiled for AVX2.
    pub(crate) struct Avx2;

    impl Lanes for Avx2 {
        #[inline(always)]
        fn planes(block: &[u8; BLOCK]) -> Planes {
            // SAFETY: the caller is compiled for AVX2, as this type's contract says,
            // so the machine has it.
            unsafe { avx2(block) }
        }

        #[inline(always)]
        fn wide(block: &[u8; BLOCK]) -> WidePlanes {
            // SAFETY: as above.
            unsafe { avx2_wide(block) }
        }

        #[inline(always)]
        fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
            // SAFETY: as above.
            unsafe { avx2_within(block, first, count) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw")]
    fn avx512(block: &[u8; BLOCK]) -> Planes {
        // SAFETY: 64 bytes are readable there, and the load needs no alignment.
        let bytes = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let equal = |c: u8| _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(c as i8));
        let within = |bytes, low: u8, count: u8| {
            let from_low = _mm512_sub_epi8(bytes, _mm512_set1_epi8(low as i8));
            _mm512_cmplt_epu8_mask(from_low, _mm512_set1_epi8(count as i8))
        };
        let lower = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
        let blank = equal(b' ');
        Planes {
            letter: within(lower, b'a', 26),
            upper: within(bytes, b'A', 26),
            number: within(bytes, b'0', 10),
            space: within(bytes, b'\t', 5) | blank,
            blank,
            newline: equal(b'\n') | equal(b'\r'),
            quote: equal(b'\''),
            slash: equal(b'/'),
            non_ascii: _mm512_movepi8_mask(bytes),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw")]
    fn avx512_padded(rest: &[u8]) -> [u8; BLOCK] {
        let mask = match rest.len() {
            len @ 0..BLOCK => (1 << len) - 1,
            _ => u64::MAX,
        };
        let mut block = [0; BLOCK];
        // SAFETY: bytes that the mask leaves out are not read, and the others are in `rest`.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast()) };
        // SAFETY: 64 bytes are writable there, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), bytes) };
        block
    }

    #[inline]
    #[target_feature(enable = "avx512bw")]
    fn avx512_wide(block: &[u8; BLOCK]) -> WidePlanes {
        let within = |first: u8, count: u8| avx512_within(block, first, count);
        WidePlanes::new(within(0x80, 0x40), within)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn avx2_wide(block: &[u8; BLOCK]) -> WidePlanes {
        let within = |first: u8, count: u8| avx2_within(block, first, count);
        WidePlanes::new(within(0x80, 0x40), within)
    }

    #[inline]
    #[target_feature(enable = "avx512bw")]
    fn avx512_within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
        // SAFETY: 64 bytes are readable there, and the load needs no alignment.
        let bytes = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let from_first = _mm512_sub_epi8(bytes, _mm512_set1_epi8(first as i8));
        _mm512_cmplt_epu8_mask(from_first, _mm512_set1_epi8(count as i8))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn avx2_within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
        // SAFETY: 32 bytes are readable there, and the load needs no alignment.
        let low = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        // SAFETY: the second half of the same 64 bytes.
        let high = unsafe { _mm256_loadu_si256(block.as_ptr().add(32).cast()) };
        // As in `avx2`.
        let (first, last) = (_mm256_set1_epi8(first as i8), count as i8 - 1);
        let last = _mm256_set1_epi8(last);
        let half = |x| {
            let x = _mm256_sub_epi8(x, first);
            let inside = _mm256_cmpeq_epi8(_mm256_min_epu8(x, last), x);
            u64::from(_mm256_movemask_epi8(inside) as u32)
        };
        half(low) | half(high) << 32
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn avx2(block: &[u8; BLOCK]) -> Planes {
        // SAFETY: 32 bytes are readable there, and the load needs no alignment.
        let low = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        // SAFETY: the second half of the same 64 bytes.
        let high = unsafe { _mm256_loadu_si256(block.as_ptr().add(32).cast()) };
        let mask = |low, high| {
            let (low, high) = (_mm256_movemask_epi8(low), _mm256_movemask_epi8(high));
            u64::from(low as u32) | u64::from(high as u32) << 32
        };
        let equal = |c: u8| {
            let c = _mm256_set1_epi8(c as i8);
            mask(_mm256_cmpeq_epi8(low, c), _mm256_cmpeq_epi8(high, c))
        };
        let within = |a, b, first: u8, count: u8| {
            // Unsigned `x - first < count`: the smaller of it and the last is it.
            let first = _mm256_set1_epi8(first as i8);
            let last = _mm256_set1_epi8(count as i8 - 1);
            let (a, b) = (_mm256_sub_epi8(a, first), _mm256_sub_epi8(b, first));
            mask(
                _mm256_cmpeq_epi8(_mm256_min_epu8(a, last), a),
                _mm256_cmpeq_epi8(_mm256_min_epu8(b, last), b),
            )
        };
        let case = _mm256_set1_epi8(0x20);
        let blank = equal(b' ');
        Planes {
            letter: within(
                _mm256_or_si256(low, case),
                _mm256_or_si256(high, case),
                b'a',
                26,
            ),
            upper: within(low, high, b'A', 26),
            number: within(low, high, b'0', 10),
            space: within(low, high, b'\t', 5) | blank,
            blank,
            newline: equal(b'\n') | equal(b'\r'),
            quote: equal(b'\''),
            slash: equal(b'/'),
            non_ascii: mask(low, high),
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{BLOCK, Lanes, Planes, WidePlanes};
    use std::arch::aarch64::*;

    /// NEON is part of the base instruction set.
    pub(crate) struct Neon;

    impl Lanes for Neon {
        #[inline(always)]
        fn planes(block: &[u8; BLOCK]) -> Planes {
            // SAFETY: every aarch64 machine that the standard library runs on has NEON.
            unsafe { neon(block) }
        }

        #[inline(always)]
        fn wide(block: &[u8; BLOCK]) -> WidePlanes {
            let within = |first: u8, count: u8| Self::within(block, first, count);
            WidePlanes::new(within(0x80, 0x40), within)
        }

        /// Plain arithmetic on bytes, which compilers turn into vectors.
        #[inline(always)]
        fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
            let bits = block.iter().enumerate();
            bits.fold(0, |all, (at, byte)| {
                all | u64::from(byte.wrapping_sub(first) < count) << at
            })
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn neon(block: &[u8; BLOCK]) -> Planes {
        let load = |at: usize| {
            // SAFETY: `at` is 0, 16, 32 or 48, so 16 bytes are readable there.
            unsafe { vld1q_u8(block.as_ptr().add(at)) }
        };
        let parts = [load(0), load(16), load(32), load(48)];
        let bits = [1u8, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: `bits` has the 16 bytes that are read.
        let bits = unsafe { vld1q_u8(bits.as_ptr()) };
        // Bytes of all ones or all zeros become bits, by adding neighbours thrice.
        let mask = |a, b, c, d| {
            let low = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
            let high = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
            let all = vpaddq_u8(low, high);
            vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(all, all)))
        };
        let [a, b, c, d] = parts;
        let equal = |byte: u8| {
            let byte = vdupq_n_u8(byte);
            mask(
                vceqq_u8(a, byte),
                vceqq_u8(b, byte),
                vceqq_u8(c, byte),
                vceqq_u8(d, byte),
            )
        };
        let within = |case: u8, first: u8, count: u8| {
            let (case, first, count) = (vdupq_n_u8(case), vdupq_n_u8(first), vdupq_n_u8(count));
            let part = |x| vcltq_u8(vsubq_u8(vorrq_u8(x, case), first), count);
            mask(part(a), part(b), part(c), part(d))
        };
        let ascii_end = vdupq_n_u8(0x80);
        let blank = equal(b' ');
        Planes {
            letter: within(0x20, b'a', 26),
            upper: within(0, b'A', 26),
            number: within(0, b'0', 10),
            space: within(0, b'\t', 5) | blank,
            blank,
            newline: equal(b'\n') | equal(b'\r'),
            quote: equal(b'\''),
            slash: equal(b'/'),
            non_ascii: mask(
                vcgeq_u8(a, ascii_end),
                vcgeq_u8(b, ascii_end),
                vcgeq_u8(c, ascii_end),
                vcgeq_u8(d, ascii_end),
            ),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::unicode::{Kind, classes};
    use proptest::prelude::*;

    /// The naive twin.
    pub(crate) struct Naive;

    impl Lanes for Naive {
        fn planes(block: &[u8; BLOCK]) -> Planes {
            let plane = |holds: fn(u8) -> bool| {
                let bits = block.iter().enumerate();
                bits.fold(0, |all, (at, b)| all | u64::from(holds(*b)) << at)
            };
            Planes {
                letter: plane(|b| b.is_ascii_alphabetic()),
                upper: plane(|b| b.is_ascii_uppercase()),
                number: plane(|b| b.is_ascii_digit()),
                space: plane(|b| matches!(b, 9..=13 | b' ')),
                blank: plane(|b| b == b' '),
                newline: plane(|b| matches!(b, b'\r' | b'\n')),
                quote: plane(|b| b == b'\''),
                slash: plane(|b| b == b'/'),
                non_ascii: plane(|b| b >= 0x80),
            }
        }

        fn wide(block: &[u8; BLOCK]) -> WidePlanes {
            let mut planes = WidePlanes::default();
            for (at, byte) in block.iter().enumerate() {
                let next = block.get(at + 1).copied().unwrap_or(0);
                let third = block.get(at + 2).copied().unwrap_or(0);
                let punctuation = matches!(
                    (byte, next, third),
                    (0xE3, 0x80, 0x81..=0x84 | 0x88..=0xA0)
                        | (0xEF, 0xBC, 0x81..=0x8F | 0x9A..=0xA0)
                        | (0xE2, 0x80, 0x90..=0xA7)
                );
                planes.punctuation |= u64::from(punctuation) << at;
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
                planes.two |= u64::from(two) << at;
                planes.three |= u64::from(three) << at;
                planes.tail |= u64::from((0x80..0xC0).contains(byte)) << at;
            }
            planes
        }

        fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
            let values: Vec<u8> = (0..count).map(|n| first.wrapping_add(n)).collect();
            let bits = block.iter().enumerate();
            bits.fold(0, |all, (at, b)| all | u64::from(values.contains(b)) << at)
        }
    }

    /// Ranges that are asked for, and the largest one.
    const RANGES: [(u8, u8); 4] = [(0, 0x20), (0x7F, 1), (0x80, 0x26), (1, 255)];

    /// Lengths of what is left of a text.
    const RESTS: [usize; 6] = [0, 1, 5, 32, 33, BLOCK - 1];

    type Padded = [[u8; BLOCK]; RESTS.len()];
    type All = (Planes, WidePlanes, [u64; RANGES.len()], Padded);

    #[inline(always)]
    fn all<L: Lanes>(block: &[u8; BLOCK]) -> All {
        let within = RANGES.map(|(first, count)| L::within(block, first, count));
        let padded = RESTS.map(|len| L::padded(&block[..len]));
        (L::planes(block), L::wide(block), within, padded)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512bw")]
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
            if is_x86_feature_detected!("avx512bw") {
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
            let planes = Naive::wide(&block);
            let letter = classes().kind(c) == Kind::Letter;
            let found = planes.two & 1 == 1 || planes.three & 1 == 1;
            assert!(letter || !found, "{c:?}");
            let punctuation = planes.punctuation & 1 == 1;
            assert!(!punctuation || classes().kind(c) == Kind::Other, "{c:?}");
            let told = matches!(
                c,
                '\u{2010}'..='\u{2027}' | '\u{3001}'..='\u{3004}' | '\u{3008}'..='\u{3020}'
                    | '\u{FF01}'..='\u{FF0F}' | '\u{FF1A}'..='\u{FF20}'
            );
            assert_eq!(punctuation, told, "{c:?}");
            assert!(!found || len == 2 + usize::from(planes.three & 1 == 1));
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
        fn planes_are_those_of_the_twin(block in any::<[u8; 64]>()) {
            check(&block);
        }
    }
}
