//! The crate's one `unsafe` call: mapping a file into memory.
#![expect(
    unsafe_code,
    reason = "a mapping is unsafe by nature; see the comment at the call"
)]

use std::{io, path::Path};

use memmap2::Mmap;

use crate::file;

/// Maps `path` for reading. A checkpoint of any size is opened at once, and its pages are read
/// when the executor converts them.
pub(super) fn map(path: &Path) -> io::Result<Mmap> {
    let file = file::open(path)?;
    // SAFETY: the mapping is private and read-only, so this process cannot write through it. That
    // nobody else truncates or rewrites the file while it is mapped is the caller's duty, stated
    // at `Checkpoint::open`; no check could establish it. The bytes are only ever read as plain
    // numbers, whose every bit pattern is valid, and header ranges are checked against the length.
    unsafe { Mmap::map(&file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_refused() {
        let error = map(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
