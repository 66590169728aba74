//! Products `x · wᵀ`: of up to 16 rows with weights of moderate size by `gemm_skinny`, others by
//! cuBLASLt where it is, else by `gemm_skinny` or `gemm_mma`.
//!
//! `gemm_mma` is one algorithm for every number of rows, so a row's bits do not depend on how many
//! there are: it is also what deterministic mode runs, and what the emulation has. `sm90_gemm` takes its
//! place in deterministic mode where that is asked for, with every number of rows.

use std::{ops::Range, time::Duration};

use bytemuck::Pod;
use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{GemmOutput, GemmParams},
};

use super::{
    fp8::Scaling,
    hopper_gemm::HopperProducts,
    int,
    launch::{Access, Launcher, access, check_accesses},
    lt::{Call, Lt, Scratch, Stopwatch, Weights},
};
use crate::{CudaConfig, Error, ProductEngine, memory::space::Space, memory::view::View};

/// Most elements of a weight for which `gemm_skinny` is ahead of cuBLASLt, of up to 8 rows and of
/// up to 16. It saves some 2 µs of each launch, and reads large weights more slowly. On an H200, in
/// µs, `gemm_skinny` with 4 and 16 rows by a prototype of 2026-11-23 that launched it for all of
/// these, and cuBLASLt with either by part `gemm` of `gpu-check`:
///
/// | weight | elements | 4 rows | 16 rows | cuBLASLt |
/// | --- | --- | --- | --- | --- |
/// | 1024 × 2048 | 2.1 M | 4.1 | 4.5 | 6.9 |
/// | 1024 × 3072 | 3.1 M | 5.7 | 7.0 | 7.9 |
/// | 4096 × 1024 | 4.2 M | 4.9 | 5.4 | 6.3 |
/// | 6144 × 1024 | 6.3 M | 6.6 | 8.7 | 7.1 |
/// | 2560 × 4096 | 10.5 M | 11.1 | 14.1 | 10.5 |
/// | 6144 × 2560 | 15.7 M | 13.4 | 19.9 | 11.8 |
/// | 2560 × 9728 | 24.9 M | 25.1 | 38.5 | 18.5 |
/// | 19456 × 2560 | 49.8 M | 35.2 | 48.7 | 30.0 |
const SKINNY_ELEMENTS: [u64; 2] = [8 << 20, 5 << 20];

/// Fewest rows of which a product of gates is computed with them by `sm90_gemm`, beside cuBLASLt. A guess:
/// it is not measured.
const GATED_ROWS: usize = 1024;

/// The destination of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProductOutput {
    /// `y = x · wᵀ`, bf16.
    Write(View<bf16>),
    /// `y += x · wᵀ`, bf16, rounded once.
    Add(View<bf16>),
    /// `y = x · wᵀ`, f32.
    Logits(View<f32>),
}

impl ProductOutput {
    /// Returns some of the rows.
    pub(crate) fn slice(self, rows: Range<usize>) -> Self {
        match self {
            Self::Write(y) => Self::Write(y.slice(rows)),
            Self::Add(y) => Self::Add(y.slice(rows)),
            Self::Logits(y) => Self::Logits(y.slice(rows)),
        }
    }
}

/// Numbers of products that were queued, by what multiplies.
#[cfg(feature = "measure")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProductCounts {
    /// Products by the library.
    pub library: u64,
    /// Products by `gemm_mma`, or by `sm90_gemm` in its place.
    pub own: u64,
    /// Products by `gemm_skinny`, which few rows always are where bits may differ.
    pub skinny: u64,
}

#[cfg(feature = "measure")]
impl ProductCounts {
    pub(crate) const NONE: Self = Self {
        library: 0,
        own: 0,
        skinny: 0,
    };

    pub(crate) const fn note(&mut self, by: ProductKernel) {
        match by {
            ProductKernel::Library => self.library += 1,
            ProductKernel::Mma | ProductKernel::Hopper => self.own += 1,
            ProductKernel::Skinny => self.skinny += 1,
        }
    }
}

/// The kernels and libraries that multiply matrices.
#[derive(Debug)]
pub(crate) struct Products {
    lt: Option<Lt>,
    engine: ProductEngine,
    /// True if few rows may go to `gemm_skinny`.
    few_apart: bool,
    /// `sm90_gemm`, where that is asked for.
    hopper: Option<HopperProducts>,
    /// True if the library multiplies matrices whose scales are of blocks.
    blocks_by_library: bool,
    #[cfg(feature = "measure")]
    counts: ProductCounts,
}

