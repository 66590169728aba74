//! The way of weights from a checkpoint into a device's format.

use crate::{Fp8Matrix, TensorView};

/// Returns the rows and the width of the matrix that `parts` stacked along their rows make, for a
/// [`WeightLoader`].
///
/// # Errors
/// A description of what is wrong: a part that is no matrix, parts of different widths, or biases
/// that are not as many as rows.
pub fn stacked_shape(
    parts: &[TensorView<'_>],
    biases: &[TensorView<'_>],
) -> Result<(usize, usize), String> {
    let (mut rows, mut width) = (0, None);
    for part in parts {
        let [part_rows, part_width] = part.shape[..] else {
            return Err(format!("has shape {:?}, which is no matrix", part.shape));
        };
        if *width.get_or_insert(part_width) != part_width {
            return Err("stacks matrices of different widths".to_owned());
        }
        rows += part_rows;
    }
    let bias_len: usize = biases.iter().map(TensorView::len).sum();
    if bias_len != 0 && bias_len != rows {
        return Err(format!("has {bias_len} biases for {rows} outputs"));
    }
    Ok((rows, width.unwrap_or(0)))
}

/// Turns checkpoint tensors into a device's weights. Each call names the weight for messages.
pub trait WeightLoader {
    /// The device's format, the `Weight` of its `Ops`.
    type Weight;
    /// The errors of loading: shapes, memory, values.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns the index of the first element that is infinite or not a number. A loader with
    /// several threads may look with all of them.
    fn first_non_finite(&self, tensor: &TensorView<'_>) -> Option<usize> {
        tensor.first_non_finite()
    }

    /// Loads a matrix `[out, in]` for products, made of `parts` stacked along `out` (fused q, k, v or
    /// gate, up), with an optional bias likewise stacked.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn linear(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Self::Weight, Self::Error>;

    /// Loads the matrix of [`WeightLoader::linear`] from parts that are all stored in fp8, as they are
    /// stored; returns `None` if the device does not multiply such parts as they are: they are widened
    /// then, and [`WeightLoader::linear`] gets them.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn linear_fp8(
        &mut self,
        name: &str,
        parts: &[Fp8Matrix<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Option<Self::Weight>, Self::Error> {
        let _ = (name, parts, biases);
        Ok(None)
    }

    /// Loads a matrix of a head or of a router, as in [`WeightLoader::linear`]: the products with a head are the
    /// answer, and those with a router choose experts. A device that rounds the matrices of layers may
    /// keep it as it is.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn head(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Self::Weight, Self::Error> {
        self.linear(name, parts, biases)
    }

    /// Loads the matrix `index` of `count` equally shaped ones without biases that a model multiplies
    /// in one operation, each made of `parts` as in [`WeightLoader::linear`]. Called for each `index`
    /// in order, with no other matrix between them, so that a device may place them one behind the
    /// other.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn linear_of_stack(
        &mut self,
        name: &str,
        (index, count): (usize, usize),
        parts: &[TensorView<'_>],
    ) -> Result<Self::Weight, Self::Error> {
        let _ = (index, count);
        self.linear(name, parts, &[])
    }

    /// Loads the matrix of [`WeightLoader::linear_of_stack`] made of parts that are all stored in fp8, as they are
    /// stored; `None` as in [`WeightLoader::linear_fp8`], for all matrices that are multiplied together
    /// alike.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn linear_fp8_of_stack(
        &mut self,
        name: &str,
        (index, count): (usize, usize),
        parts: &[Fp8Matrix<'_>],
    ) -> Result<Option<Self::Weight>, Self::Error> {
        let _ = (index, count);
        self.linear_fp8(name, parts, &[])
    }

    /// Loads the embedding table `[V, H]`: rows are gathered by `embed`, and if `is_head` the same
    /// matrix is the output head (one copy serves both).
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn embedding(
        &mut self,
        name: &str,
        table: &TensorView<'_>,
        is_head: bool,
    ) -> Result<Self::Weight, Self::Error>;

    /// Loads a vector `[n]`, such as a norm's weight.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn vector(&mut self, name: &str, values: &TensorView<'_>) -> Result<Self::Weight, Self::Error>;

    /// Loads the weight `[n]` of an RMS norm: `offset + values`, summed in f32 where `offset` is not 0.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn norm(
        &mut self,
        name: &str,
        values: &TensorView<'_>,
        offset: f32,
    ) -> Result<Self::Weight, Self::Error>;

    /// Loads a table of rotations `[positions, D/2]` of (cos, sin) pairs, scale included, from
    /// `inv_freq` `[D/2]`: angle = position · `inv_freq`, in f32, as the reference does.
    ///
    /// # Errors
    /// [`WeightLoader::Error`].
    fn rope(
        &mut self,
        inv_freq: &[f32],
        attention_scaling: f32,
        positions: usize,
    ) -> Result<Self::Weight, Self::Error>;
}
