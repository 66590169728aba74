//! Matrices in fp8 as checkpoints store them.

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

impl Fp8Matrix<'_> {
    /// Index of the first element, row-major, that is not a number or may exceed f32.
    #[must_use]
    pub fn first_non_finite(&self) -> Option<usize> {
        let is_bad = |byte: u8| byte & 0x7f == 0x7f;
        let may_exceed = |scale: &f32| !(scale * LARGEST).is_finite();
        // Without a short circuit, which compiles to vector instructions.
        let any_bad = |part: &[u8]| part.iter().fold(false, |any, &byte| any | is_bad(byte));
        if !self.scales.iter().any(may_exceed) && !self.data.chunks(1 << 16).any(any_bad) {
            return None;
        }
        let ([_, columns], [block_rows, block_columns]) = (self.shape, self.block);
        let of_row = columns.div_ceil(block_columns);
        self.data.iter().enumerate().find_map(|(i, &byte)| {
            let (row, column) = (i / columns, i % columns);
            let scale = &self.scales[row / block_rows * of_row + column / block_columns];
            (is_bad(byte) || may_exceed(scale)).then_some(i)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
