//! Matrices in fp8 as checkpoints store them.

use std::sync::LazyLock;

use crate::TensorView;

/// A matrix in fp8 as a checkpoint stores it: an e4m3 for each element, and a scale for each block.
#[derive(Clone, Debug)]
pub struct Fp8Matrix<'a> {
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Rows and columns of a block, at least 1; blocks at the edges may be cut.
    pub block: [usize; 2],
    /// e4m3 `[rows, columns]`.
    pub data: &'a [u8],
    /// `[⌈rows / block rows⌉, ⌈columns / block columns⌉]`. An element is its e4m3 times its block's scale.
    pub scales: Vec<f32>,
}

/// The largest e4m3.
const LARGEST: f32 = 448.0;

/// The number of each e4m3.
static NUMBERS: LazyLock<[f32; 256]> = LazyLock::new(|| {
    let mut numbers = [0.0; 256];
    for (byte, number) in (0..=u8::MAX).zip(&mut numbers) {
        *number = e4m3(byte);
    }
    numbers
});

/// Returns the number of an e4m3: a sign, four bits of exponent, three of mantissa, no infinities.
fn e4m3(byte: u8) -> f32 {
    let mantissa = f32::from(byte & 7);
    let exponent = i32::from(byte >> 3 & 15);
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// Returns the numbers of e4m3.
pub(crate) fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let numbers = &*NUMBERS;
    bytes.iter().map(|&byte| numbers[usize::from(byte)])
}

/// Returns the rows and the width of the matrix that `parts` stacked along their rows make, if its own
/// blocks are theirs: squares of `side`, whole ones but at the end of the last part. `None` for others,
/// and where parts and biases do not fit each other.
#[must_use]
pub fn stacked_blocks(
    parts: &[Fp8Matrix<'_>],
    biases: &[TensorView<'_>],
    side: usize,
) -> Option<(usize, usize)> {
    let (last, others) = parts.split_last()?;
    let [_, width] = last.shape;
    let is_whole = |part: &Fp8Matrix<'_>| part.shape[0].is_multiple_of(side);
    let fits = |part: &Fp8Matrix<'_>| {
        let [rows, columns] = part.shape;
        rows > 0 && columns == width && part.block == [side; 2]
    };
    let rows = parts.iter().map(|part| part.shape[0]).sum();
    let num_biases: usize = biases.iter().map(TensorView::len).sum();
    let fits = parts.iter().all(fits)
        && others.iter().all(is_whole)
        && width > 0
        && width.is_multiple_of(side)
        && (biases.is_empty() || num_biases == rows);
    fits.then_some((rows, width))
}

impl Fp8Matrix<'_> {
    /// Returns the numbers of a row, without their scales.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = f32> {
        let columns = self.shape[1];
        numbers(&self.data[row * columns..][..columns])
    }

    /// Returns the scales of a row, from its first block to its last.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row_scales(&self, row: usize) -> &[f32] {
        let of_row = self.shape[1].div_ceil(self.block[1]);
        &self.scales[row / self.block[0] * of_row..][..of_row]
    }

    /// Returns the index of the first element, row-major, that is not a number or may exceed f32.
    #[must_use]
    pub fn first_non_finite(&self) -> Option<usize> {
        let is_bad = |byte: u8| byte & 0x7f == 0x7f;
        let may_exceed = |scale: &f32| !(scale * LARGEST).is_finite();
        // A fold without a short circuit compiles to vector instructions.
        let any_bad = |part: &[u8]| part.iter().fold(false, |any, &byte| any | is_bad(byte));
        if !self.scales.iter().any(may_exceed) && !self.data.chunks(1 << 16).any(any_bad) {
            return None;
        }
        let columns = self.shape[1];
        self.data.iter().enumerate().find_map(|(i, &byte)| {
            let scale = &self.row_scales(i / columns)[i % columns / self.block[1]];
            (is_bad(byte) || may_exceed(scale)).then_some(i)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_e4m3() {
        let check = |byte, expected| assert_eq!(e4m3(byte), expected, "{byte:#x}");
        check(0, 0.0);
        check(1, 2f32.powi(-9));
        check(8, 2f32.powi(-6));
        check(0x38, 1.0);
        check(0x7e, 448.0);
        check(0xfe, -448.0);
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    fn check(change: impl FnOnce(&mut [u8], &mut [f32]), expected: Option<usize>) {
        // Three by five in blocks of two by two.
        let (mut data, mut scales) = ([0x7e; 15], vec![-1.5; 6]);
        change(&mut data, &mut scales);
        let matrix = Fp8Matrix {
            shape: [3, 5],
            block: [2, 2],
            data: &data,
            scales,
        };
        assert_eq!(matrix.first_non_finite(), expected);
    }

    #[test]
    fn finds_the_first_element_that_is_not_finite() {
        check(|_, _| {}, None);
        check(|data, _| data[14] = 0x7f, Some(14));
        check(|data, _| data[7] = 0xff, Some(7));
        check(|_, scales| scales[0] = f32::NAN, Some(0));
        check(|_, scales| scales[5] = f32::INFINITY, Some(14));
        check(|_, scales| scales[1] = 1e37, Some(2));
        check(|_, scales| scales[1] = 0.0, None);
    }
}
