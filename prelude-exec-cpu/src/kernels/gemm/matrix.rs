//! A weight matrix, packed into panels of 64 output columns (see `super::super::panel`).

use crate::{
    kernels::{
        Supported, elementwise, fp8, int8,
        lines::Lines,
        panel::{MR, NR, Panel},
        simd, tiles,
        words::Words,
    },
    pool::ComputePool,
};

/// Dwords of a cache line.
const LINE: usize = 16;

/// Least rows of a task that fetches the next panel.
const FETCH_ROWS: usize = 2 * MR;

/// Pairs of bf16 of a row that are packed at once: a cache line.
const PAIRS_AT_ONCE: usize = 16;

/// Element type of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Pairs of bf16.
    Bf16,
    /// Pairs of bf16, with zeros up to a whole number of AMX tiles.
    Tiles,
    /// f32.
    F32,
    /// int8 with a scale per output; see [`int8`].
    Int8,
    /// Numbers of fp8 in pairs of bf16, with a scale per output; see [`fp8`].
    Fp8,
    /// Numbers of fp8 as a checkpoint stores them, with a scale per block; see [`fp8::blocks`].
    Fp8Blocks,
}

impl Format {
    /// Returns true if rows are rounded to multiply them.
    pub(super) const fn is_rounded(self) -> bool {
        matches!(self, Self::Int8 | Self::Fp8 | Self::Fp8Blocks)
    }

    /// Dwords of a row of `inputs`, which are even for bf16.
    pub(super) const fn dwords(self, inputs: usize) -> usize {
        match self {
            Self::Tiles => inputs.div_ceil(tiles::DEPTH) * tiles::DEPTH / 2,
            Self::Bf16 => inputs / 2,
            Self::Int8 => int8::panel_lines(inputs),
            Self::Fp8 => fp8::panel_lines(inputs),
            Self::Fp8Blocks => fp8::blocks::panel_lines(inputs),
            Self::F32 => inputs,
        }
    }

    /// Returns how many numbers are read of a row: its elements, and behind them the scales that are
    /// stored.
    const fn numbers(self, inputs: usize) -> usize {
        match self {
            Self::Fp8Blocks => inputs + inputs / fp8::blocks::BLOCK,
            _ => inputs,
        }
    }
}

/// A weight matrix `[outputs, inputs]`.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) format: Format,
    /// Panels, the last one padded with zero columns.
    pub(super) data: Words,
    pub(super) bias: Option<Vec<f32>>,
}

impl Matrix {
    /// Packs the matrix whose row `o` is appended to a vector by `read(o, &mut row)`, and behind it the
    /// scales of its blocks if the format is of such.
    ///
    /// # Panics
    /// If `inputs` is odd and the format of pairs.
    pub(crate) fn new(
        pool: &ComputePool,
        format: Format,
        (outputs, inputs): (usize, usize),
        read: impl Fn(usize, &mut Vec<f32>) + Sync,
    ) -> Self {
        let paired = !matches!(format, Format::F32 | Format::Int8);
        assert!(!paired || inputs.is_multiple_of(2), "half a pair");
        let width = format.dwords(inputs) * NR;
        let mut data = Lines::zeroed(Self::len(format, (outputs, inputs)));
        // Reading and transposing take about a nanosecond per element.
        let cost_ns = outputs * inputs;
        pool.rows(&mut data, width.max(1), 1, cost_ns, |_, i, part| {
            let numbers = format.numbers(inputs);
            let mut row = Vec::with_capacity(numbers);
            for lane in 0..NR.min(outputs - i * NR) {
                row.clear();
                read(i * NR + lane, &mut row);
                assert_eq!(row.len(), numbers, "a row of another length");
                pack_row(format, &row, lane, part);
            }
        });
        Self::of_packed(format, (outputs, inputs), data.into())
    }

