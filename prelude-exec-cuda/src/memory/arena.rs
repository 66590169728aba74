//! Activations: one buffer, sized at start, of which each step's are handed out from the front, and
//! those that passes keep between their slices from the end of the largest step on.
//!
//! ```text
//! 0 ............... step_bytes ............................. the buffer's end
//! | step, or slice  | region of a pass | of another | ...   free |
//! ```
//!
//! A region is taken when a pass begins and free when it ends. A pass that is abandoned leaves a hole:
//! before another begins, regions move down, so that all free room is in one piece.

use half::bf16;
use prelude_models::step::{ArenaCursor, ArenaFull, ArenaTensor};

use super::{
    space::{Buffer, Space},
    view::View,
};
use crate::Error;

/// Rows start at multiples of this many elements: 16 bytes, what a lane reads at once.
const ROW_ALIGN: usize = 8;
/// Bytes of different numbers in [`Arena::fill_with_numbers`].
const NUMBERS_BYTES: usize = 1 << 20;
/// Tensors start at multiples of this many bytes: a line of the GPU's L2 cache.
const ALIGN: usize = 128;

/// Room for bf16 tensors, whose rows are padded to 16 bytes. The same sequence of calls yields the
/// same addresses.
#[derive(Debug)]
pub(crate) struct Arena {
    buffer: Buffer,
    step_bytes: usize,
    cursor: ArenaCursor,
    /// The region of the pass whose slice runs.
    region: Option<Region>,
}

/// The part of the arena in which a pass keeps its tensors. Their offsets begin at `step_bytes`
/// wherever the region lies, so that they stay when it moves.
#[derive(Debug)]
pub(crate) struct Region {
    /// Byte of the buffer at which the region begins.
    start: usize,
    bytes: usize,
    cursor: ArenaCursor,
}

impl Region {
    /// Takes a tensor that stays as long as the region does.
    ///
    /// # Errors
    /// [`ArenaFull`].
    pub(crate) fn alloc(&mut self, rows: usize, width: usize) -> Result<ArenaTensor, ArenaFull> {
        let bytes = Arena::room(rows, width);
        self.cursor.alloc_kept(rows, width, bytes)
    }
}

impl Arena {
    /// Returns an arena for steps of `step_bytes`, and for passes of `pass_bytes` in sum.
    pub(crate) fn new(space: &Space, step_bytes: usize, pass_bytes: usize) -> Result<Self, Error> {
        // Also a tensor without rows begins in front of the end, whose offset means a region.
        let step_bytes = (step_bytes + 1).next_multiple_of(ALIGN);
        Ok(Self {
            buffer: space.alloc("arena", step_bytes + pass_bytes)?,
            step_bytes,
            cursor: ArenaCursor::new(0..step_bytes),
            region: None,
        })
    }

    /// Returns the bytes of the part for steps, and of the part for passes.
    pub(crate) const fn bytes(&self) -> (usize, usize) {
        (self.step_bytes, self.buffer.bytes() - self.step_bytes)
    }

    /// Returns the bytes that a `[rows, width]` tensor takes.
    pub(crate) const fn room(rows: usize, width: usize) -> usize {
        (rows * stride(width) * size_of::<bf16>()).next_multiple_of(ALIGN)
    }

    /// Returns the whole buffer, a place to work in while there are no steps.
    pub(crate) const fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Fills the buffer with numbers between -1/2 and 1/2 (as e4m3 none of them is NaN), for products
    /// that are timed: a GPU multiplies zeros faster.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] of the host's, or the driver's.
    pub(crate) fn fill_with_numbers(&mut self, space: &Space) -> Result<(), Error> {
        let all = self.buffer.bytes();
        let mut done = all.min(NUMBERS_BYTES);
        let mut numbers = space.pinned("numbers", done)?;
        let mut state = 1u32;
        for number in numbers.bytes_mut().chunks_exact_mut(2) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = bf16::from_f32(state as f32 / u32::MAX as f32 - 0.5);
            number.copy_from_slice(&(value.to_bits() & !0x40).to_le_bytes());
        }
        self.buffer.upload(&numbers, done)?;
        while done < all {
            let more = done.min(all - done);
            self.buffer.copy_from(done, &self.buffer, 0..more)?;
            done += more;
        }
        space.synchronize("numbers for products")
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

