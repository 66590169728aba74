//! cuBLASLt's entry points, taken from the very library that was opened.
//!
//! The types and values are those of the bindings, and each signature here is compared with
//! theirs when this is compiled. The bindings' own functions are not called: they open whichever
//! library the system's loader gives for several names, older versions among them, and panic
//! where a symbol is missing. What is called here is the same in versions 12 and 13, but for the
//! scales of e4m3, which a library before 12.9 refuses.

use std::ffi::c_int;

use cudarc::cublaslt::sys;
use libloading::os::unix::Library as Handle;

use crate::{
    Error,
    memory::libs::{self, Library},
};

const INVALID_VALUE: c_int = 7;
const ARCH_MISMATCH: c_int = 8;
const NOT_SUPPORTED: c_int = 15;

/// `cublasStatus_t`. A number: later versions have statuses that the bindings do not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Status(c_int);

impl Status {
    /// # Errors
    /// [`Error::Driver`] with the status's name.
    pub(super) fn of(self, call: &'static str) -> Result<(), Error> {
        match self.0 {
            0 => Ok(()),
            code => Err(Error::Driver {
                call,
                code: name(code),
            }),
        }
    }

    /// Returns true if the library has no algorithm for a request; this is not an error.
    pub(super) const fn is_not_supported(self) -> bool {
        self.0 == NOT_SUPPORTED
    }

    /// Returns true if an algorithm does not run here: refused itself, not supported, or of another
    /// GPU.
    pub(super) const fn is_refusal(self) -> bool {
        matches!(self.0, INVALID_VALUE | ARCH_MISMATCH | NOT_SUPPORTED)
    }

    pub(super) const fn is_success(self) -> bool {
        self.0 == 0
    }
}

/// Returns the name of an error code in the library's header.
fn name(code: c_int) -> String {
    match code {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED".to_owned(),
        3 => "CUBLAS_STATUS_ALLOC_FAILED".to_owned(),
        INVALID_VALUE => "CUBLAS_STATUS_INVALID_VALUE".to_owned(),
        ARCH_MISMATCH => "CUBLAS_STATUS_ARCH_MISMATCH".to_owned(),
        11 => "CUBLAS_STATUS_MAPPING_ERROR".to_owned(),
        13 => "CUBLAS_STATUS_EXECUTION_FAILED".to_owned(),
        14 => "CUBLAS_STATUS_INTERNAL_ERROR".to_owned(),
        NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED".to_owned(),
        16 => "CUBLAS_STATUS_LICENSE_ERROR".to_owned(),
        other => format!("status {other}"),
    }
}

/// `cublasLtMatmulHeuristicResult_t`, its state as a number.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Found {
    pub(super) algo: sys::cublasLtMatmulAlgo_t,
    pub(super) workspace_bytes: usize,
    pub(super) state: Status,
    pub(super) waves: f32,
    reserved: [c_int; 4],
}

impl Found {
    /// A result for the library to write.
    pub(super) const EMPTY: Self = Self {
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace_bytes: 0,
        state: Status(-1),
        waves: 0.0,
        reserved: [0; 4],
    };
}

const _: () = {
    use std::mem::offset_of;
    use sys::cublasLtMatmulHeuristicResult_t as Theirs;
    assert!(size_of::<Found>() == size_of::<Theirs>());
    assert!(align_of::<Found>() == align_of::<Theirs>());
    assert!(offset_of!(Found, workspace_bytes) == offset_of!(Theirs, workspaceSize));
    assert!(offset_of!(Found, state) == offset_of!(Theirs, state));
    assert!(offset_of!(Found, waves) == offset_of!(Theirs, wavesCount));
    assert!(size_of::<Status>() == size_of::<sys::cublasStatus_t>());
};

/// Declares the functions of the library: for each its field, its symbol, its arguments, and those
/// of the bindings where they differ in the type of [`Found`].
macro_rules! functions {
    ($($field:ident: $symbol:ident($($argument:ty),* $(,)?) $(as ($($theirs:ty),* $(,)?))?;)*) => {
        /// The functions that products need.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            /// Finds all functions, or returns the name of the first that is missing.
            fn of(library: &Handle) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let symbol = stringify!($symbol);
                        // SAFETY: the type is that of the function of this name, as compared
                        // with the bindings below; the library is never closed.
                        let function = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> Status>(
                                symbol.as_bytes(),
                            )
                        };
                        *function.map_err(|_| symbol)?
                    },)*
                })
            }
        }

        $(functions!(@same $symbol($($argument),*) $(as ($($theirs),*))?);)*
    };
    (@same $symbol:ident($($argument:ty),*)) => {
        const _: unsafe fn($($argument),*) -> sys::cublasStatus_t = sys::$symbol;
    };
    (@same $symbol:ident($($argument:ty),*) as ($($theirs:ty),*)) => {
        const _: unsafe fn($($theirs),*) -> sys::cublasStatus_t = sys::$symbol;
    };
}

