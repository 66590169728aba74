//! Finding and opening NVIDIA's libraries, without panics and without CUDA at build time.
//!
//! The bindings open a library at the first call into it and panic if there is none. So every
//! library is opened here first: the driver by the system's loader, the others by path, with
//! their symbols global and for the life of the process, after which the bindings find them by
//! name. A library is never looked for before something asks for it.

use std::path::{Path, PathBuf};

use cudarc::{driver, nvrtc};
use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

use crate::{CudaConfig, Error};

/// Oldest version that works, as `cuDriverGetVersion` counts: 1000 · major + 10 · minor.
const CUDA_MIN: i32 = 13_000;
/// Major version of NVRTC that the bindings are for.
const NVRTC_MAJOR: i32 = 13;
/// The folders in which a folder may keep its libraries, the folder itself first.
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
    /// The file that callers know it by.
    #[must_use]
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::CublasLt => "libcublasLt.so.13",
            Self::Nvrtc => "libnvrtc.so.13",
        }
    }

    /// Start of the names of files that the library itself opens and that must lie beside it: names
    /// go on with the minor version, which the library's own name does not tell.
    const fn companion(self) -> Option<&'static str> {
        match self {
            Self::CublasLt => None,
            Self::Nvrtc => Some("libnvrtc-builtins.so.13."),
        }
    }

    /// Its files in a folder, in the order in which they must be opened: companions first. `None`
    /// where one is missing, so that no half of a version is opened.
    fn files(self, folder: &Path) -> Option<Vec<PathBuf>> {
        let library = folder.join(self.file());
        if !library.exists() {
            return None;
        }
        let mut files = Vec::new();
        if let Some(start) = self.companion() {
            let entries = std::fs::read_dir(folder).ok()?.flatten();
            let beside = entries.filter(|e| e.file_name().to_string_lossy().starts_with(start));
            files.extend(beside.map(|e| e.path()));
            if files.is_empty() {
                return None;
            }
            files.sort();
        }
        files.push(library);
        Some(files)
    }

    /// Returns true if the bindings find the library by name. Those of cuBLASLt are not called, see
    /// `lt/functions.rs`.
    fn bindings_find_it(self) -> bool {
        match self {
            Self::CublasLt => true,
            // SAFETY: the call opens the library, whose initialisers run; it is NVIDIA's own,
            // which any CUDA program opens.
            Self::Nvrtc => unsafe { nvrtc::sys::is_culib_present() },
        }
    }
}

/// The source of an opened library.
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
/// [`Error::LibraryMissing`] with everywhere it was looked for; [`Error::LibraryVersion`].
pub(crate) fn open(library: Library, config: &CudaConfig) -> Result<Found, Error> {
    let mut searched = Vec::new();
    let found = open_from(library, &config.library_dirs, &mut searched)
        .or_else(|| {
            searched.push(PathBuf::from("the system's loader"));
            // It finds companions as it finds the library.
            open_all(&[PathBuf::from(library.file())]).then_some(Found::Loader)
        })
        .or_else(|| open_from(library, &config.fallback_dirs, &mut searched));
    match found {
        Some(found) if library.bindings_find_it() => {
            // The bindings look for it by several names, and may have found another.
            if library == Library::Nvrtc {
                check_nvrtc(nvrtc_version())?;
            }
            Ok(found)
        }
        _ => Err(Error::LibraryMissing {
            name: library.file(),
            searched,
        }),
    }
}

fn open_from(library: Library, folders: &[PathBuf], searched: &mut Vec<PathBuf>) -> Option<Found> {
    for folder in candidates(folders) {
        searched.push(folder.clone());
        if library.files(&folder).is_some_and(|files| open_all(&files)) {
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

/// Major and minor version of the compiler that the bindings call. The library is open.
pub(crate) fn nvrtc_version() -> Result<(i32, i32), String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is open, and both outlive the call.
    unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .map_err(|e| format!("unknown (nvrtcVersion: {:?})", e.0))?;
    Ok((major, minor))
}

fn check_nvrtc(version: Result<(i32, i32), String>) -> Result<(), Error> {
    let found = match version {
        Ok((NVRTC_MAJOR, _)) => return Ok(()),
        Ok((major, minor)) => format!("{major}.{minor}"),
        Err(why) => why,
    };
    Err(Error::LibraryVersion {
        name: Library::Nvrtc.file(),
        found,
        need: "13",
    })
}

/// Opens files of a library; those that opened stay open.
fn open_all(files: &[PathBuf]) -> bool {
    files.iter().all(|file| {
        // SAFETY: opening runs the library's initialisers. The name is that of NVIDIA's library,
        // in the system's folders or in one that the owner of the process named.
        match unsafe { Handle::open(Some(file), RTLD_NOW | RTLD_GLOBAL) } {
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

    #[test]
    fn any_minor_version_of_the_compiler_will_do() {
        let folder = std::env::temp_dir().join(format!("prelude-nvrtc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |file: &str| std::fs::write(folder.join(file), b"").unwrap();
        let names = || -> Option<Vec<String>> {
            let files = Library::Nvrtc.files(&folder)?;
            let name = |f: &PathBuf| f.file_name().unwrap().to_string_lossy().into_owned();
            Some(files.iter().map(name).collect())
        };
        write("libnvrtc.so.13");
        write("libnvrtc-builtins.alt.so.13.0");
        write("libnvrtc-builtins.so.12.9");
        let without = names();
        write("libnvrtc-builtins.so.13.2");
        let with = names();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(without, None);
        assert_eq!(
            with.unwrap(),
            ["libnvrtc-builtins.so.13.2", "libnvrtc.so.13"]
        );
    }

    #[test]
    fn another_major_version_of_the_compiler_is_refused() {
        assert!(check_nvrtc(Ok((13, 2))).is_ok());
        let text = check_nvrtc(Ok((12, 9))).unwrap_err().to_string();
        assert!(text.contains("version 12.9, but 13 is needed"), "{text}");
        assert!(check_nvrtc(Err("unknown".to_owned())).is_err());
    }

    /// A file of the right name that is no library is passed over, and the message says so.
    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        let folder = std::env::temp_dir().join(format!("prelude-libs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["libnvrtc-builtins.so.13.0", Library::Nvrtc.file()] {
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
