//! Typed rows of device memory: what kernels' wrappers take instead of addresses.

use std::{marker::PhantomData, ops::Range};

use bytemuck::Pod;
use prelude_kernels::DevicePtr;

/// `[rows, width]` elements in device memory, `stride` elements from one row to the next.
///
/// Made from a buffer, whose bounds it keeps to, and only valid while that lives: views are made
/// for one launch and not kept, but by captured graphs, which go before the buffers do.
#[derive(Debug)]
pub(crate) struct View<T> {
    address: u64,
    rows: usize,
    width: usize,
    stride: usize,
    element: PhantomData<T>,
}

// By hand: the element type need not be `Clone`.
impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<T> {}

impl<T: Pod> View<T> {
    /// Returns `rows · width` elements from `address` on. The caller, in this module's parent,
    /// knows that they are within one buffer.
    pub(super) const fn new(address: u64, rows: usize, width: usize) -> Self {
        Self {
            address,
            rows,
            width,
            stride: width,
            element: PhantomData,
        }
    }

    /// Address of the first element, for parameter structs.
    pub(crate) const fn ptr(&self) -> DevicePtr {
        DevicePtr(self.address)
    }

    pub(crate) const fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) const fn width(&self) -> usize {
        self.width
    }

    pub(crate) const fn stride(&self) -> usize {
        self.stride
    }

    /// Returns some of the rows.
    ///
    /// # Panics
    /// If they are not within it.
    pub(crate) fn slice(self, rows: Range<usize>) -> Self {
        assert!(
            rows.start <= rows.end && rows.end <= self.rows,
            "rows {rows:?} of {}",
            self.rows
        );
        Self {
            address: self.address + (rows.start * self.stride * size_of::<T>()) as u64,
            rows: rows.len(),
            ..self
        }
    }

    /// Returns some of the columns, with the same stride.
    ///
    /// # Panics
    /// If they are not within it.
    pub(crate) fn columns(self, columns: Range<usize>) -> Self {
        assert!(
            columns.start <= columns.end && columns.end <= self.width,
            "columns {columns:?} of {}",
            self.width
        );
        Self {
            address: self.address + (columns.start * size_of::<T>()) as u64,
            width: columns.len(),
            ..self
        }
    }

    /// Returns the bytes from the first element to behind the last.
    pub(crate) const fn span(&self) -> Range<u64> {
        let elements = match self.rows {
            0 => 0,
            rows => (rows - 1) * self.stride + self.width,
        };
        self.address..self.address + (elements * size_of::<T>()) as u64
    }

    /// Returns true if the spans of two views share no byte. Interleaved columns count as
    /// overlapping, so wrappers that allow those compare columns themselves.
    #[cfg(test)]
    pub(crate) fn is_apart<U: Pod>(&self, other: &View<U>) -> bool {
        let (a, b) = (self.span(), other.span());
        a.is_empty() || b.is_empty() || a.end <= b.start || b.end <= a.start
    }

    /// Returns true if every row starts at a multiple of 16 bytes.
    pub(crate) const fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16)
            && (self.rows < 2 || (self.stride * size_of::<T>()).is_multiple_of(16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_within() {
        let view = View::<u16>::new(0x1000, 4, 24);
        let part = view.slice(1..3).columns(8..16);
        assert_eq!(
            (part.ptr().0, part.rows(), part.width()),
            (0x1000 + 64, 2, 8)
        );
        assert_eq!(part.stride(), 24);
        assert_eq!(part.span(), 0x1040..0x1040 + 2 * 32);
        assert!(part.is_aligned() && !view.columns(1..9).is_aligned());
        assert!(view.slice(0..1).is_apart(&view.slice(1..4)));
        assert!(!view.slice(0..2).is_apart(&view.slice(1..4)));
        assert!(view.slice(2..2).is_apart(&view));
    }

    #[test]
    #[should_panic(expected = "rows 3..5 of 4")]
    fn rows_beyond_the_view_panic() {
        let _ = View::<u16>::new(0, 4, 8).slice(3..5);
    }
}
