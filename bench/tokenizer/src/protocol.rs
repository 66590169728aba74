//! The protocol between the parent and an engine's process: one JSON object per line. Bulk data goes
//! through files of JSON.

use std::{fs, io::BufReader, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

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
    /// Read ids to decode, instead of the ones read before.
    Ids { path: String },
    /// Do the work so many times.
    Repeat { work: Work, passes: u32 },
    /// Start `threads` threads that share the tokenizer; each encodes all texts once, and then
    /// `passes` times for the clock.
    Share { threads: usize, passes: u32 },
    /// Start `threads` threads that encode all texts once; measure the memory they have then.
    Crowd { threads: usize },
    /// Write what the work makes to a file: lists of ids, or texts.
    Answer { work: Work, path: String },
}

/// The measured work of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// A call for each text.
    Encode,
    /// A call for each text, the first calls of a new process.
    First,
    /// One call for all texts, on the threads that the process was given.
    Batch,
    /// Two threads that share one tokenizer, against one thread: how many times the work.
    Share,
    /// The same against two processes, which share nothing.
    Apart,
    /// Some threads that share one tokenizer, per text.
    Together,
    /// A list of ids to text, in one call.
    Decode,
    /// Id by id, as a model generates text, by a decoder that keeps unfinished characters: per id.
    Stream,
    /// Each id in a call of its own: per id.
    Each,
    /// A file to a tokenizer, in a new process: processor time.
    Load,
    /// Loading a compiled tokenizer, likewise.
    LoadCompiled,
    /// Resident memory that loading added.
    Memory,
    /// Resident memory that loading and some threads added which have encoded the texts.
    Crowd,
    /// What each thread after the first added.
    Further,
}

impl Work {
    /// Returns true for work on ids.
    pub(crate) fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::Stream | Self::Each)
    }
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

/// The answer to an order, or the reason why there is no cost: what went wrong, or that the engine has
/// no such thing.
pub(crate) type Reply = Result<Cost, String>;

pub(crate) fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(value)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_reader(BufReader::new(file))
        .with_context(|| format!("{} is no such JSON", path.display()))
}
