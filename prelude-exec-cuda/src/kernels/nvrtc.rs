//! NVRTC, which compiles kernels at run time, of CUDA 13 or 12.
//!
//! Its entry points come from the very library that was opened, as those of cuBLASLt do; each type is
//! compared with the bindings' when this is compiled.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr,
};

use cudarc::nvrtc::sys;
use libloading::os::unix::Library as Handle;
use prelude_kernels::{Family, HEADERS};

use crate::{
    CudaConfig, Error,
    memory::libs::{self, Library},
};

/// Longest part of a compiler's log that a message repeats.
const LOG_MAX: usize = 2000;
/// Oldest version that compiles all kernels: for GPUs of compute capability 12.0, and products of
/// e4m3.
const OLDEST: (c_int, c_int) = (12, 8);
const NEED: &str = "13, or 12.8 or newer,";

/// `nvrtcResult`. A number: later versions have results that the bindings do not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
struct Status(c_int);

const _: () = assert!(size_of::<Status>() == size_of::<sys::nvrtcResult>());

impl Status {
    fn of(self, call: &str) -> Result<(), String> {
        match self.0 {
            0 => Ok(()),
            code => Err(format!("{call}: error {code}")),
        }
    }
}

/// Declares the functions of the library: for each its field, its symbol, its arguments.
macro_rules! functions {
    ($($field:ident: $symbol:ident($($argument:ty),* $(,)?);)*) => {
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)*
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

        $(const _: unsafe fn($($argument),*) -> sys::nvrtcResult = sys::$symbol;)*
    };
}

type Program = sys::nvrtcProgram;
type Texts = *const *const c_char;

functions! {
    version: nvrtcVersion(*mut c_int, *mut c_int);
    create: nvrtcCreateProgram(
        *mut Program, *const c_char, *const c_char, c_int, Texts, Texts,
    );
    destroy: nvrtcDestroyProgram(*mut Program);
    compile: nvrtcCompileProgram(Program, c_int, Texts);
    log_size: nvrtcGetProgramLogSize(Program, *mut usize);
    log: nvrtcGetProgramLog(Program, *mut c_char);
    cubin_size: nvrtcGetCUBINSize(Program, *mut usize);
    cubin: nvrtcGetCUBIN(Program, *mut c_char);
}

/// The compiler.
#[derive(Clone, Debug)]
pub(crate) struct Nvrtc {
    functions: Functions,
    version: (c_int, c_int),
    path: std::path::PathBuf,
}

impl Nvrtc {
    /// Finds the compiler for one of these major versions of CUDA.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`], [`Error::LibraryVersion`], [`Error::LibrarySymbol`].
    pub(crate) fn open(majors: &[i32], config: &CudaConfig) -> Result<Self, Error> {
        let found = libs::open(Library::Nvrtc, majors, config)?;
        let name = Library::Nvrtc.file(found.major);
        let wrong = |found| Error::LibraryVersion {
            name,
            found,
            need: NEED,
        };
        let handle = libs::handle(&found).map_err(|e| wrong(format!("unknown ({e})")))?;
        let functions = Functions::of(&handle);
        let functions = functions.map_err(|symbol| Error::LibrarySymbol { name, symbol })?;
        // The library is never closed: the functions are in it.
        std::mem::forget(handle);
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both outlive the call.
        unsafe { (functions.version)(&raw mut major, &raw mut minor) }
            .of("nvrtcVersion")
            .map_err(|e| wrong(format!("unknown ({e})")))?;
        let version = (major, minor);
        if major != found.major || version < OLDEST {
            return Err(wrong(format!("{major}.{minor}")));
        }
        Ok(Self {
            functions,
            version,
            path: found.path,
        })
    }

    /// Returns the library's version, such as `12.9`.
    pub(crate) fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Returns the library's file.
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Compiles a family's embedded source with its embedded headers to machine code.
    ///
    /// # Errors
    /// The message that the compiler gives.
    pub(crate) fn compile(&self, family: &Family, target: &str) -> Result<Vec<u8>, String> {
        let source = c(family.source)?;
        let name = c(&format!("{}.cu", family.name))?;
        let texts: Vec<CString> = HEADERS
            .iter()
            .map(|h| c(h.text))
            .collect::<Result<_, _>>()?;
        let names: Vec<CString> = HEADERS
            .iter()
            .map(|h| c(h.name))
            .collect::<Result<_, _>>()?;
        let mut options = vec![c(&format!("--gpu-architecture={target}"))?];
        for option in Family::options() {
            options.push(c(option)?);
        }
        let (texts_at, names_at) = (pointers(&texts), pointers(&names));
        let options_at = pointers(&options);
        let count = |list: &[CString]| {
            c_int::try_from(list.len()).expect("the number of headers and options fits c_int")
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the strings and the arrays of their addresses outlive the call, which copies them.
        unsafe {
            (self.functions.create)(
                &raw mut handle,
                source.as_ptr(),
                name.as_ptr(),
                count(&texts),
                texts_at.as_ptr(),
                names_at.as_ptr(),
            )
        }
        .of("nvrtcCreateProgram")?;
        let program = Compiled {
            functions: &self.functions,
            program: handle,
        };
        // SAFETY: the program was created above; the options and their addresses outlive the call.
        let status = unsafe {
            (self.functions.compile)(program.program, count(&options), options_at.as_ptr())
        };
        if let Err(error) = status.of("nvrtcCompileProgram") {
            return Err(format!("it does not compile ({error}): {}", program.log()));
        }
        program.cubin()
    }
}

fn c(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a source holds a zero byte".to_owned())
}

fn pointers(list: &[CString]) -> Vec<*const c_char> {
    list.iter().map(|text| text.as_ptr()).collect()
}

/// A program under compilation; destroyed when dropped.
struct Compiled<'a> {
    functions: &'a Functions,
    program: Program,
}

impl Compiled<'_> {
    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is compiled, and `bytes` outlives the call.
        unsafe { (self.functions.cubin_size)(self.program, &raw mut bytes) }
            .of("nvrtcGetCUBINSize")?;
        let mut image = vec![0u8; bytes];
        // SAFETY: the compiler writes exactly the number of bytes that it gave.
        unsafe { (self.functions.cubin)(self.program, image.as_mut_ptr().cast()) }
            .of("nvrtcGetCUBIN")?;
        Ok(image)
    }

    /// Returns the beginning of what the compiler says about the source.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program exists, and `bytes` outlives the call.
        let status = unsafe { (self.functions.log_size)(self.program, &raw mut bytes) };
        let mut log = vec![0u8; bytes];
        // SAFETY: the compiler writes exactly the number of bytes that it gave.
        let mut read = || unsafe { (self.functions.log)(self.program, log.as_mut_ptr().cast()) };
        let status = status.of("nvrtcGetProgramLogSize");
        if status
            .and_then(|()| read().of("nvrtcGetProgramLog"))
            .is_err()
        {
            return "and the compiler has no log".to_owned();
        }
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        text.unwrap_or_default().chars().take(LOG_MAX).collect()
    }
}

impl Drop for Compiled<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `compile`, destroyed here only.
        let _ = unsafe { (self.functions.destroy)(&raw mut self.program) };
    }
}
