//! Products of e4m3 with a scale for each row of both factors: the rows of the left one are rounded
//! first. Of up to 16 rows by `gemm_fp8_few`, others by cuBLASLt where it has such products, else by
//! `gemm_fp8`.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{GemmFp8Params, GemmOutput, GemmParams, QuantFp8RowParams},
};

use super::{
    gemm::{ProductKernel, ProductOutput, Products, output_part},
    int,
    launch::{Access, Launcher, access, check_accesses},
    lt::{Call, Scales},
};
use crate::{Error, config::FP8_ROW_MULTIPLE, memory::view::View};

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
    let params = QuantFp8RowParams {
        x: x.ptr(),
        q: data.ptr(),
        scale: scales.ptr(),
        live: DevicePtr::NULL,
        rows: int(x.rows()),
        width: int(x.width()),
        x_stride: int(x.stride()),
        reserved: 0,
    };
    let writes = [access("q", data), access("scale", scales)];
    launcher.launch(&params.launch(), &params, &[access("x", x)], &writes)
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
        let by = match few {
            Some(launch) => {
                launcher.launch(&launch, &product.params, &product.reads, &product.writes)?;
                ProductKernel::Skinny
            }
            None if self.by_library(&product.call())? => ProductKernel::Library,
            None => {
                product.mma(launcher)?;
                ProductKernel::Mma
            }
        };
        self.note(by);
        Ok(())
    }
}

/// Multiplies by `gemm_fp8`, even where cuBLASLt is there.
#[cfg(test)]
pub(crate) fn gemm_fp8(
    launcher: &mut Launcher,
    x: Fp8View,
    w: Fp8View,
    bias: Option<View<bf16>>,
    output: ProductOutput,
) -> Result<(), Error> {
    Fp8Product::new(x, w, bias, output)?.mma(launcher)
}
