//! Decoding tokens that are text: the file's chain of decoders, reduced to a few settings at load.

use super::META;
use super::metaspace::{Prepend, check_replacement, prepend_scheme};
use super::vocabulary::Vocab;
use super::wordpiece_decoder::Words;
use crate::error::Error;
use crate::json::Component;
use std::borrow::Cow;

/// The effect of the file's chain of decoders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decoder {
    /// Spaces between words; no other step is there then.
    words: Option<Words>,
    /// Replacements in each token, in order.
    replace: Vec<(String, String)>,
    /// `Metaspace`: the first token loses each of its `▁`.
    first_loses_meta: bool,
    /// `<0x41>` is a byte; else it is text.
    bytes: bool,
    /// The character, and the largest number of it, that is stripped from the beginning of the
    /// text.
    strip: Option<(char, usize)>,
}

/// The state of decoding id by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    /// A token has been written.
    begun: bool,
    /// The number of characters stripped so far, and true once stripping has ended.
    stripped: usize,
    stripping_done: bool,
    /// The bytes of a character whose rest has not come.
    pending: [u8; 4],
    pending_len: usize,
    /// True if the current run of bytes is not UTF-8.
    broken: bool,
}

impl Decoder {
    pub(crate) fn load(component: Option<&Component>, path: &str) -> Result<Self, Error> {
        let Some(component) = component else {
            return Err(refuse(path, "null"));
        };
        let mut this = Self::default();
        let mut fused = false;
        this.add(component, path, &mut fused)?;
        Ok(this)
    }

    /// Creates the decoder of a file without one, which puts a space between two tokens.
    pub(crate) fn none() -> Self {
        Self {
            words: Some(Words::default()),
            ..Self::default()
        }
    }

    fn add(&mut self, component: &Component, path: &str, fused: &mut bool) -> Result<(), Error> {
        let kind = component.kind(path)?;
        // A step after these would see another text than the tokens.
        if self.strip.is_some() {
            return Err(refuse(path, "a step after Strip"));
        }
        if self.words.is_some() {
            return Err(refuse(path, "a step after WordPiece"));
        }
        match kind {
            "Sequence" => {
                for (part, path) in component.parts("decoders", path)? {
                    self.add(&part, &path, fused)?;
                }
            }
            "WordPiece" if *self == Self::default() && !*fused => {
                self.words = Some(Words::load(component, path)?);
            }
            "Replace" if !self.bytes && !*fused => {
                let pattern = component.object("pattern", path)?;
                let from = pattern.get("String").and_then(|p| p.as_str());
                let Some(from) = from.filter(|from| !from.is_empty()) else {
                    return Err(refuse(path, "Replace by a regular expression"));
                };
                let to = component.string("content", path)?;
                self.replace.push((from.to_owned(), to.to_owned()));
            }
            "Metaspace" if !self.bytes && !*fused && self.replace.is_empty() => {
                check_replacement(component, path)?;
                self.first_loses_meta = prepend_scheme(component, path)? != Prepend::Never;
                self.replace.push((META.to_string(), " ".to_owned()));
            }
            "ByteFallback" if !*fused => self.bytes = true,
            "Fuse" => *fused = true,
            "Strip" if *fused => {
                let count = |name| {
                    let value = component.get(name).and_then(serde_json::Value::as_u64);
                    value.ok_or_else(|| Error::invalid(path, format!("{name} must be a number")))
                };
                let (start, stop) = (count("start")?, count("stop")?);
                let content = component.string("content", path)?;
                let mut chars = content.chars();
                let (Some(c), None) = (chars.next(), chars.next()) else {
                    return Err(Error::invalid(path, "content must be one character"));
                };
                if stop != 0 {
                    return Err(refuse(path, "Strip at the end of the text"));
                }
                self.strip = Some((c, usize::try_from(start).unwrap_or(usize::MAX)));
            }
            other => return Err(refuse(path, &format!("{other} at this place"))),
        }
        Ok(())
    }

    /// Appends the decoded form of a token that is not the first one. Returns true if it is a byte.
    pub(crate) fn push_piece(&self, spelling: &str, out: &mut Vec<u8>) -> bool {
        if let Some(words) = &self.words {
            out.extend_from_slice(words.other(spelling).as_bytes());
            return false;
        }
        let mut text = Cow::Borrowed(spelling);
        for (from, to) in &self.replace {
            if text.contains(from.as_str()) {
                text = Cow::Owned(text.replace(from.as_str(), to));
            }
        }
        if let Some(byte) = byte(&text).filter(|_| self.bytes) {
            out.push(byte);
            return true;
        }
        out.extend_from_slice(text.as_bytes());
        false
    }

