//! Decoding id by id with a byte-level model: the bytes that wait for the rest of a character.

/// Upper bound of bytes that a stream may hold back.
const HELD_MAX: usize = 128;

/// Bytes that may end in an unfinished character, which a stream of a byte-level model holds back.
#[derive(Debug, Clone)]
pub(crate) struct HeldBytes {
    /// Bytes of `held` that hold something.
    len: usize,
    held: [u8; HELD_MAX],
}

impl Default for HeldBytes {
    fn default() -> Self {
        Self {
            len: 0,
            held: [0; HELD_MAX],
        }
    }
}

impl HeldBytes {
    /// Appends to `out` the text that `piece` completes.
    #[inline]
    pub(crate) fn push(&mut self, piece: &[u8], out: &mut String) {
        match std::str::from_utf8(piece) {
            Ok(text) if self.len == 0 && !text.ends_with(char::REPLACEMENT_CHARACTER) => {
                out.push_str(text);
            }
            _ => self.push_held(piece, out),
        }
    }

    /// Writes what is held back, unfinished characters as U+FFFD.
    pub(crate) fn finish(&mut self, out: &mut String) {
        push_lossy(&self.held[..self.len], out);
        self.len = 0;
    }

    /// Adds a piece to what is held back, and writes all of it if it may be written.
    fn push_held(&mut self, piece: &[u8], out: &mut String) {
        let end = self.len + piece.len();
        if let Some(target) = self.held.get_mut(self.len..end) {
            target.copy_from_slice(piece);
            self.len = end;
            let held = &self.held[..end];
            if !ends_in_replacement(held) {
                push_lossy(held, out);
                self.len = 0;
            }
            return;
        }
        let all = [&self.held[..self.len], piece].concat();
        // At most three bytes are an unfinished character.
        let kept = if ends_in_replacement(&all) {
            (1..4).rev().find(|&n| may_continue(&all[all.len() - n..]))
        } else {
            None
        };
        let (done, kept) = all.split_at(all.len() - kept.unwrap_or(0));
        push_lossy(done, out);
        self.held[..kept.len()].copy_from_slice(kept);
        self.len = kept.len();
    }
}

/// Returns true if the text of `bytes` ends in U+FFFD.
fn ends_in_replacement(bytes: &[u8]) -> bool {
    bytes.utf8_chunks().last().is_some_and(|chunk| {
        !chunk.invalid().is_empty() || chunk.valid().ends_with(char::REPLACEMENT_CHARACTER)
    })
}

fn push_lossy(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Returns true if `bytes` are the beginning of a character that more bytes can complete.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn held_back_bytes_come_out_once(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..60),
                    Just("€".as_bytes()[..2].to_vec()),
                    Just(b"\xAC".to_vec()),
                    Just("abc\u{FFFD}".as_bytes().to_vec()),
                    Just(vec![0xFF; 200]),
                ],
                0..12,
            ),
        ) {
            let mut state = HeldBytes::default();
            let mut text = String::new();
            for piece in &pieces {
                state.push_held(piece, &mut text);
                prop_assert!(state.len <= HELD_MAX);
            }
            state.finish(&mut text);
            let all = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&all));
        }
    }
}
