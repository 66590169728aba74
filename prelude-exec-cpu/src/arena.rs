//! The step's activations: one buffer, sized at start, handed out from the front.

use crate::Error;

/// Tensors start at multiples of this many f32: a cache line.
const ALIGN: usize = 16;

/// A `[rows, width]` f32 tensor in the step's arena, row-major.
#[derive(Debug)]
pub struct Tensor {
    start: usize,
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

    fn end(&self) -> usize {
        self.start + self.rows * self.width
    }
}

/// Room for one step's tensors.
#[derive(Debug)]
pub(crate) struct Arena {
    /// With slack in front, so that `base` is on a cache line.
    data: Vec<f32>,
    base: usize,
    used: usize,
}

impl Arena {
    /// An arena of `len` f32. Pages are taken from the system when first touched.
    pub(crate) fn new(len: usize) -> Self {
        let data = vec![0.0f32; len + ALIGN];
        let base = data.as_ptr().align_offset(ALIGN * size_of::<f32>());
        Self {
            base: if base < ALIGN { base } else { 0 },
            data,
            used: 0,
        }
    }

    /// f32 that a `[rows, width]` tensor takes.
    pub(crate) const fn room(rows: usize, width: usize) -> usize {
        (rows * width).next_multiple_of(ALIGN)
    }

    /// Forgets all tensors.
    pub(crate) fn reset(&mut self) {
        self.used = 0;
    }

    pub(crate) fn alloc(&mut self, rows: usize, width: usize) -> Result<Tensor, Error> {
        let start = self.base + self.used;
        let room = Self::room(rows, width);
        let free = self.data.len() - ALIGN - self.used;
        if room > free {
            return Err(Error::Arena {
                rows,
                width,
                free_bytes: free * size_of::<f32>(),
            });
        }
        self.used += room;
        Ok(Tensor { start, rows, width })
    }

    /// All elements of a tensor.
    pub(crate) fn read(&self, t: &Tensor) -> &[f32] {
        &self.data[t.start..t.end()]
    }

    /// All elements of a tensor.
    pub(crate) fn write(&mut self, t: &Tensor) -> &mut [f32] {
        &mut self.data[t.start..t.end()]
    }

    /// An input and an output.
    ///
    /// # Panics
    /// If they overlap: [`Self::alloc`] never makes such tensors.
    pub(crate) fn pair(&mut self, input: &Tensor, output: &Tensor) -> (&[f32], &mut [f32]) {
        if input.end() <= output.start {
            let (low, high) = self.data.split_at_mut(output.start);
            (
                &low[input.start..input.end()],
                &mut high[..output.rows * output.width],
            )
        } else {
            let (low, high) = self.data.split_at_mut(input.start);
            (
                &high[..input.rows * input.width],
                &mut low[output.start..output.end()],
            )
        }
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
            assert_eq!((a.start - arena.base, b.start - arena.base), (0, 64));
            arena.write(&a).fill(1.0);
            let (input, output) = arena.pair(&a, &b);
            output.copy_from_slice(&input[..32]);
            let (input, output) = arena.pair(&b, &a);
            assert_eq!((input.len(), output.len()), (32, 60));
            assert!(arena.read(&b).iter().all(|&x| x == 1.0));
            assert!(matches!(arena.alloc(5, 21), Err(Error::Arena { .. })));
        }
    }
}
