//! Finding and opening NVIDIA's libraries, without panics and without CUDA at build time.
//!
//! The bindings open a library at the first call into it and panic if there is none. So every
//! library is opened here first: the driver by the system's loader, the others by path, with
//! their symbols global and for the life of the process, after which the bindings find them by
//! name. A library is never looked for before something asks for it.

use std::path::{Path, PathBuf};

use cudarc::{cublaslt, driver, nvrtc};
use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

use crate::{CudaConfig, Error};

/// Oldest version that works, as `cuDriverGetVersion` counts: 1000 · major + 10 · minor.
const CUDA_MIN: i32 = 13_000;
/// Where a folder may keep its libraries, the folder itself first.
const SUBFOLDERS: [&str; 4] = ["", "nvidia/cu13/lib", "nvidia/cublas/lib", "lib64"];

/// A library that is opened when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// Matrix products.
    CublasLt,
    /// Compiles kernels at run time.
    Nvrtc,
}

impl Library {
    /// File names in the order in which they must be opened: what the library itself looks for
    /// comes first.
    const fn files(self) -> &'static [&'static str] {
        match self {
            Self::CublasLt => &["libcublasLt.so.13"],
            Self::Nvrtc => &["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"],
        }
    }

    /// The file that callers know it by.
    #[must_use]
    pub(crate) const fn file(self) -> &'static str {
        let files = self.files();
        files[files.len() - 1]
    }

    fn bindings_find_it(self) -> bool {
        // SAFETY: the calls open libraries, whose initialisers run; both are NVIDIA's own, which
        // any CUDA program opens.
        unsafe {
            match self {
                Self::CublasLt => cublaslt::sys::is_culib_present(),
                Self::Nvrtc => nvrtc::sys::is_culib_present(),
            }
        }
    }
}

/// Where an opened library came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A file.
    At(PathBuf),
    /// The system's loader found it by name.
    Loader,
}

/// Opens a library for the life of the process.
///
/// # Errors
/// [`Error::LibraryMissing`] with everywhere it was looked for.
pub(crate) fn open(library: Library, config: &CudaConfig) -> Result<Found, Error> {
    let mut searched = Vec::new();
    let found = open_from(library, &config.library_dirs, &mut searched)
        .or_else(|| {
            searched.push(PathBuf::from("the system's loader"));
            open_all(library, |file| PathBuf::from(file)).then_some(Found::Loader)
        })
        .or_else(|| open_from(library, &config.fallback_dirs, &mut searched));
    match found {
        Some(found) if library.bindings_find_it() => Ok(found),
        _ => Err(Error::LibraryMissing {
            name: library.file(),
            searched,
        }),
    }
}

fn open_from(library: Library, folders: &[PathBuf], searched: &mut Vec<PathBuf>) -> Option<Found> {
    for folder in candidates(folders) {
        searched.push(folder.clone());
        // A folder without the file is passed over before anything of it is opened, so that no
        // half of a version is.
        if library
            .files()
            .iter()
            .all(|file| folder.join(file).exists())
            && open_all(library, |file| folder.join(file))
        {
            return Some(Found::At(folder.join(library.file())));
        }
    }
    None
}

/// Folders that may hold libraries.
fn candidates(folders: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    folders
        .iter()
        .flat_map(|folder| SUBFOLDERS.map(|sub| join(folder, sub)))
}

fn join(folder: &Path, sub: &str) -> PathBuf {
    if sub.is_empty() {
        folder.to_owned()
    } else {
        folder.join(sub)
    }
}

/// Opens all files of a library; those that opened stay open.
fn open_all(library: Library, path: impl Fn(&str) -> PathBuf) -> bool {
    library.files().iter().all(|file| {
        // SAFETY: opening runs the library's initialisers. The name is that of NVIDIA's library,
        // in the system's folders or in one that the owner of the process named.
        match unsafe { Handle::open(Some(path(file)), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(handle) => {
                // Kept for the life of the process: the bindings hold addresses in it.
                std::mem::forget(handle);
                true
            }
            Err(_) => false,
        }
    })
}

/// Starts the driver and gives the version of CUDA that it supports, such as `13.0`.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::DriverTooOld`], [`Error::NoDevice`].
pub(crate) fn start_driver() -> Result<String, Error> {
    let absent = |why: &str| Error::NoDriver {
        why: why.to_owned(),
    };
    // SAFETY: opens the driver's library, as any CUDA program does.
    if !unsafe { driver::sys::is_culib_present() } {
        return Err(absent("libcuda.so.1 is not installed"));
    }
    let mut version = 0;
    // SAFETY: `version` outlives the call. It may be called before `cuInit`.
    let status = unsafe { driver::sys::cuDriverGetVersion(&raw mut version) };
    status
        .result()
        .map_err(|e| absent(&format!("cuDriverGetVersion: {}", describe(e))))?;
    if version < CUDA_MIN {
        return Err(Error::DriverTooOld {
            found: dotted(version),
            need: dotted(CUDA_MIN),
        });
    }
    match driver::result::init() {
        Ok(()) => Ok(dotted(version)),
        Err(driver::DriverError(driver::sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
            Err(Error::NoDevice {
                ordinal: 0,
                count: 0,
            })
        }
        Err(e) => Err(absent(&format!("cuInit: {}", describe(e)))),
    }
}

/// The name of a driver's error. Does not ask the driver, which may be what is broken.
pub(crate) fn describe(error: driver::DriverError) -> String {
    format!("{:?}", error.0)
}

fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_written() {
        assert_eq!(dotted(12_080), "12.8");
        assert_eq!(dotted(CUDA_MIN), "13.0");
    }

    #[test]
    fn folders_are_searched_in_order() {
        let folders: Vec<_> = candidates(&["/a".into(), "/b".into()]).collect();
        assert_eq!(folders[0], Path::new("/a"));
        assert_eq!(folders[1], Path::new("/a/nvidia/cu13/lib"));
        assert_eq!(folders[4], Path::new("/b"));
    }

    /// A file of the right name that is no library is passed over, and the message says so.
    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        let folder = std::env::temp_dir().join(format!("prelude-libs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for file in Library::Nvrtc.files() {
            std::fs::write(folder.join(file), b"not a library").unwrap();
        }
        let config = CudaConfig {
            library_dirs: vec![folder.clone()],
            fallback_dirs: vec!["/nowhere".into()],
            ..CudaConfig::default()
        };
        let result = open(Library::Nvrtc, &config);
        std::fs::remove_dir_all(&folder).unwrap();
        // Where the system has the library, it is found there.
        let Err(error) = result else { return };
        let text = error.to_string();
        assert!(matches!(error, Error::LibraryMissing { .. }), "{text}");
        assert!(text.contains("libnvrtc.so.13"), "{text}");
        assert!(text.contains("/nowhere/nvidia/cu13/lib"), "{text}");
        assert!(text.contains(&folder.display().to_string()), "{text}");
    }
}
