//! The protocol between the parent and an engine's process: one JSON object per line.
//!
//! Bulk data goes through files. A file of texts or of id lists is a sequence of records, each a
//! little-endian `u32` count followed by that many bytes of UTF-8, or by that many `u32` ids.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// Differs where this file or what serves its orders does: two builds of the bench understand
/// each other if it is the same.
pub(crate) fn version() -> u64 {
    let sources = [include_str!("protocol.rs"), include_str!("worker.rs")];
    // FNV-1a.
    let bytes = sources.iter().flat_map(|source| source.bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// An order to an engine. `drivers/drive_python.py` reads the same.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Load a tokenizer and measure doing so.
    Load { path: String },
    /// Read texts, instead of the ones read before.
    Texts { path: String },
    /// Encode each text in a call of its own, `passes` times over.
    Encode { passes: u32 },
    /// Encode all texts in one call for batches, on the threads that the process was given.
    Batch { passes: u32 },
    /// Start `threads` threads that share the tokenizer; each encodes all texts once, and then
    /// `passes` times for the clock.
    Share { threads: usize, passes: u32 },
    /// Start `threads` threads that encode all texts once; measure the memory they have then.
    Crowd { threads: usize },
    /// Write the ids of all texts to a file.
    Dump { path: String },
    /// Read one list of ids.
    Ids { path: String },
    /// Decode the list of ids, `passes` times over.
    Decode { how: How, passes: u32 },
    /// Write the text of the list of ids to a file; of ids decoded each for itself, a line each.
    Decoded { how: How, path: String },
}

/// The way to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// The list in one call.
    Whole,
    /// Id by id, as a model generates text, by a decoder that keeps unfinished characters.
    Stream,
    /// Each id in a call of its own; the cost is per id.
    Each,
}

/// The cost of an order; all zero for orders that measure nothing.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Processor time of the whole process.
    pub(crate) cpu_s: f64,
    pub(crate) wall_s: f64,
    /// Resident memory before and after, of `Load` and `Crowd` only.
    #[serde(default)]
    pub(crate) rss_before: u64,
    #[serde(default)]
    pub(crate) rss_after: u64,
}

/// The answer to an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) cost: Option<Cost>,
    /// The reason why there is no cost: what went wrong, or that the engine has no such thing.
    pub(crate) error: Option<String>,
}

pub(crate) fn write_texts(path: &Path, texts: &[String]) -> Result<()> {
    let mut bytes = Vec::new();
    for text in texts {
        bytes.extend(u32::try_from(text.len())?.to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn read_texts(path: &Path) -> Result<Vec<String>> {
    let bytes = read(path)?;
    let mut rest = &*bytes;
    let mut texts = Vec::new();
    while let Some((count, after)) = rest.split_first_chunk() {
        let count = u32::from_le_bytes(*count) as usize;
        let Some((text, after)) = after.split_at_checked(count) else {
            bail!("{} ends inside a text", path.display());
        };
        texts.push(String::from_utf8(text.to_vec())?);
        rest = after;
    }
    Ok(texts)
}

pub(crate) fn write_ids(path: &Path, lists: &[Vec<u32>]) -> Result<()> {
    let mut bytes = Vec::new();
    for list in lists {
        bytes.extend(u32::try_from(list.len())?.to_le_bytes());
        bytes.extend(list.iter().flat_map(|id| id.to_le_bytes()));
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn read_ids(path: &Path) -> Result<Vec<Vec<u32>>> {
    let bytes = read(path)?;
    let mut words = bytes
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
    let mut lists = Vec::new();
    while let Some(count) = words.next() {
        let list: Vec<u32> = words.by_ref().take(count as usize).collect();
        if list.len() != count as usize {
            bail!("{} ends inside a list", path.display());
        }
        lists.push(list);
    }
    Ok(lists)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_written() {
        let folder = std::env::temp_dir().join(format!("bench-tokenizer-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let (texts, ids) = (folder.join("texts"), folder.join("ids"));
        let some = vec!["a".to_owned(), String::new(), "é漢".to_owned()];
        write_texts(&texts, &some).expect("written");
        assert_eq!(read_texts(&texts).expect("read"), some);
        let lists = vec![vec![1, u32::MAX], vec![], vec![7]];
        write_ids(&ids, &lists).expect("written");
        assert_eq!(read_ids(&ids).expect("read"), lists);
        fs::write(&ids, [2, 0, 0, 0, 9, 0, 0, 0]).expect("written");
        assert!(read_ids(&ids).is_err());
        fs::remove_dir_all(&folder).expect("removed");
    }
}
