//! The step's activations: one buffer, sized at start, handed out from the front.

use half::bf16;
use prelude_models::step::{ArenaCursor, ArenaFull, ArenaTensor};

use super::{
    space::{Buffer, Space},
    view::View,
};
use crate::Error;

/// Rows start at multiples of this many elements: 16 bytes, what a lane reads at once.
const ROW_ALIGN: usize = 8;
/// Tensors start at multiples of this many bytes: a line of the GPU's L2 cache.
const ALIGN: usize = 128;

/// Room for one step's bf16 tensors, whose rows are padded to 16 bytes. The same sequence of calls
/// yields the same addresses.
#[derive(Debug)]
pub(crate) struct Arena {
    buffer: Buffer,
    cursor: ArenaCursor,
}

impl Arena {
    pub(crate) fn new(space: &Space, bytes: usize) -> Result<Self, Error> {
        Ok(Self {
            buffer: space.alloc("arena", bytes)?,
            cursor: ArenaCursor::new(bytes),
        })
    }

    /// Bytes that a `[rows, width]` tensor takes.
    pub(crate) const fn room(rows: usize, width: usize) -> usize {
        (rows * stride(width) * size_of::<bf16>()).next_multiple_of(ALIGN)
    }

    /// Removes all tensors.
    pub(crate) const fn reset(&mut self) {
        self.cursor.reset();
    }

    pub(crate) const fn alloc(
        &mut self,
        rows: usize,
        width: usize,
    ) -> Result<ArenaTensor, ArenaFull> {
        self.cursor.alloc(rows, width, Self::room(rows, width))
    }

    /// All rows of a tensor.
    pub(crate) fn view(&self, t: &ArenaTensor) -> View<bf16> {
        let rows = self.buffer.view(t.offset(), t.rows(), stride(t.width()));
        rows.columns(0..t.width())
    }

    /// Fills a tensor, row-major. For tests and measurements: see [`Buffer::write`].
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn write(&mut self, t: &ArenaTensor, values: &[bf16]) -> Result<(), Error> {
        assert_eq!(
            values.len(),
            t.rows() * t.width(),
            "a value for each element"
        );
        let (offset, stride) = (t.offset(), stride(t.width()));
        if stride == t.width() {
            return self.buffer.write(offset, bytemuck::cast_slice(values));
        }
        for (i, row) in values.chunks_exact(t.width()).enumerate() {
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
    pub(crate) fn write_row(
        &mut self,
        t: &ArenaTensor,
        row: usize,
        to: &[bf16],
    ) -> Result<(), Error> {
        assert_eq!(to.len(), t.width(), "a value for each element");
        let at = row_offset(t, row);
        self.buffer.write(at, bytemuck::cast_slice(to))
    }

    /// One row of a tensor. What fills it has been waited for.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn read_row(&self, t: &ArenaTensor, row: usize) -> Result<Vec<bf16>, Error> {
        let mut values = vec![bf16::ZERO; t.width()];
        self.buffer
            .read(row_offset(t, row), bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// All elements of a tensor, row-major. What fills it has been waited for.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn read(&self, t: &ArenaTensor) -> Result<Vec<bf16>, Error> {
        let stride = stride(t.width());
        let mut rows = vec![bf16::ZERO; t.rows() * stride];
        self.buffer
            .read(t.offset(), bytemuck::cast_slice_mut(&mut rows))?;
        let rows = rows.chunks_exact(stride);
        Ok(rows.flat_map(|row| &row[..t.width()]).copied().collect())
    }
}

/// Byte of the arena at which a row begins.
///
/// # Panics
/// If there is no such row.
#[cfg(feature = "measure")]
fn row_offset(t: &ArenaTensor, row: usize) -> usize {
    assert!(row < t.rows(), "row {row} of {}", t.rows());
    t.offset() + row * stride(t.width()) * size_of::<bf16>()
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
        assert_eq!(arena.alloc(4, 1000).unwrap_err().free_bytes, 768);
    }
}
