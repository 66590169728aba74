//! The errors of this crate, each with the remedy.

use std::{io, path::PathBuf};

use thiserror::Error as ThisError;

use crate::name::{BadName, Repo, Revision};

/// The reason why a model is not available.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A text is not the name of a model, or not a revision.
    #[error(transparent)]
    Name(#[from] BadName),
    /// A setting or an environment variable cannot be used.
    #[error("{name} cannot be used: {why}")]
    Config {
        /// The name of the environment variable.
        name: &'static str,
        /// The fault, with what to do.
        why: String,
    },
    /// This machine cannot make encrypted connections.
    #[error("no encrypted connection can be made: {0}")]
    Tls(String),
    /// The Hub answered 401 or 403.
    #[error("the Hub refuses access to {repo} (status {status}): {advice}")]
    Denied {
        /// The model.
        repo: Repo,
        /// 401 or 403.
        status: u16,
        /// The remedy, which depends on whether a token was sent.
        advice: String,
    },
    /// The Hub has no model of this name.
    #[error(
        "{endpoint} has no model {repo}: check the spelling; a private model is visible only with HF_TOKEN set"
    )]
    NoModel {
        /// The model.
        repo: Repo,
        /// The address of the Hub.
        endpoint: String,
    },
    /// The model has no such revision.
    #[error("{repo} has no revision {revision}: see {page} for its branches and tags")]
    NoRevision {
        /// The model.
        repo: Repo,
        /// The revision.
        revision: Revision,
        /// The page that lists the revisions.
        page: String,
    },
    /// The model lacks a file that Prelude cannot do without.
    #[error("{repo} has no {file}: {advice}")]
    NoFile {
        /// The model.
        repo: Repo,
        /// The file, or the two files of which one is needed.
        file: &'static str,
        /// The value that is there instead, and what to do.
        advice: String,
    },
    /// The check of [`crate::Hub::with_check`] refuses the model; nothing but what it read was
    /// downloaded.
    #[error("{repo} is not downloaded: {why}")]
    Unwanted {
        /// The model.
        repo: Repo,
        /// The reason that the check gave.
        why: String,
    },
    /// The Hub's answer about a model, or a file that lists other files, is not usable.
    #[error("{what} cannot be used: {why}")]
    Listing {
        /// The address or the file.
        what: String,
        /// The fault.
        why: String,
    },
    /// A document is larger than any that Prelude reads.
    #[error("{file} of {repo} has {bytes} bytes, more than the {limit} bytes that are read")]
    TooLarge {
        /// The model.
        repo: Repo,
        /// The file.
        file: String,
        /// The file's size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The Hub answered with a status that is not a success, after all attempts.
    #[error("{url} answered with status {status}{message}")]
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's words, behind a colon; empty if there are none.
        message: String,
    },
    /// A redirection cannot be followed.
    #[error("{url} redirects in a way that is not followed: {why}")]
    Redirect {
        /// The address.
        url: String,
        /// The reason.
        why: String,
    },
    /// The connection failed, after all attempts.
    #[error("{url} cannot be read: {why}; the same command goes on from what has arrived")]
    Network {
        /// The address.
        url: String,
        /// The reason.
        why: String,
    },
    /// A file's size is not that of the Hub's listing.
    #[error("{url} sends {got} bytes where the Hub lists {expected}")]
    Size {
        /// The address.
        url: String,
        /// The size in bytes by the listing.
        expected: u64,
        /// The size in bytes that was sent.
        got: u64,
    },
    /// A file's hash is not that of the Hub's listing, twice in succession.
    #[error(
        "{file} was received damaged: its hash is {got}, the Hub lists {expected}; try again, or another HF_ENDPOINT"
    )]
    Checksum {
        /// The file.
        file: String,
        /// The hash by the listing.
        expected: String,
        /// The hash of what was received.
        got: String,
    },
    /// The disk has no room for the model.
    #[error(
        "{folder:?} has room for {free} bytes, and {needed} more are needed: free some, or set HF_HUB_CACHE to a folder on another disk"
    )]
    DiskFull {
        /// The folder of the cache.
        folder: PathBuf,
        /// The bytes that are still to be written.
        needed: u64,
        /// The bytes that are free.
        free: u64,
    },
    /// Another process holds the lock of a file and makes no progress.
    #[error(
        "another process holds {path:?} and its download does not grow: end that process, or wait and try again"
    )]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// The network is switched off, and the cache lacks the model.
    #[error(
        "{repo} at revision {revision} is not in the cache {cache:?}, and HF_HUB_OFFLINE forbids to download it: unset HF_HUB_OFFLINE, or run `prelude pull {repo}` where there is a network"
    )]
    Offline {
        /// The model.
        repo: Repo,
        /// The revision.
        revision: Revision,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// A file of the cache cannot be read or written.
    #[error("cannot use {path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    /// Returns true if a cached model may be used instead: the Hub was not reached, or it failed.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Network { .. } | Self::Tls(_) => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }
}
