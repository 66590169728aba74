//! Encoding with everything the reference offers: pairs, truncation, padding, columns.

use crate::encode_error::EncodeError;
use crate::encoding::Encoding;
use crate::input::Input;
use crate::offsets::Offsets;
use crate::padding::Padding;
use crate::parallel::{in_parallel, worth};
use crate::tokenizer::Tokenizer;
use crate::truncation::{Side, Truncation};
use crate::window::Windows;

/// The options of [`Tokenizer::encode_with`], made by [`Tokenizer::options`] from the file's
/// settings, or by [`EncodeOptions::new`] without truncation and padding.
///
/// ```
/// use fasttoken::{EncodeOptions, Offsets, Padding, Truncation};
/// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
/// let tokenizer = fasttoken::Tokenizer::from_file(file)?;
/// let options = EncodeOptions::new()
///     .add_special_tokens(true)
///     .offsets(Offsets::Chars)
///     .truncation(Some(Truncation::new(6)))
///     .padding(Some(Padding::new(0, "<|endoftext|>").pad_to_multiple_of(8)));
/// let encoding = tokenizer.encode_with(("Where is my card?", "It is on its way."), &options)?;
/// assert_eq!(encoding.ids.len(), 8);
/// assert_eq!(encoding.attention_mask, [1, 1, 1, 1, 1, 1, 0, 0]);
/// assert_eq!(encoding.type_ids, [0, 0, 0, 1, 1, 1, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodeOptions {
    add_special_tokens: bool,
    offsets: Offsets,
    truncation: Option<Truncation>,
    padding: Option<Padding>,
    overflowing: bool,
    whole_texts: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl EncodeOptions {
    /// Creates options with offsets in bytes, and without special tokens, truncation and padding.
    pub fn new() -> Self {
        Self {
            add_special_tokens: false,
            offsets: Offsets::Bytes,
            truncation: None,
            padding: None,
            overflowing: true,
            whole_texts: false,
        }
    }

    /// Sets whether the ids of the file's template are put around the texts.
    #[must_use]
    pub fn add_special_tokens(mut self, add: bool) -> Self {
        self.add_special_tokens = add;
        self
    }

    /// Sets the unit of offsets. [`Offsets::None`] is faster.
    #[must_use]
    pub fn offsets(mut self, offsets: Offsets) -> Self {
        self.offsets = offsets;
        self
    }

    /// Sets truncation to a number of ids.
    #[must_use]
    pub fn truncation(mut self, truncation: Option<Truncation>) -> Self {
        self.truncation = truncation;
        self
    }

    /// Sets padding up to a number of ids.
    #[must_use]
    pub fn padding(mut self, padding: Option<Padding>) -> Self {
        self.padding = padding;
        self
    }

    /// Sets whether [`Encoding::overflowing`] is filled, as the reference always does. The kept ids
    /// are the same either way.
    #[must_use]
    pub fn overflowing(mut self, keep: bool) -> Self {
        self.overflowing = keep;
        self
    }

    /// Sets whether a text is encoded to its end before truncation, as by version 0.23.3 of the
    /// reference's Python package. The reference's crate, up to 0.23.2, stops after the word in which
    /// the limit is reached, and so does [`Tokenizer::encode_with`] unless told otherwise. A whole text
    /// has all that was cut off in [`Encoding::overflowing`], and its words are counted from its
    /// beginning even if that is cut off; of a pair that is cut by
    /// [`LongestFirst`](crate::TruncationStrategy::LongestFirst), the longer text is known. A single
    /// text keeps the same ids either way.
    #[must_use]
    pub fn whole_texts(mut self, whole: bool) -> Self {
        self.whole_texts = whole;
        self
    }
}

impl Tokenizer {
    /// Returns the options that the file states: its truncation and padding, no special tokens,
    /// offsets in bytes.
    ///
    /// With these, [`Tokenizer::encode_with`] gives what the reference's `encode` gives.
    /// The functions that return only ids neither cut nor fill up.
    pub fn options(&self) -> EncodeOptions {
        EncodeOptions::new()
            .truncation(self.truncation)
            .padding(self.padding.clone())
    }

    /// Returns the truncation that the file states.
    pub fn truncation(&self) -> Option<Truncation> {
        self.truncation
    }

    /// Returns the padding that the file states.
    pub fn padding(&self) -> Option<&Padding> {
        self.padding.as_ref()
    }

