//! A file that lists engines, read again when it changes.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use thiserror::Error;

use super::spec::{BadEndpoint, EndpointLine};

/// Upper bound of the size of a file of engines.
const MAX_BYTES: u64 = 1 << 20;

/// The reason why a file of engines cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system cannot read it.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is larger than any list of engines.
    #[error("{path} has more than {MAX_BYTES} bytes, which is no list of engines")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A line names no engine.
    #[error("{path}:{line}: {source}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1 on.
        line: usize,
        /// The fault.
        source: BadEndpoint,
    },
}

/// Reads a file of engines, one on each line; blank lines and those that begin with `#` are skipped.
///
/// # Errors
/// [`FileError`]: the first fault.
pub fn read_endpoints(path: &Path) -> Result<Vec<EndpointLine>, FileError> {
    let failed = |source| FileError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = regular(path).map_err(failed)?;
    let mut file = file.take(MAX_BYTES + 1);
    file.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        let path = path.to_owned();
        return Err(FileError::TooLarge { path });
    }
    let lines = text.lines().enumerate();
    let named = lines.filter(|(_, line)| !line.trim().is_empty() && !line.trim().starts_with('#'));
    let read = named.map(|(at, line)| {
        line.parse().map_err(|source| FileError::Line {
            path: path.to_owned(),
            line: at + 1,
            source,
        })
    });
    read.collect()
}

/// Opens a regular file. Anything else is refused before it is opened: opening a pipe without a writer
/// never returns.
fn regular(path: &Path) -> io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )),
    }
}

/// The state of a file by which a change is seen.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stamp {
        modified: metadata.modified().ok(),
        len: metadata.len(),
    })
}

/// A file of engines that is looked at again and again.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    every: Duration,
    /// The file as it was seen last; `None` before the first look.
    seen: Option<Option<Stamp>>,
}

impl FileWatch {
    /// Returns a watch that has seen nothing yet.
    #[must_use]
    pub fn new(path: PathBuf, every: Duration) -> Self {
        Self {
            path,
            every,
            seen: None,
        }
    }

    /// Waits until the file's time of change or its length is another, and returns what it says
    /// then; the first time it returns at once.
    ///
    /// # Errors
    /// [`FileError`], once for each change: the engines of the last good content stay.
    pub async fn next(&mut self) -> Result<Vec<EndpointLine>, FileError> {
        loop {
            // The stamp is taken before the file is read: what is written meanwhile is seen next
            // time.
            let now = Some(stamp(&self.path));
            if now != self.seen {
                self.seen = now;
                return read_endpoints(&self.path);
            }
            tokio::time::sleep(self.every).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_line() {
        let folder = std::env::temp_dir().join(format!("prelude-epp-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("lines");
        let check = |text: &str, expected: Result<&[&str], &str>| {
            fs::write(&path, text).unwrap();
            match (read_endpoints(&path), expected) {
                (Ok(found), Ok(expected)) => {
                    let found: Vec<_> = found.iter().map(|line| &*line.address).collect();
                    assert_eq!(found, expected);
                }
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}");
                }
                (found, _) => panic!("{text:?}: {found:?}"),
            }
        };
        check("", Ok(&[]));
        check(
            "# ours\n\n a:1 \n{\"address\":\"b:2\"}\r\n",
            Ok(&["a:1", "b:2"]),
        );
        check("a:1\nb", Err("lines:2: `b` is no HOST:PORT"));
        check(&"#".repeat(1 << 20), Ok(&[]));
        check(&"#".repeat((1 << 20) + 1), Err("more than 1048576 bytes"));
        fs::remove_file(&path).unwrap();
        assert!(matches!(read_endpoints(&path), Err(FileError::Read { .. })));
        fs::remove_dir_all(&folder).unwrap();
    }
}
