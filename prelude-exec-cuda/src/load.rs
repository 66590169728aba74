//! Weights in GPU memory, and their loader.
//!
//! Matrices are bf16, `[out, in]` row-major as checkpoints store them, fused ones stacked: q rows
//! first, then k, then v; gate, then up. What a checkpoint stores in other types is rounded.
//! Matrices of layers, those of experts too, are e4m3 where [`crate::CudaConfig::fp8`] asks for it: as they
//! are, if a checkpoint stores them so with scales of blocks of 128 × 128; else with a scale for each row.
//! Then each is sent in bf16 to a place that the next one takes again, and rounded there.

use std::{ops::Range, sync::Arc};

use half::bf16;
use prelude_kernels::DevicePtr;
use prelude_models::{
    DType, Fp8Matrix, TensorView, WeightLoader, rotation, stacked_blocks, stacked_shape,
};

use crate::{
    Error,
    config::{FP8_BLOCK, FP8_ROW_MULTIPLE},
    kernels::{
        experts::Factor,
        fp8::{self, Fp8View, Scaling},
        launch::Launcher,
        lt::{Matrix, WeightAt, Weights},
    },
    memory::{
        space::{Buffer, Space},
        view::View,
    },
    stage::{PART_BYTES, Stage},
};

/// Elements that a thread converts at a time: few enough to stay in its cache.
const CONVERTED_AT_ONCE: usize = 16 << 10;

/// A matrix, vector or table.
#[derive(Debug)]
pub struct Weight(Repr);

#[derive(Debug)]
enum Repr {
    /// bf16 `[rows, width]`.
    Matrix {
        data: Buffer,
        rows: usize,
        width: usize,
        /// bf16 `[rows]`.
        bias: Option<Buffer>,
    },
    /// e4m3 `[rows, width]`.
    Fp8 {
        data: Buffer,
        /// f32, of rows or of blocks.
        scales: Buffer,
        scaling: Scaling,
        rows: usize,
        width: usize,
        /// bf16 `[rows]`.
        bias: Option<Buffer>,
    },
    /// The matrix `index` of the stack.
    OfStack { stack: Arc<Stack>, index: usize },
    /// bf16 `[width]`.
    Vector {
        data: Buffer,
        width: usize,
        /// Added to each number where it is used: a sum rounded to bf16 would be another one.
        offset: f32,
    },
    /// f32 `[positions, width]`: `width / 2` cosines, then as many sines.
    Rope {
        data: Buffer,
        positions: usize,
        width: usize,
    },
}