    /// Encodes one text or a pair with all that is known about each id, as the
    /// reference's `encode` (or `encode_char_offsets`, or `encode_fast`) does.
    ///
    /// With truncation at the right, the text is encoded only up to the limit; models in
    /// the style of SentencePiece may encode all of it before they cut.
    ///
    /// # Errors
    /// When truncation or padding cannot do what is asked; see [`EncodeError`].
    pub fn encode_with<'t>(
        &self,
        input: impl Into<Input<'t>>,
        options: &EncodeOptions,
    ) -> Result<Encoding, EncodeError> {
        let mut encoding = self.encode_unpadded(input.into(), options)?;
        if let Some(padding) = &options.padding {
            padding.apply(std::slice::from_mut(&mut encoding))?;
        }
        Ok(encoding)
    }

    /// Encodes many inputs, each as [`Tokenizer::encode_with`] does, by up to `threads` threads, as in
    /// [`Tokenizer::encode_batch`], and pads them as one batch.
    ///
    /// ```
    /// use fasttoken::{EncodeOptions, Padding};
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// let tokenizer = fasttoken::Tokenizer::from_file(file)?;
    /// let options = EncodeOptions::new().padding(Some(Padding::new(0, "<|endoftext|>")));
    /// let batch = tokenizer.encode_batch_with(&["one", "one and two"], &options, 2)?;
    /// assert_eq!(batch[0].len(), batch[1].len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first input's that fails, as [`Tokenizer::encode_with`].
    pub fn encode_batch_with<'t, I>(
        &self,
        inputs: &'t [I],
        options: &EncodeOptions,
        threads: impl Into<Option<usize>>,
    ) -> Result<Vec<Encoding>, EncodeError>
    where
        &'t I: Into<Input<'t>>,
    {
        let inputs: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
        let encode = |n: usize| self.encode_unpadded(inputs[n], options);
        let threads = worth(threads.into(), inputs.iter().map(Input::len).sum());
        let encodings = in_parallel(inputs.len(), threads, encode);
        let mut encodings = encodings.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some(padding) = &options.padding {
            padding.apply(&mut encodings)?;
        }
        Ok(encodings)
    }

    /// Encodes one text or a pair with the byte range of each id, and without truncation and
    /// padding.
    pub fn encode_with_offsets<'t>(
        &self,
        input: impl Into<Input<'t>>,
        add_special_tokens: bool,
    ) -> Encoding {
        let options = EncodeOptions::new().add_special_tokens(add_special_tokens);
        self.encode_with(input, &options)
            .expect("only truncation and padding can fail")
    }

    fn encode_unpadded(
        &self,
        input: Input<'_>,
        options: &EncodeOptions,
    ) -> Result<Encoding, EncodeError> {
        let mut texts = match input {
            Input::Single(a) => vec![self.encode_sequence(a, 0, options)],
            Input::Pair(a, b) => vec![
                self.encode_sequence(a, 0, options),
                self.encode_sequence(b, 1, options),
            ],
        };
        if let Some(truncation) = &options.truncation {
            let added = if options.add_special_tokens {
                self.post_processor.added(texts.len() == 2)
            } else {
                0
            };
            truncation.apply(&mut texts, added, options.overflowing)?;
        }
        self.post_processor.apply(texts, options.add_special_tokens)
    }

    fn encode_sequence(&self, text: &str, sequence: usize, options: &EncodeOptions) -> Encoding {
        let limit = options.truncation.and_then(|t| t.limit(sequence));
        let limit = limit.filter(|_| !options.whole_texts);
        let mut encoding = self.encode_limited(text, options.offsets, limit);
        encoding.type_ids.fill(sequence as u32);
        if options.offsets == Offsets::Chars {
            to_chars(text, &mut encoding.offsets);
        }
        encoding
    }

    fn encode_limited(
        &self,
        text: &str,
        offsets: Offsets,
        limit: Option<(usize, Side)>,
    ) -> Encoding {
        if let Some((max, Side::Right)) = limit {
            for (window, whole) in Windows::new(self.family.has_safe_cuts(), text, max) {
                let (encoding, enough) = self.encode_text(window, offsets, limit);
                if enough || whole {
                    return encoding;
                }
            }
        }
        self.encode_text(text, offsets, limit).0
    }
}

/// Bytes between two counts of characters.
const COUNT_EVERY_BYTES: usize = 64;

/// Turns positions in bytes into positions in characters, as the reference does: a byte
/// inside of a character is at the character, and an end past the text is one more than
/// the character before it. Where nothing is known it leaves the bytes, so an empty
/// range at the end of a text keeps them.
fn to_chars(text: &str, offsets: &mut [(usize, usize)]) {
    let is_start = |byte: &&u8| (**byte as i8) >= -0x40;
    let mut chars = 0;
    let counts: Vec<usize> = text
        .as_bytes()
        .chunks(COUNT_EVERY_BYTES)
        .map(|chunk| {
            let before = chars;
            chars += chunk.iter().filter(is_start).count();
            before
        })
        .collect();
    let index = |at: usize| {
        (at < text.len()).then(|| {
            let from = at / COUNT_EVERY_BYTES * COUNT_EVERY_BYTES;
            let starts = text.as_bytes()[from..=at].iter().filter(is_start).count();
            counts[at / COUNT_EVERY_BYTES] + starts - 1
        })
    };
    for (start, end) in offsets {
        if let Some(first) = index(*start) {
            let last = || end.checked_sub(1).and_then(index).unwrap_or(first + 1);
            *end = index(*end).unwrap_or_else(|| last() + 1);
            *start = first;
        }
    }
}
