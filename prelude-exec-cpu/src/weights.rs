//! Weights in this executor's formats, and their loader.

use std::sync::Arc;

use bytemuck::AnyBitPattern;
use half::bf16;
use prelude_models::{
    DType, Fp8Matrix, TensorView, WeightLoader, rotation, stacked_blocks, stacked_shape,
};

use crate::{
    CpuDtype, Error, Quantization,
    kernels::{
        Backend, InputForm,
        fp8::blocks::BLOCK,
        gemm::{Format, Matrix},
        lines::Lines,
        words::Words,
    },
    packed::{Reader, Shape},
    pool::ComputePool,
};

/// A matrix, vector or table.
#[derive(Debug)]
pub struct Weight(pub(crate) Repr);

#[derive(Debug)]
pub(crate) enum Repr {
    /// The matrix is for products; an embedding table too if it is also the output head.
    Matrix(Matrix),
    /// An embedding table, `[V, H]` row-major, of bf16.
    TableBf16 { data: Words, width: usize },
    /// An embedding table, `[V, H]` row-major, of f32.
    TableF32 { data: Words, width: usize },
    /// A norm's weight.
    Vector(Vec<f32>),
    /// Rotations: per position `D/2` cosines, then `D/2` sines.
    Rope { data: Vec<f32>, width: usize },
}

impl Weight {
    /// The matrix.
    ///
    /// # Panics
    /// If it is none: a model mixed up its weights.
    pub(crate) fn matrix(&self) -> &Matrix {
        match &self.0 {
            Repr::Matrix(matrix) => matrix,
            other => panic!("a matrix was expected, not {}", other.kind()),
        }
    }

    /// The vector.
    ///
    /// # Panics
    /// If it is none: a model mixed up its weights.
    pub(crate) fn vector(&self) -> &[f32] {
        match &self.0 {
            Repr::Vector(values) => values,
            other => panic!("a vector was expected, not {}", other.kind()),
        }
    }

    /// Cosines and sines of a position.
    ///
    /// # Panics
    /// If it holds no rotations: a model mixed up its weights.
    pub(crate) fn rotation(&self, position: u32) -> &[f32] {
        match &self.0 {
            Repr::Rope { data, width } => &data[position as usize * width..][..*width],
            other => panic!("rotations were expected, not {}", other.kind()),
        }
    }

    /// Writes an embedding.
    ///
    /// # Panics
    /// If it is no table: a model mixed up its weights.
    pub(crate) fn embedding(&self, token: u32, out: &mut [f32]) {
        let token = token as usize;
        match &self.0 {
            Repr::Matrix(matrix) => matrix.read_row(token, out),
            Repr::TableBf16 { data, width } => {
                for (out, x) in out.iter_mut().zip(table_row::<bf16>(data, *width, token)) {
                    *out = x.to_f32();
                }
            }
            Repr::TableF32 { data, width } => {
                out.copy_from_slice(table_row(data, *width, token));
            }
            other => panic!("a table was expected, not {}", other.kind()),
        }
    }
}

impl Weight {
    /// Adds a row of a table that is no output head.
    ///
    /// # Panics
    /// If it is none: a model mixed up its weights.
    pub(crate) fn add_embedding(&self, row: u32, out: &mut [f32]) {
        let row = row as usize;
        match &self.0 {
            Repr::TableBf16 { data, width } => {
                for (out, x) in out.iter_mut().zip(table_row::<bf16>(data, *width, row)) {
                    *out += x.to_f32();
                }
            }
            Repr::TableF32 { data, width } => {
                for (out, x) in out.iter_mut().zip(table_row::<f32>(data, *width, row)) {
                    *out += x;
                }
            }
            other => panic!("a table was expected, not {}", other.kind()),
        }
    }
}

/// Returns a row of a table of numbers of type `T`.
fn table_row<T: AnyBitPattern>(data: &Words, width: usize, row: usize) -> &[T] {
    &bytemuck::cast_slice(data)[row * width..][..width]
}

impl Repr {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Matrix(_) => "a matrix",
            Self::TableBf16 { .. } | Self::TableF32 { .. } => "a table",
            Self::Vector(_) => "a vector",
            Self::Rope { .. } => "rotations",
        }
    }
}

