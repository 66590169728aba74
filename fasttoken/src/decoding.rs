//! Decoding: from ids back to text, at once or as the ids arrive.

use crate::family::Stream;
use crate::parallel::{in_parallel, worth};
use crate::tokenizer::Tokenizer;

impl Tokenizer {
    /// Returns the text of `ids`, as the reference decodes it.
    ///
    /// The bytes of all tokens are joined and converted once, and invalid UTF-8 becomes U+FFFD;
    /// models that are not byte-level have the steps of the file's decoder instead. Ids without a
    /// token are dropped. With `skip_special_tokens`, special tokens are left out.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        self.family.decode(ids, skip_special_tokens)
    }

    /// Returns the bytes of `ids`, which need not be UTF-8. Ids without a token are dropped, and
    /// special tokens as in [`Tokenizer::decode`].
    pub fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        self.family.decode_bytes(ids, skip_special_tokens)
    }

    /// Decodes many sequences, each as [`Tokenizer::decode`] does, by up to `threads` threads, as
    /// [`Tokenizer::encode_batch`] has them.
    pub fn decode_batch(
        &self,
        sequences: &[impl AsRef<[u32]>],
        skip_special_tokens: bool,
        threads: impl Into<Option<usize>>,
    ) -> Vec<String> {
        // `as_ref` is the caller's code, which the threads must not run.
        let sequences: Vec<&[u32]> = sequences.iter().map(AsRef::as_ref).collect();
        // Decoding an id takes about as long as encoding a byte.
        let threads = worth(threads.into(), sequences.iter().map(|ids| ids.len()).sum());
        in_parallel(sequences.len(), threads, |n| {
            self.decode(sequences[n], skip_special_tokens)
        })
    }

    /// Creates a decoder for ids that arrive one by one.
    pub fn stream_decoder(&self, skip_special_tokens: bool) -> StreamDecoder<'_> {
        StreamDecoder {
            tokenizer: self,
            state: StreamState::new(skip_special_tokens),
        }
    }
}

/// Decodes ids as they arrive. Made by [`Tokenizer::stream_decoder`].
///
/// With each id, [`StreamDecoder::push`] writes all text that has not been written, unless it
/// may end in an unfinished character. What is written, together with what
/// [`StreamDecoder::finish`] writes, is what [`Tokenizer::decode`] gives for all ids, and no
/// character is ever written in parts.
///
/// With byte-level vocabularies these are the chunks of the reference's `DecodeStream`. With
/// others the whole text is equal, and chunks can differ: the reference holds back any text that
/// ends in U+FFFD, this decoder only bytes that later ids can complete.
///
/// The state has a fixed size: where more than 128 bytes would have to be held back,
/// which takes text full of invalid bytes, all but an unfinished character is written.
/// The reference holds it back without limit.
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

impl<'t> StreamDecoder<'t> {
    /// Returns the chunks of text that `ids` complete, none of them empty, and at the end the rest.
    ///
    /// ```
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// let tokenizer = fasttoken::Tokenizer::from_file(file)?;
    /// let ids = tokenizer.encode("pay 5 €", false);
    /// let chunks: Vec<String> = tokenizer.stream_decoder(true).chunks(ids).collect();
    /// assert_eq!(chunks.concat(), "pay 5 €");
    /// # Ok::<(), fasttoken::Error>(())
    /// ```
    pub fn chunks<I>(self, ids: I) -> Chunks<'t, I::IntoIter>
    where
        I: IntoIterator<Item = u32>,
    {
        Chunks {
            decoder: self,
            ids: ids.into_iter(),
            ended: false,
        }
    }
}

/// An iterator of chunks of text. Made by [`StreamDecoder::chunks`].
#[derive(Debug, Clone)]
pub struct Chunks<'t, I> {
    decoder: StreamDecoder<'t>,
    ids: I,
    ended: bool,
}

impl<I: Iterator<Item = u32>> Iterator for Chunks<'_, I> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut text = String::new();
        while text.is_empty() && !self.ended {
            match self.ids.next() {
                Some(id) => self.decoder.push(id, &mut text),
                None => {
                    self.decoder.finish(&mut text);
                    self.ended = true;
                }
            }
        }
        (!text.is_empty()).then_some(text)
    }
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
    stream: Stream,
}

impl StreamState {
    /// Returns the state before the first id.
    pub fn new(skip_special_tokens: bool) -> Self {
        Self {
            skip_special_tokens,
            stream: Stream::default(),
        }
    }

    /// Appends to `out` the text that `id` completes.
    #[inline]
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        let family = &tokenizer.family;
        family.push(&mut self.stream, id, self.skip_special_tokens, out);
    }

    /// Ends the text: bytes still held back are written, unfinished characters as
    /// U+FFFD, and the state is as new.
    pub fn finish(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        tokenizer.family.finish(&mut self.stream, out);
    }
}
