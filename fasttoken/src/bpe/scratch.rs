//! What a thread keeps between words and calls.

use super::merge::Merging;
use super::pending::Pending;
use super::words::Groups;
use crate::cache::{Cache, Slot};
use crate::gather::Gathered;
use crate::sentencepiece::Pieces;

/// What a thread keeps between words and calls.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) cache: Slot,
    pub(super) merging: Merging,
    /// Tokens of one word.
    pub(super) ids: Vec<u32>,
    pub(super) pending: Box<Pending>,
    pub(super) groups: Box<Groups>,
    /// Words that wait for [`super::Bpe::encode_words`].
    pub(crate) gathered: Option<Box<Gathered>>,
    /// Of the other family.
    pub(super) pieces: Box<Pieces>,
}

impl Default for Scratch {
    /// Not where a call asks for what its thread has: these are 24 KB, for which that would
    /// make room on the stack each time, at 12 ns.
    #[cold]
    #[inline(never)]
    fn default() -> Self {
        Self {
            cache: Slot::default(),
            merging: Merging::default(),
            ids: Vec::new(),
            pending: Box::default(),
            groups: bytemuck::zeroed_box(),
            gathered: None,
            pieces: Box::default(),
        }
    }
}

/// Bytes of memory for long words that a thread keeps: a word of some ten thousand
/// bytes. Those of longer ones are given back after the call.
const KEPT_BYTES: usize = 1 << 19;

impl Scratch {
    /// What models of the other family need: the words that the thread remembers, and
    /// memory for their pieces.
    pub(crate) fn pieces(&mut self) -> (&mut Cache, &mut Pieces) {
        (&mut self.cache, &mut self.pieces)
    }

    /// Gives back what an unusually long word took.
    pub(crate) fn shrink(&mut self) {
        let bytes = self.merging.bytes() + self.ids.capacity() * size_of::<u32>();
        if bytes > KEPT_BYTES {
            self.merging = Merging::default();
            self.ids = Vec::new();
        }
        self.pieces.shrink(KEPT_BYTES);
    }
}
