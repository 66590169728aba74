//! Calls of cuBLASLt.
//!
//! The library counts columns first. Our rows are its columns: `y = x · wᵀ` of row-major
//! matrices is `yᵀ = w · xᵀ`, where `w` stored by rows is the transpose of a matrix stored by
//! columns. So A is `w` (transposed, k rows of it, n columns), B is `x` (k rows, m columns), and
//! C and D are `y` (n rows, m columns).
//!
//! | ours | theirs | rows | columns | leading dimension |
//! | --- | --- | --- | --- | --- |
//! | `w`, `[n, k]` | A, transposed | k | n | `w_stride` |
//! | `x`, `[m, k]` | B | k | m | `x_stride` |
//! | `y`, `[m, n]` | C = D | n | m | `y_stride` |
//!
//! Factors in e4m3 have a scale for each row of ours, a vector along an outer dimension of theirs; or `w`
//! has one for each block of 128 × 128, and `x` for each 128 elements of a row. Such scales of `x` lie group
//! by group, those of `w` row of blocks by row of blocks, each of these filled up to a multiple of 4
//! (`fp8_scales.cuh`).

use std::{ffi::c_int, ptr, sync::Arc};

use cudarc::cublas::sys::cublasOperation_t as Operation;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulMatrixScale_t as Scale,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasLtReductionScheme_t as Reduction,
    cudaDataType as DataType,
};
use prelude_kernels::{
    DevicePtr,
    families::{GemmOutput, GemmParams},
};

use super::{
    ALIGN_BYTES, ASKED, Blas, Call, WORKSPACE_BYTES,
    functions::{Found, Functions, Status},
    plans::{Algo, ProductPlan},
};
use crate::{Error, kernels::fp8::Scaling, memory::context::Context};

/// The library, on one stream.
#[derive(Debug)]
pub(super) struct CublasLt {
    functions: Functions,
    handle: sys::cublasLtHandle_t,
    /// Current on the calling thread before a call; none where a test multiplies on the host.
    context: Option<Arc<Context>>,
    /// The descriptors of products, without and with a bias: bf16, then e4m3 with scales of rows, then
    /// with those of blocks.
    descs: [[sys::cublasLtMatmulDesc_t; 2]; 3],
    /// bf16, e4m3.
    a: [sys::cublasLtMatrixLayout_t; 2],
    b: [sys::cublasLtMatrixLayout_t; 2],
    /// C and D: bf16, f32.
    d: [sys::cublasLtMatrixLayout_t; 2],
    preference: sys::cublasLtMatmulPreference_t,
    /// True if the library takes scales of rows, and of blocks; `None` before the first product with
    /// such scales.
    has_fp8: [Option<bool>; 2],
    workspace: u64,
}

// SAFETY: the handles are to host memory of the library's and to a context that may be used from
// any thread; every call takes `&mut self`, so none is used by two threads at once.
unsafe impl Send for CublasLt {}

/// The operands' descriptions for one call.
struct Operands {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
}

impl CublasLt {
    /// Opens the library's handle; `workspace` is the address of [`WORKSPACE_BYTES`] that only this
    /// stream's products use.
    ///
    /// # Errors
    /// [`Error::Driver`] with the call and its status.
    pub(super) fn new(
        functions: Functions,
        context: Option<Arc<Context>>,
        workspace: u64,
    ) -> Result<Self, Error> {
        if let Some(context) = &context {
            context.bind()?;
        }
        // From here on `drop` gives back what was taken.
        let mut this = Self {
            functions,
            handle: ptr::null_mut(),
            context,
            descs: [[ptr::null_mut(); 2]; 3],
            a: [ptr::null_mut(); 2],
            b: [ptr::null_mut(); 2],
            d: [ptr::null_mut(); 2],
            preference: ptr::null_mut(),
            has_fp8: [None; 2],
            workspace,
        };
        // SAFETY: the place outlives the call.
        unsafe { (this.functions.create)(&raw mut this.handle) }.of("cublasLtCreate")?;
        this.describe()?;
        Ok(this)
    }

    /// Describes everything to the library that no call changes, but for products of e4m3.
    fn describe(&mut self) -> Result<(), Error> {
        self.describe_products(0)?;
        let ([a, _], [b, _], [bf16, f32]) = (&mut self.a, &mut self.b, &mut self.d);
        for (layout, of) in [
            (a, DataType::CUDA_R_16BF),
            (b, DataType::CUDA_R_16BF),
            (bf16, DataType::CUDA_R_16BF),
            (f32, DataType::CUDA_R_32F),
        ] {
            create_layout(&self.functions, layout, of)?;
        }
        self.describe_preference()
    }

