//! Prefetching of memory into the processor's caches.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "there is no safe prefetch")
)]

#[cfg(target_arch = "x86_64")]
use crate::ablation::FastPath;

/// Prefetches the cache line of `slice[index]`. Does nothing if the index is out of bounds or the
/// machine has no such instruction.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if FastPath::Prefetch.is_taken()
        && let Some(element) = slice.get(index)
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: part of every x86-64 machine; it reads nothing and faults on nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
}