impl Weight {
    const fn kind(&self) -> &'static str {
        match self.0 {
            Repr::Matrix { .. } => "a matrix",
            Repr::Fp8 { .. } => "a matrix in fp8",
            Repr::OfStack { .. } => "a matrix of a stack",
            Repr::Vector { .. } => "a vector",
            Repr::Rope { .. } => "rotations",
        }
    }

    /// The matrix, and its bias as one row.
    ///
    /// # Panics
    /// If it is none: a model mixed up its weights.
    pub(crate) fn matrix(&self) -> (View<bf16>, Option<View<bf16>>) {
        match &self.0 {
            Repr::Matrix {
                data,
                rows,
                width,
                bias,
            } => {
                let bias = bias.as_ref().map(|b| b.view(0, 1, *rows));
                (data.view(0, *rows, *width), bias)
            }
            _ => panic!("a matrix was expected, not {}", self.kind()),
        }
    }

    /// The matrix in e4m3, and its bias as one row; `None` if it is of another kind.
    pub(crate) fn fp8(&self) -> Option<(Fp8View, Option<View<bf16>>)> {
        match &self.0 {
            Repr::Fp8 {
                data,
                scales,
                scaling,
                rows,
                width,
                bias,
            } => {
                let [scale_rows, scale_width] = scaling.of_weight(*rows, *width);
                let view = Fp8View {
                    data: data.view(0, *rows, *width),
                    scales: scales.view(0, scale_rows, scale_width),
                    scaling: *scaling,
                };
                Some((view, bias.as_ref().map(|b| b.view(0, 1, *rows))))
            }
            _ => None,
        }
    }

    /// The whole stack that it is a matrix of, `[count · rows, width]`, and its index and `count`;
    /// `None` if it is of no stack.
    pub(crate) fn stack(&self) -> Option<(Factor, (usize, usize))> {
        match &self.0 {
            Repr::OfStack { stack, index } => Some((stack.all(), (*index, stack.count))),
            _ => None,
        }
    }

    /// The vector, as one row.
    ///
    /// # Panics
    /// If it is none: a model mixed up its weights.
    pub(crate) fn vector(&self) -> View<bf16> {
        match &self.0 {
            Repr::Vector { data, width, .. } => data.view(0, 1, *width),
            _ => panic!("a vector was expected, not {}", self.kind()),
        }
    }

    /// The weight of a norm: the vector, and what is added to each number.
    ///
    /// # Panics
    /// If it is no vector: a model mixed up its weights.
    pub(crate) fn norm(&self) -> (View<bf16>, f32) {
        match &self.0 {
            Repr::Vector { offset, .. } => (self.vector(), *offset),
            _ => panic!("a norm was expected, not {}", self.kind()),
        }
    }

    /// The rotations, a row for each position.
    ///
    /// # Panics
    /// If it holds none: a model mixed up its weights.
    pub(crate) fn rope(&self) -> View<f32> {
        match &self.0 {
            Repr::Rope {
                data,
                positions,
                width,
            } => data.view(0, *positions, *width),
            _ => panic!("rotations were expected, not {}", self.kind()),
        }
    }
}

/// Equally shaped matrices that are placed one behind the other.
#[derive(Debug)]
struct Stack {
    /// bf16 or e4m3 `[count · rows, width]`.
    data: Buffer,
    /// The scales of e4m3, f32 of [`Scaling::of_stack`].
    scales: Option<(Buffer, Scaling)>,
    /// The rows and the width of each matrix.
    shape: (usize, usize),
    count: usize,
}

impl Stack {
    /// Returns the `count` matrices from `index` on, in e4m3 with these scales.
    fn fp8(&self, index: usize, count: usize, (scales, scaling): (&Buffer, Scaling)) -> Fp8View {
        let (rows, width) = self.shape;
        let [before_rows, before_width] = scaling.of_stack(index, rows, width);
        let [scale_rows, scale_width] = scaling.of_stack(count, rows, width);
        let before = before_rows * before_width * size_of::<f32>();
        Fp8View {
            data: self.data.view(index * rows * width, count * rows, width),
            scales: scales.view(before, scale_rows, scale_width),
            scaling,
        }
    }

    /// Returns all matrices.
    fn all(&self) -> Factor {
        let (rows, width) = self.shape;
        match &self.scales {
            None => Factor::Bf16(self.data.view(0, self.count * rows, width)),
            Some((scales, scaling)) => Factor::Fp8(self.fp8(0, self.count, (scales, *scaling))),
        }
    }
}

/// A stack whose matrices are being loaded.
#[derive(Debug)]
struct StackInProgress {
    stack: Arc<Stack>,
    /// The index of the matrix that is loaded next.
    next: usize,
}

/// Rounds matrices on the GPU.
#[derive(Debug)]
struct Rounding {
    launcher: Launcher,
    /// The largest matrix so far in bf16, or the latest.
    stage: Option<Buffer>,
}

/// Converts a checkpoint's tensors and sends them to the GPU.
#[derive(Debug)]
pub struct CudaLoader {
    space: Space,
    /// The way that everything is sent.
    way: Stage,
    /// The launcher that rounds matrices of layers; `None` if they stay bf16.
    rounding: Option<Rounding>,
    /// The matrices so far, for which products are prepared.
    matrices: Weights,
    /// The stack whose matrices are being loaded.
    stack: Option<StackInProgress>,
    /// Bytes of all weights so far.
    bytes: u64,
}

