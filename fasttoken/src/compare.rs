//! Comparison of a key with the slots of a cache line, by the machine's vectors.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vector instructions chosen at run time")
)]

#[cfg(target_arch = "x86_64")]
use crate::ablation::FastPath;

/// The compared bits of the two halves of a slot.
pub(crate) const COMPARED: [u64; 2] = [u64::MAX, 0xF000_0000_FFFF_FFFF];

/// An implementation of the comparisons for one instruction set.
pub(crate) trait Compare {
    /// Returns a bit mask in which bit `2 n` is set if slot `n` has this key; other bits are zero.
    fn matches(slots: &[u64; 8], key: [u64; 2]) -> u32;
    /// Returns a bit mask in which bit `4 n` is set if entry `n` of a line of two equals `entry` in
    /// the bits of `compared`; other bits are zero.
    fn same(line: &[u64; 8], entry: &[u64; 4], compared: &[u64; 4]) -> u32;
}

/// The plain implementation, for machines without vectors.
pub(crate) struct Scalar;

impl Compare for Scalar {
    #[inline(always)]
    fn matches(slots: &[u64; 8], key: [u64; 2]) -> u32 {
        let mut found = 0;
        for (n, slot) in slots.chunks_exact(2).enumerate() {
            let unlike = (slot[0] ^ key[0]) & COMPARED[0] | (slot[1] ^ key[1]) & COMPARED[1];
            found |= u32::from(unlike == 0) << (2 * n);
        }
        found
    }

    #[inline(always)]
    fn same(line: &[u64; 8], entry: &[u64; 4], compared: &[u64; 4]) -> u32 {
        let is = |from: usize| {
            let parts = line[from..from + 4].iter().zip(entry).zip(compared);
            parts.fold(0, |all, ((a, b), bits)| all | (a ^ b) & bits) == 0
        };
        u32::from(is(0)) | u32::from(is(4)) << 4
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{COMPARED, Compare};
    use std::arch::x86_64::*;

    /// The instructions of AVX2, only for use inside functions compiled for AVX2.
    pub(crate) struct Avx2;

    impl Compare for Avx2 {
        #[inline(always)]
        fn matches(slots: &[u64; 8], key: [u64; 2]) -> u32 {
            // SAFETY: the caller is compiled for AVX2, as this type's contract says,
            // so the machine has it.
            unsafe { avx2(slots, key) }
        }

        #[inline(always)]
        fn same(line: &[u64; 8], entry: &[u64; 4], compared: &[u64; 4]) -> u32 {
            // SAFETY: as above.
            unsafe { avx2_same(line, entry, compared) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn avx2_same(line: &[u64; 8], entry: &[u64; 4], compared: &[u64; 4]) -> u32 {
        let load = |four: &[u64]| {
            debug_assert_eq!(four.len(), 4, "of the eight or four numbers below");
            // SAFETY: they are 32 readable bytes, and the load needs no alignment.
            unsafe { _mm256_loadu_si256(four.as_ptr().cast()) }
        };
        let (entry, compared) = (load(entry), load(compared));
        let is = |old| {
            let unlike = _mm256_xor_si256(old, entry);
            _mm256_testz_si256(unlike, compared) as u32
        };
        is(load(&line[..4])) | is(load(&line[4..])) << 4
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn avx2(slots: &[u64; 8], key: [u64; 2]) -> u32 {
        let pair = |[low, high]: [u64; 2]| {
            _mm256_set_epi64x(high as i64, low as i64, high as i64, low as i64)
        };
        let half = |at: usize| {
            // SAFETY: a line is 64 readable bytes, `at` is 0 or 4 of its eight halves,
            // and the load needs no alignment.
            let half = unsafe { _mm256_loadu_si256(slots.as_ptr().add(at).cast()) };
            let unlike = _mm256_and_si256(_mm256_xor_si256(half, pair(key)), pair(COMPARED));
            let equal = _mm256_cmpeq_epi64(unlike, _mm256_setzero_si256());
            _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
        };
        let equal = half(0) | half(4) << 4;
        equal & equal >> 1 & 0x55
    }
}

/// A loop over many lookups, compiled for each instruction set.
pub(crate) trait Work {
    fn run<C: Compare>(self);
}

/// Runs `work` compiled for the best instructions of this machine.
#[inline]
pub(crate) fn run<W: Work>(work: W) {
    #[cfg(target_arch = "x86_64")]
    if FastPath::Compare.is_taken()
        && crate::cpu::has_bit_instructions()
        && is_x86_feature_detected!("avx2")
    {
        // SAFETY: just asked for.
        return unsafe { run_avx2(work) };
    }
    work.run::<Scalar>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2(work: impl Work) {
    work.run::<Avx2>();
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::short_tokens::{Key, ShortTokenTable};

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn by_avx2(table: &ShortTokenTable, key: Key) -> Option<u32> {
        table.get::<Avx2>(key, table.home(key.hash()))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn same_by_avx2(line: &[u64; 8], entry: &[u64; 4], compared: &[u64; 4]) -> u32 {
        Avx2::same(line, entry, compared)
    }

    proptest::proptest! {
        #[test]
        fn entries_are_compared_in_every_way(
            line in proptest::prelude::any::<[bool; 8]>(),
            entry in proptest::prelude::any::<[bool; 4]>(),
            compared in proptest::prelude::any::<[bool; 4]>(),
        ) {
            let line = line.map(|high| 1 << if high { 63 } else { 3 });
            let entry = entry.map(|high| 1 << if high { 63 } else { 3 });
            let compared = compared.map(|all| if all { u64::MAX } else { 1 << 32 });
            let is = |n: usize| (0..4).all(|at| compared[at] != u64::MAX || line[4 * n + at] == entry[at]);
            let expected = u32::from(is(0)) | u32::from(is(1)) << 4;
            proptest::prop_assert_eq!(Scalar::same(&line, &entry, &compared), expected);
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: just asked for.
                    let found = unsafe { same_by_avx2(&line, &entry, &compared) };
                    proptest::prop_assert_eq!(found, expected);
                }
            }
        }
    }

    /// Returns what a lookup finds with every instruction set of this machine.
    pub(crate) fn every_way(table: &ShortTokenTable, key: Key) -> Vec<Option<u32>> {
        let scalar = table.get::<Scalar>(key, table.home(key.hash()));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: just asked for.
        let vectors = is_x86_feature_detected!("avx2").then(|| unsafe { by_avx2(table, key) });
        #[cfg(not(target_arch = "x86_64"))]
        let vectors = None;
        [scalar].into_iter().chain(vectors).collect()
    }
}
