//! The step's activations: one buffer, sized at start, handed out from the front.

use half::bf16;

use super::{
    space::{Buffer, Space},
    view::View,
};
use crate::Error;

/// Rows start at multiples of this many elements: 16 bytes, what a lane reads at once.
const ROW_ALIGN: usize = 8;
/// Tensors start at multiples of this many bytes: a line of the GPU's L2 cache.
const ALIGN: usize = 128;

/// A `[rows, width]` bf16 tensor in the step's arena, row-major, rows padded to 16 bytes.
#[derive(Debug)]
pub struct Tensor {
    offset: usize,
    rows: usize,
    width: usize,
}

impl Tensor {
    /// Elements per row.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Byte of the arena at which a row begins.
    ///
    /// # Panics
    /// If there is no such row.
    #[cfg(feature = "measure")]
    fn row(&self, row: usize) -> usize {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.offset + row * stride(self.width) * size_of::<bf16>()
    }
}

/// Room for one step's tensors. The same sequence of calls yields the same addresses.
#[derive(Debug)]
pub(crate) struct Arena {
    buffer: Buffer,
    used: usize,
}

impl Arena {
    pub(crate) fn new(space: &Space, bytes: usize) -> Result<Self, Error> {
        Ok(Self {
            buffer: space.alloc("arena", bytes)?,
            used: 0,
        })
    }

    /// Bytes that a `[rows, width]` tensor takes.
    pub(crate) const fn room(rows: usize, width: usize) -> usize {
        (rows * stride(width) * size_of::<bf16>()).next_multiple_of(ALIGN)
    }

    /// Forgets all tensors.
    pub(crate) const fn reset(&mut self) {
        self.used = 0;
    }

    pub(crate) fn alloc(&mut self, rows: usize, width: usize) -> Result<Tensor, Error> {
        let room = Self::room(rows, width);
        let free_bytes = self.buffer.bytes() - self.used;
        if room > free_bytes {
            return Err(Error::Arena {
                rows,
                width,
                free_bytes,
            });
        }
        let offset = self.used;
        self.used += room;
        Ok(Tensor {
            offset,
            rows,
            width,
        })
    }

    /// All rows of a tensor.
    pub(crate) fn view(&self, t: &Tensor) -> View<bf16> {
        let rows = self.buffer.view(t.offset, t.rows, stride(t.width));
        rows.columns(0..t.width)
    }

    /// Fills a tensor, row-major. For tests and measurements: see [`Buffer::write`].
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn write(&mut self, t: &Tensor, values: &[bf16]) -> Result<(), Error> {
        assert_eq!(values.len(), t.rows * t.width, "a value for each element");
        let (offset, stride) = (t.offset, stride(t.width));
        if stride == t.width {
            return self.buffer.write(offset, bytemuck::cast_slice(values));
        }
        for (i, row) in values.chunks_exact(t.width).enumerate() {
            let at = offset + i * stride * size_of::<bf16>();
            self.buffer.write(at, bytemuck::cast_slice(row))?;
        }
        Ok(())
    }

    /// Fills one row of a tensor: see [`Arena::write`].
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn write_row(&mut self, t: &Tensor, row: usize, to: &[bf16]) -> Result<(), Error> {
        assert_eq!(to.len(), t.width, "a value for each element");
        let at = t.row(row);
        self.buffer.write(at, bytemuck::cast_slice(to))
    }

    /// One row of a tensor. What fills it has been waited for.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn read_row(&self, t: &Tensor, row: usize) -> Result<Vec<bf16>, Error> {
        let mut values = vec![bf16::ZERO; t.width];
        self.buffer
            .read(t.row(row), bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// All elements of a tensor, row-major. What fills it has been waited for.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn read(&self, t: &Tensor) -> Result<Vec<bf16>, Error> {
        let stride = stride(t.width);
        let mut rows = vec![bf16::ZERO; t.rows * stride];
        self.buffer
            .read(t.offset, bytemuck::cast_slice_mut(&mut rows))?;
        let rows = rows.chunks_exact(stride);
        Ok(rows.flat_map(|row| &row[..t.width]).copied().collect())
    }
}

/// Elements from one row of a tensor to the next.
const fn stride(width: usize) -> usize {
    width.next_multiple_of(ROW_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_the_same_addresses_again() {
        let mut arena = Arena::new(&Space::Virtual(std::sync::Arc::default()), 1024).unwrap();
        let mut take = || {
            arena.reset();
            let a = arena.alloc(3, 8).unwrap();
            let b = arena.alloc(1, 64).unwrap();
            let (a, b) = (arena.view(&a), arena.view(&b));
            assert!(a.is_apart(&b) && a.is_aligned() && b.is_aligned());
            (a.ptr(), b.ptr())
        };
        assert_eq!(take(), take());
        let error = arena.alloc(4, 1000).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Arena {
                    free_bytes: 768,
                    ..
                }
            ),
            "{error}"
        );
    }
}
