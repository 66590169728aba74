//! Memory for large tables, in huge pages where the system gives them.
//!
//! A table of megabytes that is read at random misses the translation of addresses (the TLB) about
//! as often as the cache: with pages of 4 KiB, four megabytes are a thousand of them. By default,
//! Linux gives huge pages to memory that asks for them before it is first touched, which memory
//! from the allocator does not.

use crate::ablation::FastPath;
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut, Range};

/// The size in bytes of a huge page of x86-64, and of most aarch64 systems.
const HUGE: usize = 2 << 20;
/// The smallest size in bytes that is not left to the allocator.
const LARGE: usize = HUGE / 2;

/// Zeroed bytes that begin on a huge page.
#[derive(Debug)]
pub(crate) struct Pages {
    map: MmapMut,
    range: Range<usize>,
}

impl Pages {
    /// Allocates zeroed bytes. Returns `None` for sizes that do not need huge pages, and where the
    /// system has none.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        // Miri maps nothing.
        if !cfg!(target_os = "linux")
            || cfg!(miri)
            || bytes < LARGE
            || !FastPath::HugePages.is_taken()
        {
            return None;
        }
        // What is beyond the last whole huge page lies in small ones, unless it is most
        // of one: a huge page is taken whole as soon as one byte of it is touched.
        let rest = bytes % HUGE;
        let span = if rest > LARGE {
            bytes - rest + HUGE
        } else {
            bytes
        };
        let map = MmapMut::map_anon(span.checked_add(HUGE)?).ok()?;
        let start = map.as_ptr().align_offset(HUGE);
        // Without huge pages the memory is as good as any.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, start, span);
        let range = start..start.checked_add(bytes)?;
        map.get(range.clone())?;
        Some(Self { map, range })
    }
}

impl Pages {
    /// Returns true if hardly any of the memory lies in small pages.
    pub(crate) fn is_huge(&self) -> bool {
        let rest = self.range.len() % HUGE;
        rest > LARGE || rest <= HUGE / 32
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_memory_is_zeroed_and_aligned() {
        assert!(Pages::zeroed(LARGE - 1).is_none());
        for bytes in [LARGE, HUGE, HUGE + 5, 2 * HUGE - 1] {
            let Some(mut pages) = Pages::zeroed(bytes) else {
                // On Linux only where they cannot be mapped.
                let mappable = || MmapMut::map_anon(bytes + HUGE).is_ok();
                let expected = cfg!(target_os = "linux") && !cfg!(miri) && mappable();
                assert!(!expected, "{bytes} bytes");
                continue;
            };
            assert_eq!(pages.len(), bytes);
            assert_eq!(pages.as_ptr().align_offset(HUGE), 0);
            assert!(pages.iter().all(|byte| *byte == 0));
            pages[bytes - 1] = 7;
            assert_eq!(pages[bytes - 1], 7);
        }
    }
}