/// Elements of a tensor that a thread checks at once: few enough to share a tensor among threads.
const CHECKED_AT_ONCE: usize = 1 << 18;

/// Converts a checkpoint's tensors.
#[derive(Debug)]
pub struct CpuLoader {
    pool: Arc<ComputePool>,
    backend: Backend,
    dtype: CpuDtype,
    quantization: Option<Quantization>,
    packed: Packed,
}

/// The part that packed weights have in loading.
#[derive(Debug, Default)]
enum Packed {
    /// No file is kept.
    #[default]
    Off,
    /// Weights are collected, to be written.
    Collect(Vec<(Shape, Words)>),
    /// Weights come from a packed file.
    Read(Reader),
}

/// Numbers of storage forms in a packed file.
mod form {
    use super::Format;

    pub(super) const TABLE_BF16: u64 = 16;
    pub(super) const TABLE_F32: u64 = 17;

    pub(super) const fn of(format: Format) -> u64 {
        match format {
            Format::Bf16 => 0,
            Format::Tiles => 1,
            Format::F32 => 2,
            Format::Int8 => 3,
            Format::Fp8 => 5,
            Format::Fp8Blocks => 6,
        }
    }
}

impl CpuLoader {
    pub(crate) fn new(
        pool: Arc<ComputePool>,
        (dtype, backend): (CpuDtype, Backend),
        quantization: Option<Quantization>,
    ) -> Self {
        Self {
            pool,
            backend,
            dtype,
            quantization,
            packed: Packed::Off,
        }
    }

    /// Returns this loader, which keeps the weights for [`Self::collected`].
    pub(crate) fn collecting(mut self) -> Self {
        self.packed = Packed::Collect(Vec::new());
        self
    }

    /// Returns this loader, which takes matrices and tables from a packed file.
    pub(crate) fn reading(mut self, file: Reader) -> Self {
        self.packed = Packed::Read(file);
        self
    }

    /// Returns the weights of a loader that was [`Self::collecting`].
    pub(crate) fn collected(self) -> Vec<(Shape, Words)> {
        match self.packed {
            Packed::Collect(weights) => weights,
            Packed::Off | Packed::Read(_) => Vec::new(),
        }
    }

    /// Returns a matrix or table from the packed file that is read, or the one that `pack` makes.
    fn packed(
        &mut self,
        name: &str,
        shape: Shape,
        bytes: usize,
        pack: impl FnOnce(&Self) -> Words,
    ) -> Result<Words, Error> {
        if let Packed::Read(file) = &mut self.packed {
            let words = file.next(shape, bytes);
            return words.ok_or_else(|| Error::weight(name, "is not next in the packed file"));
        }
        let words = pack(self);
        if let Packed::Collect(weights) = &mut self.packed {
            weights.push((shape, words.clone()));
        }
        Ok(words)
    }

    /// Returns a matrix from the packed file that is read, or the one that `pack` makes.
    fn packed_matrix(
        &mut self,
        name: &str,
        format: Format,
        (outputs, inputs): (usize, usize),
        pack: impl FnOnce(&ComputePool) -> Matrix,
    ) -> Result<Matrix, Error> {
        let shape = Shape {
            form: form::of(format),
            outputs,
            inputs,
        };
        let size = (outputs, inputs);
        let bytes = Matrix::len(format, size) * size_of::<u32>();
        let pack = |loader: &Self| pack(&loader.pool).data().clone();
        let words = self.packed(name, shape, bytes, pack)?;
        Ok(Matrix::of_packed(format, size, words))
    }

