//! Finding and opening NVIDIA's libraries, without panics and without CUDA at build time.
//!
//! The bindings open a library at the first call into it and panic if there is none. So the driver is
//! opened here first, by the system's loader. Of the other libraries the bindings' functions are not
//! called: each is opened by path, for the life of the process, and asked for its symbols. A library is
//! never looked for before something asks for it.
//!
//! A driver runs what libraries of its own major version of CUDA and of older ones make, whatever the
//! minor ones are (NVIDIA's rule of minor version compatibility). Kernels are compiled to machine code
//! and not to PTX, which a driver takes of no newer version than its own.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use cudarc::driver;
use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

use crate::{CudaConfig, Error};

/// Oldest version that works, as `cuDriverGetVersion` counts: 1000 · major + 10 · minor.
const CUDA_MIN: i32 = 12_000;
/// Major versions of CUDA whose libraries are used, the best first.
const MAJORS: [i32; 2] = [13, 12];
/// The folders in which a folder may keep its libraries, the folder itself first.
const SUBFOLDERS: [&str; 5] = [
    "",
    "nvidia/cu13/lib",
    "nvidia/cublas/lib",
    "nvidia/cuda_nvrtc/lib",
    "lib64",
];

/// A library that is opened when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// Matrix products.
    CublasLt,
    /// Compiles kernels at run time.
    Nvrtc,
}

impl Library {
    /// Returns the library's file for a major version of CUDA, as callers know it.
    #[must_use]
    pub(crate) const fn file(self, major: i32) -> &'static str {
        match (self, major) {
            (Self::CublasLt, 12) => "libcublasLt.so.12",
            (Self::CublasLt, _) => "libcublasLt.so.13",
            (Self::Nvrtc, 12) => "libnvrtc.so.12",
            (Self::Nvrtc, _) => "libnvrtc.so.13",
        }
    }

    /// Returns the start of the names of files that the library itself opens and that must lie beside
    /// it: names go on with the minor version, which the library's own name does not tell.
    fn companion(self, major: i32) -> Option<String> {
        match self {
            Self::CublasLt => None,
            Self::Nvrtc => Some(format!("libnvrtc-builtins.so.{major}.")),
        }
    }

    /// Returns the library's files in a folder, in the order in which they must be opened: companions
    /// first. `None` where one is missing, so that no half of a version is opened.
    fn files(self, folder: &Path, major: i32) -> Option<Vec<PathBuf>> {
        let library = folder.join(self.file(major));
        if !library.exists() {
            return None;
        }
        let mut files = Vec::new();
        if let Some(start) = self.companion(major) {
            let entries = std::fs::read_dir(folder).ok()?.flatten();
            let beside = entries.filter(|e| e.file_name().to_string_lossy().starts_with(&start));
            files.extend(beside.map(|e| e.path()));
            if files.is_empty() {
                return None;
            }
            files.sort();
        }
        files.push(library);
        Some(files)
    }
}

/// An opened library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The library's file, or its name where the system's loader found it.
    pub(crate) path: PathBuf,
    /// The major version in its name.
    pub(crate) major: i32,
}

/// Returns the major versions of CUDA whose libraries this machine's driver takes, the best first; all
/// of them where there is no driver.
pub(crate) fn majors() -> &'static [i32] {
    majors_of(driver_version())
}

const fn majors_of(driver: Option<i32>) -> &'static [i32] {
    match driver {
        Some(version) if version < 13_000 => &[12],
        _ => &MAJORS,
    }
}

/// Opens a library for the life of the process.
///
/// # Errors
/// [`Error::LibraryMissing`] with everywhere it was looked for.
pub(crate) fn open(library: Library, majors: &[i32], config: &CudaConfig) -> Result<Found, Error> {
    let mut searched = Vec::new();
    let found = open_from(library, majors, &config.library_dirs, &mut searched)
        .or_else(|| {
            searched.push(PathBuf::from("the system's loader"));
            // It finds companions as it finds the library.
            majors.iter().find_map(|&major| {
                let path = PathBuf::from(library.file(major));
                open_all(std::slice::from_ref(&path)).then_some(Found { path, major })
            })
        })
        .or_else(|| open_from(library, majors, &config.fallback_dirs, &mut searched));
    found.ok_or_else(|| Error::LibraryMissing {
        name: library.file(majors.first().copied().unwrap_or(MAJORS[0])),
        searched,
    })
}

fn open_from(
    library: Library,
    majors: &[i32],
    folders: &[PathBuf],
    searched: &mut Vec<PathBuf>,
) -> Option<Found> {
    for folder in candidates(folders) {
        searched.push(folder.clone());
        for &major in majors {
            let files = library.files(&folder, major);
            if files.is_some_and(|files| open_all(&files)) {
                let path = folder.join(library.file(major));
                return Some(Found { path, major });
            }
        }
    }
    None
}

