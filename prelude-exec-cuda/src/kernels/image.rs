//! Compiled kernels and their sources: images that were built, in a folder or in this program, the
//! cache folder, NVRTC.
//!
//! An image in the cache is named by the hash of everything that decides what it holds: source,
//! headers, options, compiler and GPU. So a stale one is never found, and only one that does not
//! load is removed.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use prelude_kernels::Family;
use prelude_models::file;
use sha2::{Digest, Sha256};

use super::nvrtc::Nvrtc;
use crate::{CudaConfig, Error, memory::libs};

/// Major version of the compiler that built images.
const BUILT_BY: i32 = 13;
/// Largest image in the cache that is read.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Finds images.
#[derive(Debug)]
pub(crate) struct Images {
    config: CudaConfig,
    /// The places of images in the order in which they are asked; a place that cannot be opened says
    /// why.
    built: Vec<Result<prelude_kernels::Images, String>>,
}

impl Images {
    pub(crate) fn new(config: &CudaConfig) -> Self {
        let folder = config.image_dir.as_ref().map(prelude_kernels::Images::open);
        let built = [folder, prelude_kernels::Images::packed()]
            .into_iter()
            .flatten();
        let built = built
            .map(|images| images.map_err(|e| e.to_string()))
            .collect();
        Self {
            config: config.clone(),
            built,
        }
    }

    /// Returns the folders of built images, or why they cannot be opened.
    pub(crate) fn places(&self) -> impl Iterator<Item = String> {
        self.built.iter().map(|images| match images {
            Ok(images) => images.place().display().to_string(),
            Err(why) => why.clone(),
        })
    }

    /// Checks that there are built images, or else the compiler; what they hold is not looked at. They
    /// are built by CUDA 13, whose machine code no older driver promises to take.
    ///
    /// # Errors
    /// [`Error::KernelImageMissing`] with what to do.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_for(libs::majors())
    }

    fn check_for(&self, majors: &[i32]) -> Result<(), Error> {
        let fits = majors.contains(&BUILT_BY);
        if fits && self.built.iter().any(Result::is_ok) {
            return Ok(());
        }
        let why = match fits {
            true => "there are no built ones",
            false => "built ones are for drivers of CUDA 13",
        };
        let missing = |error| Error::KernelImageMissing {
            name: "of any family".to_owned(),
            hint: format!("{why}, and the compiler cannot be used: {error}"),
        };
        Nvrtc::open(majors, &self.config).map(drop).map_err(missing)
    }

    /// Returns what `load` makes of the first image of `family` that it takes: a cubin, fatbin or
    /// PTX, ending in a zero byte. `load` says why it does not take one.
    ///
    /// # Errors
    /// [`Error::KernelImageMissing`] with what to do.
    pub(crate) fn get<T>(
        &self,
        family: &Family,
        compute_capability: (i32, i32),
        mut load: impl FnMut(&[u8]) -> Result<T, String>,
    ) -> Result<T, Error> {
        let mut why = Vec::new();
        for images in &self.built {
            let image = match images {
                Ok(images) => images.load(family).map_err(|e| e.to_string()),
                Err(why) => Err(why.clone()),
            };
            match image.map(terminated).and_then(|image| load(&image)) {
                Ok(loaded) => return Ok(loaded),
                Err(e) => why.push(e),
            }
        }
        if self.built.is_empty() {
            why.push("this program carries none and there is no `image_dir`".to_owned());
        }
        let missing = |hint: String| Error::KernelImageMissing {
            name: family.name.to_owned(),
            hint: format!("{}, and {hint}", why.join(", ")),
        };
        let compiler = Nvrtc::open(libs::majors(), &self.config)
            .map_err(|e| missing(format!("the compiler cannot be used: {e}")))?;
        let target = target(compute_capability);
        let name = image_name(family, &target, &compiler.version());
        let path = self.config.cache_dir.as_ref().map(|dir| dir.join(name));
        let compile = || compiler.compile(family, &target);
        cached_or(path.as_deref(), compile, load).map_err(missing)
    }
}

/// Returns what `load` makes of the image in the cache, or else of a new one. An image in the cache
/// that does not load, because a disk was full or broken, is replaced.
fn cached_or<T>(
    path: Option<&Path>,
    compile: impl FnOnce() -> Result<Vec<u8>, String>,
    mut load: impl FnMut(&[u8]) -> Result<T, String>,
) -> Result<T, String> {
    let kept = path.and_then(|path| Some((path, file::read(path, IMAGE_BYTES_MAX).ok()?)));
    if let Some((path, image)) = kept {
        if let Ok(loaded) = load(&terminated(image)) {
            return Ok(loaded);
        }
        let _ = fs::remove_file(path);
    }
    let image = terminated(compile()?);
    let loaded = load(&image)?;
    if let Some(path) = path {
        // A cache that cannot be written costs time at the next start and nothing else.
        let _ = keep(path, &image);
    }
    Ok(loaded)
}

/// Returns the compiler's name of a GPU's architecture: `sm_90a` for Hopper, whose special instructions
/// need the `a`.
fn target((major, minor): (i32, i32)) -> String {
    let special = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{special}")
}

fn image_name(family: &Family, target: &str, compiler: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(family.hash());
    hash.update(target);
    hash.update(compiler);
    let hash: String = hash.finalize()[..16]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("{}-{target}-{hash}.cubin", family.name)
}

/// Ends an image in a zero byte, as PTX must; one more behind other images does no harm.
fn terminated(mut image: Vec<u8>) -> Vec<u8> {
    if image.last() != Some(&0) {
        image.push(0);
    }
    image
}

