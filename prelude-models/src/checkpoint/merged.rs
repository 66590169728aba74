//! Sums of a base's matrix and an adapter's product of two: `W + s·B·A`. Hu et al., LoRA (2021), §4.1.

use super::{
    WeightFile,
    stored::{Merged, Stored},
};
use crate::TensorView;

impl Merged {
    /// Returns the bytes of the two matrices in their file.
    pub(super) fn factor_bytes<'a>(&self, files: &'a [WeightFile]) -> [&'a [u8]; 2] {
        { self.factors.each_ref() }.map(|factor| &files[self.file].bytes[factor.bytes.clone()])
    }

    /// Adds the product to the base's elements, rows of so many columns. All arithmetic is in f32.
    pub(super) fn add(&self, files: &[WeightFile], columns: usize, values: &mut [f32]) {
        let [left, right] = [0, 1].map(|i| self.factor(files, i));
        let rank = right.len().checked_div(columns).unwrap_or(0);
        if rank == 0 {
            return;
        }
        let scale = f32::from_le_bytes(self.scale);
        let mut sums = vec![0.0; columns];
        for (row, left) in values
            .chunks_exact_mut(columns)
            .zip(left.chunks_exact(rank))
        {
            sums.fill(0.0);
            for (left, right) in left.iter().zip(right.chunks_exact(columns)) {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum += left * right;
                }
            }
            for (x, sum) in row.iter_mut().zip(&sums) {
                *x += scale * sum;
            }
        }
    }

    /// Returns one of the matrices in the order of the product.
    fn factor(&self, files: &[WeightFile], at: usize) -> Vec<f32> {
        let (Stored::Float(dtype), bytes) = (&self.factors[at].dtype, self.factor_bytes(files)[at])
        else {
            unreachable!("an adapter's tensors are checked when it is opened");
        };
        let (dtype, shape) = (*dtype, self.factors[at].shape.clone());
        let (rows, columns) = (shape[0], shape[1]);
        let view = TensorView {
            dtype,
            shape,
            bytes,
        };
        let mut values = Vec::with_capacity(view.len());
        view.read_f32(0..view.len(), &mut values);
        if self.is_transposed {
            let at = |i: usize| values[i % rows * columns + i / rows];
            values = (0..values.len()).map(at).collect();
        }
        values
    }
}
