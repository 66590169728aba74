//! Tensors as they lie in a checkpoint, or as they are read from one.

use std::borrow::Cow;

/// Element type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl DType {
    /// Returns the bytes per element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// A borrowed tensor: little-endian elements, row-major, possibly unaligned.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// `product(shape) · dtype.size()` bytes.
    pub bytes: &'a [u8],
}

/// A tensor of a checkpoint: borrowed as it is stored, or widened from another form.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// `product(shape) · dtype.size()` bytes.
    pub bytes: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    /// Returns the tensor, borrowed.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            shape: self.shape.clone(),
            bytes: &self.bytes,
        }
    }
}

impl<'a> From<TensorView<'a>> for Tensor<'a> {
    fn from(view: TensorView<'a>) -> Self {
        Self {
            dtype: view.dtype,
            shape: view.shape,
            bytes: Cow::Borrowed(view.bytes),
        }
    }
}

/// Elements per look of [`TensorView::first_non_finite`]: enough to fill vector registers many
/// times over, few enough that the search inside a bad one is short.
const FINITE_CHUNK: usize = 4096;

impl TensorView<'_> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the elements `range` widened to f32 (exact for every [`DType`]) to `out`.
    ///
    /// # Panics
    /// If `range` is not within the tensor.
    pub fn read_f32(&self, range: std::ops::Range<usize>, out: &mut Vec<f32>) {
        let size = self.dtype.size();
        let bytes = &self.bytes[range.start * size..range.end * size];
        match self.dtype {
            DType::F32 => out.extend(
                bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            ),
            DType::Bf16 => out.extend(
                bytes
                    .chunks_exact(2)
                    .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            ),
            DType::F16 => out.extend(
                bytes
                    .chunks_exact(2)
                    .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()),
            ),
        }
    }

    /// Returns the index of the first element that is infinite or not a number.
    ///
    /// A chunk is judged by whether any exponent is all ones, which compiles to a few vector
    /// instructions per register, so that checking costs about as much as reading.
    #[must_use]
    pub fn first_non_finite(&self) -> Option<usize> {
        match self.dtype {
            DType::Bf16 => first_all_ones(self.bytes, u16::from_le_bytes, 0x7f80),
            DType::F16 => first_all_ones(self.bytes, u16::from_le_bytes, 0x7c00),
            DType::F32 => first_all_ones(self.bytes, u32::from_le_bytes, 0x7f80_0000),
        }
    }
}

/// Returns the index of the first of the `N`-byte words in which all bits of `mask` are set.
fn first_all_ones<const N: usize, T>(bytes: &[u8], word: fn([u8; N]) -> T, mask: T) -> Option<usize>
where
    T: Copy + PartialEq + std::ops::BitAnd<Output = T>,
{
    let (words, _) = bytes.as_chunks::<N>();
    let bad = |w: &[u8; N]| word(*w) & mask == mask;
    for (chunk, start) in words.chunks(FINITE_CHUNK).zip((0..).step_by(FINITE_CHUNK)) {
        // Without a short circuit: a fold over the whole chunk is what vectorises.
        if chunk.iter().fold(false, |any, w| any | bad(w)) {
            return chunk.iter().position(bad).map(|i| start + i);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(dtype: DType, bytes: &[u8]) -> TensorView<'_> {
        TensorView {
            dtype,
            shape: vec![bytes.len() / dtype.size()],
            bytes,
        }
    }

    fn check(dtype: DType, encode: fn(f32) -> Vec<u8>) {
        for len in [1, 5, FINITE_CHUNK, 2 * FINITE_CHUNK + 3] {
            let finite: Vec<u8> = (0..len).flat_map(|i| encode(i as f32 - 2.5)).collect();
            assert_eq!(view(dtype, &finite).first_non_finite(), None);
            let mut widened = Vec::new();
            view(dtype, &finite).read_f32(len - 1..len, &mut widened);
            assert_eq!(encode(widened[0]), encode(len as f32 - 3.5));
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, len / 2, len - 1] {
                    let mut bytes = finite.clone();
                    let size = dtype.size();
                    bytes[at * size..][..size].copy_from_slice(&encode(value));
                    assert_eq!(view(dtype, &bytes).first_non_finite(), Some(at));
                }
            }
        }
    }

    #[test]
    fn finds_the_first_non_finite_element() {
        check(DType::F32, |x| x.to_le_bytes().to_vec());
        check(DType::Bf16, |x| {
            half::bf16::from_f32(x).to_le_bytes().to_vec()
        });
        check(DType::F16, |x| {
            half::f16::from_f32(x).to_le_bytes().to_vec()
        });
    }

    #[test]
    fn the_largest_finite_values_pass() {
        for (dtype, bytes) in [
            (DType::F32, f32::MAX.to_le_bytes().to_vec()),
            (DType::Bf16, half::bf16::MAX.to_le_bytes().to_vec()),
            (DType::F16, half::f16::MAX.to_le_bytes().to_vec()),
        ] {
            assert_eq!(view(dtype, &bytes).first_non_finite(), None);
        }
    }
}