    /// Returns the piece of the first token, if it is not the one of all others. It is never a byte
    /// then: those hold no `▁`.
    fn first<'v>(&self, vocab: &'v Vocab, id: u32) -> Option<Cow<'v, str>> {
        if self.words.is_none() && !self.first_loses_meta {
            return None;
        }
        let spelling = vocab.spelling(id)?;
        if let Some(words) = &self.words {
            return Some(words.first(spelling));
        }
        spelling
            .contains(META)
            .then(|| spelling.replace(META, "").into())
    }

    /// Returns the text of `ids`.
    pub(crate) fn decode(&self, vocab: &Vocab, ids: impl Iterator<Item = u32>) -> String {
        let mut text = String::new();
        let mut run = Vec::new();
        let mut first = true;
        for id in ids.filter(|id| vocab.contains(*id)) {
            let other = std::mem::take(&mut first).then(|| self.first(vocab, id));
            if let Some(piece) = other.flatten() {
                // Without the `▁`, the piece may spell a byte.
                match byte(&piece).filter(|_| self.bytes) {
                    Some(byte) => run.push(byte),
                    None => text.push_str(&piece),
                }
            } else if vocab.is_byte(id) {
                run.extend_from_slice(vocab.piece(id));
            } else {
                end_run(&mut run, &mut text);
                // Only bytes, and tokens of a forged compiled tokenizer, are not text.
                text.push_str(std::str::from_utf8(vocab.piece(id)).unwrap_or_default());
            }
        }
        end_run(&mut run, &mut text);
        if let Some((c, count)) = self.strip {
            let stripped = text.chars().take(count).take_while(|first| *first == c);
            text.drain(..stripped.count() * c.len_utf8());
        }
        text
    }

    /// Returns the bytes of `ids`; runs that are no text stay as they are.
    pub(crate) fn decode_bytes(&self, vocab: &Vocab, ids: impl Iterator<Item = u32>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut known = ids.filter(|id| vocab.contains(*id));
        if let Some(id) = known.next() {
            match self.first(vocab, id) {
                Some(piece) => match byte(&piece).filter(|_| self.bytes) {
                    Some(byte) => bytes.push(byte),
                    None => bytes.extend_from_slice(piece.as_bytes()),
                },
                None => bytes.extend_from_slice(vocab.piece(id)),
            }
        }
        for id in known {
            bytes.extend_from_slice(vocab.piece(id));
        }
        if let Some((c, count)) = self.strip {
            let mut buffer = [0; 4];
            let c: &[u8] = c.encode_utf8(&mut buffer).as_bytes();
            let times = bytes.chunks_exact(c.len()).take(count);
            let gone = times.take_while(|chunk| *chunk == c).count() * c.len();
            bytes.drain(..gone);
        }
        bytes
    }

    /// Appends the text that `id` completes.
    pub(crate) fn push(&self, state: &mut Stream, vocab: &Vocab, id: u32, out: &mut String) {
        if !vocab.contains(id) {
            return;
        }
        let from = out.len();
        let other = (!state.begun).then(|| self.first(vocab, id)).flatten();
        state.begun = true;
        let spelled = other.as_deref().and_then(byte).filter(|_| self.bytes);
        if let Some(byte) = spelled {
            state.push_byte(byte, out);
        } else if let Some(piece) = other {
            state.end_run(out);
            out.push_str(&piece);
        } else if vocab.is_byte(id) {
            // One byte, except in a forged compiled tokenizer.
            for &byte in vocab.piece(id) {
                state.push_byte(byte, out);
            }
        } else {
            state.end_run(out);
            out.push_str(std::str::from_utf8(vocab.piece(id)).unwrap_or_default());
        }
        self.strip_new(state, out, from);
    }

    /// Ends the text.
    pub(crate) fn finish(&self, state: &mut Stream, out: &mut String) {
        let from = out.len();
        state.end_run(out);
        self.strip_new(state, out, from);
        *state = Stream::default();
    }

    /// Strips what was appended from `from` on, as far as the beginning still goes.
    fn strip_new(&self, state: &mut Stream, out: &mut String, from: usize) {
        let Some((c, count)) = self.strip else { return };
        while !state.stripping_done && from < out.len() {
            if state.stripped == count || !out[from..].starts_with(c) {
                state.stripping_done = true;
            } else {
                out.replace_range(from..from + c.len_utf8(), "");
                state.stripped += 1;
            }
        }
    }
}

impl Stream {
    /// Adds a byte of a run. A run is text only as a whole; what the reference makes of
    /// a broken one is a U+FFFD per byte.
    fn push_byte(&mut self, byte: u8, out: &mut String) {
        if self.broken {
            out.push(char::REPLACEMENT_CHARACTER);
            return;
        }
        self.pending[self.pending_len] = byte;
        self.pending_len += 1;
        match std::str::from_utf8(&self.pending[..self.pending_len]) {
            Ok(text) => {
                out.push_str(text);
                self.pending_len = 0;
            }
            Err(error) if error.error_len().is_none() => {}
            Err(_) => {
                self.replace_pending(out);
                self.broken = true;
            }
        }
    }

    fn replace_pending(&mut self, out: &mut String) {
        for _ in 0..std::mem::take(&mut self.pending_len) {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn end_run(&mut self, out: &mut String) {
        self.replace_pending(out);
        self.broken = false;
    }
}

fn refuse(path: &str, what: &str) -> Error {
    Error::unsupported(
        path,
        format!(
            "decoder {what} (supported: ByteLevel, WordPiece, or in this order Replace or Metaspace, ByteFallback, Fuse, Strip)"
        ),
    )
}

/// Returns the byte that a token such as `<0x41>` spells.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    // The parser of numbers accepts a sign, as the reference does.
    (token.len() == 6).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Writes a run of bytes: as text if all of it is, else one U+FFFD per byte.
fn end_run(run: &mut Vec<u8>, text: &mut String) {
    match std::str::from_utf8(run) {
        Ok(all) => text.push_str(all),
        Err(_) => text.extend(run.iter().map(|_| char::REPLACEMENT_CHARACTER)),
    }
    run.clear();
}
