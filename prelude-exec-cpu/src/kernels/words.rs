//! The memory of a weight that no longer changes.

use std::{ops::Range, sync::Arc};

use memmap2::Mmap;

use super::lines::Lines;

/// Dwords of a weight, from the start of a cache line on: in memory of their own, or in a packed
/// file.
#[derive(Clone, Debug)]
pub(crate) enum Words {
    /// Memory of the words' own.
    Own(Arc<Lines>),
    /// A part of a file. The bytes start at a multiple of a page, and are whole dwords.
    File {
        /// The file.
        map: Arc<Mmap>,
        /// The bytes of the file that the words are.
        bytes: Range<usize>,
    },
}

impl From<Lines> for Words {
    fn from(lines: Lines) -> Self {
        Self::Own(Arc::new(lines))
    }
}

impl std::ops::Deref for Words {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        match self {
            Self::Own(lines) => lines,
            Self::File { map, bytes } => bytemuck::cast_slice(&map[bytes.clone()]),
        }
    }
}