    /// Takes a tensor that the slices of a pass keep, or one that stays through the step.
    pub(crate) fn alloc_kept(
        &mut self,
        rows: usize,
        width: usize,
    ) -> Result<ArenaTensor, ArenaFull> {
        match &mut self.region {
            Some(region) => region.alloc(rows, width),
            None => self.cursor.alloc_kept(rows, width, Self::room(rows, width)),
        }
    }

    /// Takes a region of `bytes` behind those that `passes` hold, which move down if there are holes
    /// between them.
    ///
    /// # Errors
    /// [`Error::Step`] if there is no room, or the driver's.
    pub(crate) fn take_region<'a>(
        &self,
        passes: impl Iterator<Item = &'a mut Region>,
        bytes: usize,
    ) -> Result<Region, Error> {
        let mut regions: Vec<_> = passes.collect();
        regions.sort_unstable_by_key(|region| region.start);
        let mut start = self.step_bytes;
        for region in regions {
            if region.start > start {
                self.move_down(region, start)?;
            }
            start += region.bytes;
        }
        let free = self.buffer.bytes().saturating_sub(start);
        if bytes > free {
            let what = format!("a pass needs {bytes} bytes of the arena, of which {free} are free");
            return Err(Error::Step(what));
        }
        Ok(Region {
            start,
            bytes,
            cursor: ArenaCursor::new(self.step_bytes..self.step_bytes + bytes),
        })
    }

    /// Moves a region to a lower byte of the buffer, by way of the step's part, which is free
    /// between steps: the places may overlap.
    fn move_down(&self, region: &mut Region, to: usize) -> Result<(), Error> {
        let buffer = &self.buffer;
        for at in (0..region.bytes).step_by(self.step_bytes) {
            let len = self.step_bytes.min(region.bytes - at);
            let from = region.start + at;
            buffer.copy_from(0, buffer, from..from + len)?;
            buffer.copy_from(to + at, buffer, 0..len)?;
        }
        region.start = to;
        Ok(())
    }

    /// Exchanges the region of the pass whose slice runs.
    pub(crate) const fn exchange(&mut self, region: &mut Option<Region>) {
        std::mem::swap(&mut self.region, region);
    }

    /// Returns all rows of a tensor.
    ///
    /// # Panics
    /// For a tensor of a pass whose slice does not run.
    pub(crate) fn view(&self, t: &ArenaTensor) -> View<bf16> {
        let rows = self.buffer.view(self.at(t), t.rows(), stride(t.width()));
        rows.columns(0..t.width())
    }

    /// Returns the byte of the buffer at which a tensor begins.
    fn at(&self, t: &ArenaTensor) -> usize {
        match t.offset().checked_sub(self.step_bytes) {
            None => t.offset(),
            Some(at) => {
                let region = self.region.as_ref();
                region.expect("the slice of the tensor's pass runs").start + at
            }
        }
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
        let (offset, stride) = (self.at(t), stride(t.width()));
        if stride == t.width() {
            return self.buffer.write(offset, bytemuck::cast_slice(values));
        }
        for (i, row) in values.chunks_exact(t.width()).enumerate() {
            let at = offset + i * stride * size_of::<bf16>();
            self.buffer.write(at, bytemuck::cast_slice(row))?;
        }
        Ok(())
    }

    /// Returns the byte of the buffer at which a row begins.
    ///
    /// # Panics
    /// If there is no such row.
    #[cfg(feature = "measure")]
    fn row_at(&self, t: &ArenaTensor, row: usize) -> usize {
        assert!(row < t.rows(), "row {row} of {}", t.rows());
        self.at(t) + row * stride(t.width()) * size_of::<bf16>()
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
        let at = self.row_at(t, row);
        self.buffer.write(at, bytemuck::cast_slice(to))
    }

    /// Returns one row of a tensor. What fills it has been waited for.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn read_row(&self, t: &ArenaTensor, row: usize) -> Result<Vec<bf16>, Error> {
        let mut values = vec![bf16::ZERO; t.width()];
        self.buffer
            .read(self.row_at(t, row), bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Returns all elements of a tensor, row-major. What fills it has been waited for.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub(crate) fn read(&self, t: &ArenaTensor) -> Result<Vec<bf16>, Error> {
        let stride = stride(t.width());
        let mut rows = vec![bf16::ZERO; t.rows() * stride];
        self.buffer
            .read(self.at(t), bytemuck::cast_slice_mut(&mut rows))?;
        let rows = rows.chunks_exact(stride);
        Ok(rows.flat_map(|row| &row[..t.width()]).copied().collect())
    }
}