/// Writes a file that others find whole or not at all.
pub(super) fn keep(path: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Threads of one process may make the same image at the same time.
    static UNIQUE: AtomicU64 = AtomicU64::new(0);
    let unique = UNIQUE.fetch_add(1, Ordering::Relaxed);
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}-{unique}", std::process::id()));
    let result = fs::write(&partial, image).and_then(|()| fs::rename(&partial, path));
    if result.is_err() {
        let _ = fs::remove_file(&partial);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn images_are_named_by_what_they_are_made_of() {
        let [a, b] = [&prelude_kernels::FAMILIES[0], &prelude_kernels::FAMILIES[1]];
        let name = image_name(a, "sm_90a", "13.0");
        assert!(name.starts_with(&format!("{}-sm_90a-", a.name)), "{name}");
        assert_ne!(name, image_name(a, "sm_80", "13.0"));
        assert_ne!(name, image_name(a, "sm_90a", "13.1"));
        assert_ne!(name, image_name(b, "sm_90a", "13.0"));
        assert_eq!(
            (target((9, 0)), target((8, 6))),
            ("sm_90a".into(), "sm_86".into())
        );
    }

    /// Every place that was asked is in the message.
    #[test]
    fn a_missing_image_says_what_was_tried() {
        let config = CudaConfig {
            image_dir: Some("/nowhere".into()),
            library_dirs: vec!["/neither".into()],
            ..CudaConfig::default()
        };
        let images = Images::new(&config);
        let refuse = |_: &[u8]| Err::<(), _>("refused".to_owned());
        let error = images.get(&prelude_kernels::FAMILIES[0], (8, 0), refuse);
        let error = error.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::KernelImageMissing { .. }), "{text}");
        assert!(text.contains("/nowhere"), "{text}");
        // Where the system has the compiler, its image is refused like any other.
        assert!(
            text.contains("/neither") || text.contains("refused"),
            "{text}"
        );
    }

    /// Images of CUDA 13 do not make a GPU usable whose driver is older.
    #[test]
    fn an_older_driver_needs_the_compiler() {
        let config = CudaConfig {
            library_dirs: vec!["/neither".into()],
            ..CudaConfig::default()
        };
        let folder = std::env::temp_dir().join(format!("prelude-built-{}", std::process::id()));
        keep(&folder.join(prelude_kernels::MANIFEST), b"{}").unwrap();
        let built = prelude_kernels::Images::open(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let images = Images {
            config: config.clone(),
            built: vec![Ok(built)],
        };
        assert!(images.check_for(&[13, 12]).is_ok());
        match (images.check_for(&[12]), Nvrtc::open(&[12], &config)) {
            // Where the system has the compiler, it is found there.
            (Ok(()), Ok(_)) => {}
            (Err(error), Err(_)) => {
                let text = error.to_string();
                assert!(text.contains("for drivers of CUDA 13"), "{text}");
                assert!(text.contains("libnvrtc.so.12"), "{text}");
            }
            (checked, _) => panic!("{checked:?}"),
        }
    }

    #[test]
    fn an_image_that_does_not_load_is_made_again() {
        let folder = std::env::temp_dir().join(format!("prelude-broken-{}", std::process::id()));
        let path = folder.join("image.cubin");
        keep(&path, b"broken").unwrap();
        let mut made = 0;
        let mut get = || {
            let compile = || {
                made += 1;
                Ok(b"good".to_vec())
            };
            cached_or(Some(&path), compile, |image| match image {
                b"good\0" => Ok(()),
                other => Err(format!("{other:?}")),
            })
        };
        let results = [get(), get()];
        // What the compiler makes and the driver refuses is not kept, nor made twice.
        let bad = cached_or(
            Some(&folder.join("bad")),
            || Ok(vec![1]),
            |_| Err::<(), _>("refused".to_owned()),
        );
        let files = fs::read_dir(&folder).unwrap().count();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(results, [Ok(()), Ok(())]);
        assert_eq!((made, files), (1, 1));
        assert_eq!(bad, Err("refused".to_owned()));
    }

    /// NVRTC needs no GPU: `cargo xtask kernels nvrtc` names a folder that has it. Images that
    /// were made before are not made again.
    #[test]
    fn nvrtc_compiles_every_family() {
        let variable = "PRELUDE_TEST_NVRTC";
        let Some(folder) = std::env::var_os(variable).map(PathBuf::from) else {
            crate::testing::say("SKIP: NVRTC is not tested: PRELUDE_TEST_NVRTC names no folder");
            return;
        };
        let config = CudaConfig {
            library_dirs: vec![folder.clone()],
            cache_dir: Some(folder.join("images")),
            ..CudaConfig::default()
        };
        let images = Images::new(&config);
        let compiler = Nvrtc::open(&[13, 12], &config).unwrap();
        println!(
            "NVRTC {}, {}",
            compiler.version(),
            compiler.path().display()
        );
        assert!(compiler.path().starts_with(&folder));
        for family in prelude_kernels::FAMILIES {
            for capability in [(8, 0), (9, 0), (12, 0)] {
                if family.is_of_hopper() && capability != (9, 0) {
                    continue;
                }
                let load = |image: &[u8]| match image.starts_with(b"\x7fELF") {
                    true => Ok(image.len()),
                    false => Err("it is no ELF file".to_owned()),
                };
                let bytes = images.get(family, capability, load).unwrap();
                println!("{} {capability:?}: {bytes} bytes", family.name);
            }
        }
    }

    #[test]
    fn a_cached_image_is_whole() {
        let folder = std::env::temp_dir().join(format!("prelude-images-{}", std::process::id()));
        let path = folder.join("deep/image.cubin");
        keep(&path, b"image").unwrap();
        keep(&path, b"other").unwrap();
        assert_eq!(terminated(fs::read(&path).unwrap()), b"other\0");
        let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, 1, "no partial files stay");
    }
}
