//! Buffers that start on a cache line, the large ones in huge pages.

use memmap2::MmapMut;

/// Zeroed dwords from the start of a cache line on, so that no line of a panel or row of a tile
/// is split between two.
///
/// Large ones are mapped by themselves, from the start of a huge page on, and ask for as many huge
/// pages as they fill where the system gives such on request: a panel then needs one translation instead of thirty, and its lines do not compete
/// for sets of the second-level cache at random.
#[derive(Debug)]
pub(crate) struct Lines {
    memory: Memory,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Heap { data: Vec<u32>, base: usize },
    Mapped { map: MmapMut, base: usize },
}

/// Dwords of a cache line.
const LINE: usize = 16;
/// Bytes of a huge page of most systems.
const HUGE: usize = 2 << 20;
/// Dwords from which on memory is mapped: a huge page.
const MAPPED_LEN: usize = HUGE / size_of::<u32>();

impl Lines {
    pub(crate) fn zeroed(len: usize) -> Self {
        let memory = mapped(len).unwrap_or_else(|| at_line(vec![0; len + LINE]));
        Self { memory, len }
    }

    /// Returns zeroed dwords, or `None` if there is no memory for them.
    pub(crate) fn try_zeroed(len: usize) -> Option<Self> {
        let memory = match mapped(len) {
            Some(memory) => memory,
            None => at_line(bytemuck::try_zeroed_vec(len.checked_add(LINE)?).ok()?),
        };
        Some(Self { memory, len })
    }

    /// Grows to at least `len`; the contents are lost if the lines grow.
    pub(crate) fn fit(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeroed(len);
        }
    }

    /// Returns the number of dwords.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

/// Returns memory from the first start of a cache line on.
fn at_line(data: Vec<u32>) -> Memory {
    let base = data.as_ptr().align_offset(LINE * size_of::<u32>());
    // Where alignment cannot be computed it is forgone.
    let base = if base < LINE { base } else { 0 };
    Memory::Heap { data, base }
}

/// Maps memory of the system; returns `None` for a small size, or if the system refuses: then the heap
/// may have room.
fn mapped(len: usize) -> Option<Memory> {
    if len < MAPPED_LEN {
        return None;
    }
    // Pages that are not touched take no memory, so neither does the room to align.
    let bytes = len.checked_mul(size_of::<u32>())?;
    let map = MmapMut::map_anon(bytes.checked_add(HUGE)?).ok()?;
    let base = map.as_ptr().align_offset(HUGE);
    let base = if base < HUGE { base } else { 0 };
    // Advice: a system without huge pages goes on with small ones. The end that fills no huge page
    // would make one of its own, most of it unused.
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(memmap2::Advice::HugePage, base, bytes / HUGE * HUGE);
    Some(Memory::Mapped { map, base })
}

impl std::ops::Deref for Lines {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match &self.memory {
            Memory::Heap { data, base } => &data[*base..][..self.len],
            Memory::Mapped { map, base } => {
                bytemuck::cast_slice(&map[*base..][..self.len * size_of::<u32>()])
            }
        }
    }
}

impl std::ops::DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [u32] {
        match &mut self.memory {
            Memory::Heap { data, base } => &mut data[*base..][..self.len],
            Memory::Mapped { map, base } => {
                bytemuck::cast_slice_mut(&mut map[*base..][..self.len * size_of::<u32>()])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_ones_are_aligned_and_zero() {
        for len in [0, 1, 100, MAPPED_LEN - 1, MAPPED_LEN, MAPPED_LEN + 7] {
            let mut lines = Lines::zeroed(len);
            assert_eq!(lines.len(), len);
            assert!(lines.iter().all(|&x| x == 0));
            assert!(lines.as_ptr().addr().is_multiple_of(64));
            lines.fill(7);
            lines.fit(len / 2);
            assert!(lines.iter().all(|&x| x == 7));
            lines.fit(len + 1);
            assert_eq!((lines.len(), lines[len]), (len + 1, 0));
        }
    }
}
