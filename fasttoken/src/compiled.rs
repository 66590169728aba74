//! Compiled tokenizers: files of the tables as they lie in memory, which are mapped instead of
//! parsed.
//!
//! Loading a compiled tokenizer verifies the file, builds the few small structures that its
//! configuration describes, and uses all tables in place. Processes that map the same file share
//! its pages.
//!
//! The checksums find damage, not malice. A forged file with correct checksums gives wrong ids or
//! text, and nothing worse: every number that is used as an index is checked at its use or here,
//! and every probe into a table ends.

mod folder;

pub use folder::CacheUse;

use crate::error::Error;
use crate::file;
use crate::format::{self, CompiledError, Reader, Section, Writer};
use crate::load;
use crate::store::FileBytes;
use crate::tokenizer::Tokenizer;
use sha2::{Digest, Sha256};
use std::io::Read as _;
use std::path::Path;

impl Tokenizer {
    /// Compiles a `tokenizer.json` to the bytes of a file for [`Tokenizer::from_compiled`]. The
    /// usual extension of that file is `ftk`. The format depends on the machine's byte order and on
    /// the version of this crate; compiling again is quick.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_bytes`].
    pub fn compile(json: &[u8]) -> Result<Vec<u8>, Error> {
        let (tokenizer, config) = load::load_with_config(json)?;
        Ok(tokenizer.to_compiled(&config, sha256(json)))
    }

    /// Compiles a SentencePiece `.model` file, as [`Tokenizer::compile`] compiles a `tokenizer.json`.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_sentencepiece`].
    pub fn compile_sentencepiece(model: &[u8]) -> Result<Vec<u8>, Error> {
        let (tokenizer, config) = load::load_spm_with_config(model)?;
        Ok(tokenizer.to_compiled(&config, sha256(model)))
    }

    /// Maps the file of a compiled tokenizer and verifies it.
    ///
    /// The file must not be modified or truncated while the tokenizer is alive. Replace it by a new
    /// file, as [`Tokenizer::from_file_cached`] does.
    ///
    /// ```
    /// # let json = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// # let file = std::env::temp_dir().join(format!("fasttoken-doc-{}.ftk", std::process::id()));
    /// std::fs::write(&file, fasttoken::Tokenizer::compile(&std::fs::read(json)?)?)?;
    /// let tokenizer = fasttoken::Tokenizer::from_compiled(&file)?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("pay 5 €", false), false), "pay 5 €");
    /// # std::fs::remove_file(file)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the file cannot be read ([`Error::Io`]), or is damaged, cut, of another
    /// version, or something else ([`Error::Compiled`]).
    pub fn from_compiled(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let reader = open(path)?;
        Self::read_compiled(&reader).map_err(|problem| at(path, problem))
    }

    /// Loads a compiled tokenizer from memory, which is copied.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_compiled`].
    pub fn from_compiled_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let in_memory = |problem| Error::Compiled {
            place: "the compiled tokenizer in memory".to_owned(),
            problem,
        };
        let reader = Reader::new(FileBytes::copy_of(bytes)).map_err(in_memory)?;
        Self::read_compiled(&reader).map_err(in_memory)
    }

    /// Returns the SHA-256 of the `tokenizer.json` or `.model` file that a file was compiled from.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_compiled`]; only the header is verified.
    pub fn compiled_source(path: impl AsRef<Path>) -> Result<[u8; 32], Error> {
        Ok(open(path.as_ref())?.source)
    }

    fn to_compiled(&self, config: &[u8], source: [u8; 32]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(Section::Config, config);
        self.family.write(&self.added, &mut writer);
        writer.finish(source)
    }

    fn read_compiled(reader: &Reader) -> Result<Self, CompiledError> {
        load::from_compiled(reader).map_err(|error| match error {
            Error::Compiled { problem, .. } => problem,
            error => Section::Config.invalid(error.to_string()),
        })
    }
}

fn sha256(json: &[u8]) -> [u8; 32] {
    Sha256::digest(json).into()
}

fn at(path: &Path, problem: CompiledError) -> Error {
    Error::Compiled {
        place: path.display().to_string(),
        problem,
    }
}

fn open(path: &Path) -> Result<Reader, Error> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = match file::open(path) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            return Err(at(path, CompiledError::NotCompiled));
        }
        Err(error) => return Err(io(error)),
    };
    // Mapping reads all of the file, which may be a large one of another kind.
    let mut magic = [0; format::MAGIC.len()];
    match file.read_exact(&mut magic) {
        Ok(()) if magic == format::MAGIC => {}
        Err(error)
            if !matches!(
                error.kind(),
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::IsADirectory
            ) =>
        {
            return Err(io(error));
        }
        _ => return Err(at(path, CompiledError::NotCompiled)),
    }
    let file = FileBytes::map(&file).map_err(io)?;
    Reader::new(file).map_err(|problem| at(path, problem))
}
