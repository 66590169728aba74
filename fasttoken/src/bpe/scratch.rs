//! Memory that a thread keeps between words and calls.

use super::pipeline::Groups;
use crate::cache::{Cache, Slot};
use crate::heap_merge::HeapMerge;
use crate::pretokenize::WordBuffer;

/// Memory that a thread keeps between words and calls.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) cache: Slot,
    pub(super) merging: HeapMerge,
    /// Tokens of one word.
    pub(super) ids: Vec<u32>,
    pub(super) groups: Box<Groups>,
    /// Ends of words that are collected for [`super::Bpe::encode_words`].
    pub(crate) word_buffer: Option<Box<WordBuffer>>,
}

impl Default for Scratch {
    /// Creates the memory out of line: inlined, its 24 KB would take room on the stack of every
    /// call, at 12 ns.
    #[cold]
    #[inline(never)]
    fn default() -> Self {
        Self {
            cache: Slot::default(),
            merging: HeapMerge::default(),
            ids: Vec::new(),
            groups: bytemuck::zeroed_box(),
            word_buffer: None,
        }
    }
}

/// The bytes of memory for long words that a thread keeps, enough for a word of some ten thousand
/// bytes. Memory of longer words is given back after the call.
const KEPT_BYTES: usize = 1 << 19;

impl Scratch {
    /// Returns the thread's cache, which SentencePiece models use as well.
    pub(crate) fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Gives back the memory of an unusually long word.
    pub(crate) fn shrink(&mut self) {
        let bytes = self.merging.bytes() + self.ids.capacity() * size_of::<u32>();
        if bytes > KEPT_BYTES {
            self.merging = HeapMerge::default();
            self.ids = Vec::new();
        }
    }
}