impl CudaLoader {
    /// `fp8`: what rounds matrices of layers to e4m3; `None` if they stay bf16.
    pub(crate) fn new(space: Space, fp8: Option<Launcher>) -> Self {
        let rounding = fp8.map(|launcher| Rounding {
            launcher,
            stage: None,
        });
        Self {
            way: Stage::new(space.clone()),
            space,
            rounding,
            matrices: Weights::new(),
            stack: None,
            bytes: 0,
        }
    }

    /// Returns what rounded matrices, if anything did, and frees what it took.
    pub(crate) fn end_rounding(&mut self) -> Option<Launcher> {
        Some(self.rounding.take()?.launcher)
    }

    /// Bytes of the weights that it sent.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The matrices that it sent, by shape.
    pub(crate) const fn matrices(&self) -> &Weights {
        &self.matrices
    }

    fn alloc(&mut self, name: &str, bytes: usize) -> Result<Buffer, Error> {
        self.bytes += bytes as u64;
        self.space.alloc(name, bytes)
    }

    /// `parts` one after the other.
    fn send(&mut self, name: &str, parts: &[TensorView<'_>]) -> Result<Buffer, Error> {
        let len: usize = parts.iter().map(TensorView::len).sum();
        let buffer = self.alloc(name, len * size_of::<bf16>())?;
        Self::fill(&mut self.way, &buffer, 0, name, parts)?;
        Ok(buffer)
    }

    /// Sends `parts` one after the other, from a byte of a buffer on.
    fn fill(
        way: &mut Stage,
        buffer: &Buffer,
        mut offset: usize,
        name: &str,
        parts: &[TensorView<'_>],
    ) -> Result<(), Error> {
        const SIZE: usize = size_of::<bf16>();
        for part in parts {
            let len = part.len();
            let make = |items: Range<usize>, out: &mut [u8]| {
                if part.dtype == DType::Bf16 {
                    // As stored; on a little-endian machine, which every host of a GPU is.
                    out.copy_from_slice(&part.bytes[items.start * SIZE..items.end * SIZE]);
                    return Ok(());
                }
                round(part, items, out).map_err(|i| {
                    Error::weight(name, format!("element {i} exceeds the range of bf16"))
                })
            };
            way.send(buffer, offset, (len, SIZE), make)?;
            offset += len * SIZE;
        }
        Ok(())
    }

    /// Returns the rows and the width of stacked `parts`, if kernels take them.
    fn shape(
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<(usize, usize), Error> {
        let shape = stacked_shape(parts, biases);
        let (rows, width) = shape.map_err(|what| Error::weight(name, what))?;
        if rows == 0 || width == 0 || !width.is_multiple_of(8) {
            let what = format!("is [{rows}, {width}]; kernels take rows of a multiple of 8");
            return Err(Error::weight(name, what));
        }
        Ok((rows, width))
    }

    /// Remembers a matrix that products are made with.
    fn note_matrix(
        &mut self,
        data: &Buffer,
        scales: Option<(&Buffer, Scaling)>,
        (rows, width): (usize, usize),
        bias: Option<&Buffer>,
    ) {
        let (Ok(n), Ok(k)) = (u32::try_from(rows), u32::try_from(width)) else {
            return;
        };
        let matrix = Matrix {
            n,
            k,
            has_bias: bias.is_some(),
            fp8: scales.map(|(_, scaling)| scaling),
        };
        let address = |of: Option<&Buffer>| of.map_or(DevicePtr::NULL, Buffer::start);
        self.matrices.entry(matrix).or_default().push(WeightAt {
            w: data.start(),
            scales: address(scales.map(|(scales, _)| scales)),
            bias: address(bias),
        });
    }

    /// `is_factor`: whether products are made with it.
    fn matrix(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
        is_factor: bool,
    ) -> Result<Weight, Error> {
        let (rows, width) = Self::shape(name, parts, biases)?;
        let bias = match biases {
            [] => None,
            _ => Some(self.send(&format!("{name}.bias"), biases)?),
        };
        let data = self.send(name, parts)?;
        if is_factor {
            self.note_matrix(&data, None, (rows, width), bias.as_ref());
        }
        Ok(Weight(Repr::Matrix {
            data,
            rows,
            width,
            bias,
        }))
    }
}

/// Returns a stage of at least so many bytes.
fn stage<'a>(
    stage: &'a mut Option<Buffer>,
    space: &Space,
    bytes: usize,
) -> Result<&'a Buffer, Error> {
    if stage.as_ref().is_none_or(|stage| stage.bytes() < bytes) {
        // Freed before a larger one is taken.
        *stage = None;
    }
    match stage {
        Some(stage) => Ok(stage),
        none => Ok(none.insert(space.alloc("fp8 stage", bytes)?)),
    }
}

impl CudaLoader {
    /// A matrix of a layer in e4m3.
    fn fp8_matrix(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Error> {
        let (rows, width) = Self::fp8_shape(name, parts, biases)?;
        let bias = match biases {
            [] => None,
            _ => Some(self.send(&format!("{name}.bias"), biases)?),
        };
        let data = self.alloc(name, rows * width)?;
        let scales = self.alloc(&format!("{name}.scale"), rows * size_of::<f32>())?;
        let of_rows = Some((&scales, Scaling::Rows));
        self.note_matrix(&data, of_rows, (rows, width), bias.as_ref());
        let rounded = Fp8View {
            data: data.view(0, rows, width),
            scales: scales.view(0, 1, rows),
            scaling: Scaling::Rows,
        };
        self.round(name, parts, rounded)?;
        Ok(Weight(Repr::Fp8 {
            data,
            scales,
            scaling: Scaling::Rows,
            rows,
            width,
            bias,
        }))
    }

    /// Returns the rows and the width of stacked `parts`, if kernels take them in e4m3.
    fn fp8_shape(
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<(usize, usize), Error> {
        let (rows, width) = Self::shape(name, parts, biases)?;
        if !width.is_multiple_of(FP8_ROW_MULTIPLE) {
            let what =
                format!("is [{rows}, {width}]; fp8 takes rows of a multiple of {FP8_ROW_MULTIPLE}");
            return Err(Error::weight(name, what));
        }
        Ok((rows, width))
    }

    /// Rounds stacked `parts`, with a scale for each row.
    fn round(&mut self, name: &str, parts: &[TensorView<'_>], to: Fp8View) -> Result<(), Error> {
        let Some(rounding) = &mut self.rounding else {
            return Err(Error::weight(name, "has nothing to be rounded by"));
        };
        let (rows, width) = (to.data.rows(), to.data.width());
        let bytes = rows * width * size_of::<bf16>();
        let stage = stage(&mut rounding.stage, &self.space, bytes)?;
        Self::fill(&mut self.way, stage, 0, name, parts)?;
        // Copies are on another stream than kernels.
        self.space.settle()?;
        fp8::quantise(&mut rounding.launcher, stage.view(0, rows, width), to)?;
        self.space.synchronize("rounding a weight")
    }

    /// Sends parts of items of `size` bytes, one after the other, as they are, from a byte of a buffer on.
    fn copy(
        &mut self,
        to: &Buffer,
        mut offset: usize,
        size: usize,
        parts: &[&[u8]],
    ) -> Result<(), Error> {
        for part in parts {
            let make = |items: Range<usize>, out: &mut [u8]| {
                out.copy_from_slice(&part[items.start * size..items.end * size]);
                Ok(())
            };
            self.way.send(to, offset, (part.len() / size, size), make)?;
            offset += part.len();
        }
        Ok(())
    }

    /// Sends a matrix with scales of blocks as it is stored, to the place `index` of those of its shape
    /// that the buffers have room for.
    fn copy_blocks(
        &mut self,
        (data, scales): (&Buffer, &Buffer),
        index: usize,
        (rows, width): (usize, usize),
        parts: &[Fp8Matrix<'_>],
    ) -> Result<(), Error> {
        let bytes: Vec<&[u8]> = parts.iter().map(|part| part.data).collect();
        self.copy(data, index * rows * width, 1, &bytes)?;
        let [_, scale_width] = Scaling::Blocks.of_weight(rows, width);
        let filled = filled_up(parts, width / FP8_BLOCK, scale_width);
        let filled: &[u8] = bytemuck::cast_slice(&filled);
        self.copy(scales, index * filled.len(), size_of::<f32>(), &[filled])
    }

    /// Returns the stack that the matrix `index` of `count` of a shape belongs to, which is allocated
    /// with the first one.
    fn stack_of(
        &mut self,
        name: &str,
        (index, count): (usize, usize),
        shape: (usize, usize),
        scaling: Option<Scaling>,
    ) -> Result<Arc<Stack>, Error> {
        let (rows, width) = shape;
        if index == 0 {
            let size = if scaling.is_some() {
                1
            } else {
                size_of::<bf16>()
            };
            let data = self.alloc(name, count * rows * width * size)?;
            let scales = match scaling {
                None => None,
                Some(scaling) => {
                    let [scale_rows, scale_width] = scaling.of_stack(count, rows, width);
                    let bytes = scale_rows * scale_width * size_of::<f32>();
                    Some((self.alloc(&format!("{name}.scale"), bytes)?, scaling))
                }
            };
            let stack = Stack {
                data,
                scales,
                shape,
                count,
            };
            self.stack = Some(StackInProgress {
                stack: Arc::new(stack),
                next: 0,
            });
        }
        let is_next = |of: &&mut StackInProgress| {
            let found = of.stack.scales.as_ref().map(|(_, scaling)| *scaling);
            (of.next, of.stack.count, of.stack.shape, found) == (index, count, shape, scaling)
                && index < count
        };
        let Some(in_progress) = self.stack.as_mut().filter(is_next) else {
            let what = format!("is [{rows}, {width}], or not the next of {count} alike matrices");
            return Err(Error::weight(name, what));
        };
        in_progress.next += 1;
        let (stack, next) = (Arc::clone(&in_progress.stack), in_progress.next);
        if next == count {
            self.stack = None;
        }
        Ok(stack)
    }
}

/// The scales of parts behind each other, rows of `width` of them filled up to `filled` with zeros.
fn filled_up(parts: &[Fp8Matrix<'_>], width: usize, filled: usize) -> Vec<f32> {
    let rows = parts.iter().flat_map(|part| part.scales.chunks(width));
    let mut all = Vec::new();
    for row in rows {
        all.extend_from_slice(row);
        all.resize(all.len() + filled - width, 0.0);
    }
    all
}

impl WeightLoader for CudaLoader {
    type Weight = Weight;
    type Error = Error;

    fn first_non_finite(&self, tensor: &TensorView<'_>) -> Option<usize> {
        let size = tensor.dtype.size();
        self.way.first_of(tensor.len(), PART_BYTES / size, |part| {
            let of = TensorView {
                dtype: tensor.dtype,
                shape: vec![part.len()],
                bytes: &tensor.bytes[part.start * size..part.end * size],
            };
            of.first_non_finite().map(|at| part.start + at)
        })
    }

    fn linear(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Error> {
        match self.rounding.is_some() {
            true => self.fp8_matrix(name, parts, biases),
            false => self.matrix(name, parts, biases, true),
        }
    }

    fn linear_fp8(
        &mut self,
        name: &str,
        parts: &[Fp8Matrix<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Option<Weight>, Error> {
        let shape = stacked_blocks(parts, biases, FP8_BLOCK);
        let shape = shape.filter(|_| self.rounding.is_some());
        let Some((rows, width)) = shape else {
            return Ok(None);
        };
        let bias = match biases {
            [] => None,
            _ => Some(self.send(&format!("{name}.bias"), biases)?),
        };
        let data = self.alloc(name, rows * width)?;
        let scaling = Scaling::Blocks;
        let [scale_rows, scale_width] = scaling.of_weight(rows, width);
        let bytes = scale_rows * scale_width * size_of::<f32>();
        let scales = self.alloc(&format!("{name}.scale"), bytes)?;
        self.copy_blocks((&data, &scales), 0, (rows, width), parts)?;
        let of_blocks = Some((&scales, scaling));
        self.note_matrix(&data, of_blocks, (rows, width), bias.as_ref());
        Ok(Some(Weight(Repr::Fp8 {
            data,
            scales,
            scaling,
            rows,
            width,
            bias,
        })))
    }

    fn head(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Error> {
        self.matrix(name, parts, biases, true)
    }

    fn linear_of_stack(
        &mut self,
        name: &str,
        (index, count): (usize, usize),
        parts: &[TensorView<'_>],
    ) -> Result<Weight, Error> {
        let is_rounded = self.rounding.is_some();
        let shape @ (rows, width) = match is_rounded {
            true => Self::fp8_shape(name, parts, &[])?,
            false => Self::shape(name, parts, &[])?,
        };
        let scaling = is_rounded.then_some(Scaling::Rows);
        let stack = self.stack_of(name, (index, count), shape, scaling)?;
        match &stack.scales {
            Some((scales, scaling)) => {
                self.round(name, parts, stack.fp8(index, 1, (scales, *scaling)))?;
            }
            None => {
                let offset = index * rows * width * size_of::<bf16>();
                Self::fill(&mut self.way, &stack.data, offset, name, parts)?;
            }
        }
        Ok(Weight(Repr::OfStack { stack, index }))
    }

    fn linear_fp8_of_stack(
        &mut self,
        name: &str,
        (index, count): (usize, usize),
        parts: &[Fp8Matrix<'_>],
    ) -> Result<Option<Weight>, Error> {
        let shape = stacked_blocks(parts, &[], FP8_BLOCK);
        let Some(shape) = shape.filter(|_| self.rounding.is_some()) else {
            return Ok(None);
        };
        let stack = self.stack_of(name, (index, count), shape, Some(Scaling::Blocks))?;
        if let Some((scales, _)) = &stack.scales {
            self.copy_blocks((&stack.data, scales), index, shape, parts)?;
        }
        Ok(Some(Weight(Repr::OfStack { stack, index })))
    }

    fn embedding(
        &mut self,
        name: &str,
        table: &TensorView<'_>,
        is_head: bool,
    ) -> Result<Weight, Error> {
        // One layout serves gathering and products.
        self.matrix(name, std::slice::from_ref(table), &[], is_head)
    }

    fn vector(&mut self, name: &str, values: &TensorView<'_>) -> Result<Weight, Error> {
        let data = self.send(name, std::slice::from_ref(values))?;
        let width = values.len();
        let offset = 0.0;
        Ok(Weight(Repr::Vector {
            data,
            width,
            offset,
        }))
    }

    fn norm(&mut self, name: &str, values: &TensorView<'_>, offset: f32) -> Result<Weight, Error> {
        let mut weight = self.vector(name, values)?;
        if let Repr::Vector { offset: of, .. } = &mut weight.0 {
            *of = offset;
        }
        Ok(weight)
    }

    fn rope(
        &mut self,
        inv_freq: &[f32],
        attention_scaling: f32,
        positions: usize,
    ) -> Result<Weight, Error> {
        let width = 2 * inv_freq.len();
        let bytes = positions
            .checked_mul(width * size_of::<f32>())
            .ok_or_else(|| Error::config("max_context_len", "exceeds the address space"))?;
        let data = self.alloc("rope", bytes)?;
        let row_bytes = width * size_of::<f32>();
        let make = |rows: Range<usize>, out: &mut [u8]| {
            let mut row = Vec::with_capacity(width);
            for (position, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
                row.clear();
                push_rotation(inv_freq, attention_scaling, position, &mut row);
                out.copy_from_slice(bytemuck::cast_slice(&row));
            }
            Ok(())
        };
        self.way.send(&data, 0, (positions, row_bytes), make)?;
        Ok(Weight(Repr::Rope {
            data,
            positions,
            width,
        }))
    }
}

/// Writes elements of a tensor as bf16.
///
/// # Errors
/// The index of the first that exceeds its range.
fn round(part: &TensorView<'_>, items: Range<usize>, out: &mut [u8]) -> Result<(), usize> {
    const SIZE: usize = size_of::<bf16>();
    let mut wide = Vec::with_capacity(CONVERTED_AT_ONCE.min(items.len()));
    let first = items.start;
    for start in items.clone().step_by(CONVERTED_AT_ONCE) {
        let end = items.end.min(start + CONVERTED_AT_ONCE);
        wide.clear();
        part.read_f32(start..end, &mut wide);
        let out = &mut out[(start - first) * SIZE..(end - first) * SIZE];
        let mut all_finite = true;
        for (x, out) in wide.iter().zip(out.chunks_exact_mut(SIZE)) {
            let x = bf16::from_f32(*x);
            all_finite &= x.is_finite();
            out.copy_from_slice(&x.to_le_bytes());
        }
        if !all_finite {
            let mut rounded = wide.iter().map(|&x| bf16::from_f32(x));
            return Err(start + rounded.position(|x| !x.is_finite()).unwrap_or(0));
        }
    }
    Ok(())
}

/// Appends the cosines, then the sines of one position.
fn push_rotation(inv_freq: &[f32], scaling: f32, position: usize, out: &mut Vec<f32>) {
    let rotations = inv_freq.iter().map(|&f| rotation(position, f, scaling));
    let (cosines, sines): (Vec<_>, Vec<_>) = rotations.unzip();
    out.extend(cosines);
    out.extend(sines);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::emulation;

    fn view(dtype: DType, shape: &[usize], bytes: &[u8]) -> TensorView<'static> {
        TensorView {
            dtype,
            shape: shape.to_vec(),
            bytes: Box::leak(bytes.to_vec().into_boxed_slice()),
        }
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn parts_are_stacked_and_rounded() {
        let Some(device) = emulation() else { return };
        let mut loader = CudaLoader::new(Space::Emu(Arc::clone(&device)), None);
        let q: Vec<f32> = (0..16).map(|i| i as f32 + 0.001).collect();
        let k: Vec<u8> = (0..8)
            .flat_map(|i| bf16::from_f32(-(i as f32)).to_le_bytes())
            .collect();
        let parts = [
            view(DType::F32, &[2, 8], &f32s(&q)),
            view(DType::Bf16, &[1, 8], &k),
        ];
        let weight = loader.linear("qkv", &parts, &[]).unwrap();
        let (matrix, bias) = weight.matrix();
        assert_eq!(
            (matrix.rows(), matrix.width(), bias.is_none()),
            (3, 8, true)
        );
        let got: Vec<bf16> = device.download(matrix.ptr(), 24).unwrap();
        let expected = q.iter().copied().chain((0..8).map(|i| -(i as f32)));
        assert_eq!(got, expected.map(bf16::from_f32).collect::<Vec<_>>());
    }

    #[test]
    fn stacks_lie_one_behind_the_other() {
        let Some(device) = emulation() else { return };
        let mut loader = CudaLoader::new(Space::Emu(Arc::clone(&device)), None);
        let values = |e: usize| (0..16).map(|i| (16 * e + i) as f32).collect::<Vec<_>>();
        let mut load = |place: (usize, usize), rows: usize| {
            let bytes = f32s(&values(place.0)[..rows * 8]);
            loader.linear_of_stack("e", place, &[view(DType::F32, &[rows, 8], &bytes)])
        };
        let weights = [0, 1, 2].map(|e| load((e, 3), 2).unwrap());
        let (all, place) = weights[1].stack().unwrap();
        assert_eq!((all.rows(), all.width(), place), (6, 8, (1, 3)));
        let got: Vec<bf16> = device.download(all.ptr(), 48).unwrap();
        let expected = (0..48).map(|i| bf16::from_f32(i as f32));
        assert_eq!(got, expected.collect::<Vec<_>>());
        // Another shape, one too many, and one out of order.
        load((0, 2), 2).unwrap();
        for (place, rows) in [((1, 2), 1), ((2, 2), 2), ((0, 0), 2)] {
            let error = load(place, rows).unwrap_err().to_string();
            assert!(error.contains("alike matrices"), "{error}");
        }
    }

    /// Enough elements for several threads, some of the last part wrong.
    #[test]
    fn long_weights_are_looked_at_and_sent_whole() {
        let Some(device) = emulation() else { return };
        let mut loader = CudaLoader::new(Space::Emu(Arc::clone(&device)), None);
        let (rows, width) = (2500, 1024);
        let mut values: Vec<f32> = (0..rows * width).map(|i| (i % 251) as f32).collect();
        let of = |values: &[f32]| view(DType::F32, &[rows, width], &f32s(values));
        let long = of(&values);
        assert_eq!(loader.first_non_finite(&long), None);
        let weight = loader.linear("w", &[long], &[]).unwrap();
        let (matrix, _) = weight.matrix();
        let got: Vec<bf16> = device.download(matrix.ptr(), rows * width).unwrap();
        assert!(got.iter().zip(&values).all(|(x, &y)| x.to_f32() == y));
        for at in [rows * width - 1, 2_000_001, 1_999_999] {
            values[at] = 3.4e38;
            let error = loader.linear("w", &[of(&values)], &[]).unwrap_err();
            let expected = format!("element {at} exceeds the range of bf16");
            assert!(error.to_string().contains(&expected), "{error}");
            let mut infinite = values.clone();
            infinite[at] = f32::INFINITY;
            assert_eq!(loader.first_non_finite(&of(&infinite)), Some(at));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut loader = CudaLoader::new(Space::Virtual(Arc::default()), None);
        let mut check = |parts: &[TensorView<'_>], biases: &[TensorView<'_>], what: &str| {
            let error = loader.linear("w", parts, biases).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        let matrix = |rows, width| view(DType::F32, &[rows, width], &vec![0; rows * width * 4]);
        check(&[matrix(2, 12)], &[], "multiple of 8");
        check(&[matrix(2, 8), matrix(2, 16)], &[], "different widths");
        check(
            &[matrix(2, 8)],
            &[view(DType::F32, &[3], &[0; 12])],
            "3 biases for 2",
        );
        check(&[view(DType::F32, &[8], &[0; 32])], &[], "no matrix");
        let huge = view(DType::F32, &[1, 8], &f32s(&[3.4e38; 8]));
        check(&[huge], &[], "range of bf16");
    }

    #[test]
    fn rotations_are_cosines_then_sines() {
        let mut row = Vec::new();
        push_rotation(&[1.0, 0.01], 2.0, 3, &mut row);
        let expected = [3f64.cos(), 0.03f64.cos(), 3f64.sin(), 0.03f64.sin()];
        for (got, expected) in row.iter().zip(expected) {
            assert!((f64::from(*got) - 2.0 * expected).abs() < 1e-6);
        }
    }
}
