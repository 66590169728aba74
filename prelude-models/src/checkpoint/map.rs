//! The crate's `unsafe` calls: mapping a file into memory, and giving pages of it back.
#![expect(
    unsafe_code,
    reason = "a mapping is unsafe by nature; see the comments at the calls"
)]

use std::{io, ops::Range, path::Path};

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

/// Takes the pages of a range out of this process's memory. Reading them again brings them back
/// from the file.
#[cfg(unix)]
pub(super) fn release(map: &Mmap, range: Range<usize>) {
    // SAFETY: the mapping is private, read-only and of a file, and was never written through, so
    // its pages hold the file's bytes before and after; see `map` about changes of the file.
    let released = unsafe {
        map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
    };
    // Advice: if the system refuses it, the pages stay until the mapping ends.
    let _ = released;
}

/// Does nothing: this system gives no pages of a mapping back.
#[cfg(not(unix))]
pub(super) const fn release(_: &Mmap, _: Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_as_before() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let map = map(&path).unwrap();
        let before = map.to_vec();
        release(&map, 0..map.len());
        release(&map, 5..7);
        assert_eq!(before, map[..]);
    }

    #[test]
    fn folders_are_refused() {
        let error = map(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
