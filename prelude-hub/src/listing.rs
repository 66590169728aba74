//! The list of a model's files at one commit: as the Hub sends it, and as the cache keeps it.
//!
//! The cache keeps it in the format of `huggingface_hub` (`trees/COMMIT.json`, version 1): it never
//! changes, and says without a network if a snapshot is complete.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    checksum::Checksum,
    name::{is_hex, is_safe_path},
};

/// Upper bound of a list's bytes.
pub(crate) const MAX_LISTING_BYTES: u64 = 32 << 20;
/// Upper bound of a model's files.
const MAX_FILES: usize = 50_000;
const TREE_FORMAT: u32 = 1;

/// A file of a model at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// The path inside the model.
    pub(crate) path: String,
    /// The size in bytes.
    pub(crate) size: u64,
    pub(crate) checksum: Checksum,
}

/// The files of a model at one commit, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    files: BTreeMap<String, TreeEntry>,
}

/// An entry of the cache's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TreeEntry {
    size: u64,
    blob_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lfs_sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lfs_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    xet_hash: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Tree {
    format_version: u32,
    files: BTreeMap<String, TreeEntry>,
}

/// The Hub's description of a model, asked with `blobs=true`.
#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
    #[serde(rename = "xetHash")]
    xet_hash: Option<String>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Reads the Hub's description of a model. Returns the commit and the list.
    ///
    /// # Errors
    /// The fault, in words.
    pub(crate) fn from_hub(bytes: &[u8]) -> Result<(String, Self), String> {
        let info: ModelInfo = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if !is_hex(&info.sha, 40) {
            return Err(format!("{:?} is not the hash of a commit", info.sha));
        }
        if info.siblings.len() > MAX_FILES {
            return Err(format!("it lists more than {MAX_FILES} files"));
        }
        let mut files = BTreeMap::new();
        for sibling in info.siblings {
            let path = sibling.rfilename;
            let (Some(size), Some(blob_id)) = (sibling.size, sibling.blob_id) else {
                return Err(format!("it lists {path:?} without size and hash"));
            };
            let entry = TreeEntry {
                size,
                blob_id,
                lfs_size: sibling.lfs.as_ref().map(|lfs| lfs.size),
                lfs_sha256: sibling.lfs.map(|lfs| lfs.sha256),
                xet_hash: sibling.xet_hash,
            };
            files.insert(path, entry);
        }
        Ok((info.sha, Self { files }.checked()?))
    }

    /// Reads the cache's list; `None` if it is of another version or damaged.
    pub(crate) fn from_tree(bytes: &[u8]) -> Option<Self> {
        let tree: Tree = serde_json::from_slice(bytes).ok()?;
        let listing = Self { files: tree.files };
        (tree.format_version == TREE_FORMAT).then(|| listing.checked().ok())?
    }

    /// Returns the list as the cache keeps it.
    pub(crate) fn to_tree(&self) -> Vec<u8> {
        let tree = Tree {
            format_version: TREE_FORMAT,
            files: self.files.clone(),
        };
        serde_json::to_vec(&tree).expect("numbers and texts are JSON")
    }

    /// Checks all that becomes a path or the name of a blob.
    fn checked(self) -> Result<Self, String> {
        for (path, entry) in &self.files {
            if !is_safe_path(path) {
                return Err(format!(
                    "it lists {path:?}, which is no path inside a model"
                ));
            }
            let has_sha256 = entry
                .lfs_sha256
                .as_ref()
                .is_none_or(|hash| is_hex(hash, 64));
            if !is_hex(&entry.blob_id, 40) || !has_sha256 {
                return Err(format!("it lists {path:?} with something else than a hash"));
            }
        }
        Ok(self)
    }

    pub(crate) fn file(&self, path: &str) -> Option<RemoteFile> {
        let entry = self.files.get(path)?;
        Some(RemoteFile {
            path: path.to_owned(),
            size: entry.lfs_size.unwrap_or(entry.size),
            checksum: match &entry.lfs_sha256 {
                Some(hash) => Checksum::Sha256(hash.clone()),
                None => Checksum::Git(entry.blob_id.clone()),
            },
        })
    }

    /// Returns the paths of all files, sorted.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a list of small files of these paths.
    pub(crate) fn listing_of(paths: &[&str]) -> Listing {
        let entry = TreeEntry {
            size: 1,
            blob_id: "0".repeat(40),
            lfs_sha256: None,
            lfs_size: None,
            xet_hash: None,
        };
        let files = paths.iter().map(|path| ((*path).to_owned(), entry.clone()));
        Listing {
            files: files.collect(),
        }
    }

    fn info(siblings: &str) -> String {
        format!(
            r#"{{"id":"a/b","sha":"{}","siblings":[{siblings}]}}"#,
            "1".repeat(40)
        )
    }

    #[test]
    fn the_hubs_answer_becomes_the_caches_list_and_back() {
        let (git, sha) = ("a".repeat(40), "b".repeat(64));
        let json = info(&format!(
            r#"{{"rfilename":"config.json","size":7,"blobId":"{git}"}},
               {{"rfilename":"m.safetensors","size":130,"blobId":"{git}","lfs":{{"sha256":"{sha}","size":9,"pointerSize":130}}}}"#
        ));
        let (commit, listing) = Listing::from_hub(json.as_bytes()).unwrap();
        assert_eq!(commit, "1".repeat(40));
        let file = listing.file("m.safetensors").unwrap();
        assert_eq!((file.size, file.checksum), (9, Checksum::Sha256(sha)));
        let file = listing.file("config.json").unwrap();
        assert_eq!((file.size, file.checksum), (7, Checksum::Git(git)));
        assert_eq!(Listing::from_tree(&listing.to_tree()), Some(listing));
    }

    #[test]
    fn hostile_answers_are_refused() {
        let check = |json: &str, expected: &str| {
            let error = Listing::from_hub(json.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        };
        let git = "a".repeat(40);
        let sibling = |path: &str, id: &str| {
            info(&format!(
                r#"{{"rfilename":"{path}","size":7,"blobId":"{id}"}}"#
            ))
        };
        check("{", "EOF");
        check("{}", "sha");
        check(r#"{"sha":"../../x","siblings":[]}"#, "hash of a commit");
        for path in [
            "../x",
            "/etc/passwd",
            "a/../../x",
            "a\\\\b",
            "",
            "C:x",
            "a/./b",
        ] {
            check(&sibling(path, &git), "no path inside a model");
        }
        check(&sibling("a", "../../../x"), "something else than a hash");
        check(&info(r#"{"rfilename":"a"}"#), "without size and hash");
        for tree in [
            "{}".to_owned(),
            r#"{"format_version":2,"files":{}}"#.to_owned(),
            format!(r#"{{"format_version":1,"files":{{"../a":{{"size":1,"blob_id":"{git}"}}}}}}"#),
        ] {
            assert_eq!(Listing::from_tree(tree.as_bytes()), None, "{tree}");
        }
    }
}