/// Finds a library again that [`open`] has opened, for its symbols.
///
/// # Errors
/// The message that the loader gives.
pub(crate) fn handle(found: &Found) -> Result<Handle, String> {
    // SAFETY: the library is open already, so that no initialiser runs; this finds it again.
    unsafe { Handle::open(Some(&found.path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| e.to_string())
}

/// Returns the folders that may hold libraries.
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

/// Opens files of a library; those that opened stay open.
fn open_all(files: &[PathBuf]) -> bool {
    files.iter().all(|file| {
        // SAFETY: opening runs the library's initialisers. The name is that of NVIDIA's library,
        // in the system's folders or in one that the owner of the process named.
        match unsafe { Handle::open(Some(file), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(handle) => {
                // Kept for the life of the process: callers hold addresses in it.
                std::mem::forget(handle);
                true
            }
            Err(_) => false,
        }
    })
}

/// Returns the version of CUDA that the driver supports, if there is a driver that says it.
fn driver_version() -> Option<i32> {
    // SAFETY: opens the driver's library, as any CUDA program does.
    if !unsafe { driver::sys::is_culib_present() } {
        return None;
    }
    let mut version = 0;
    // SAFETY: `version` outlives the call. It may be called before `cuInit`.
    let status = unsafe { driver::sys::cuDriverGetVersion(&raw mut version) };
    status.result().ok().map(|()| version)
}

/// `cuEventElapsedTime`: every driver has this one, and those before CUDA 12.8 not the one that the
/// bindings call.
type ElapsedTime = unsafe extern "C" fn(
    *mut f32,
    driver::sys::CUevent,
    driver::sys::CUevent,
) -> driver::sys::CUresult;

/// Returns the driver's function for the time between two events; none if there is no driver.
pub(super) fn elapsed_time() -> Option<ElapsedTime> {
    static FUNCTION: OnceLock<Option<ElapsedTime>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let name = "libcuda.so.1";
        // SAFETY: the driver is open wherever there are events; this finds it again.
        let handle = unsafe { Handle::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.ok()?;
        // SAFETY: the type is that of the function in the driver's header.
        let function = unsafe { handle.get::<ElapsedTime>(b"cuEventElapsedTime") };
        let function = *function.ok()?;
        // Never closed: the function is in it.
        std::mem::forget(handle);
        Some(function)
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

/// Returns the name of a driver's error. Does not ask the driver, which may be what is broken.
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
        assert_eq!(dotted(CUDA_MIN), "12.0");
    }

    #[test]
    fn drivers_take_libraries_of_their_version_and_older() {
        assert_eq!(majors_of(None), [13, 12]);
        assert_eq!(majors_of(Some(13_010)), [13, 12]);
        assert_eq!(majors_of(Some(14_000)), [13, 12]);
        assert_eq!(majors_of(Some(12_090)), [12]);
    }

    #[test]
    fn folders_are_searched_in_order() {
        let folders: Vec<_> = candidates(&["/a".into(), "/b".into()]).collect();
        assert_eq!(folders[0], Path::new("/a"));
        assert_eq!(folders[1], Path::new("/a/nvidia/cu13/lib"));
        assert_eq!(folders[5], Path::new("/b"));
    }

    #[test]
    fn any_minor_version_of_the_compiler_will_do() {
        let folder = std::env::temp_dir().join(format!("prelude-nvrtc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |file: &str| std::fs::write(folder.join(file), b"").unwrap();
        let names = |major| -> Option<Vec<String>> {
            let files = Library::Nvrtc.files(&folder, major)?;
            let name = |f: &PathBuf| f.file_name().unwrap().to_string_lossy().into_owned();
            Some(files.iter().map(name).collect())
        };
        write("libnvrtc.so.13");
        write("libnvrtc-builtins.alt.so.13.0");
        write("libnvrtc-builtins.so.12.9");
        let without = [names(13), names(12)];
        write("libnvrtc-builtins.so.13.2");
        write("libnvrtc.so.12");
        let with = [names(13), names(12)].map(Option::unwrap);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(without, [None, None]);
        assert_eq!(with[0], ["libnvrtc-builtins.so.13.2", "libnvrtc.so.13"]);
        assert_eq!(with[1], ["libnvrtc-builtins.so.12.9", "libnvrtc.so.12"]);
    }

    /// A file of the right name that is no library is passed over, and the message says so.
    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        let folder = std::env::temp_dir().join(format!("prelude-libs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"] {
            std::fs::write(folder.join(file), b"not a library").unwrap();
        }
        let config = CudaConfig {
            library_dirs: vec![folder.clone()],
            fallback_dirs: vec!["/nowhere".into()],
            ..CudaConfig::default()
        };
        let results = [&MAJORS[..], &[12]].map(|majors| open(Library::Nvrtc, majors, &config));
        std::fs::remove_dir_all(&folder).unwrap();
        // Where the system has the library, it is found there.
        let [Err(error), Err(older)] = results else {
            return;
        };
        let older = older.to_string();
        assert!(older.starts_with("libnvrtc.so.12 was not found"), "{older}");
        assert!(older.contains("nvidia-cuda-nvrtc-cu12"), "{older}");
        let text = error.to_string();
        assert!(matches!(error, Error::LibraryMissing { .. }), "{text}");
        assert!(text.contains("libnvrtc.so.13"), "{text}");
        assert!(text.contains("/nowhere/nvidia/cu13/lib"), "{text}");
        assert!(text.contains(&folder.display().to_string()), "{text}");
    }
}
