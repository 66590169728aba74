//! The comparison of a mapped file with the checksums that it was written with.

use std::{
    fs,
    hash::Hasher as _,
    io,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use memmap2::Mmap;
use twox_hash::XxHash3_64;

use super::file::Entry;

/// Bytes that are read without a pause: a fraction of a millisecond's work.
const SLICE_BYTES: usize = 2 << 20;
/// The pause behind a slice, in times of what it took, so that the steps of models keep the memory.
const PAUSE: u32 = 3;
/// Longest pause: a slice may have waited for a slow disk.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A packed file in use whose weights are not yet compared with their checksums.
#[derive(Debug)]
pub struct PackedCheck {
    pub(super) path: PathBuf,
    pub(super) map: Arc<Mmap>,
    pub(super) entries: Vec<Entry>,
}

/// Weights that are not those that were written: a disk or memory has changed them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("the packed weights in {} are damaged: the checksum of tensor {tensor} differs; {removed}", path.display())]
pub struct PackedDamage {
    /// The file, which is still mapped.
    pub path: PathBuf,
    /// The number of the tensor in the file, from 0 on.
    pub tensor: usize,
    /// The fate of the file, in words.
    removed: String,
}

impl PackedCheck {
    /// Reads the whole file in slices, with pauses. A damaged file is removed, so that the next start
    /// packs the checkpoint anew.
    ///
    /// # Errors
    /// [`PackedDamage`]: what was computed by this file may be wrong.
    pub fn run(self) -> Result<(), PackedDamage> {
        let is_damaged = |entry: &Entry| self.checksum(entry) != entry.checksum;
        let Some(tensor) = self.entries.iter().position(is_damaged) else {
            return Ok(());
        };
        let removed = match fs::remove_file(&self.path) {
            Ok(()) => "the file was removed, and the next start packs anew".to_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => "the file is gone".to_owned(),
            Err(e) => format!("the file cannot be removed, which is yours to do: {e}"),
        };
        Err(PackedDamage {
            path: self.path,
            tensor,
            removed,
        })
    }

    fn checksum(&self, entry: &Entry) -> u64 {
        let mut hash = XxHash3_64::default();
        for slice in self.map[entry.bytes.clone()].chunks(SLICE_BYTES) {
            let start = Instant::now();
            hash.write(slice);
            thread::sleep((start.elapsed() * PAUSE).min(PAUSE_MAX));
        }
        hash.finish()
    }
}
