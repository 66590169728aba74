//! Opening the files of a checkpoint.

use std::{fs::File, io, path::Path};

/// Opens `path` for reading if it is a regular file or leads to one. Anything else is refused
/// before it is opened: opening a pipe without a writer never returns.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    File::open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

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