impl Products {
    /// Opens cuBLASLt if it can be had and the configuration permits; a library that is missing is no
    /// error.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for its workspace.
    pub(crate) fn new(space: &Space, config: &CudaConfig) -> Result<Self, Error> {
        let products = match space {
            _ if config.deterministic => Self::mma(ProductEngine::Deterministic),
            Space::Cuda(context) => match Lt::open(context, space, config) {
                Ok(lt) => Self {
                    blocks_by_library: config.fp8_blocks_by_library,
                    ..Self::lt(lt)
                },
                Err(e @ (Error::OutOfMemory { .. } | Error::DeviceLost { .. })) => return Err(e),
                Err(why) => Self::mma(ProductEngine::GemmMma { why }),
            },
            #[cfg(feature = "emu")]
            Space::Emu(_) => Self::mma(ProductEngine::Emulated),
            #[cfg(feature = "emu")]
            Space::Virtual(recording) => Self::lt(Lt::recorded(recording, space)?),
        };
        let hopper = config.hopper_products.then(|| HopperProducts::new(space));
        Ok(Self { hopper, ..products })
    }

    const fn mma(engine: ProductEngine) -> Self {
        Self {
            lt: None,
            // One algorithm for every number of rows.
            few_apart: !matches!(engine, ProductEngine::Deterministic),
            engine,
            hopper: None,
            blocks_by_library: true,
            #[cfg(feature = "measure")]
            counts: ProductCounts::NONE,
        }
    }

    pub(super) fn lt(lt: Lt) -> Self {
        Self {
            engine: lt.engine(),
            lt: Some(lt),
            few_apart: true,
            hopper: None,
            blocks_by_library: true,
            #[cfg(feature = "measure")]
            counts: ProductCounts::NONE,
        }
    }

    /// Returns products that take the library for every number of rows.
    #[cfg(test)]
    pub(super) fn library_alone(lt: Lt) -> Self {
        Self {
            few_apart: false,
            ..Self::lt(lt)
        }
    }

    #[cfg(test)]
    pub(super) const fn library(&self) -> Option<&Lt> {
        self.lt.as_ref()
    }

    pub(crate) const fn engine(&self) -> &ProductEngine {
        &self.engine
    }