type Context = sys::cublasLtHandle_t;
type Desc = sys::cublasLtMatmulDesc_t;
type Layout = sys::cublasLtMatrixLayout_t;
type Preference = sys::cublasLtMatmulPreference_t;
type Algo = sys::cublasLtMatmulAlgo_t;
type Theirs = sys::cublasLtMatmulHeuristicResult_t;
type Const = *const std::ffi::c_void;
type Mut = *mut std::ffi::c_void;

functions! {
    create: cublasLtCreate(*mut Context);
    destroy: cublasLtDestroy(Context);
    desc_create: cublasLtMatmulDescCreate(
        *mut Desc, sys::cublasComputeType_t, sys::cudaDataType_t,
    );
    desc_destroy: cublasLtMatmulDescDestroy(Desc);
    desc_set: cublasLtMatmulDescSetAttribute(
        Desc, sys::cublasLtMatmulDescAttributes_t, Const, usize,
    );
    layout_create: cublasLtMatrixLayoutCreate(*mut Layout, sys::cudaDataType, u64, u64, i64);
    layout_destroy: cublasLtMatrixLayoutDestroy(Layout);
    layout_set: cublasLtMatrixLayoutSetAttribute(
        Layout, sys::cublasLtMatrixLayoutAttribute_t, Const, usize,
    );
    preference_create: cublasLtMatmulPreferenceCreate(*mut Preference);
    preference_destroy: cublasLtMatmulPreferenceDestroy(Preference);
    preference_set: cublasLtMatmulPreferenceSetAttribute(
        Preference, sys::cublasLtMatmulPreferenceAttributes_t, Const, usize,
    );
    heuristic: cublasLtMatmulAlgoGetHeuristic(
        Context, Desc, Layout, Layout, Layout, Layout, Preference, c_int, *mut Found, *mut c_int,
    ) as (
        Context, Desc, Layout, Layout, Layout, Layout, Preference, c_int, *mut Theirs, *mut c_int,
    );
    check: cublasLtMatmulAlgoCheck(
        Context, Desc, Layout, Layout, Layout, Layout, *const Algo, *mut Found,
    ) as (
        Context, Desc, Layout, Layout, Layout, Layout, *const Algo, *mut Theirs,
    );
    matmul: cublasLtMatmul(
        Context, Desc, Const, Const, Layout, Const, Layout, Const, Const, Layout, Mut, Layout,
        *const Algo, Mut, usize, sys::cudaStream_t,
    );
}

impl Functions {
    /// Returns the functions of a library that [`libs::open`] has opened, and its version as
    /// `cublasLtGetVersion` counts: 10000 · major + 100 · minor + patch.
    ///
    /// # Errors
    /// [`Error::LibraryVersion`], [`Error::LibrarySymbol`].
    pub(super) fn load(library: &libs::Found) -> Result<(Self, usize), Error> {
        let name = Library::CublasLt.file(library.major);
        let wrong = |found| Error::LibraryVersion {
            name,
            found,
            need: if library.major == 12 { "12" } else { "13" },
        };
        let handle = libs::handle(library).map_err(|e| wrong(format!("unknown ({e})")))?;
        let missing = |symbol| Error::LibrarySymbol { name, symbol };
        let symbol = "cublasLtGetVersion";
        const _: unsafe fn() -> usize = sys::cublasLtGetVersion;
        // SAFETY: the type is that of the bindings.
        let version = unsafe { handle.get::<unsafe extern "C" fn() -> usize>(symbol.as_bytes()) };
        let version = *version.map_err(|_| missing(symbol))?;
        // SAFETY: it takes nothing and needs nothing to be set up.
        let version = unsafe { version() };
        if i32::try_from(version / 10_000) != Ok(library.major) {
            return Err(wrong(dotted(version)));
        }
        let functions = Self::of(&handle).map_err(missing)?;
        // The library is never closed: the functions are in it.
        std::mem::forget(handle);
        Ok((functions, version))
    }
}

/// Writes a version as `13.1.0`.
pub(super) fn dotted(version: usize) -> String {
    format!(
        "{}.{}.{}",
        version / 10_000,
        version / 100 % 100,
        version % 100
    )
}
