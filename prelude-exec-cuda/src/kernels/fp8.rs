//! Products of e4m3 with a scale for each row of both factors: the rows of the left one are rounded
//! first. Of up to 8 rows by `gemm_fp8_few`, others by cuBLASLt where it has such products, else of up
//! to 16 by `gemm_fp8_few` and of more by `gemm_fp8`.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{GemmFp8Params, GemmOutput, GemmParams, QuantFp8RowParams, RmsNormFp8RowParams},
};

#[cfg(feature = "measure")]
use super::lt::Lt;
use super::{
    gemm::{ProductKernel, ProductOutput, Products, output_part},
    int,
    launch::{Access, Launcher, access, check_accesses},
    lt::{Call, Scales},
};
use crate::{Error, config::FP8_ROW_MULTIPLE, memory::view::View};

/// Most rows whose products `gemm_fp8_few` takes from cuBLASLt. On an H100 (2026-11-27) it made a token
/// of Qwen3-4B with 1 and 4 rows in 2 % less than bf16 takes, and with 16 rows in 10 % more.
const FEW_ROWS: u32 = 8;

/// A matrix in e4m3, a scale for each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fp8View {
    /// `[rows, width]`, without gaps.
    pub(crate) data: View<u8>,
    /// `[1, rows]`.
    pub(crate) scales: View<f32>,
}

/// `scales = max(max |x|, 2^-24) / 448` of each row, `data = x / scales`. `x`: `[rows, width]`.
///
/// # Errors
/// [`Error::Launch`].
pub(crate) fn quantise(launcher: &mut Launcher, x: View<bf16>, to: Fp8View) -> Result<(), Error> {
    const KERNEL: &str = "quant_fp8_row";
    let Fp8View { data, scales } = to;
    rules! {
        KERNEL;
        x.rows() == data.rows() && x.rows() == scales.width() => "numbers of rows differ",
        x.width() == data.width() => "widths differ",
        x.width().is_multiple_of(8) => "width is no multiple of 8",
        data.stride() == data.width() && data.ptr().0.is_multiple_of(8) => "q has gaps",
    }
    let params = params_of(x, to);
    let writes = [access("q", data), access("scale", scales)];
    launcher.launch(&params.launch(), &params, &[access("x", x)], &writes)
}

/// Returns true if [`silu_mul_quantise`] takes rows of such a width.
pub(crate) fn takes_gates(width: usize) -> bool {
    let params = QuantFp8RowParams {
        width: int(width),
        ..bytemuck::Zeroable::zeroed()
    };
    params.launch_silu_mul().is_some()
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
    let Fp8View { data, scales } = to;
    rules! {
        KERNEL;
        gate_up.rows() == data.rows() && data.rows() == scales.width() => "numbers of rows differ",
        gate_up.width() == 2 * data.width() => "gate_up is not twice as wide as q",
        data.width().is_multiple_of(8) => "width is no multiple of 8",
        data.stride() == data.width() && data.ptr().0.is_multiple_of(8) => "q has gaps",
    }
    let params = params_of(gate_up, to);
    let launch = params.launch_silu_mul();
    let launch = launch.ok_or_else(|| Error::launch(KERNEL, "rows are too wide"))?;
    let writes = [access("q", data), access("scale", scales)];
    let reads = [access("gate_up", gate_up)];
    launcher.launch(&launch, &params, &reads, &writes)
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
    let Fp8View { data, scales } = to;
    rules! {
        KERNEL;
        h.rows() == data.rows() && h.rows() == scales.width() => "numbers of rows differ",
        h.width() == data.width() && h.width() == w.width() => "widths differ",
        h.width().is_multiple_of(8) => "width is no multiple of 8",
        data.stride() == data.width() && data.ptr().0.is_multiple_of(8) => "q has gaps",
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
    let writes = [access("q", data), access("scale", scales)];
    let reads = [access("h", h), access("w", w)];
    launcher.launch(&params.launch(), &params, &reads, &writes)
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
        rules! {
            kernel;
            form != GemmOutput::F32 => "outputs are bf16",
            width == w.data.width() => "x and w differ in width",
            rows == y.rows => "x and y differ in rows",
            w.data.rows() == y.width => "w has not a row for each column of y",
            x.scales.width() == rows && w.scales.width() == y.width => "not a scale for each row",
            width.is_multiple_of(FP8_ROW_MULTIPLE) => "k is no multiple of 16",
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
            params,
            reads,
            writes,
        })
    }

    /// The product as the library takes it.
    const fn call(&self) -> Call {
        let p = &self.params;
        Call {
            form: self.form,
            params: GemmParams {
                x: p.x,
                w: p.w,
                bias: p.bias,
                y: p.y,
                live: p.live,
                m: p.m,
                n: p.n,
                k: p.k,
                x_stride: p.x_stride,
                w_stride: p.w_stride,
                y_stride: p.y_stride,
            },
            scales: Some(Scales {
                x: p.x_scale,
                w: p.w_scale,
            }),
        }
    }

    fn mma(&self, launcher: &mut Launcher) -> Result<(), Error> {
        let launch = self.params.launch(self.form);
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
        let product = Fp8Product::new(x, w, bias, output)?;
        let few = match self.takes_few_apart() {
            true => product.params.launch_few(product.form),
            false => None,
        };
        let is_ahead = few.is_some() && product.params.m <= FEW_ROWS;
        let by = match few {
            _ if !is_ahead && self.by_library(&product.call())? => ProductKernel::Library,
            Some(launch) => {
                launcher.launch(&launch, &product.params, &product.reads, &product.writes)?;
                ProductKernel::Skinny
            }
            None => {
                product.mma(launcher)?;
                ProductKernel::Mma
            }
        };
        self.note(by);
        Ok(())
    }

    /// The library and a product of e4m3 as it takes it, as [`Products::measured`] has one of bf16.
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
        Ok(self.with_library(product.call()))
    }
}

/// Multiplies by `gemm_fp8`, even where cuBLASLt is there.
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