    /// Describes products of e4m3 to the library, before the first such product: a library that has
    /// none still serves all others.
    fn describe_fp8(&mut self, scaling: Scaling) -> Result<(), Error> {
        let place = place(Some(scaling));
        self.describe_products(place)?;
        let [of_w, of_x] = match scaling {
            Scaling::Rows => [Scale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; 2],
            Scaling::Blocks => [
                Scale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                Scale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
            ],
        };
        for desc in self.descs[place] {
            use DescAttribute as A;
            let set =
                |attribute, mode: Scale| set_desc(&self.functions, desc, attribute, &(mode as u32));
            set(A::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, of_w)?;
            set(A::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_x)?;
            // Products sum all bits, without the library's fast accumulation.
            let attribute = A::CUBLASLT_MATMUL_DESC_FAST_ACCUM;
            set_desc(&self.functions, desc, attribute, &0i8)?;
        }
        let ([_, a], [_, b]) = (&mut self.a, &mut self.b);
        for layout in [a, b].into_iter().filter(|layout| layout.is_null()) {
            create_layout(&self.functions, layout, DataType::CUDA_R_8F_E4M3)?;
        }
        Ok(())
    }

    /// Makes the two descriptions of products at a place, without and with a bias.
    fn describe_products(&mut self, place: usize) -> Result<(), Error> {
        let epilogues = [
            Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::CUBLASLT_EPILOGUE_BIAS,
        ];
        for (desc, epilogue) in self.descs[place].iter_mut().zip(epilogues) {
            let compute = Compute::CUBLAS_COMPUTE_32F;
            // SAFETY: the place outlives the call.
            unsafe { (self.functions.desc_create)(desc, compute, DataType::CUDA_R_32F) }
                .of("cublasLtMatmulDescCreate")?;
            let set = |attribute, value: u32| set_desc(&self.functions, *desc, attribute, &value);
            let (n, t) = (Operation::CUBLAS_OP_N, Operation::CUBLAS_OP_T);
            set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, t as u32)?;
            set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, n as u32)?;
            set(
                DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                epilogue as u32,
            )?;
        }
        Ok(())
    }

    /// Describes the limits of algorithms to the library.
    fn describe_preference(&mut self) -> Result<(), Error> {
        // SAFETY: the place outlives the call.
        unsafe { (self.functions.preference_create)(&raw mut self.preference) }
            .of("cublasLtMatmulPreferenceCreate")?;
        use PreferenceAttribute as P;
        self.prefer(
            P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            &WORKSPACE_BYTES,
        )?;
        // Partial sums stay f32: neither in the output's type, nor in the output itself.
        let reduction = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        self.prefer(P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction)?;
        for operand in [
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            self.prefer(operand, &ALIGN_BYTES)?;
        }
        Ok(())
    }

    fn prefer<T: bytemuck::Pod>(
        &self,
        attribute: PreferenceAttribute,
        value: &T,
    ) -> Result<(), Error> {
        let at = ptr::from_ref(value).cast();
        // SAFETY: the preference exists; the library copies `size_of::<T>()` bytes, and refuses
        // another size than the attribute's.
        unsafe { (self.functions.preference_set)(self.preference, attribute, at, size_of::<T>()) }
            .of("cublasLtMatmulPreferenceSetAttribute")
    }

    /// Returns true if the library can be told what a call multiplies. One before CUDA 12.9 refuses
    /// scales of rows and of blocks.
    fn takes(&mut self, call: &Call) -> bool {
        let Some(scaling) = call.scales.map(|of| of.scaling) else {
            return true;
        };
        let known = place(Some(scaling)) - 1;
        if let Some(known) = self.has_fp8[known] {
            return known;
        }
        let takes = self.describe_fp8(scaling).is_ok();
        self.has_fp8[known] = Some(takes);
        takes
    }

    /// Describes the operands of a call that it [`Self::takes`].
    fn operands(&mut self, call: &Call) -> Result<Operands, Error> {
        let p = &call.params;
        let has_bias = p.bias != DevicePtr::NULL;
        let is_fp8 = usize::from(call.scales.is_some());
        let place = place(call.scales.map(|of| of.scaling));
        let desc = self.descs[place][usize::from(has_bias)];
        if has_bias {
            // The library takes the bias's alignment from this attribute, too.
            let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            set_desc(&self.functions, desc, attribute, &p.bias.0)?;
        }
        if let Some(scales) = &call.scales {
            let of_a = DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
            let of_b = DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;
            set_desc(&self.functions, desc, of_a, &scales.w.0)?;
            set_desc(&self.functions, desc, of_b, &scales.x.0)?;
        }
        let (a, b) = (self.a[is_fp8], self.b[is_fp8]);
        let d = self.d[usize::from(call.form == GemmOutput::F32)];
        self.shape(a, p.k, p.n, p.w_stride)?;
        self.shape(b, p.k, p.m, p.x_stride)?;
        self.shape(d, p.n, p.m, p.y_stride)?;
        Ok(Operands { desc, a, b, d })
    }

    fn shape(
        &self,
        layout: sys::cublasLtMatrixLayout_t,
        rows: u32,
        columns: u32,
        leading: u32,
    ) -> Result<(), Error> {
        let set = |attribute, value: u64| {
            let at = (&raw const value).cast();
            // SAFETY: the layout exists; rows, columns and the leading dimension are 8 bytes each
            // (the last signed, which makes no difference below 2³²), which the library copies.
            unsafe { (self.functions.layout_set)(layout, attribute, at, size_of::<u64>()) }
                .of("cublasLtMatrixLayoutSetAttribute")
        };
        set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ROWS, rows.into())?;
        set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_COLS, columns.into())?;
        set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_LD, leading.into())
    }

    fn bind(&self) -> Result<(), Error> {
        self.context
            .as_ref()
            .map_or(Ok(()), |context| context.bind())
    }
}

