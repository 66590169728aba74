//! Compiled images: a tokenizer as it lies in memory, in a file to be mapped.
//!
//! Loading one reads and verifies it, builds the few small structures that its
//! configuration describes, and uses all tables in place. Pages are shared by all
//! processes that map the same file.
//!
//! The checksums find damage, not malice. An image that was made up with right
//! checksums gives wrong ids or text, and nothing worse: every number that is used as
//! an index is checked at its use or here, and every probe into a table ends.

mod cache;
mod error;
pub(crate) mod format;

pub use cache::CacheUse;
pub use error::ImageError;

use crate::error::Error;
use crate::load;
use crate::store::Image;
use crate::tokenizer::Tokenizer;
use format::{Reader, Section, Writer};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

impl Tokenizer {
    /// The compiled image of a `tokenizer.json`, for [`Tokenizer::from_image`]. The
    /// usual extension of its file is `ftk`. Images are made for the machine's byte
    /// order and for this version of the crate; they are quick to make anew.
    ///
    /// # Errors
    /// As [`Tokenizer::from_bytes`].
    pub fn compile(json: &[u8]) -> Result<Vec<u8>, Error> {
        let (tokenizer, config) = load::load_with_config(json)?;
        Ok(tokenizer.to_image(&config, sha256(json)))
    }

    /// Maps a compiled image and verifies it.
    ///
    /// The file must not be written to or cut while the tokenizer is alive; replace it
    /// by a new file, as [`Tokenizer::from_file_cached`] does.
    ///
    /// ```
    /// # let json = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// # let image = std::env::temp_dir().join(format!("fasttoken-doc-{}.ftk", std::process::id()));
    /// std::fs::write(&image, fasttoken::Tokenizer::compile(&std::fs::read(json)?)?)?;
    /// let tokenizer = fasttoken::Tokenizer::from_image(&image)?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("pay 5 €", false), false), "pay 5 €");
    /// # std::fs::remove_file(image)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the file cannot be read ([`Error::Io`]), or is damaged, cut, of another
    /// version, or something else ([`Error::Image`]).
    pub fn from_image(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let reader = open(path)?;
        Self::read_image(&reader).map_err(|problem| at(path, problem))
    }

    /// [`Tokenizer::from_image`] for an image in memory, which is copied.
    ///
    /// # Errors
    /// As there.
    pub fn from_image_bytes(image: &[u8]) -> Result<Self, Error> {
        let in_memory = |problem| Error::Image {
            place: "the image in memory".to_owned(),
            problem,
        };
        let reader = Reader::new(Image::copy_of(image)).map_err(in_memory)?;
        Self::read_image(&reader).map_err(in_memory)
    }

    /// The SHA-256 of the `tokenizer.json` that an image was compiled from.
    ///
    /// # Errors
    /// As [`Tokenizer::from_image`]; only the header is verified.
    pub fn image_source(path: impl AsRef<Path>) -> Result<[u8; 32], Error> {
        Ok(open(path.as_ref())?.source)
    }

    fn to_image(&self, config: &[u8], source: [u8; 32]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(Section::Config, config);
        if let Some(family) = &self.sentencepiece {
            family.write(&self.added, &mut writer);
        } else {
            self.vocab.write(&mut writer);
            self.bpe.write(&mut writer);
        }
        writer.finish(source)
    }

    fn read_image(reader: &Reader) -> Result<Self, ImageError> {
        load::from_image(reader).map_err(|error| match error {
            Error::Image { problem, .. } => problem,
            error => Section::Config.invalid(error.to_string()),
        })
    }
}

fn sha256(json: &[u8]) -> [u8; 32] {
    Sha256::digest(json).into()
}

fn at(path: &Path, problem: ImageError) -> Error {
    Error::Image {
        place: path.display().to_string(),
        problem,
    }
}

fn open(path: &Path) -> Result<Reader, Error> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    // Before opening: that of a pipe would wait for its other end.
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(at(path, ImageError::NotAnImage));
    }
    let mut file = File::open(path).map_err(io)?;
    // Mapping reads all of the file, which may be a large one of another kind.
    let mut magic = [0; format::MAGIC.len()];
    match file.read_exact(&mut magic) {
        Ok(()) if magic == format::MAGIC => {}
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(io(error)),
        _ => return Err(at(path, ImageError::NotAnImage)),
    }
    let image = Image::map(&file).map_err(io)?;
    Reader::new(image).map_err(|problem| at(path, problem))
}