    /// Returns the form of a matrix that is multiplied: `of_layer` or of a head.
    fn format(&self, parts: &[TensorView<'_>], of_layer: bool) -> Format {
        match self.quantization {
            Some(Quantization::Int8) => Format::Int8,
            Some(Quantization::Fp8) if of_layer => Format::Fp8,
            None | Some(Quantization::Fp8) => self.unquantised(parts),
        }
    }

    /// Packed as bf16 where that is asked for or loses nothing.
    fn unquantised(&self, parts: &[TensorView<'_>]) -> Format {
        let exact = parts.iter().all(|part| part.dtype == DType::Bf16);
        match self.backend.act {
            InputForm::Tiles => Format::Tiles,
            _ if self.dtype == CpuDtype::Bf16 || exact => Format::Bf16,
            _ => Format::F32,
        }
    }

    /// `parts` stacked along their rows, with their biases; `of_layer` or of a head.
    fn product(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
        of_layer: bool,
    ) -> Result<Weight, Error> {
        let format = self.format(parts, of_layer);
        let matrix = self.matrix(name, parts, biases, format)?;
        Ok(Weight(Repr::Matrix(matrix.with_bias(bias_of(biases)))))
    }

    /// `parts` stacked along their rows as they are stored, without their biases; the whole has so many
    /// rows and so many columns.
    fn blocks(
        &mut self,
        name: &str,
        parts: &[Fp8Matrix<'_>],
        size: (usize, usize),
    ) -> Result<Matrix, Error> {
        let rows = parts
            .iter()
            .flat_map(|part| (0..part.shape[0]).map(move |row| (part, row)));
        let rows: Vec<_> = rows.collect();
        self.packed_matrix(name, Format::Fp8Blocks, size, |pool| {
            Matrix::new(pool, Format::Fp8Blocks, size, |row, out| {
                let (part, row) = rows[row];
                out.extend(part.row(row));
                out.extend_from_slice(part.row_scales(row));
            })
        })
    }

    /// `parts` stacked along their rows, without their biases.
    fn matrix(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
        format: Format,
    ) -> Result<Matrix, Error> {
        let shape = stacked_shape(parts, biases);
        let (outputs, inputs) = shape.map_err(|what| Error::weight(name, what))?;
        if outputs == 0 || inputs == 0 || !inputs.is_multiple_of(2) {
            return Err(Error::weight(
                name,
                format!("is [{outputs}, {inputs}]; rows must be of even, positive length"),
            ));
        }
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.shape[0];
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        // The part that holds a row, and the elements of the row in it.
        let place = |row: usize| {
            let part = ends.partition_point(|&end| end <= row);
            let first = part.checked_sub(1).map_or(0, |previous| ends[previous]);
            let row = row - first;
            (&parts[part], row * inputs..(row + 1) * inputs)
        };
        let size = (outputs, inputs);
        let is_bf16 = parts.iter().all(|part| part.dtype == DType::Bf16);
        self.packed_matrix(name, format, size, |pool| {
            if is_bf16 && matches!(format, Format::Bf16 | Format::Tiles) {
                return Matrix::of_bf16(pool, format, size, |row| {
                    let (part, elements) = place(row);
                    &part.bytes[2 * elements.start..2 * elements.end]
                });
            }
            Matrix::new(pool, format, size, |row, out| {
                let (part, elements) = place(row);
                part.read_f32(elements, out);
            })
        })
    }
}

/// Biases one after the other, if there are any.
fn bias_of(biases: &[TensorView<'_>]) -> Option<Vec<f32>> {
    let mut bias = Vec::new();
    for part in biases {
        part.read_f32(0..part.len(), &mut bias);
    }
    (!bias.is_empty()).then_some(bias)
}

impl WeightLoader for CpuLoader {
    type Weight = Weight;
    type Error = Error;

    fn first_non_finite(&self, tensor: &TensorView<'_>) -> Option<usize> {
        // Matrices and tables of a packed file were looked at before they were packed.
        if matches!(self.packed, Packed::Read(_)) && tensor.shape.len() > 1 {
            return None;
        }
        let size = tensor.dtype.size();
        let parts = tensor.bytes.chunks(CHECKED_AT_ONCE * size);
        let mut found = vec![None; parts.len()];
        // About a tenth of a nanosecond for each element.
        let cost_ns = tensor.bytes.len() / size / 10;
        self.pool.rows(&mut found, 1, 1, cost_ns, |_, i, found| {
            let first = i * CHECKED_AT_ONCE;
            let last = (first + CHECKED_AT_ONCE).min(tensor.bytes.len() / size);
            let part = TensorView {
                dtype: tensor.dtype,
                shape: vec![last - first],
                bytes: &tensor.bytes[first * size..last * size],
            };
            found[0] = part.first_non_finite().map(|at| first + at);
        });
        found.into_iter().flatten().next()
    }

    fn linear(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Error> {
        self.product(name, parts, biases, true)
    }

    fn linear_fp8(
        &mut self,
        name: &str,
        parts: &[Fp8Matrix<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Option<Weight>, Error> {
        let size = stacked_blocks(parts, biases, BLOCK);
        let is_fp8 = self.quantization == Some(Quantization::Fp8);
        let Some(size) = size.filter(|_| is_fp8) else {
            return Ok(None);
        };
        let matrix = self.blocks(name, parts, size)?;
        Ok(Some(Weight(Repr::Matrix(
            matrix.with_bias(bias_of(biases)),
        ))))
    }

    fn head(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Error> {
        self.product(name, parts, biases, false)
    }

    fn embedding(
        &mut self,
        name: &str,
        table: &TensorView<'_>,
        is_head: bool,
    ) -> Result<Weight, Error> {
        let parts = std::slice::from_ref(table);
        if is_head {
            return self.product(name, parts, &[], false);
        }
        let shape = stacked_shape(parts, &[]);
        let (rows, width) = shape.map_err(|what| Error::weight(name, what))?;
        let is_bf16 = matches!(self.unquantised(parts), Format::Bf16 | Format::Tiles);
        let (form, size) = match is_bf16 {
            true => (form::TABLE_BF16, size_of::<bf16>()),
            false => (form::TABLE_F32, size_of::<f32>()),
        };
        let shape = Shape {
            form,
            outputs: rows,
            inputs: width,
        };
        let dwords = (rows * width * size).div_ceil(size_of::<u32>());
        let data = self.packed(name, shape, dwords * size_of::<u32>(), |_| {
            let mut lines = Lines::zeroed(dwords);
            let mut row = Vec::with_capacity(width);
            for i in 0..rows {
                row.clear();
                table.read_f32(i * width..(i + 1) * width, &mut row);
                if is_bf16 {
                    let out = &mut bytemuck::cast_slice_mut::<_, bf16>(&mut lines)[i * width..];
                    for (out, &x) in out.iter_mut().zip(&row) {
                        *out = bf16::from_f32(x);
                    }
                } else {
                    let out = &mut bytemuck::cast_slice_mut::<_, f32>(&mut lines)[i * width..];
                    out[..width].copy_from_slice(&row);
                }
            }
            lines.into()
        })?;
        Ok(Weight(match is_bf16 {
            true => Repr::TableBf16 { data, width },
            false => Repr::TableF32 { data, width },
        }))
    }

    fn vector(&mut self, _: &str, values: &TensorView<'_>) -> Result<Weight, Error> {
        let mut data = Vec::with_capacity(values.len());
        values.read_f32(0..values.len(), &mut data);
        Ok(Weight(Repr::Vector(data)))
    }

    fn norm(&mut self, name: &str, values: &TensorView<'_>, offset: f32) -> Result<Weight, Error> {
        let mut weight = self.vector(name, values)?;
        if let (Repr::Vector(data), true) = (&mut weight.0, offset != 0.0) {
            data.iter_mut().for_each(|w| *w += offset);
        }
        Ok(weight)
    }

    fn rope(
        &mut self,
        inv_freq: &[f32],
        attention_scaling: f32,
        positions: usize,
    ) -> Result<Weight, Error> {
        let half = inv_freq.len();
        let width = 2 * half;
        let len = positions.saturating_mul(width);
        let mut data = Vec::new();
        data.try_reserve_exact(len).map_err(|_| Error::Allocation {
            what: "rotations; lower `max_context_len`",
            bytes: (len as u64).saturating_mul(size_of::<f32>() as u64),
        })?;
        data.resize(len, 0.0);
        self.pool.rows(
            &mut data,
            width,
            64,
            positions * width * 10,
            |_, first, rows| {
                for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                    let (cos, sin) = row.split_at_mut(half);
                    for (j, &frequency) in inv_freq.iter().enumerate() {
                        (cos[j], sin[j]) = rotation(first + i, frequency, attention_scaling);
                    }
                }
            },
        );
        Ok(Weight(Repr::Rope { data, width }))
    }
}
