//! The cache on disk, in the layout of Python's `huggingface_hub`.
//!
//! ```text
//! CACHE/models--OWNER--NAME/refs/main                    the commit that a branch or tag points to
//!                           trees/COMMIT.json            the files of a commit, with sizes and hashes
//!                           blobs/HASH                   contents, each once
//!                           blobs/HASH.incomplete        contents that are still arriving
//!                           snapshots/COMMIT/PATH        a link to ../../blobs/HASH
//! CACHE/.locks/models--OWNER--NAME/HASH.lock             held by the process that fetches a blob
//! ```

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::{
    Error, Repo, Revision,
    checksum::Checksum,
    file::read_bounded,
    listing::{Listing, MAX_LISTING_BYTES, RemoteFile},
    name::is_hex,
    selection,
};

/// The cached files of one model.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
    /// The name of the model's folder.
    name: String,
}

impl Cache {
    pub(crate) fn new(root: &Path, repo: &Repo) -> Self {
        Self {
            root: root.to_owned(),
            name: repo.folder(),
        }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, checksum: &Checksum) -> PathBuf {
        self.folder().join("blobs").join(checksum.as_str())
    }

    fn tree(&self, commit: &str) -> PathBuf {
        self.folder().join("trees").join(format!("{commit}.json"))
    }

    /// Returns the commit of a revision, as far as the cache knows.
    pub(crate) fn commit(&self, revision: &Revision) -> Option<String> {
        if revision.is_commit() {
            return Some(revision.as_str().to_owned());
        }
        let path = self.folder().join("refs").join(revision.as_str());
        let text = read_bounded(&path, 1_000).ok()?;
        let commit = String::from_utf8(text).ok()?.trim().to_owned();
        is_hex(&commit, 40).then_some(commit)
    }

    pub(crate) fn set_commit(&self, revision: &Revision, commit: &str) -> Result<(), Error> {
        if revision.is_commit() {
            return Ok(());
        }
        let path = self.folder().join("refs").join(revision.as_str());
        write_whole(&path, commit.as_bytes())
    }

    pub(crate) fn listing(&self, commit: &str) -> Option<Listing> {
        let bytes = read_bounded(&self.tree(commit), MAX_LISTING_BYTES).ok()?;
        Listing::from_tree(&bytes)
    }

    /// Keeps a list, unless there is one already: that of Python's library may say more.
    pub(crate) fn set_listing(&self, commit: &str, listing: &Listing) -> Result<(), Error> {
        if self.listing(commit).is_some() {
            return Ok(());
        }
        write_whole(&self.tree(commit), &listing.to_tree())
    }

    /// Returns true if the snapshot has the file in its full size.
    pub(crate) fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        has_size(&self.snapshot(commit).join(&file.path), file.size)
    }

    /// Returns the index of a snapshot's shards.
    pub(crate) fn index(&self, commit: &str) -> Result<Vec<u8>, Error> {
        let path = self.snapshot(commit).join(selection::INDEX);
        read_bounded(&path, selection::MAX_DOCUMENT_BYTES).map_err(|e| io_error(&path, e))
    }

    /// Makes the file of the snapshot a link to its blob.
    pub(crate) fn link(&self, commit: &str, file: &RemoteFile) -> Result<(), Error> {
        let path = self.snapshot(commit).join(&file.path);
        if has_size(&path, file.size) {
            return Ok(());
        }
        make_parent(&path)?;
        // The link goes up from the file's own folders, then from the snapshot's.
        let ups = "../".repeat(file.path.matches('/').count() + 2);
        let target = format!("{ups}blobs/{}", file.checksum.as_str());
        let made = match std::os::unix::fs::symlink(&target, &path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // A link to something that is missing or damaged, or that another process made.
                fs::remove_file(&path).and_then(|()| std::os::unix::fs::symlink(&target, &path))
            }
            made => made,
        };
        match made {
            Err(e) if !has_size(&path, file.size) => Err(io_error(&path, e)),
            _ => Ok(()),
        }
    }

    /// Returns the bytes that are free on the disk of the cache; `None` if the system does not say.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let stats = rustix::fs::statvfs(self.folder()).ok()?;
        Some(stats.f_bavail.saturating_mul(stats.f_frsize))
    }

    /// Makes the folders that a download needs.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        let folder = self.folder().join("blobs");
        fs::create_dir_all(&folder).map_err(|e| io_error(&folder, e))
    }

    /// Takes the lock of a blob, as Python's library does (`flock`). Waits as long as the process
    /// that holds the lock makes progress, and `patience` longer. The system frees the lock when
    /// its holder ends.
    pub(crate) async fn lock(&self, file: &RemoteFile, patience: Duration) -> Result<File, Error> {
        const POLL: Duration = Duration::from_millis(50);
        let locks = self.root.join(".locks").join(&self.name);
        let path = locks.join(format!("{}.lock", file.checksum.as_str()));
        make_parent(&path)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let lock = lock.map_err(|e| io_error(&path, e))?;
        let mut grown = Instant::now();
        let mut arrived = 0;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) => (),
                // A file system without locks: the hash at the end still keeps the blob right.
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
                    return Ok(lock);
                }
                Err(TryLockError::Error(e)) => return Err(io_error(&path, e)),
            }
            let now_arrived = self.arriving_bytes(file);
            if now_arrived != arrived {
                (arrived, grown) = (now_arrived, Instant::now());
            } else if grown.elapsed() > patience {
                return Err(Error::Locked { path });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the bytes in files `HASH.incomplete` and, as newer versions of Python's library name
    /// them, `HASH.RANDOM.incomplete`.
    fn arriving_bytes(&self, file: &RemoteFile) -> u64 {
        let Ok(entries) = fs::read_dir(self.folder().join("blobs")) else {
            return 0;
        };
        let is_of_file = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(file.checksum.as_str()) && name.ends_with(".incomplete")
        };
        let entries = entries.flatten().filter(is_of_file);
        entries
            .flat_map(|entry| entry.metadata())
            .map(|m| m.len())
            .sum()
    }
}

/// Returns true if `path` is a file, or a link to one, of this size.
pub(crate) fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == size)
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

fn make_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|e| io_error(parent, e))
}

/// Writes a file so that others see all of it or nothing.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    make_parent(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let (process, number) = (std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
    name.push(format!(".{process}.{number}.tmp"));
    let temporary = path.with_file_name(name);
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|e| {
        // The error of writing is the one to report.
        let _ = fs::remove_file(&temporary);
        io_error(path, e)
    })
}
