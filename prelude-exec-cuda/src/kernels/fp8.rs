//! Products of e4m3, whose left factor is rounded first: with a scale for each row of both factors, or
//! with those of blocks of 128 × 128 of the right one and of 128 elements of each row of the left one.
//!
//! With scales of rows, up to 8 rows are multiplied by `gemm_fp8_few`, others by cuBLASLt where it has
//! such products, else up to 16 by `gemm_fp8_few` and more by `gemm_fp8`. With scales of blocks, up to 16
//! rows are multiplied by `gemm_fp8_block_few`; of more, as many as there are fours of them by cuBLASLt
//! where it has such products and that is asked for, and the other 1 to 3 by `gemm_fp8_block_few`, else
//! all by `gemm_fp8_block`.

use half::bf16;
use prelude_kernels::{
    DevicePtr, Launch,
    families::{
        FP8_FEW, FP8_FOUR, GemmFp8Params, GemmOutput, GemmParams, QuantFp8RowParams,
        RmsNormFp8RowParams,
    },
};
use serde::{Deserialize, Serialize};

#[cfg(feature = "measure")]
use super::lt::Lt;
use super::{
    gemm::{ProductKernel, ProductOutput, Products, output_part},
    int,
    launch::{Access, Launcher, access, check_accesses},
    lt::{Call, Scales},
};
use crate::{
    Error,
    config::{FP8_BLOCK, FP8_ROW_MULTIPLE},
    memory::view::View,
};

/// Most rows whose products `gemm_fp8_few` takes from cuBLASLt. On an H100 (2026-11-27) it made a token
/// of Qwen3-4B with 1 and 4 rows in 2 % less than bf16 takes, and with 16 rows in 10 % more.
const FEW_ROWS: u32 = 8;

/// The elements of a matrix that share one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scaling {
    /// A row.
    Rows,
    /// 128 elements of a row, or a block of 128 × 128 of a weight. The width is a multiple of 128.
    Blocks,
}

impl Scaling {
    /// Returns the shape of the scales of rows that are rounded: `[1, rows]`, or `[rows, width / 128]`, whose
    /// order is that of `fp8_scales.cuh`.
    pub(crate) const fn of_rows(self, rows: usize, width: usize) -> [usize; 2] {
        match self {
            Self::Rows => [1, rows],
            Self::Blocks => [rows, width / FP8_BLOCK],
        }
    }

    /// Returns the shape of the scales of a weight: `[1, rows]`, or `[⌈rows / 128⌉, width / 128]`, rows
    /// filled up to a multiple of 4.
    pub(crate) const fn of_weight(self, rows: usize, width: usize) -> [usize; 2] {
        self.of_stack(1, rows, width)
    }

    /// Returns the shape of the scales of `count` weights of `rows` rows each, those of one behind those of
    /// the other.
    pub(crate) const fn of_stack(self, count: usize, rows: usize, width: usize) -> [usize; 2] {
        match self {
            Self::Rows => [1, count * rows],
            Self::Blocks => [
                count * rows.div_ceil(FP8_BLOCK),
                (width / FP8_BLOCK).next_multiple_of(FP8_FOUR as usize),
            ],
        }
    }

    /// Returns what cuBLASLt asks numbers of rows of both factors to be multiples of.
    pub(super) const fn library_multiple(self) -> u32 {
        match self {
            Self::Rows => 1,
            Self::Blocks => FP8_FOUR,
        }
    }

    /// Returns how many of the first rows cuBLASLt may multiply: with scales of blocks none of up to 16, of
    /// more as many as there are fours of them.
    const fn library_rows(self, rows: usize) -> usize {
        match self {
            Self::Blocks if rows <= FP8_FEW as usize => 0,
            _ => rows - rows % self.library_multiple() as usize,
        }
    }

    /// Elements that widths are multiples of.
    pub(super) const fn width_multiple(self) -> usize {
        match self {
            Self::Rows => FP8_ROW_MULTIPLE,
            Self::Blocks => FP8_BLOCK,
        }
    }
}

/// A matrix in e4m3, and its scales.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fp8View {
    /// `[rows, width]`, without gaps.
    pub(crate) data: View<u8>,
    /// As [`Scaling::of_rows`], [`Scaling::of_weight`] or [`Scaling::of_stack`] has it, without gaps.
    pub(crate) scales: View<f32>,
    pub(crate) scaling: Scaling,
}

