//! A folder of compiled tokenizers, one for each `tokenizer.json` or `.model` file.

use super::{open, sha256};
use crate::error::Error;
use crate::file;
use crate::format::VERSION;
use crate::load;
use crate::tokenizer::Tokenizer;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The result of looking for a compiled tokenizer in [`Tokenizer::from_file_cached`].
#[derive(Debug)]
#[non_exhaustive]
pub enum CacheUse {
    /// The folder had the compiled tokenizer.
    Found,
    /// The tokenizer was compiled and stored in the folder.
    Written,
    /// The compiled tokenizer could not be stored in the folder. The loaded tokenizer works all the
    /// same.
    NotWritten(io::Error),
}

impl Tokenizer {
    /// Loads a `tokenizer.json` by its compiled form in the folder `cache`. If the folder lacks a
    /// usable one, the file is compiled and stored there first.
    ///
    /// Files are named by the SHA-256 of the JSON and the version of the format, so any number of
    /// tokenizers and versions can share a folder; nothing is ever deleted. A file is written under
    /// another name first and then renamed, so several processes can do so at once. A user who can
    /// write to the folder decides which ids come out, so it should belong to the user that runs
    /// the program.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_file`]. A folder that cannot be used is no error; see
    /// [`CacheUse`].
    pub fn from_file_cached(
        path: impl AsRef<Path>,
        cache: impl AsRef<Path>,
    ) -> Result<(Self, CacheUse), Error> {
        let path = path.as_ref();
        let json = file::read(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::from_bytes_cached(&json, cache)
    }

    /// Loads the contents of a `tokenizer.json`, as [`Tokenizer::from_file_cached`] loads a file.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_bytes`].
    pub fn from_bytes_cached(
        json: &[u8],
        cache: impl AsRef<Path>,
    ) -> Result<(Self, CacheUse), Error> {
        Self::cached(json, cache.as_ref(), load::load_with_config)
    }

    /// Loads the contents of a SentencePiece `.model` file, as [`Tokenizer::from_file_cached`] loads a
    /// `tokenizer.json`.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_sentencepiece`].
    pub fn from_sentencepiece_cached(
        model: &[u8],
        cache: impl AsRef<Path>,
    ) -> Result<(Self, CacheUse), Error> {
        Self::cached(model, cache.as_ref(), load::load_spm_with_config)
    }

    /// Loads the contents of a file by its compiled form in the folder `cache`. `load` returns the
    /// tokenizer and its configuration.
    fn cached(
        contents: &[u8],
        cache: &Path,
        load: impl FnOnce(&[u8]) -> Result<(Self, Vec<u8>), Error>,
    ) -> Result<(Self, CacheUse), Error> {
        let source = sha256(contents);
        let mut name = String::new();
        for byte in source {
            let _ = write!(name, "{byte:02x}");
        }
        let file = cache.join(format!("{name}-{VERSION}.ftk"));
        if let Ok(reader) = open(&file)
            && reader.source == source
            && let Ok(tokenizer) = Self::read_compiled(&reader)
        {
            return Ok((tokenizer, CacheUse::Found));
        }
        let (tokenizer, config) = load(contents)?;
        let bytes = tokenizer.to_compiled(&config, source);
        let used = match put(cache, &file, &bytes) {
            Ok(()) => CacheUse::Written,
            Err(error) => CacheUse::NotWritten(error),
        };
        Ok((tokenizer, used))
    }
}

/// Writes a file atomically.
fn put(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(folder)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let draft = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    std::fs::write(&draft, bytes)
        .and_then(|()| std::fs::rename(&draft, path))
        .inspect_err(|_| {
            // The first error is the one to report.
            let _ = std::fs::remove_file(&draft);
        })
}
