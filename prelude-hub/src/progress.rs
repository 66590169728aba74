//! The progress of a download.

use std::cell::Cell;

use serde::Serialize;

/// The state of a download: files and bytes, done and in total.
///
/// Files that were in the cache count as done. The totals grow when the files that say which model it
/// is are there, and once more when the list of a sharded model's weights has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Files that are complete.
    pub files: u64,
    /// Files in total.
    pub files_total: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes in total.
    pub bytes_total: u64,
}

/// A progress that several transfers of one thread advance, and the function it is reported to.
pub(crate) struct Meter<'a> {
    progress: Cell<Progress>,
    report: &'a dyn Fn(Progress),
}

impl<'a> Meter<'a> {
    pub(crate) fn new(report: &'a dyn Fn(Progress)) -> Self {
        Self {
            progress: Cell::default(),
            report,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.get();
        change(&mut progress);
        self.progress.set(progress);
        (self.report)(progress);
    }

    /// Adds files of `bytes` in all to the totals.
    pub(crate) fn expect(&self, files: u64, bytes: u64) {
        self.change(|p| {
            p.files_total += files;
            p.bytes_total += bytes;
        });
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.change(|p| p.bytes += bytes);
    }

    /// Takes back bytes that a transfer threw away.
    pub(crate) fn remove_bytes(&self, bytes: u64) {
        self.change(|p| p.bytes -= bytes);
    }

    pub(crate) fn add_file(&self) {
        self.change(|p| p.files += 1);
    }
}
