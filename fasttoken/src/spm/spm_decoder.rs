//! Decoding as SentencePiece does it, at once or id by id.

use super::Spm;
use crate::pieces::META;
use std::borrow::Cow;

/// The state of decoding id by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    /// Some text was written.
    written: bool,
    /// The piece before lost the one space that the beginning of a text may lose.
    lost_space: bool,
    /// The beginning of the text is over, so no piece loses spaces.
    begun: bool,
    /// The bytes of a character whose rest has not come.
    pending: [u8; 4],
    pending_len: usize,
}

impl Spm {
    /// Returns the text of `ids`.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let (mut state, mut text) = (Stream::default(), String::new());
        for &id in ids {
            self.push(&mut state, id, skip_special_tokens, &mut text);
        }
        self.finish(&mut state, &mut text);
        text
    }

    /// Returns the bytes of `ids`, which need not be UTF-8.
    pub(crate) fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        let (mut state, mut bytes) = (Stream::default(), Vec::new());
        for &id in ids.iter().filter(|id| self.vocab.contains(**id)) {
            if self.vocab.is_byte(id) {
                bytes.extend_from_slice(self.vocab.piece(id));
            } else {
                let text = self.shown(&mut state, id, skip_special_tokens);
                bytes.extend_from_slice(text.as_bytes());
            }
            state.written |= !bytes.is_empty();
        }
        bytes
    }

    /// Appends the text that `id` completes.
    pub(crate) fn push(&self, state: &mut Stream, id: u32, skip: bool, out: &mut String) {
        if !self.vocab.contains(id) {
            return;
        }
        if self.vocab.is_byte(id) {
            for &byte in self.vocab.piece(id) {
                state.push_byte(byte, out);
            }
            return;
        }
        state.end_bytes(out);
        let text = self.shown(state, id, skip);
        state.written |= !text.is_empty();
        out.push_str(&text);
    }

    /// Ends a text that was decoded id by id.
    pub(crate) fn finish(&self, state: &mut Stream, out: &mut String) {
        state.end_bytes(out);
        *state = Stream::default();
    }

    /// Returns the text of a piece that is no byte.
    fn shown(&self, state: &mut Stream, id: u32, skip: bool) -> Cow<'_, str> {
        state.begun |= state.lost_space || state.written;
        state.lost_space = false;
        let spelling = self.vocab.spelling(id).unwrap_or_default();
        if self.vocab.is_special(id) {
            return Cow::Borrowed(if skip { "" } else { spelling });
        }
        if id == self.unk {
            return Cow::Borrowed(&self.unk_surface);
        }
        let mut rest = spelling;
        if !state.begun
            && self.drops_first_space
            && let Some(without) = spelling.strip_prefix(META)
        {
            rest = without;
            state.lost_space = !self.drops_all_spaces;
        }
        if rest.contains(META) {
            Cow::Owned(rest.replace(META, " "))
        } else {
            Cow::Borrowed(rest)
        }
    }
}

impl Stream {
    /// Adds a byte. Every byte that is no part of a character becomes U+FFFD.
    fn push_byte(&mut self, byte: u8, out: &mut String) {
        self.pending[self.pending_len] = byte;
        self.pending_len += 1;
        while self.pending_len > 0 {
            match std::str::from_utf8(&self.pending[..self.pending_len]) {
                Ok(text) => {
                    out.push_str(text);
                    self.written = true;
                    self.pending_len = 0;
                }
                Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => return,
                Err(_) => self.replace_first(out),
            }
        }
    }

    /// Writes U+FFFD for the first pending byte.
    fn replace_first(&mut self, out: &mut String) {
        out.push(char::REPLACEMENT_CHARACTER);
        self.written = true;
        self.pending.copy_within(1..self.pending_len, 0);
        self.pending_len -= 1;
    }

    fn end_bytes(&mut self, out: &mut String) {
        while self.pending_len > 0 {
            self.replace_first(out);
        }
    }
}
