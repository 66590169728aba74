//! The step's activations on the host: one buffer, sized at start, handed out from the front.

use std::ops::Range;

use prelude_models::step::{ArenaCursor, ArenaFull, ArenaTensor};

/// Tensors start at multiples of this many f32: a cache line.
const ALIGN: usize = 16;

/// Room for one step's tensors of f32.
#[derive(Debug)]
pub(crate) struct Arena {
    /// The memory, with slack in front, so that `base` is on a cache line.
    data: Vec<f32>,
    base: usize,
    cursor: ArenaCursor,
}

impl Arena {
    /// Returns an arena of `len` f32. Pages are taken from the system when first touched.
    pub(crate) fn new(len: usize) -> Self {
        let data = vec![0.0f32; len + ALIGN];
        let base = data.as_ptr().align_offset(ALIGN * size_of::<f32>());
        Self {
            base: if base < ALIGN { base } else { 0 },
            data,
            cursor: ArenaCursor::new(0..len * size_of::<f32>()),
        }
    }

    /// Returns the number of f32 that a `[rows, width]` tensor takes.
    pub(crate) const fn room(rows: usize, width: usize) -> usize {
        (rows * width).next_multiple_of(ALIGN)
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
        let bytes = Self::room(rows, width) * size_of::<f32>();
        self.cursor.alloc(rows, width, bytes)
    }

    /// Takes a tensor as [`Self::alloc`] does, but [`Self::end_slice`] leaves it.
    pub(crate) fn alloc_kept(
        &mut self,
        rows: usize,
        width: usize,
    ) -> Result<ArenaTensor, ArenaFull> {
        let bytes = Self::room(rows, width) * size_of::<f32>();
        self.cursor.alloc_kept(rows, width, bytes)
    }

    /// Removes the tensors that end with a slice.
    pub(crate) const fn end_slice(&mut self) {
        self.cursor.end_slice();
    }

    /// Returns the elements of `data` that a tensor occupies.
    fn elements(&self, t: &ArenaTensor) -> Range<usize> {
        let start = self.base + t.offset() / size_of::<f32>();
        start..start + t.rows() * t.width()
    }

    /// Returns all elements of a tensor.
    pub(crate) fn read(&self, t: &ArenaTensor) -> &[f32] {
        &self.data[self.elements(t)]
    }

    /// Returns all elements of a tensor, to be written.
    pub(crate) fn write(&mut self, t: &ArenaTensor) -> &mut [f32] {
        let elements = self.elements(t);
        &mut self.data[elements]
    }

    /// Returns an input and an output.
    ///
    /// # Panics
    /// If they overlap: [`Self::alloc`] never makes such tensors.
    pub(crate) fn pair(
        &mut self,
        input: &ArenaTensor,
        output: &ArenaTensor,
    ) -> (&[f32], &mut [f32]) {
        let [input, output] = [input, output].map(|t| self.elements(t));
        let ordered = self.data.get_disjoint_mut([input, output]);
        let [input, output] = ordered.expect("tensors of an arena are apart");
        (input, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_apart_and_addresses_repeat() {
        let mut arena = Arena::new(200);
        for _ in 0..2 {
            arena.reset();
            let a = arena.alloc(3, 20).unwrap();
            let b = arena.alloc(2, 16).unwrap();
            assert_eq!((a.offset(), b.offset()), (0, 64 * 4));
            arena.write(&a).fill(1.0);
            let (input, output) = arena.pair(&a, &b);
            output.copy_from_slice(&input[..32]);
            let (input, output) = arena.pair(&b, &a);
            assert_eq!((input.len(), output.len()), (32, 60));
            assert!(arena.read(&b).iter().all(|&x| x == 1.0));
            assert_eq!(arena.alloc(5, 21).unwrap_err().free_bytes, 104 * 4);
        }
    }
}
