//! The errors of loading a tokenizer.

use crate::format::CompiledError;
use std::path::PathBuf;

/// An error of loading a tokenizer.
///
/// Encoding and decoding never fail: all problems of a file are found at load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The bytes are not JSON, or a field has another type than the format gives it.
    #[error("malformed tokenizer JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A compiled tokenizer cannot be used.
    #[error("cannot use {place}: {problem}")]
    Compiled {
        /// The path of the file, or a note that it was in memory.
        place: String,
        /// The problem.
        problem: CompiledError,
    },
    /// The file is valid, but uses a component this crate does not implement exactly.
    ///
    /// Ids are never silently different: such a file is refused, and can still
    /// be used with the reference crate.
    #[error("unsupported component at {path}: {what}")]
    Unsupported {
        /// The place in the JSON, such as `$.model.type`.
        path: String,
        /// The component and, where it helps, what would be accepted.
        what: String,
    },
    /// The file contradicts itself or the format.
    #[error("invalid tokenizer at {path}: {problem}")]
    Invalid {
        /// The place in the JSON, such as `$.pre_tokenizer.pattern`.
        path: String,
        /// The problem.
        problem: String,
    },
    /// Two tokens of the vocabulary have the same id.
    #[error("vocabulary tokens {first:?} and {second:?} both have id {id}")]
    DuplicateId {
        /// The shared id.
        id: u32,
        /// The token that came first in the file.
        first: String,
        /// The token that came second.
        second: String,
    },
    /// The vocabulary lists the same token twice.
    #[error("vocabulary lists token {token:?} twice")]
    DuplicateToken {
        /// The token.
        token: String,
    },
    /// An id lies so far above the number of tokens that the file must be damaged.
    #[error(
        "token {token:?} has id {id}, but a vocabulary of {tokens} tokens may go up to {limit}"
    )]
    IdOutOfRange {
        /// The token with the id.
        token: String,
        /// The token's id.
        id: u64,
        /// Number of tokens in the vocabulary.
        tokens: usize,
        /// Largest id accepted for that many tokens.
        limit: u64,
    },
    /// A merge rule is not two tokens separated by one space, nor a pair.
    #[error("merge {index} is not a pair of tokens: {text:?}")]
    MalformedMerge {
        /// Position in `$.model.merges`, from 0.
        index: usize,
        /// The rule as written.
        text: String,
    },
    /// A merge rule uses or makes a token that the vocabulary lacks.
    #[error("merge {index} names token {token:?}, which is not in the vocabulary")]
    UnknownMergeToken {
        /// Position in `$.model.merges`, from 0.
        index: usize,
        /// The missing token.
        token: String,
    },
    /// The vocabulary has no token for a byte that text can contain, and asks for
    /// something else in its place (`unk_token` or `byte_fallback`).
    #[error(
        "vocabulary has no token for byte 0x{byte:02X} (spelled {spelling:?}), \
         and unk_token or byte_fallback is set, which is not supported then"
    )]
    MissingByte {
        /// The byte.
        byte: u8,
        /// The byte's spelling in the byte-level alphabet.
        spelling: char,
    },
}

impl Error {
    pub(crate) fn unsupported(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Unsupported {
            path: path.into(),
            what: what.into(),
        }
    }

    pub(crate) fn invalid(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid {
            path: path.into(),
            problem: problem.into(),
        }
    }

    /// Returns the error for an entry `what` that shares its slot of a hash table with hundreds
    /// of others, which happens only in a file that was made to be slow.
    pub(crate) fn too_many_collisions(path: &str, what: &str) -> Self {
        Self::unsupported(
            path,
            format!("{what}, which shares its place in a hash table with hundreds of others"),
        )
    }
}
