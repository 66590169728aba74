//! [`super::Lanes`] for x86-64.

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

    /// Copies in one move, since loading bytes that were just copied waits for the copy: with this,
    /// a text of five bytes takes 8 ns less.
    #[inline(always)]
    fn padded(rest: &[u8]) -> [u8; BLOCK] {
        // SAFETY: as above.
        unsafe { avx512_padded(rest) }
    }
}

/// Only for use inside functions compiled for AVX-512BW and AVX-512 VBMI2.
pub(crate) struct Vbmi2;

impl Lanes for Vbmi2 {
    #[inline(always)]
    fn planes(block: &[u8; BLOCK]) -> Planes {
        Avx512::planes(block)
    }

    #[inline(always)]
    fn wide(block: &[u8; BLOCK]) -> WidePlanes {
        Avx512::wide(block)
    }

    #[inline(always)]
    fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
        Avx512::within(block, first, count)
    }

    #[inline(always)]
    fn padded(rest: &[u8]) -> [u8; BLOCK] {
        Avx512::padded(rest)
    }

    #[inline(always)]
    fn places(mask: u64, at: usize, slots: &mut [usize; BLOCK]) {
        // SAFETY: the caller is compiled for these, as this type's contract says, so
        // the machine has them.
        unsafe { vbmi2_places(mask, at, slots) }
    }
}

/// The numbers of a block's bytes.
const NUMBERS: [u8; BLOCK] = {
    let mut numbers = [0; BLOCK];
    let mut n = 0;
    while n < BLOCK {
        numbers[n] = n as u8;
        n += 1;
    }
    numbers
};

#[inline]
#[target_feature(enable = "avx512bw,avx512vbmi2")]
fn vbmi2_places(mask: u64, at: usize, slots: &mut [usize; BLOCK]) {
    // SAFETY: 64 bytes are readable there, and the load needs no alignment.
    let numbers = unsafe { _mm512_loadu_si512(NUMBERS.as_ptr().cast()) };
    let places = _mm512_maskz_compress_epi8(mask, numbers);
    let at = _mm512_set1_epi64(at as i64);
    let (chunks, _) = slots.as_chunks_mut::<16>();
    let mut write = |n: usize, sixteen: __m128i| {
        let eight = |eight| _mm512_add_epi64(_mm512_cvtepu8_epi64(eight), at);
        let slots = chunks[n].as_mut_ptr();
        // SAFETY: eight of 16 slots of eight bytes begin there, and the store needs no
        // alignment.
        unsafe { _mm512_storeu_si512(slots.cast(), eight(sixteen)) };
        let high = eight(_mm_bsrli_si128::<8>(sixteen));
        // SAFETY: the other eight of them.
        unsafe { _mm512_storeu_si512(slots.add(8).cast(), high) };
    };
    write(0, _mm512_castsi512_si128(places));
    if mask.count_ones() > 16 {
        write(1, _mm512_extracti32x4_epi32::<1>(places));
        write(2, _mm512_extracti32x4_epi32::<2>(places));
        write(3, _mm512_extracti32x4_epi32::<3>(places));
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
