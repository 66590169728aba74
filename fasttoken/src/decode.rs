//! From ids back to text, at once or as the ids arrive.

use crate::tokenizer::Tokenizer;

impl Tokenizer {
    /// The text of `ids`, as the reference decodes it.
    ///
    /// The bytes of all tokens are joined and converted once; what is not UTF-8
    /// becomes U+FFFD. Ids that no token has are dropped. With
    /// `skip_special_tokens`, special tokens are left out.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        String::from_utf8(self.decode_bytes(ids, skip_special_tokens))
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The bytes that `ids` stand for, as they are: what a model writes need not be
    /// UTF-8. Ids that no token has are dropped, and special tokens as in
    /// [`Tokenizer::decode`].
    pub fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        // Tokens of common text have four bytes and a half on average.
        let mut bytes = Vec::with_capacity(ids.len() * 5 + 64);
        self.vocab
            .append_pieces(ids, skip_special_tokens, &mut bytes);
        bytes
    }

    /// [`Tokenizer::decode`] for each of many sequences.
    pub fn decode_batch(
        &self,
        sequences: &[impl AsRef<[u32]>],
        skip_special_tokens: bool,
    ) -> Vec<String> {
        let decode = |ids: &_| self.decode(AsRef::as_ref(ids), skip_special_tokens);
        sequences.iter().map(decode).collect()
    }

    /// A decoder for ids that arrive one by one.
    pub fn stream_decoder(&self, skip_special_tokens: bool) -> StreamDecoder<'_> {
        StreamDecoder {
            tokenizer: self,
            state: StreamState::new(skip_special_tokens),
        }
    }
}

/// Decodes ids as they arrive. Made by [`Tokenizer::stream_decoder`].
///
/// What is written, together with what [`StreamDecoder::finish`] writes, is what
/// [`Tokenizer::decode`] gives for all ids. Bytes that may still become a
/// character are held back (at most three); everything else is written at once.
/// The reference's stream never writes text earlier: it also holds back whole
/// tokens that end in an incomplete character, and any text that ends in U+FFFD.
///
/// ```
/// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
/// let tokenizer = fasttoken::Tokenizer::from_file(file)?;
/// let mut decoder = tokenizer.stream_decoder(true);
/// let mut text = String::new();
/// for id in tokenizer.encode("pay 5 €", false) {
///     decoder.push(id, &mut text); // the euro sign comes when its last byte does
/// }
/// decoder.finish(&mut text);
/// assert_eq!(text, "pay 5 €");
/// # Ok::<(), fasttoken::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    state: StreamState,
}

impl StreamDecoder<'_> {
    /// Appends to `out` the text that `id` completes.
    pub fn push(&mut self, id: u32, out: &mut String) {
        self.state.push(self.tokenizer, id, out);
    }

    /// Ends the text: bytes still held back become one U+FFFD. The decoder can then
    /// be used for another text.
    pub fn finish(&mut self, out: &mut String) {
        self.state.finish(self.tokenizer, out);
    }
}

/// The state of a [`StreamDecoder`] without the borrow, for callers that keep it
/// beside a shared tokenizer. All calls must pass the same tokenizer.
#[derive(Debug, Clone)]
pub struct StreamState {
    skip_special_tokens: bool,
    /// The first bytes of a character whose rest has not come; see `pending_len`.
    pending: [u8; 4],
    pending_len: usize,
}

impl StreamState {
    /// The state before the first id.
    pub fn new(skip_special_tokens: bool) -> Self {
        Self {
            skip_special_tokens,
            pending: [0; 4],
            pending_len: 0,
        }
    }

    /// Appends to `out` the text that `id` completes.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        if self.skip_special_tokens && tokenizer.vocab.is_hidden(id) {
            return;
        }
        let mut bytes = tokenizer.vocab.piece(id);
        while self.pending_len > 0
            && let Some((&byte, rest)) = bytes.split_first()
        {
            bytes = rest;
            self.push_byte(byte, out);
        }
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && may_continue(invalid) {
                self.pending[..invalid.len()].copy_from_slice(invalid);
                self.pending_len = invalid.len();
            } else if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Ends the text: bytes still held back become one U+FFFD, and the state is as new.
    pub fn finish(&mut self, _tokenizer: &Tokenizer, out: &mut String) {
        if self.pending_len > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
        }
        self.pending_len = 0;
    }

    /// Adds one byte to a character that has begun.
    fn push_byte(&mut self, byte: u8, out: &mut String) {
        self.pending[self.pending_len] = byte;
        self.pending_len += 1;
        let pending = &self.pending[..self.pending_len];
        match std::str::from_utf8(pending) {
            Ok(text) => {
                out.push_str(text);
                self.pending_len = 0;
            }
            Err(_) if may_continue(pending) => {}
            Err(_) => {
                // The byte does not belong to the character before it.
                if self.pending_len > 1 {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.pending_len = 0;
                    self.push_byte(byte, out);
                } else {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.pending_len = 0;
                }
            }
        }
    }
}

/// Whether `bytes` are the beginning of a character that more bytes can complete.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
