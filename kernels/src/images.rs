//! Compiled kernels: in a folder, as `cargo xtask kernels build` leaves them, or packed into the
//! program, if it was built with `PRELUDE_KERNEL_IMAGES` naming such a folder.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::Family;

/// Name of the file that says what the images were compiled from.
pub const MANIFEST: &str = "manifest.json";

/// The name of the program's own images in messages.
const PROGRAM: &str = "this program";

/// Largest manifest that is read: a line for each family.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Largest image that is read: all families together are below 2 MB.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// The reason why there is no image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file is not there or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The manifest is not one.
    #[error("{} is not a manifest: {why}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is no image of this family.
    #[error("{} has no image of `{family}`", folder.display())]
    Missing {
        /// The folder that was searched.
        folder: PathBuf,
        /// The family.
        family: &'static str,
    },
    /// The image is of other sources than these.
    #[error("the image of `{family}` in {} is of other sources: {found}, not {wanted}", folder.display())]
    Stale {
        /// The folder of the image.
        folder: PathBuf,
        /// The family.
        family: &'static str,
        /// Hash of the sources that the image was compiled from.
        found: String,
        /// [`Family::hash`].
        wanted: String,
    },
    /// The file's size is not the manifest's.
    #[error("{} has {found} bytes; the manifest says {expected}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The file's size.
        found: u64,
        /// The hash in the manifest.
        expected: u64,
    },
}

#[derive(Debug, Deserialize)]
struct Entry {
    source: String,
    bytes: u64,
}

include!(concat!(env!("OUT_DIR"), "/packed.rs"));

/// A folder of images, as a program carries it.
#[derive(Clone, Copy, Debug)]
struct Packed {
    manifest: &'static str,
    /// The images by family.
    images: &'static [(&'static str, &'static [u8])],
}

/// Images of one place.
#[derive(Debug)]
pub struct Images {
    place: ImageStore,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
enum ImageStore {
    Folder(PathBuf),
    Program(Packed),
}

impl Images {
    /// Reads the manifest.
    ///
    /// # Errors
    /// [`ImageError::Read`], [`ImageError::Manifest`].
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, ImageError> {
        let folder = folder.into();
        let path = folder.join(MANIFEST);
        let text = read(&path, MANIFEST_BYTES_MAX).map_err(|source| ImageError::Read {
            path: path.clone(),
            source,
        })?;
        let entries = entries(&text, &path)?;
        let place = ImageStore::Folder(folder);
        Ok(Self { place, entries })
    }

    /// Returns the images that the program carries, if it was built with some.
    ///
    /// # Errors
    /// [`ImageError::Manifest`].
    pub fn packed() -> Option<Result<Self, ImageError>> {
        PACKED.map(Self::of_program)
    }

    fn of_program(packed: Packed) -> Result<Self, ImageError> {
        let entries = entries(packed.manifest.as_bytes(), Path::new(PROGRAM))?;
        let place = ImageStore::Program(packed);
        Ok(Self { place, entries })
    }

    /// Returns the folder of the images, for messages.
    #[must_use]
    pub fn place(&self) -> &Path {
        match &self.place {
            ImageStore::Folder(folder) => folder,
            ImageStore::Program(_) => Path::new(PROGRAM),
        }
    }

    /// Returns the image of a family, if it was compiled from this crate's sources.
    ///
    /// # Errors
    /// [`ImageError::Missing`], [`ImageError::Stale`], [`ImageError::Truncated`],
    /// [`ImageError::Read`].
    pub fn load(&self, family: &Family) -> Result<Vec<u8>, ImageError> {
        let Some(entry) = self.entries.get(family.name) else {
            return Err(ImageError::Missing {
                folder: self.place().to_owned(),
                family: family.name,
            });
        };
        let wanted = family.hash();
        if entry.source != wanted {
            return Err(ImageError::Stale {
                folder: self.place().to_owned(),
                family: family.name,
                found: entry.source.clone(),
                wanted,
            });
        }
        let path = self.place().join(format!("{}.fatbin", family.name));
        if let ImageStore::Program(packed) = &self.place {
            return carried(packed, family, entry, path);
        }
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
        self::read(&path, IMAGE_BYTES_MAX).map_err(read)
    }
}

/// Reads a regular file of at most so many bytes. Anything else is refused before it is opened:
/// opening a pipe without a writer never returns.
fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    match about.is_file() && about.len() <= most {
        true => fs::read(path),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not a regular file of at most {most} bytes"),
        )),
    }
}

/// Returns an image of the program's.
fn carried(
    packed: &Packed,
    family: &Family,
    entry: &Entry,
    path: PathBuf,
) -> Result<Vec<u8>, ImageError> {
    let image = packed.images.iter().find(|(name, _)| *name == family.name);
    let image = image.map_or(&[][..], |(_, image)| image);
    if image.len() as u64 != entry.bytes {
        return Err(ImageError::Truncated {
            path,
            found: image.len() as u64,
            expected: entry.bytes,
        });
    }
    Ok(image.to_vec())
}

fn entries(manifest: &[u8], path: &Path) -> Result<BTreeMap<String, Entry>, ImageError> {
    serde_json::from_slice(manifest).map_err(|e| ImageError::Manifest {
        path: path.to_owned(),
        why: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FAMILIES;

    /// Programs that were built with images carry all of them, of these sources.
    #[test]
    fn packed_images_are_whole() {
        let Some(images) = Images::packed() else {
            println!("SKIP: built without PRELUDE_KERNEL_IMAGES, no images are packed");
            return;
        };
        let images = images.unwrap();
        for family in FAMILIES {
            let image = images.load(family).unwrap();
            // As fatbins begin.
            assert_eq!(image[..4], 0xba55_ed50_u32.to_le_bytes(), "{}", family.name);
        }
    }

    #[test]
    fn carried_images_are_checked() {
        let family = &FAMILIES[0];
        let check = |manifest: &str, expected: &str| {
            let packed = Packed {
                manifest: manifest.to_owned().leak(),
                images: vec![(family.name, &b"image"[..])].leak(),
            };
            let result = Images::of_program(packed).and_then(|images| images.load(family));
            match result {
                Ok(image) => assert_eq!((&image[..], expected), (&b"image"[..], "")),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!expected.is_empty() && error.contains(expected), "{error}");
                }
            }
        };
        let entry = |name: &str, hash: &str, bytes: u64| {
            format!(r#"{{"{name}": {{"source": "{hash}", "bytes": {bytes}}}}}"#)
        };
        check(&entry(family.name, &family.hash(), 5), "");
        check("[]", "this program is not a manifest");
        check("{}", "this program has no image");
        check(&entry(family.name, "abc", 5), "of other sources: abc");
        check(&entry(family.name, &family.hash(), 6), "has 5 bytes");
    }

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
