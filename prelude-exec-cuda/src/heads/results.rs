//! A step's results: words of 4 bytes on the GPU, copied to the host in one piece.

use bytemuck::Pod;

use crate::{
    Error,
    memory::{
        pinned::Pinned,
        space::{Buffer, Space},
        view::View,
    },
};

/// Parts start at multiples of this many words.
pub(super) const ALIGN: usize = 4;

/// A part of a step's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// First word.
    pub(crate) at: usize,
    /// Number of words.
    pub(crate) len: usize,
}

/// The results of one step, on both sides.
#[derive(Debug)]
pub(crate) struct Results {
    device: Buffer,
    host: Pinned,
    used: usize,
    /// Words that all rows share.
    words: usize,
    /// Words including the room for one result of each token.
    all_words: usize,
}

impl Results {
    /// Allocates `bytes` for results, and `token_words` words beside them for results of each
    /// token.
    pub(crate) fn new(space: &Space, bytes: usize, token_words: usize) -> Result<Self, Error> {
        let words = bytes / 4;
        let all_words = words.next_multiple_of(ALIGN) + token_words;
        Ok(Self {
            device: space.alloc("results", 4 * all_words)?,
            host: space.pinned("results", 4 * all_words)?,
            used: 0,
            words,
            all_words,
        })
    }

    /// Allocates host memory for [`Results::exchange`].
    pub(crate) fn spare(&self, space: &Space) -> Result<Pinned, Error> {
        space.pinned("results", 4 * self.all_words)
    }

    /// Copies to, and reads from, other host memory from here on.
    pub(crate) const fn exchange(&mut self, host: &mut Pinned) {
        std::mem::swap(&mut self.host, host);
    }

    /// Returns the bytes on the device.
    pub(super) const fn bytes(&self) -> usize {
        self.device.bytes()
    }

    /// Returns all words on the device, as the kernels that read ids of the step before take them.
    pub(crate) fn all(&self) -> View<i32> {
        self.device.view(0, 1, self.all_words)
    }

    /// Forgets all parts.
    pub(crate) const fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the number of words that parts may still take.
    pub(crate) const fn room(&self) -> usize {
        self.words - self.used
    }

    /// Returns the number of words that results of each token may still take; others come first.
    pub(crate) const fn token_room(&self) -> usize {
        self.all_words - self.used
    }

    /// Reserves words, if there are so many.
    pub(crate) fn take(&mut self, len: usize) -> Option<Part> {
        self.take_within(len, self.words)
    }

    /// Reserves words for results of each token, if there are so many.
    pub(crate) fn take_for_tokens(&mut self, len: usize) -> Option<Part> {
        self.take_within(len, self.all_words)
    }

    fn take_within(&mut self, len: usize, words: usize) -> Option<Part> {
        let at = self.used;
        let end = at.checked_add(len)?;
        if end > words {
            return None;
        }
        self.used = end.next_multiple_of(ALIGN).min(words);
        Some(Part { at, len })
    }

    /// Returns a part on the device, as rows.
    pub(crate) fn view<T: Pod>(&self, part: Part, rows: usize) -> View<T> {
        let width = part.len.checked_div(rows).unwrap_or(0);
        self.device.view(part.at * 4, rows, width)
    }

    /// Queues a copy of words of another buffer into a part.
    pub(crate) fn copy_from(&self, part: Part, from: &Buffer, word: usize) -> Result<(), Error> {
        let range = word * 4..(word + part.len) * 4;
        self.device.copy_from(part.at * 4, from, range)
    }

    /// Queues the copy to the host.
    pub(crate) fn send(&mut self) -> Result<(), Error> {
        self.device.download(&mut self.host, self.used * 4)
    }

    /// Returns the words of a part, once the copy has been waited for.
    pub(crate) fn words(&self, part: Part) -> impl Iterator<Item = u32> {
        let bytes = &self.host.bytes()[part.at * 4..(part.at + part.len) * 4];
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
    }

    /// Returns the words of a part as f32.
    pub(crate) fn floats(&self, part: Part) -> impl Iterator<Item = f32> {
        self.words(part).map(f32::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn parts_are_bounded() {
        let mut results = Results::new(&Space::Virtual(Arc::default()), 40, 8).unwrap();
        assert_eq!(results.take(3), Some(Part { at: 0, len: 3 }));
        assert_eq!(results.take(6), Some(Part { at: 4, len: 6 }));
        assert_eq!(results.take(1), None);
        results.clear();
        assert_eq!(results.take(usize::MAX), None);
        assert_eq!(results.take(10), Some(Part { at: 0, len: 10 }));
        // What is there for tokens is not there for others.
        assert_eq!(results.take(1), None);
        assert_eq!(results.token_room(), 10);
        assert_eq!(results.take_for_tokens(9), Some(Part { at: 10, len: 9 }));
        assert_eq!(results.take_for_tokens(2), None);
    }
}