    /// Returns the bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.lt.as_ref().map_or(0, Lt::bytes)
    }

    /// Chooses algorithms for products of a model's matrices, before its first step: of `tokens`
    /// rows at most, and `logits_rows` of those that have a row for each of `vocab` ids.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub(crate) fn prepare(
        &mut self,
        matrices: &Weights,
        vocab: u32,
        tokens: u32,
        logits_rows: u32,
    ) -> Result<(), Error> {
        let Some(lt) = &mut self.lt else {
            return Ok(());
        };
        for &matrix in matrices.keys() {
            if matrix.fp8 == Some(Scaling::Blocks) && !self.blocks_by_library {
                continue;
            }
            // Which products are added to something is the model's to know.
            match matrix.n == vocab {
                true => lt.prepare(matrix, &[GemmOutput::F32], logits_rows)?,
                false => lt.prepare(matrix, &[GemmOutput::Write, GemmOutput::Add], tokens)?,
            }
        }
        self.engine = lt.engine();
        Ok(())
    }

    /// Returns true if no shape that was prepared runs on a guess of the library's.
    pub(crate) fn are_all_measured(&self) -> bool {
        self.lt.as_ref().is_none_or(Lt::are_all_measured)
    }

    /// Measures algorithms for the shapes that were prepared and that nobody has measured. Products
    /// read and write `scratch` meanwhile.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub(crate) fn tune(
        &mut self,
        matrices: &Weights,
        scratch: Scratch,
        watch: &mut dyn Stopwatch,
        budget: Duration,
    ) -> Result<(), Error> {
        let Some(lt) = &mut self.lt else {
            return Ok(());
        };
        lt.tune(matrices, scratch, watch, budget)?;
        self.engine = lt.engine();
        Ok(())
    }

    /// Returns numbers of products so far.
    #[cfg(feature = "measure")]
    pub(crate) const fn counts(&self) -> ProductCounts {
        self.counts
    }

    /// Returns the library and a product as the library takes it, where the library is used and the
    /// product lies well: for measuring algorithms.
    ///
    /// # Errors
    /// [`Error::Launch`] if the operands do not fit each other.
    #[cfg(feature = "measure")]
    pub(crate) fn measured(
        &mut self,
        x: View<bf16>,
        w: View<bf16>,
        output: ProductOutput,
    ) -> Result<Option<(&mut Lt, Call)>, Error> {
        let product = Product::new(x, w, None, output)?;
        Ok(self.with_library(product.call()))
    }

    /// Returns the library, where it is used, and a product.
    #[cfg(feature = "measure")]
    pub(super) fn with_library(&mut self, call: Call) -> Option<(&mut Lt, Call)> {
        self.lt.as_mut().map(|lt| (lt, call))
    }

    /// Computes the logits of a router: `x · wᵀ` by our own kernels. `x`: `[m, k]`; `w`:
    /// `[experts, k]`; `y`: `[m, experts]`.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub(crate) fn route(
        &mut self,
        launcher: &mut Launcher,
        x: View<bf16>,
        w: View<bf16>,
        y: View<f32>,
    ) -> Result<(), Error> {
        let product = Product::new(x, w, None, ProductOutput::Logits(y))?;
        let few = match self.few_apart {
            true => product.params.launch_skinny(product.form),
            false => None,
        };
        match few {
            Some(launch) => {
                launcher.launch(&launch, &product.params, &product.reads, &product.writes)
            }
            None => product.mma(launcher),
        }
    }

    /// `x · wᵀ (+ bias)`. `x`: `[m, k]`; `w`: `[n, k]`; `bias`: `[1, n]`; output `[m, n]`.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub(crate) fn multiply(
        &mut self,
        launcher: &mut Launcher,
        x: View<bf16>,
        w: View<bf16>,
        bias: Option<View<bf16>>,
        output: ProductOutput,
    ) -> Result<(), Error> {
        let product = Product::new(x, w, bias, output)?;
        if let Some(hopper) = self.for_all_rows(product.form, w, bias) {
            hopper.multiply(launcher, x, w, output)?;
            self.note(ProductKernel::Hopper);
            return Ok(());
        }
        let few = self.few_apart && product.form != GemmOutput::F32;
        let few = match few && (self.lt.is_none() || is_for_skinny(&product.params)) {
            true => product.params.launch_skinny(product.form),
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

    /// Returns the kernel for Hopper, if every number of rows goes to it: one algorithm, as in
    /// deterministic mode.
    fn for_all_rows(
        &self,
        form: GemmOutput,
        w: View<bf16>,
        bias: Option<View<bf16>>,
    ) -> Option<HopperProducts> {
        let is_alone = matches!(self.engine, ProductEngine::Deterministic);
        self.hopper
            .filter(|_| is_alone && HopperProducts::takes(form, w.rows(), bias))
    }

    /// Returns the kernel for Hopper, if gates of a product of so many rows are computed with it at
    /// once.
    ///
    /// In deterministic mode that has the bits of [`Self::multiply`] and the gate behind it. Beside the
    /// library it has other bits, and is for products of [`GATED_ROWS`] rows and more.
    pub(crate) fn for_gates(
        &self,
        rows: usize,
        w: View<bf16>,
        bias: Option<View<bf16>>,
    ) -> Option<HopperProducts> {
        match self.engine {
            // Both halves are rows of the matrix.
            ProductEngine::Deterministic => self.for_all_rows(GemmOutput::Write, w, bias),
            _ => self.hopper.filter(|_| rows >= GATED_ROWS),
        }
        .filter(|_| bias.is_none() && w.rows().is_multiple_of(16))
    }

    /// Returns true if the library may multiply matrices with such scales.
    pub(super) fn library_takes(&self, scaling: Scaling) -> bool {
        self.blocks_by_library || scaling == Scaling::Rows
    }

    /// Returns true if few rows go to a kernel that sums in another order than that of many.
    pub(super) const fn takes_few_apart(&self) -> bool {
        self.few_apart
    }

    /// Queues a product by the library. False where there is none, or it has no algorithm.
    pub(super) fn by_library(&mut self, call: &Call) -> Result<bool, Error> {
        match &mut self.lt {
            Some(lt) => lt.multiply(call),
            None => Ok(false),
        }
    }

    /// Counts a product.
    #[cfg_attr(
        not(feature = "measure"),
        expect(clippy::unused_self, reason = "there are counts when measuring")
    )]
    pub(crate) const fn note(&mut self, by: ProductKernel) {
        #[cfg(feature = "measure")]
        self.counts.note(by);
        #[cfg(not(feature = "measure"))]
        let _ = by;
    }
}

