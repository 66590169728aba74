//! Products with matrices in e4m3: room for the rounded rows of the other factor.

use half::bf16;
use prelude_models::{ModelConfig, Norm};

use super::CudaOps;
use crate::{
    CudaConfig, Error,
    config::{FP8_BLOCK, fp8_widths},
    kernels::{
        fp8::{self, Fp8View, Scaling},
        gemm::ProductOutput,
    },
    load::Weight,
    memory::{
        space::{Buffer, Space},
        view::View,
    },
};

/// The sizes of the room for rounded rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fp8Sizes {
    /// The most rows of tokens that are rounded at once.
    rows: usize,
    /// The most elements of all rows.
    elements: usize,
    /// The most scales of all rows.
    scales: usize,
}

impl Fp8Sizes {
    /// For a model's layers, which work on up to `tokens` tokens at once; `None` if its matrices stay as
    /// they are.
    pub(super) fn new(model: &ModelConfig, config: &CudaConfig, tokens: usize) -> Option<Self> {
        let widest = fp8_widths(model).into_iter().map(|(_, width)| width).max();
        let of_tokens = (tokens, widest.unwrap_or(0));
        let of_choices = model.experts.as_ref().map(|experts| {
            let choices = tokens * experts.routing.per_token;
            (choices, experts.intermediate_size)
        });
        let all = [Some(of_tokens), of_choices];
        let most = |of: fn((usize, usize)) -> usize| {
            let sizes = all.into_iter().flatten().map(of);
            sizes.fold(0, usize::max)
        };
        config.fp8.then(|| Self {
            rows: tokens,
            elements: most(|(rows, width)| rows * width),
            // A row of few elements has one as well.
            scales: most(|(rows, width)| rows * (width / FP8_BLOCK).max(1)),
        })
    }
}

/// Rows in e4m3, and their scales.
#[derive(Debug)]
pub(super) struct Fp8Rows {
    /// e4m3 `[rows, width]`.
    data: Buffer,
    /// f32, one for each row or for 128 elements of it.
    scales: Buffer,
    /// The most rows of tokens that are rounded at once.
    rows: usize,
}

impl Fp8Rows {
    pub(super) fn new(space: &Space, sizes: Fp8Sizes) -> Result<Self, Error> {
        Ok(Self {
            data: space.alloc("fp8 rows", sizes.elements)?,
            scales: space.alloc("fp8 scales", sizes.scales * size_of::<f32>())?,
            rows: sizes.rows,
        })
    }

    pub(super) const fn bytes(&self) -> usize {
        self.data.bytes() + self.scales.bytes()
    }

    /// Returns true if there is room for rows of `x`, of tokens or of choices, at once.
    const fn has_room(&self, x: View<bf16>, scaling: Scaling) -> bool {
        let [scale_rows, scale_width] = scaling.of_rows(x.rows(), x.width());
        x.rows() * x.width() <= self.data.bytes()
            && scale_rows * scale_width * size_of::<f32>() <= self.scales.bytes()
    }

    /// Room for `rows` rows.
    fn view(&self, rows: usize, width: usize, scaling: Scaling) -> Fp8View {
        let [scale_rows, scale_width] = scaling.of_rows(rows, width);
        Fp8View {
            data: self.data.view(0, rows, width),
            scales: self.scales.view(0, scale_rows, scale_width),
            scaling,
        }
    }
}

impl CudaOps {
    /// The product with norms of rows, which are rounded as they are computed, and not stored. False
    /// if there is no room for so many rows; nothing is queued then.
    pub(super) fn norm_multiply_fp8(
        &mut self,
        h: View<bf16>,
        norm: Norm<'_, Weight>,
        (w, bias): (Fp8View, Option<View<bf16>>),
        y: View<bf16>,
    ) -> Result<bool, Error> {
        let room = self.fp8.as_ref().filter(|room| h.rows() <= room.rows);
        let Some(rounded) = room.map(|room| room.view(h.rows(), h.width(), w.scaling)) else {
            return Ok(false);
        };
        let weight = norm.weight.norm();
        fp8::rms_norm_quantise(&mut self.launcher, h, weight, norm.eps, rounded)?;
        let output = ProductOutput::Write(y);
        self.products
            .multiply_fp8(&mut self.launcher, rounded, w, bias, output)?;
        Ok(true)
    }

    /// The sum with the product of gates, which are rounded as they are computed, and not stored. False
    /// if the matrix is not in e4m3 or that cannot be; nothing is queued then.
    pub(super) fn gated_add_fp8(
        &mut self,
        gate_up: View<bf16>,
        down_weight: &Weight,
        h: View<bf16>,
    ) -> Result<bool, Error> {
        let Some((down, bias)) = down_weight.fp8() else {
            return Ok(false);
        };
        let (rows, width) = (gate_up.rows(), down.data.width());
        let room = self.fp8.as_ref().filter(|room| rows <= room.rows);
        let Some(gates) = room.map(|room| room.view(rows, width, down.scaling)) else {
            return Ok(false);
        };
        if !fp8::takes_gates(width, down.scaling) {
            return Ok(false);
        }
        fp8::silu_mul_quantise(&mut self.launcher, gate_up, gates)?;
        let output = ProductOutput::Add(h);
        self.products
            .multiply_fp8(&mut self.launcher, gates, down, bias, output)?;
        Ok(true)
    }

    /// Rounds rows as a matrix with such scales takes them. They stay until others are rounded.
    ///
    /// # Errors
    /// [`Error::Launch`], also for more elements than are rounded at once.
    pub(crate) fn rounded(&mut self, x: View<bf16>, scaling: Scaling) -> Result<Fp8View, Error> {
        let room = self.fp8.as_ref().filter(|room| room.has_room(x, scaling));
        let Some(room) = room else {
            let what = "there is no room for so many rows";
            return Err(Error::launch("quant_fp8_row", what));
        };
        let rounded = room.view(x.rows(), x.width(), scaling);
        fp8::quantise(&mut self.launcher, x, rounded)?;
        Ok(rounded)
    }

    /// Multiplies with a matrix in e4m3: rows of `x` are rounded, as many at once as there is room for.
    pub(super) fn multiply_fp8(
        &mut self,
        x: View<bf16>,
        (w, bias): (Fp8View, Option<View<bf16>>),
        output: ProductOutput,
    ) -> Result<(), Error> {
        let Some(room) = &self.fp8 else {
            return Err(Error::launch("quant_fp8_row", "there is no room for rows"));
        };
        for start in (0..x.rows()).step_by(room.rows) {
            let rows = start..x.rows().min(start + room.rows);
            let rounded = room.view(rows.len(), x.width(), w.scaling);
            fp8::quantise(&mut self.launcher, x.slice(rows.clone()), rounded)?;
            let output = output.slice(rows);
            self.products
                .multiply_fp8(&mut self.launcher, rounded, w, bias, output)?;
        }
        Ok(())
    }
}
