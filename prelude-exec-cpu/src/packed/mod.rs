//! Packed weights in files, which later starts map instead of reading and packing a checkpoint again.
//!
//! A file is named by its key: the SHA-256 of everything that its content follows from, or that tells
//! of a change: this crate's version, the storage forms, the checkpoint's files (path, length, time of
//! change), and shape, type and a sample of each tensor. A file is written under another name, brought
//! to the disk, and renamed; the folder keeps at most [`FOLDER_BYTES_MAX`], and what was used least
//! recently goes first.

mod check;
mod file;
mod map;
#[cfg(test)]
mod tests;

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use prelude_models::{Checkpoint, file as checkpoint_file};
use sha2::{Digest as _, Sha256};

use crate::kernels::words::Words;

pub use check::{PackedCheck, PackedDamage};
pub(crate) use file::{Reader, Shape};

/// Most bytes of packed files in a folder.
const FOLDER_BYTES_MAX: u64 = 64 << 30;
/// The end of the name of a packed file.
const SUFFIX: &str = "packed";
/// The end of the name of a file that is being written.
const UNFINISHED: &str = "packed-part";
/// The age from which on an unfinished file counts as left by a process that was killed.
const ABANDONED: Duration = Duration::from_hours(24);
/// Bytes at the start, the middle and the end of a tensor that are part of the key.
const SAMPLE_BYTES: usize = 64;

/// The result of looking for packed weights in [`crate::CpuConfig::packed_dir`].
#[derive(Debug)]
#[non_exhaustive]
pub enum PackedUse {
    /// The configuration names no folder.
    Off,
    /// The model was given in memory, so nothing tells when it changes. It was packed as usual.
    InMemory,
    /// The folder had the packed weights, which are mapped now. Their checksums are not compared yet.
    Found(PackedCheck),
    /// The weights were packed, and a thread writes them to the folder.
    Writing(PackedWriting),
    /// The weights were packed, and the system refused the thread that was to write them.
    NotWritten(io::Error),
}

/// A thread that writes packed weights. It goes on if this is dropped.
#[derive(Debug)]
pub struct PackedWriting(JoinHandle<io::Result<PathBuf>>);

impl PackedWriting {
    /// Waits for the end, and returns the path of the file.
    ///
    /// # Errors
    /// The error of the system, for example a full disk. The executor works all the same.
    pub fn wait(self) -> io::Result<PathBuf> {
        let result = self.0.join();
        result.unwrap_or_else(|_| Err(io::Error::other("the thread that writes them panicked")))
    }
}

/// The name of everything that packed weights follow from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Returns the key of a checkpoint in storage forms that `form` describes; `None` if the
    /// checkpoint was given in memory.
    pub(crate) fn of(checkpoint: &Checkpoint, form: &str) -> Option<Self> {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(env!("CARGO_PKG_VERSION").as_bytes());
        part(&file::VERSION.to_le_bytes());
        part(form.as_bytes());
        for file in checkpoint.weight_files()? {
            part(file.path.as_os_str().as_encoded_bytes());
            part(format!("{} {:?}", file.bytes, file.modified).as_bytes());
        }
        for name in checkpoint.names() {
            part(name.as_bytes());
            // A tensor that cannot be read as numbers is not loaded.
            let Some((dtype, shape)) = checkpoint.form(name) else {
                continue;
            };
            part(format!("{dtype:?} {shape:?}").as_bytes());
            for bytes in checkpoint.stored_parts(name) {
                let last = bytes.len().saturating_sub(SAMPLE_BYTES);
                for first in [0, last / 2, last] {
                    part(&bytes[first..(first + SAMPLE_BYTES).min(bytes.len())]);
                }
            }
        }
        Some(Self(hash.finalize().into()))
    }

    fn path(&self, folder: &Path) -> PathBuf {
        let mut name = String::new();
        for byte in self.0 {
            let _ = write!(name, "{byte:02x}");
        }
        folder.join(name).with_extension(SUFFIX)
    }
}

/// Returns the packed weights of a key, if the folder has them whole.
pub(crate) fn open(folder: &Path, key: &Key) -> Option<(Reader, PackedCheck)> {
    let path = key.path(folder);
    let file = checkpoint_file::open(&path).ok()?;
    let (reader, map, entries) = Reader::open(&file, key).ok()?;
    // The time of change is the time of the last use, by which `make_room` chooses files to remove. In a
    // folder that is not writable nothing is removed, so a failure here does no harm.
    let _ = file.set_modified(SystemTime::now());
    let check = PackedCheck { path, map, entries };
    Some((reader, check))
}

/// Starts to write weights to a folder, which is made if it is not there.
pub(crate) fn write(folder: PathBuf, key: Key, weights: Vec<(Shape, Words)>) -> PackedUse {
    let thread = thread::Builder::new().name("prelude-packed".to_owned());
    let job = move || store(&folder, &key, &weights, FOLDER_BYTES_MAX);
    match thread.spawn(job) {
        Ok(thread) => PackedUse::Writing(PackedWriting(thread)),
        Err(error) => PackedUse::NotWritten(error),
    }
}

/// Writes weights to a folder whose packed files take at most so many bytes then.
fn store(
    folder: &Path,
    key: &Key,
    weights: &[(Shape, Words)],
    folder_bytes_max: u64,
) -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    make_room(folder, file::file_bytes(weights), folder_bytes_max)?;
    let path = key.path(folder);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let part = path.with_extension(format!("{}-{number}.{UNFINISHED}", std::process::id()));
    let written = file::write(&part, key, weights).and_then(|()| fs::rename(&part, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    Ok(path)
}

/// Removes unfinished files that were left, and packed files that were used least recently until
/// another one of `bytes` has room.
fn make_room(folder: &Path, bytes: u64, folder_bytes_max: u64) -> io::Result<()> {
    if bytes > folder_bytes_max {
        let what = format!("{bytes} bytes are more than a folder's {folder_bytes_max}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // Another process may have removed it by now.
        let Ok(metadata) = path.metadata() else {
            continue;
        };
        let modified = metadata.modified()?;
        match path.extension().and_then(|e| e.to_str()) {
            Some(SUFFIX) => files.push((modified, metadata.len(), path)),
            Some(UNFINISHED) if modified.elapsed().is_ok_and(|age| age > ABANDONED) => {
                let _ = fs::remove_file(path);
            }
            _ => (),
        }
    }
    files.sort();
    let mut held: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, len, path) in files {
        if held + bytes <= folder_bytes_max {
            break;
        }
        fs::remove_file(path)?;
        held -= len;
    }
    Ok(())
}