/// Returns true if `gemm_skinny`, where it takes a product at all, is faster than the library.
const fn is_for_skinny(params: &GemmParams) -> bool {
    let most = SKINNY_ELEMENTS[if params.m <= 8 { 0 } else { 1 }];
    params.n as u64 * params.k as u64 <= most
}

/// The code that ran a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductKernel {
    /// cuBLASLt.
    Library,
    /// `gemm_skinny`: up to 16 rows, [`SKINNY_ELEMENTS`].
    Skinny,
    /// `gemm_mma`.
    Mma,
    /// `sm90_gemm`.
    Hopper,
}

/// Multiplies by `gemm_mma`, even where cuBLASLt is there.
#[cfg(any(test, feature = "measure"))]
pub(crate) fn gemm_mma(
    launcher: &mut Launcher,
    x: View<bf16>,
    w: View<bf16>,
    bias: Option<View<bf16>>,
    output: ProductOutput,
) -> Result<(), Error> {
    Product::new(x, w, bias, output)?.mma(launcher)
}

/// A product whose arguments fit each other.
#[derive(Debug)]
struct Product {
    form: GemmOutput,
    params: GemmParams,
    reads: Vec<Access>,
    writes: [Access; 1],
}

impl Product {
    fn new(
        x: View<bf16>,
        w: View<bf16>,
        bias: Option<View<bf16>>,
        output: ProductOutput,
    ) -> Result<Self, Error> {
        let (form, y) = output_part(output);
        let kernel = "gemm_mma";
        rules! {
            kernel;
            x.width() == w.width() => "x and w differ in width",
            x.rows() == y.rows => "x and y differ in rows",
            w.rows() == y.width => "w has not a row for each column of y",
            x.width().is_multiple_of(8) => "k is no multiple of 8",
            bias.is_none_or(|b| b.width() == y.width) => "the bias has another width",
        }
        // Pairs of neighbours are stored at once.
        rules! {
            kernel;
            y.stride.is_multiple_of(2) => "rows of y begin at odd elements",
        }
        let mut reads = vec![access("x", x), access("w", w)];
        reads.extend(bias.map(|b| access("bias", b)));
        let writes = [y.access];
        check_accesses(&reads, &writes).map_err(|what| Error::launch(kernel, what))?;
        let params = GemmParams {
            x: x.ptr(),
            w: w.ptr(),
            bias: bias.map_or(DevicePtr::NULL, |b| b.ptr()),
            y: y.ptr,
            live: DevicePtr::NULL,
            m: int(y.rows),
            n: int(y.width),
            k: int(x.width()),
            x_stride: int(x.stride()),
            w_stride: int(w.stride()),
            y_stride: int(y.stride),
        };
        Ok(Self {
            form,
            params,
            reads,
            writes,
        })
    }

    /// Returns the product as the library takes it.
    const fn call(&self) -> Call {
        Call {
            form: self.form,
            params: self.params,
            scales: None,
        }
    }

    fn mma(&self, launcher: &mut Launcher) -> Result<(), Error> {
        let launch = self.params.launch(self.form);
        launcher.launch(&launch, &self.params, &self.reads, &self.writes)
    }
}

/// An output of either type.
pub(super) struct Part {
    pub(super) ptr: DevicePtr,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) stride: usize,
    pub(super) access: Access,
}

/// Returns the use of a product, and its output.
pub(super) fn output_part(output: ProductOutput) -> (GemmOutput, Part) {
    match output {
        ProductOutput::Write(y) => (GemmOutput::Write, part(y)),
        ProductOutput::Add(y) => (GemmOutput::Add, part(y)),
        ProductOutput::Logits(y) => (GemmOutput::F32, part(y)),
    }
}

pub(super) fn part<T: Pod>(y: View<T>) -> Part {
    Part {
        ptr: y.ptr(),
        rows: y.rows(),
        width: y.width(),
        stride: y.stride(),
        access: access("y", y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_weights_go_to_the_library_sooner() {
        let skinny = |m, n, k| {
            let params = GemmParams {
                m,
                n,
                k,
                ..bytemuck::Zeroable::zeroed()
            };
            is_for_skinny(&params)
        };
        // Qwen3-0.6B's products, then 4B's.
        assert!(skinny(1, 4096, 1024) && skinny(16, 4096, 1024));
        assert!(skinny(8, 6144, 1024) && !skinny(9, 6144, 1024));
        assert!(skinny(16, 1024, 3072));
        assert!(!skinny(1, 2560, 4096) && !skinny(16, 19_456, 2560));
        // 2³² elements and more.
        assert!(!skinny(1, u32::MAX, u32::MAX));
    }
}