    /// Packs the matrix of little-endian bf16 whose row `o` is `row(o)`, as [`Self::new`] does, but
    /// without a detour through f32.
    ///
    /// # Panics
    /// If `inputs` is odd, or the format not of pairs of bf16.
    pub(crate) fn of_bf16<'a>(
        pool: &ComputePool,
        format: Format,
        (outputs, inputs): (usize, usize),
        row: impl Fn(usize) -> &'a [u8] + Sync,
    ) -> Self {
        assert!(matches!(format, Format::Bf16 | Format::Tiles), "no pairs");
        assert!(inputs.is_multiple_of(2), "half a pair");
        let width = format.dwords(inputs) * NR;
        let mut data = Lines::zeroed(Self::len(format, (outputs, inputs)));
        // Copying takes about a quarter of a nanosecond per element.
        let cost_ns = outputs * inputs / 4;
        pool.rows(&mut data, width.max(1), 1, cost_ns, |_, i, panel| {
            let rows = (i * NR..outputs).take(NR).map(&row);
            let rows: Vec<&[[u8; 4]]> = rows.map(|row| row.as_chunks().0).collect();
            // A cache line of each row at a time, so that what is written stays in the first cache.
            for (block, lines) in panel.chunks_mut(PAIRS_AT_ONCE * NR).enumerate() {
                let first = block * PAIRS_AT_ONCE;
                for (lane, row) in rows.iter().enumerate() {
                    let pairs = row.iter().skip(first).take(PAIRS_AT_ONCE);
                    for (line, pair) in lines.chunks_exact_mut(NR).zip(pairs) {
                        line[lane] = u32::from_le_bytes(*pair);
                    }
                }
            }
        });
        Self::of_packed(format, (outputs, inputs), data.into())
    }

    /// Returns the length in dwords of a matrix in memory.
    pub(crate) const fn len(format: Format, (outputs, inputs): (usize, usize)) -> usize {
        outputs.div_ceil(NR) * format.dwords(inputs) * NR
    }

    /// Returns the matrix whose panels `data` holds, as [`Self::data`] returned them.
    ///
    /// # Panics
    /// If they are not as long as such a matrix is.
    pub(crate) fn of_packed(format: Format, size: (usize, usize), data: Words) -> Self {
        assert_eq!(data.len(), Self::len(format, size), "another shape");
        Self {
            outputs: size.0,
            inputs: size.1,
            format,
            data,
            bias: None,
        }
    }

    /// Panels, as they lie in memory.
    pub(crate) const fn data(&self) -> &Words {
        &self.data
    }

    /// Adds `bias[o]` to output `o`.
    pub(crate) fn with_bias(mut self, bias: Option<Vec<f32>>) -> Self {
        assert!(bias.as_ref().is_none_or(|b| b.len() == self.outputs));
        self.bias = bias;
        self
    }

    pub(crate) const fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the bytes of the matrix's elements as they lie in memory, padding included.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.data)
    }

    fn panel_dwords(&self) -> usize {
        self.format.dwords(self.inputs) * NR
    }

    /// Returns the dwords of a panel: none beyond the last panel.
    pub(super) fn dwords(&self, index: usize) -> &[u32] {
        let len = self.panel_dwords();
        self.data.get(index * len..(index + 1) * len).unwrap_or(&[])
    }

    pub(super) fn panel(&self, index: usize) -> Panel<'_> {
        let dwords = self.dwords(index);
        match self.format {
            Format::Bf16 | Format::Tiles => Panel::Bf16(dwords),
            Format::F32 => Panel::F32(dwords),
            Format::Int8 | Format::Fp8 | Format::Fp8Blocks => {
                unreachable!("panels with scales are for rounded rows")
            }
        }
    }

    /// Cuts a panel into parts, one for each product of up to [`MR`] of `rows` rows to fetch.
    pub(super) fn shares(&self, index: usize, rows: usize) -> impl Iterator<Item = &[u32]> {
        let panel = match rows {
            // Reading the panel at hand is all that memory can do meanwhile.
            0..FETCH_ROWS => &[],
            _ => self.dwords(index),
        };
        let share = panel.len().div_ceil(rows.div_ceil(MR).max(1));
        panel.chunks(share.max(1).next_multiple_of(LINE))
    }

    /// Returns the estimated time of a product with `rows` rows on one core, which computes `rate`
    /// multiply-adds, or reads 16 bytes of weights, in a nanosecond.
    pub(super) fn cost_ns(&self, rows: usize, rate: usize) -> usize {
        (rows * self.inputs * self.outputs / rate).max(self.data.len() / 4)
    }

    /// Writes row `output` of the matrix.
    pub(crate) fn read_row(&self, output: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.inputs, "a row of another length");
        let len = self.panel_dwords();
        let panel = &self.data[output / NR * len..][..len];
        let column = panel[output % NR..].iter().step_by(NR);
        match self.format {
            Format::Int8 => int8::read_column(panel, output % NR, out),
            Format::Fp8 | Format::Fp8Blocks => unreachable!("matrices of layers are not read"),
            Format::Bf16 | Format::Tiles => {
                for (pair, &dword) in out.chunks_exact_mut(2).zip(column) {
                    pair[0] = f32::from_bits(dword << 16);
                    pair[1] = f32::from_bits(dword & 0xffff_0000);
                }
            }
            _ => {
                for (x, &dword) in out.iter_mut().zip(column) {
                    *x = f32::from_bits(dword);
                }
            }
        }
    }

    /// Returns a matrix of chosen rows of this one. Products with it have the same bits: columns of
    /// panels are copied as they lie.
    pub(crate) fn select(&self, pool: &ComputePool, outputs: &[u32]) -> Self {
        let width = self.panel_dwords();
        let mut data = Lines::zeroed(outputs.len().div_ceil(NR) * width);
        let cost_ns = outputs.len() * self.inputs;
        pool.rows(&mut data, width.max(1), 1, cost_ns, |_, i, part| {
            let chosen = outputs[i * NR..].iter().take(NR);
            for (lane, &output) in chosen.enumerate() {
                let output = output as usize;
                let from = &self.data[output / NR * width..][..width];
                let from = from.iter().skip(output % NR).step_by(NR);
                let to = part.iter_mut().skip(lane).step_by(NR);
                to.zip(from).for_each(|(to, &from)| *to = from);
            }
        });
        let bias = self.bias.as_ref();
        let bias = bias.map(|bias| outputs.iter().map(|&o| bias[o as usize]).collect());
        Self::of_packed(self.format, (outputs.len(), self.inputs), data.into()).with_bias(bias)
    }

    /// Writes a tile's row and the bias to outputs from `first` on, or adds them.
    pub(super) fn finish(
        &self,
        isa: Supported,
        first: usize,
        sums: &[f32],
        add: bool,
        out: &mut [f32],
    ) {
        let bias = self.bias.as_ref().map(|bias| &bias[first..][..sums.len()]);
        simd::put_sums(isa, sums, bias, add, out);
    }
}

/// Writes one row of a matrix to its place: column `lane` of a panel.
fn pack_row(format: Format, row: &[f32], lane: usize, part: &mut [u32]) {
    match format {
        Format::Int8 => int8::pack_column(row, lane, part),
        Format::Fp8 => fp8::pack_column(row, lane, part),
        Format::Fp8Blocks => fp8::blocks::pack_column(row, lane, part),
        Format::F32 => {
            for (line, &x) in part.chunks_exact_mut(NR).zip(row) {
                line[lane] = x.to_bits();
            }
        }
        Format::Bf16 | Format::Tiles => {
            for (line, pair) in part.chunks_exact_mut(NR).zip(row.as_chunks::<2>().0) {
                line[lane] =
                    elementwise::bf16_bits(pair[0]) | (elementwise::bf16_bits(pair[1]) << 16);
            }
        }
    }
}