/// Returns where the descriptions of products are in [`CublasLt::descs`].
const fn place(scaling: Option<Scaling>) -> usize {
    match scaling {
        None => 0,
        Some(Scaling::Rows) => 1,
        Some(Scaling::Blocks) => 2,
    }
}

/// Returns true if the library has not such products. Scales that a GPU or a library does not know may be
/// wrong values to it.
const fn is_refusal(status: Status, call: &Call) -> bool {
    match call.scales {
        Some(_) => status.is_refusal(),
        None => status.is_not_supported(),
    }
}

/// Makes a layout, whose rows and columns are set before every use.
fn create_layout(
    functions: &Functions,
    layout: &mut sys::cublasLtMatrixLayout_t,
    of: DataType,
) -> Result<(), Error> {
    // SAFETY: the place outlives the call.
    unsafe { (functions.layout_create)(layout, of, 8, 8, 8) }.of("cublasLtMatrixLayoutCreate")
}

fn set_desc<T: bytemuck::Pod>(
    functions: &Functions,
    desc: sys::cublasLtMatmulDesc_t,
    attribute: DescAttribute,
    value: &T,
) -> Result<(), Error> {
    let at = ptr::from_ref(value).cast();
    // SAFETY: the description exists; the library copies `size_of::<T>()` bytes, and refuses
    // another size than the attribute's.
    unsafe { (functions.desc_set)(desc, attribute, at, size_of::<T>()) }
        .of("cublasLtMatmulDescSetAttribute")
}

impl Blas for CublasLt {
    fn candidates(&mut self, call: &Call) -> Result<Vec<ProductPlan>, Error> {
        self.bind()?;
        if !self.takes(call) {
            return Ok(Vec::new());
        }
        let Operands { desc, a, b, d } = self.operands(call)?;
        let mut found = [Found::EMPTY; ASKED];
        let asked = c_int::try_from(ASKED).expect("a small constant fits c_int");
        let mut count = 0;
        // SAFETY: all descriptions exist, the array has room for `asked` results, and no operand
        // is read.
        let status = unsafe {
            (self.functions.heuristic)(
                self.handle,
                desc,
                a,
                b,
                d,
                d,
                self.preference,
                asked,
                found.as_mut_ptr(),
                &raw mut count,
            )
        };
        if is_refusal(status, call) {
            return Ok(Vec::new());
        }
        status.of("cublasLtMatmulAlgoGetHeuristic")?;
        let count = usize::try_from(count).unwrap_or(0).min(ASKED);
        let usable = found[..count].iter().filter(|f| f.state.is_success());
        Ok(usable
            .map(|f| ProductPlan {
                algo: Algo(f.algo.data),
                workspace_bytes: f.workspace_bytes as u64,
                us: None,
            })
            .filter(|plan| plan.workspace_bytes <= WORKSPACE_BYTES)
            .collect())
    }

    fn check(&mut self, call: &Call, algo: Algo) -> Result<Option<ProductPlan>, Error> {
        self.bind()?;
        if !self.takes(call) {
            return Ok(None);
        }
        let Operands { desc, a, b, d } = self.operands(call)?;
        let theirs = sys::cublasLtMatmulAlgo_t { data: algo.0 };
        let mut found = Found::EMPTY;
        // SAFETY: all descriptions exist, and the algorithm and the result outlive the call,
        // which checks the former: it may come from a file.
        let status = unsafe {
            (self.functions.check)(
                self.handle,
                desc,
                a,
                b,
                d,
                d,
                &raw const theirs,
                &raw mut found,
            )
        };
        if status.is_refusal() {
            return Ok(None);
        }
        status.of("cublasLtMatmulAlgoCheck")?;
        let workspace_bytes = found.workspace_bytes as u64;
        let fits = workspace_bytes <= WORKSPACE_BYTES;
        Ok(fits.then_some(ProductPlan {
            algo,
            workspace_bytes,
            us: None,
        }))
    }

