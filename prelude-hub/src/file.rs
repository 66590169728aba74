//! Reading small files of the cache and of the user.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

/// Reads a regular file of at most `limit` bytes. Anything else is refused before it is opened:
/// opening a pipe without a writer never returns.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("the file has more than {limit} bytes"),
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_read_up_to_a_length() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(read_bounded(&path, 1 << 20).is_ok());
        let kind = |path: &Path, limit| read_bounded(path, limit).unwrap_err().kind();
        assert_eq!(kind(&path, 10), io::ErrorKind::FileTooLarge);
        let zero = Path::new("/dev/zero");
        assert_eq!(kind(zero, 1 << 20), io::ErrorKind::InvalidInput);
    }
}
