//! Compiled kernels in a folder, as `cargo xtask kernels build` leaves them.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::Family;

/// Name of the file that says what the images were compiled from.
pub const MANIFEST: &str = "manifest.json";

/// Largest image that is read: all families together are below 2 MB.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file is not there or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The manifest is not one.
    #[error("{} is not a manifest: {why}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// No image of this family.
    #[error("{} has no image of `{family}`", folder.display())]
    Missing {
        /// Where was looked.
        folder: PathBuf,
        /// The family.
        family: &'static str,
    },
    /// The image is of other sources than these.
    #[error("the image of `{family}` in {} is of other sources: {found}, not {wanted}", folder.display())]
    Stale {
        /// Where it lies.
        folder: PathBuf,
        /// The family.
        family: &'static str,
        /// Hash of the sources it was compiled from.
        found: String,
        /// [`Family::hash`].
        wanted: String,
    },
    /// The file's size is not the manifest's.
    #[error("{} has {found} bytes; the manifest says {expected}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// As the manifest says.
        expected: u64,
    },
}

#[derive(Debug, Deserialize)]
struct Entry {
    source: String,
    bytes: u64,
}

/// A folder of images.
#[derive(Debug)]
pub struct Images {
    folder: PathBuf,
    entries: BTreeMap<String, Entry>,
}

impl Images {
    /// Reads the manifest.
    ///
    /// # Errors
    /// [`ImageError::Read`], [`ImageError::Manifest`].
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, ImageError> {
        let folder = folder.into();
        let path = folder.join(MANIFEST);
        let text = fs::read(&path).map_err(|source| ImageError::Read {
            path: path.clone(),
            source,
        })?;
        let entries = serde_json::from_slice(&text).map_err(|e| ImageError::Manifest {
            path,
            why: e.to_string(),
        })?;
        Ok(Self { folder, entries })
    }

    /// Where they lie.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The image of a family, if it was compiled from this crate's sources.
    ///
    /// # Errors
    /// [`ImageError::Missing`], [`ImageError::Stale`], [`ImageError::Truncated`],
    /// [`ImageError::Read`].
    pub fn load(&self, family: &Family) -> Result<Vec<u8>, ImageError> {
        let Some(entry) = self.entries.get(family.name) else {
            return Err(ImageError::Missing {
                folder: self.folder.clone(),
                family: family.name,
            });
        };
        let wanted = family.hash();
        if entry.source != wanted {
            return Err(ImageError::Stale {
                folder: self.folder.clone(),
                family: family.name,
                found: entry.source.clone(),
                wanted,
            });
        }
        let path = self.folder.join(format!("{}.fatbin", family.name));
        let read = |source| ImageError::Read {
            path: path.clone(),
            source,
        };
        let found = fs::metadata(&path).map_err(read)?.len();
        if found != entry.bytes || found > IMAGE_BYTES_MAX {
            return Err(ImageError::Truncated {
                path,
                found,
                expected: entry.bytes,
            });
        }
        fs::read(&path).map_err(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FAMILIES;

    #[test]
    fn images_are_checked() {
        let folder = std::env::temp_dir().join(format!("prelude-images-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let check = |manifest: &str, expected: &str| {
            fs::write(folder.join(MANIFEST), manifest).unwrap();
            let family = &FAMILIES[0];
            let result = Images::open(&folder).and_then(|images| images.load(family));
            let error = result.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let family = &FAMILIES[0];
        let entry = |hash: &str, bytes: u64| {
            format!(
                r#"{{"{}": {{"source": "{hash}", "bytes": {bytes}}}}}"#,
                family.name
            )
        };
        check("[]", "is not a manifest");
        check("{}", "has no image");
        check(&entry("abc", 3), "of other sources: abc");
        check(&entry(&family.hash(), 3), "cannot read");
        fs::write(folder.join(format!("{}.fatbin", family.name)), b"image").unwrap();
        check(&entry(&family.hash(), 3), "has 5 bytes");
        fs::write(folder.join(MANIFEST), entry(&family.hash(), 5)).unwrap();
        let images = Images::open(&folder).unwrap();
        assert_eq!(images.load(family).unwrap(), b"image");
        fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(
            Images::open(&folder),
            Err(ImageError::Read { .. })
        ));
    }
}
