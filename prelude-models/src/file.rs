//! The door for files that a start reads: regular ones, of a bounded length.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The most bytes of a document beside the weights: configuration files are kilobytes, and shard
/// indices of the largest models a few megabytes.
pub const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// Opens `path` for reading if it is a regular file or leads to one. Anything else is refused
/// before it is opened: opening a pipe without a writer never returns.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    File::open(path)
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// The errors of [`open`]; [`io::ErrorKind::FileTooLarge`] for a longer file.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {most} bytes"),
        ));
    }
    Ok(bytes)
}

/// Reads a regular file of text, of at most [`DOCUMENT_BYTES_MAX`] bytes.
///
/// # Errors
/// The errors of [`read`]; [`io::ErrorKind::InvalidData`] for what is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read(path, DOCUMENT_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_a_length() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert_eq!(read(&path, bytes).unwrap().len() as u64, bytes);
        assert_eq!(read_text(&path).unwrap().len() as u64, bytes);
        let error = read(&path, bytes - 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(open(&folder.join("Cargo.toml")).is_ok());
        let kind = |path: &Path| open(path).unwrap_err().kind();
        assert_eq!(kind(folder), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&folder.join("absent")), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_pipes_are_refused() {
        let kind = |path: &Path| open(path).unwrap_err().kind();
        assert_eq!(kind(Path::new("/dev/null")), io::ErrorKind::InvalidInput);
        let pipe = std::env::temp_dir().join(format!("prelude-pipe-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .expect("POSIX has mkfifo");
        assert!(made.success());
        let refused = kind(&pipe);
        std::fs::remove_file(&pipe).unwrap();
        assert_eq!(refused, io::ErrorKind::InvalidInput);
    }
}
