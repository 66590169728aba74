//! The bytes of a compiled tokenizer's file, mapped or held in memory, and the arrays in it.
#![expect(unsafe_code, reason = "mapping a file")]

use super::Flat;
use bytemuck::Pod;
use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A cache line. Files held in memory start on one, so arrays of any alignment up to it can lie in
/// them.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// The alignment in bytes of a file's first byte.
pub(crate) const LINE: usize = 64;

/// The bytes of a file. Cloning shares them.
#[derive(Clone)]
pub(crate) struct FileBytes {
    /// Kept alive by the keeper of each [`Flat`] made from it.
    bytes: Arc<Bytes>,
}

enum Bytes {
    Mapped(Mmap),
    Held { lines: Vec<Line>, len: usize },
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Held { lines, len } => &bytemuck::cast_slice(lines)[..*len],
        }
    }
}

impl FileBytes {
    /// Maps `file` for reading, all of it at once.
    ///
    /// The file must not be changed or shortened while this value or an array of it is alive; a
    /// writer must replace the file by a new one.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is private and read-only, so this process cannot write
        // through it. That no other process changes the file meanwhile is the caller's
        // duty, stated above; no check could establish it.
        let map = unsafe { MmapOptions::new().populate().map(file)? };
        Ok(Self {
            bytes: Arc::new(Bytes::Mapped(map)),
        })
    }

    /// Copies `bytes` to aligned memory.
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; LINE]); bytes.len().div_ceil(LINE)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len();
        Self {
            bytes: Arc::new(Bytes::Held { lines, len }),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of `range` as an array, or `None` if they are out of bounds or not a whole
    /// number of properly aligned elements.
    pub(crate) fn view<T: Pod>(&self, range: Range<usize>) -> Option<Flat<T>> {
        let elements = bytemuck::try_cast_slice(self.bytes.get(range)?).ok()?;
        Some(Flat::new(elements, self.bytes.clone()))
    }
}