impl Fp8View {
    /// Checks that there is room for rows that are rounded.
    fn check_rounded(&self, kernel: &'static str) -> Result<(), Error> {
        let Self {
            data,
            scales,
            scaling,
        } = self;
        // Scales of rows are of any width that kernels read 8 elements at a time.
        let multiple = match scaling {
            Scaling::Rows => 8,
            Scaling::Blocks => FP8_BLOCK,
        };
        let shape = scaling.of_rows(data.rows(), data.width());
        rules! {
            kernel;
            data.width().is_multiple_of(multiple) => "width is no multiple of 8, or of 128 with scales of 128 elements",
            [scales.rows(), scales.width()] == shape => "not a scale for each row, or for 128 elements of it",
            scales.stride() == scales.width() => "scales have gaps",
            data.stride() == data.width() && data.ptr().0.is_multiple_of(8) => "q has gaps",
        }
        Ok(())
    }

    /// The rows from `start` on, the last 1 to 3 of more than 16 with scales of 128 elements: they lie as if
    /// there were no others.
    fn from(self, start: usize) -> Self {
        Self {
            data: self.data.slice(start..self.data.rows()),
            scales: self.scales.slice(start..self.scales.rows()),
            scaling: self.scaling,
        }
    }

    fn writes(&self) -> [Access; 2] {
        [access("q", self.data), access("scale", self.scales)]
    }
}

/// `scales = max(max |x|, 2^-24) / 448` of each row, or of 128 elements of it, `data = x / scales`. `x`:
/// `[rows, width]`.
///
/// # Errors
/// [`Error::Launch`].
pub(crate) fn quantise(launcher: &mut Launcher, x: View<bf16>, to: Fp8View) -> Result<(), Error> {
    const KERNEL: &str = "quant_fp8_row";
    to.check_rounded(KERNEL)?;
    rules! {
        KERNEL;
        x.rows() == to.data.rows() => "numbers of rows differ",
        x.width() == to.data.width() => "widths differ",
    }
    let params = params_of(x, to);
    let launch = match to.scaling {
        Scaling::Rows => params.launch(),
        Scaling::Blocks => params.launch_groups(),
    };
    launcher.launch(&launch, &params, &[access("x", x)], &to.writes())
}

/// Returns true if [`silu_mul_quantise`] takes rows of such a width.
pub(crate) fn takes_gates(width: usize, scaling: Scaling) -> bool {
    let params = QuantFp8RowParams {
        width: int(width),
        ..bytemuck::Zeroable::zeroed()
    };
    launch_gates(&params, scaling).is_some()
}

fn launch_gates(params: &QuantFp8RowParams, scaling: Scaling) -> Option<Launch> {
    match scaling {
        Scaling::Rows => params.launch_silu_mul(),
        Scaling::Blocks => Some(params.launch_silu_mul_groups()),
    }
}

/// The same of `silu(g) · u`, rounded to bf16 in between. `gate_up`: `[rows, 2 · width]`, g then u.
///
/// # Errors
/// [`Error::Launch`], also for rows that are too wide: see [`takes_gates`].
pub(crate) fn silu_mul_quantise(
    launcher: &mut Launcher,
    gate_up: View<bf16>,
    to: Fp8View,
) -> Result<(), Error> {
    const KERNEL: &str = "silu_mul_fp8_row";
    to.check_rounded(KERNEL)?;
    rules! {
        KERNEL;
        gate_up.rows() == to.data.rows() => "numbers of rows differ",
        gate_up.width() == 2 * to.data.width() => "gate_up is not twice as wide as q",
    }
    let params = params_of(gate_up, to);
    let launch = launch_gates(&params, to.scaling);
    let launch = launch.ok_or_else(|| Error::launch(KERNEL, "rows are too wide"))?;
    let reads = [access("gate_up", gate_up)];
    launcher.launch(&launch, &params, &reads, &to.writes())
}

