//! The door for files that loading reads: regular ones, of a bounded length.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes of a file: ten times the largest `tokenizer.json` that is published, and room for
/// its compiled form.
pub(crate) const BYTES_MAX: u64 = 512 << 20;

/// Opens `path` for reading if it is a regular file of at most [`BYTES_MAX`] bytes or leads to one,
/// and returns its length. Anything else is refused before it is opened: opening a pipe without a
/// writer never returns.
pub(crate) fn open(path: &Path) -> io::Result<(File, usize)> {
    let about = std::fs::metadata(path)?;
    // A folder is the system's to refuse, with its own number, which Python's classes follow.
    if !about.is_file() && !about.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    match usize::try_from(about.len()) {
        Ok(len) if about.len() <= BYTES_MAX => Ok((File::open(path)?, len)),
        _ => Err(too_large()),
    }
}

/// Reads a file that [`open`] opens.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    // Another process may be writing.
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= BYTES_MAX {
        true => Ok(bytes),
        false => Err(too_large()),
    }
}

fn too_large() -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("larger than {BYTES_MAX} bytes"),
    )
}
