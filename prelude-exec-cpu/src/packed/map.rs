//! The mapping of a packed file, which is `unsafe`.
#![expect(
    unsafe_code,
    reason = "a mapping is unsafe by nature; see the comment at the call"
)]

use std::{fs::File, io};

use memmap2::Mmap;

/// Maps a packed file for reading.
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is private and read-only, so this process cannot write through it. Prelude
    // never changes a packed file: it writes under another name and renames, and removes whole files,
    // whose mappings stay. The caller who sets `CpuConfig::packed_dir` promises that no other program
    // truncates or rewrites a file of the folder; no check could establish this. The bytes are only read as plain numbers, whose every bit pattern is valid, within ranges that are
    // checked against the length.
    let map = unsafe { Mmap::map(file) }?;
    // Advice: the system reads ahead from a slow disk, and uses huge pages if it can.
    #[cfg(target_os = "linux")]
    for advice in [memmap2::Advice::WillNeed, memmap2::Advice::HugePage] {
        let _ = map.advise(advice);
    }
    Ok(map)
}