/// The same of `h / sqrt(mean(h²) + eps) · (offset + w)`, rounded to bf16 in between. `h`: `[rows, width]`;
/// `w`: `[1, width]`.
///
/// # Errors
/// [`Error::Launch`].
pub(crate) fn rms_norm_quantise(
    launcher: &mut Launcher,
    h: View<bf16>,
    (w, offset): (View<bf16>, f32),
    eps: f32,
    to: Fp8View,
) -> Result<(), Error> {
    const KERNEL: &str = "rms_norm_fp8_row";
    to.check_rounded(KERNEL)?;
    let Fp8View { data, scales, .. } = to;
    rules! {
        KERNEL;
        h.rows() == data.rows() => "numbers of rows differ",
        h.width() == data.width() && h.width() == w.width() => "widths differ",
    }
    let params = RmsNormFp8RowParams {
        h: h.ptr(),
        w: w.ptr(),
        q: data.ptr(),
        scale: scales.ptr(),
        live: DevicePtr::NULL,
        rows: int(h.rows()),
        width: int(h.width()),
        h_stride: int(h.stride()),
        eps,
        offset,
        reserved: 0,
    };
    let launch = match to.scaling {
        Scaling::Rows => params.launch(),
        Scaling::Blocks => params.launch_groups(),
    };
    let reads = [access("h", h), access("w", w)];
    launcher.launch(&launch, &params, &reads, &to.writes())
}

/// Parameters of a launch that rounds rows made of `x`.
fn params_of(x: View<bf16>, to: Fp8View) -> QuantFp8RowParams {
    QuantFp8RowParams {
        x: x.ptr(),
        q: to.data.ptr(),
        scale: to.scales.ptr(),
        live: DevicePtr::NULL,
        rows: int(to.data.rows()),
        width: int(to.data.width()),
        x_stride: int(x.stride()),
        reserved: 0,
    }
}

/// A product whose arguments fit each other.
struct Fp8Product {
    form: GemmOutput,
    scaling: Scaling,
    params: GemmFp8Params,
    reads: Vec<Access>,
    writes: [Access; 1],
}

impl Fp8Product {
    fn new(
        x: Fp8View,
        w: Fp8View,
        bias: Option<View<bf16>>,
        output: ProductOutput,
    ) -> Result<Self, Error> {
        let (form, y) = output_part(output);
        let kernel = "gemm_fp8";
        let (rows, width) = (x.data.rows(), x.data.width());
        let scaling = w.scaling;
        let of = |scales: View<f32>| [scales.rows(), scales.width()];
        rules! {
            kernel;
            x.scaling == scaling => "x and w have other scales",
            form != GemmOutput::F32 => "outputs are bf16",
            width == w.data.width() => "x and w differ in width",
            rows == y.rows => "x and y differ in rows",
            w.data.rows() == y.width => "w has not a row for each column of y",
            of(x.scales) == scaling.of_rows(rows, width) => "not a scale for each row of x, or for 128 elements",
            of(w.scales) == scaling.of_weight(y.width, width) => "not a scale for each row of w, or for each block",
            x.scales.stride() == x.scales.width() && w.scales.stride() == w.scales.width() => "scales have gaps",
            width.is_multiple_of(scaling.width_multiple()) => "k is no multiple of 16, or of 128 with scales of blocks",
            x.data.is_aligned() && w.data.is_aligned() => "rows do not start at multiples of 16 bytes",
            bias.is_none_or(|b| b.width() == y.width) => "the bias has another width",
            y.stride.is_multiple_of(2) => "rows of y begin at odd elements",
        }
        let mut reads = vec![
            access("x", x.data),
            access("w", w.data),
            access("x_scale", x.scales),
            access("w_scale", w.scales),
        ];
        reads.extend(bias.map(|b| access("bias", b)));
        let writes = [y.access];
        check_accesses(&reads, &writes).map_err(|what| Error::launch(kernel, what))?;
        let params = GemmFp8Params {
            x: x.data.ptr(),
            w: w.data.ptr(),
            x_scale: x.scales.ptr(),
            w_scale: w.scales.ptr(),
            bias: bias.map_or(DevicePtr::NULL, |b| b.ptr()),
            y: y.ptr,
            live: DevicePtr::NULL,
            m: int(rows),
            n: int(y.width),
            k: int(width),
            x_stride: int(x.data.stride()),
            w_stride: int(w.data.stride()),
            y_stride: int(y.stride),
        };
        Ok(Self {
            form,
            scaling,
            params,
            reads,
            writes,
        })
    }