/// Returns the number of elements from one row of a tensor to the next.
const fn stride(width: usize) -> usize {
    width.next_multiple_of(ROW_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_the_same_addresses_again() {
        let space = Space::Virtual(std::sync::Arc::default());
        let mut arena = Arena::new(&space, 1024, 0).unwrap();
        let mut take = || {
            arena.reset();
            let a = arena.alloc(3, 8).unwrap();
            let b = arena.alloc(1, 64).unwrap();
            let (a, b) = (arena.view(&a), arena.view(&b));
            assert!(a.is_apart(&b) && a.is_aligned() && b.is_aligned());
            (a.ptr(), b.ptr())
        };
        assert_eq!(take(), take());
        assert_eq!(arena.alloc(4, 1000).unwrap_err().free_bytes, 768 + 128);
    }

    /// A pass's tensors have their contents wherever its region lies.
    #[test]
    #[cfg(feature = "measure")]
    fn regions_move_down_with_their_contents() {
        let Some(device) = crate::testing::emulation() else {
            return;
        };
        let space = Space::Emu(device);
        // Less room for the step than a region takes: it moves in several copies.
        let mut arena = Arena::new(&space, 255, 128 * 15).unwrap();
        let mut passes: Vec<(Option<Region>, ArenaTensor, Vec<bf16>)> = Vec::new();
        for (i, lines) in [2, 3, 5, 4].into_iter().enumerate() {
            let live = passes.iter_mut().filter_map(|(region, ..)| region.as_mut());
            let mut region = arena.take_region(live, 128 * lines).unwrap();
            let tensor = region.alloc(lines, 64).unwrap();
            assert!(region.alloc(1, 1).is_err());
            let values = vec![bf16::from_f32(i as f32 + 1.0); lines * 64];
            let mut region = Some(region);
            let at = region.as_ref().unwrap().start;
            arena
                .buffer
                .write(at, bytemuck::cast_slice(&values))
                .unwrap();
            arena.exchange(&mut region);
            assert_eq!(arena.read(&tensor).unwrap(), values);
            arena.exchange(&mut region);
            passes.push((region, tensor, values));
        }
        // One line is left.
        let live = passes.iter_mut().filter_map(|(region, ..)| region.as_mut());
        let full = arena.take_region(live, 256).unwrap_err().to_string();
        assert!(
            full.contains("needs 256 bytes of the arena, of which 128 are free"),
            "{full}"
        );
        passes.remove(2);
        passes.remove(0);
        let live = passes.iter_mut().filter_map(|(region, ..)| region.as_mut());
        let last = arena.take_region(live, 128 * 8).unwrap();
        assert_eq!(last.start, 256 + 128 * 7);
        for (region, tensor, values) in &mut passes {
            arena.exchange(region);
            assert_eq!(&arena.read(tensor).unwrap(), values);
            arena.exchange(region);
        }
    }
}