    fn try_multiply(&mut self, call: &Call, plan: &ProductPlan) -> Result<bool, Error> {
        self.bind()?;
        let Operands { desc, a, b, d } = self.operands(call)?;
        let GemmParams { x, w, y, .. } = call.params;
        let algo = sys::cublasLtMatmulAlgo_t { data: plan.algo.0 };
        let alpha = 1.0f32;
        let beta = if call.form == GemmOutput::Add {
            1.0f32
        } else {
            0.0
        };
        let stream = self
            .context
            .as_ref()
            .map_or(ptr::null_mut(), |c| c.stream());
        // SAFETY: the operands are as described, within buffers that live until the stream has
        // passed, and D overlaps neither A nor B (`Product::new`); C is D, which the library
        // permits where both are described alike. The workspace is used in this stream's order
        // alone. Factors are on the host, as the description says by default.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                desc,
                (&raw const alpha).cast(),
                address(w.0),
                a,
                address(x.0),
                b,
                (&raw const beta).cast(),
                address(y.0),
                d,
                address(y.0).cast_mut(),
                d,
                &raw const algo,
                address(self.workspace).cast_mut(),
                usize::try_from(WORKSPACE_BYTES).expect("32 MiB fit usize"),
                stream.cast(),
            )
        };
        if is_refusal(status, call) {
            return Ok(false);
        }
        let status = status.of("cublasLtMatmul").map_err(|e| match e {
            Error::Driver { call, code } => Error::launch(call, code),
            other => other,
        });
        status.map(|()| true)
    }
}

/// Returns an address on the GPU.
fn address(at: u64) -> *const std::ffi::c_void {
    ptr::with_exposed_provenance(at as usize)
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        let f = &self.functions;
        // SAFETY: each was made in `new` or is null, which is not given back, and is given back
        // here only; the executor has waited for the stream.
        unsafe {
            let descs = self.descs.into_iter().flatten();
            for desc in descs.filter(|d| !d.is_null()) {
                (f.desc_destroy)(desc);
            }
            let layouts = [self.a, self.b, self.d].into_iter().flatten();
            for layout in layouts.filter(|l| !l.is_null()) {
                (f.layout_destroy)(layout);
            }
            if !self.preference.is_null() {
                (f.preference_destroy)(self.preference);
            }
            if !self.handle.is_null() {
                (f.destroy)(self.handle);
            }
        }
    }
}

/// Makes every description, sets every attribute, and sees that a wrong size is refused. Starting
/// the library without a GPU must be an error and no more.
#[cfg(test)]
pub(super) fn describes(functions: Functions, version: usize) {
    const WITHOUT_FP8: std::ops::Range<usize> = 0..120_900;

    let mut this = CublasLt {
        functions,
        handle: ptr::null_mut(),
        context: None,
        descs: [[ptr::null_mut(); 2]; 3],
        a: [ptr::null_mut(); 2],
        b: [ptr::null_mut(); 2],
        d: [ptr::null_mut(); 2],
        preference: ptr::null_mut(),
        has_fp8: [None; 2],
        workspace: 0,
    };
    this.describe().unwrap();
    let params = GemmParams {
        x: DevicePtr(1 << 20),
        w: DevicePtr(2 << 20),
        bias: DevicePtr(3 << 20),
        y: DevicePtr(4 << 20),
        live: DevicePtr::NULL,
        m: 5,
        n: 24,
        k: 64,
        x_stride: 72,
        w_stride: 64,
        y_stride: 32,
    };
    for form in [GemmOutput::Write, GemmOutput::Add, GemmOutput::F32] {
        for scaling in [None, Some(Scaling::Rows), Some(Scaling::Blocks)] {
            let scales = scaling.map(|scaling| super::Scales {
                scaling,
                x: params.x,
                w: params.w,
            });
            let call = Call {
                form,
                params,
                scales,
            };
            assert!(this.takes(&call) || WITHOUT_FP8.contains(&version));
            if this.takes(&call) {
                this.operands(&call).unwrap();
            }
        }
    }
    let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA;
    let error = set_desc(&functions, this.descs[0][0], attribute, &0u64).unwrap_err();
    assert!(error.to_string().contains("INVALID_VALUE"), "{error}");
    match CublasLt::new(functions, None, 0) {
        Ok(_) => {} // A GPU is at hand.
        Err(error) => assert!(error.to_string().contains("cublasLtCreate"), "{error}"),
    }
}