    /// The product of the first rows as the library takes it.
    fn call(&self, rows: usize) -> Call {
        let p = &self.params;
        Call {
            form: self.form,
            params: GemmParams {
                x: p.x,
                w: p.w,
                bias: p.bias,
                y: p.y,
                live: p.live,
                m: int(rows),
                n: p.n,
                k: p.k,
                x_stride: p.x_stride,
                w_stride: p.w_stride,
                y_stride: p.y_stride,
            },
            scales: Some(Scales {
                scaling: self.scaling,
                x: p.x_scale,
                w: p.w_scale,
            }),
        }
    }

    /// The launch for few rows, if these are few.
    fn few(&self) -> Option<Launch> {
        match self.scaling {
            Scaling::Rows => self.params.launch_few(self.form),
            Scaling::Blocks => self.params.launch_blocks_few(self.form),
        }
    }

    fn mma(&self, launcher: &mut Launcher) -> Result<(), Error> {
        let launch = match self.scaling {
            Scaling::Rows => self.params.launch(self.form),
            Scaling::Blocks => self.params.launch_blocks(self.form),
        };
        let launch = launch.ok_or_else(|| Error::launch("gemm_fp8", "outputs are bf16"))?;
        launcher.launch(&launch, &self.params, &self.reads, &self.writes)
    }
}

impl Products {
    /// `x · wᵀ (+ bias)` of e4m3. `x`: `[m, k]`; `w`: `[n, k]`; `bias`: `[1, n]`; output `[m, n]`.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub(crate) fn multiply_fp8(
        &mut self,
        launcher: &mut Launcher,
        x: Fp8View,
        w: Fp8View,
        bias: Option<View<bf16>>,
        output: ProductOutput,
    ) -> Result<(), Error> {
        let (rows, scaling) = (x.data.rows(), x.scaling);
        let product = Fp8Product::new(x, w, bias, output)?;
        let is_few = product.params.m <= FEW_ROWS && product.few().is_some();
        let taken = match self.takes_few_apart() && is_few {
            false if self.library_takes(scaling) => scaling.library_rows(rows),
            _ => 0,
        };
        if taken == 0 || !self.by_library(&product.call(taken))? {
            return self.by_own_fp8(launcher, &product);
        }
        self.note(ProductKernel::Library);
        if taken == rows {
            return Ok(());
        }
        let output = output.slice(taken..rows);
        let rest = Fp8Product::new(x.from(taken), w, bias, output)?;
        self.by_own_fp8(launcher, &rest)
    }

    /// Queues a product by a kernel of our own.
    fn by_own_fp8(&mut self, launcher: &mut Launcher, product: &Fp8Product) -> Result<(), Error> {
        let few = match self.takes_few_apart() {
            true => product.few(),
            false => None,
        };
        match few {
            Some(launch) => {
                launcher.launch(&launch, &product.params, &product.reads, &product.writes)?;
                self.note(ProductKernel::Skinny);
            }
            None => {
                product.mma(launcher)?;
                self.note(ProductKernel::Mma);
            }
        }
        Ok(())
    }

    /// The library and a product of e4m3 as it takes it, as [`Products::measured`] has one of bf16. `None` if
    /// it takes not all rows.
    ///
    /// # Errors
    /// [`Error::Launch`] if the operands do not fit each other.
    #[cfg(feature = "measure")]
    pub(crate) fn measured_fp8(
        &mut self,
        x: Fp8View,
        w: Fp8View,
        output: ProductOutput,
    ) -> Result<Option<(&mut Lt, Call)>, Error> {
        let product = Fp8Product::new(x, w, None, output)?;
        let rows = x.data.rows();
        match x.scaling.library_rows(rows) == rows {
            true => Ok(self.with_library(product.call(rows))),
            false => Ok(None),
        }
    }
}

/// Multiplies by `gemm_fp8`, even where cuBLASLt is there, or by `gemm_fp8_block`.
#[cfg(any(test, feature = "measure"))]
pub(crate) fn gemm_fp8(
    launcher: &mut Launcher,
    x: Fp8View,
    w: Fp8View,
    bias: Option<View<bf16>>,
    output: ProductOutput,
) -> Result<(), Error> {
    Fp8Product::new(x, w, bias, output)?.mma(launcher)
}
