//! The hashes that the Hub publishes: SHA-256 of large files, git's SHA-1 of small ones.

use std::fmt::Write as _;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The published hash of a file, in lower-case hexadecimal digits. It names the file's blob in the
/// cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// SHA-256 of the content: 64 digits.
    Sha256(String),
    /// SHA-1 of `blob SIZE\0` and the content, as git computes it: 40 digits.
    Git(String),
}

impl Checksum {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::Git(hex) => hex,
        }
    }
}

/// A hash under computation.
#[derive(Clone, Debug)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    /// Begins the hash of a file of `size` bytes, of the kind of `expected`.
    pub(crate) fn new(expected: &Checksum, size: u64) -> Self {
        match expected {
            Checksum::Sha256(_) => Self::Sha256(Sha256::new()),
            Checksum::Git(_) => Self::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    /// Returns the hash in hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::Git(hash) => hex(&hash.finalize()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_sha256sum() {
        let check = |expected: Checksum, content: &[u8]| {
            let mut hasher = Hasher::new(&expected, content.len() as u64);
            // In two parts, as a resumed download is.
            hasher.update(&content[..content.len() / 2]);
            hasher.update(&content[content.len() / 2..]);
            assert_eq!(hasher.finish(), expected.as_str());
        };
        // `git hash-object` of an empty file, and of `hello` with a line end.
        check(
            Checksum::Git("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391".to_owned()),
            b"",
        );
        check(
            Checksum::Git("ce013625030ba8dba906f756967f9e9ca394464a".to_owned()),
            b"hello\n",
        );
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        check(Checksum::Sha256(sha256.to_owned()), b"hello\n");
    }
}
