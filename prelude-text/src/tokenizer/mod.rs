//! The tokenizer of a served model: fasttoken, or the reference crate for files it refuses.
//!
//! fasttoken computes the ids of `tokenizers` 0.23 exactly, and refuses a file that asks for
//! something it cannot do exactly, or warns of it where only the split pattern is unusual. With the
//! feature `hf-fallback` such a file is served by `tokenizers` itself: slower, but with the right
//! ids.

mod escape;
#[cfg(feature = "hf-fallback")]
pub mod reference;

use std::{borrow::Cow, path::Path};

use fasttoken::{
    CacheUse, EncodeOptions, Error, Offsets, Reassigned, StreamState, Truncation, Warning,
};
use thiserror::Error as ThisError;

pub use escape::Escaper;

/// An error of a `tokenizer.json` that cannot be used.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum TokenizerError {
    /// fasttoken refuses the file.
    #[error("tokenizer.json: {0}{advice}", advice = advice(.0))]
    Refused(#[from] Error),
    /// Neither fasttoken nor the reference crate can use the file.
    #[error("tokenizer.json: {unsupported}; the reference crate refuses it too: {reference}")]
    RefusedByBoth {
        /// The reason why fasttoken refuses the file.
        unsupported: Error,
        /// The message of the reference crate.
        reference: String,
    },
}

/// The tokenizer of a served model: text to ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    kind: Kind,
    /// The bytes of text that one id stands for at most, if that is known.
    bytes_per_token: Option<usize>,
}

#[derive(Debug)]
enum Kind {
    // Both are boxed, since each has about the size of a page.
    Fast(Box<fasttoken::Tokenizer>),
    #[cfg(feature = "hf-fallback")]
    Reference(Box<reference::Reference>),
}

/// Evaluates an expression for the tokenizer of either kind.
macro_rules! either {
    ($self:expr, $tokenizer:ident => $do:expr) => {
        match &$self.kind {
            Kind::Fast($tokenizer) => $do,
            #[cfg(feature = "hf-fallback")]
            Kind::Reference($tokenizer) => $do,
        }
    };
}

impl From<fasttoken::Tokenizer> for Tokenizer {
    fn from(tokenizer: fasttoken::Tokenizer) -> Self {
        Self {
            bytes_per_token: tokenizer.max_bytes_per_token(),
            kind: Kind::Fast(Box::new(tokenizer)),
        }
    }
}

impl Tokenizer {
    /// Loads the bytes of a `tokenizer.json`. The second value tells the operator that, and why,
    /// the slower reference serves this file.
    ///
    /// # Errors
    /// [`TokenizerError::Refused`], or [`TokenizerError::RefusedByBoth`] with the feature `hf-fallback`.
    pub fn from_bytes(json: &[u8]) -> Result<(Self, Option<String>), TokenizerError> {
        match fasttoken::Tokenizer::from_bytes(json) {
            Ok(tokenizer) => Ok(Self::exact(json, tokenizer, None)),
            Err(why) => Self::fall_back(json, why),
        }
    }

    /// Loads a `tokenizer.json` as [`Tokenizer::from_bytes`] does, and keeps the compiled tokenizer in
    /// the folder `cache` for the next start. A folder that cannot be written to is a warning.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_bytes`].
    pub fn from_bytes_cached(
        json: &[u8],
        cache: &Path,
    ) -> Result<(Self, Option<String>), TokenizerError> {
        match fasttoken::Tokenizer::from_bytes_cached(json, cache) {
            Ok((tokenizer, CacheUse::NotWritten(why))) => {
                let cache = cache.display();
                let warning = format!("the compiled tokenizer cannot be kept in {cache}: {why}");
                Ok(Self::exact(json, tokenizer, Some(warning)))
            }
            Ok((tokenizer, _)) => Ok(Self::exact(json, tokenizer, None)),
            Err(why) => Self::fall_back(json, why),
        }
    }

    #[cfg(feature = "hf-fallback")]
    fn fall_back(json: &[u8], why: Error) -> Result<(Self, Option<String>), TokenizerError> {
        if !is_beyond_fasttoken(&why) {
            return Err(why.into());
        }
        match reference::Reference::from_bytes(json) {
            Ok(reference) => {
                let why = format!("does not support it: {why}");
                Ok(Self::of_reference(reference, &why))
            }
            Err(reference) => Err(TokenizerError::RefusedByBoth {
                unsupported: why,
                reference,
            }),
        }
    }

    /// Returns fasttoken's tokenizer of a file, or the reference's if that is at hand and fasttoken's
    /// is not known to be exact.
    #[cfg(feature = "hf-fallback")]
    fn exact(
        json: &[u8],
        tokenizer: fasttoken::Tokenizer,
        warning: Option<String>,
    ) -> (Self, Option<String>) {
        let is_inexact = |warning: &&Warning| matches!(warning, Warning::InexactPattern { .. });
        let inexact = tokenizer.warnings().iter().find(is_inexact);
        match inexact.map(|why| (why, reference::Reference::from_bytes(json))) {
            Some((why, Ok(reference))) => {
                let why = format!("may differ from it: {why}");
                Self::of_reference(reference, &why)
            }
            _ => (tokenizer.into(), warning),
        }
    }

    #[cfg(not(feature = "hf-fallback"))]
    fn exact(
        _: &[u8],
        tokenizer: fasttoken::Tokenizer,
        warning: Option<String>,
    ) -> (Self, Option<String>) {
        (tokenizer.into(), warning)
    }

    /// Returns the reference's tokenizer, and the note that tells why fasttoken's is not used.
    #[cfg(feature = "hf-fallback")]
    fn of_reference(reference: reference::Reference, why: &str) -> (Self, Option<String>) {
        let warning = format!(
            "tokenizer.json is served by the reference crate `tokenizers`, many times slower than \
             fasttoken, which {why}"
        );
        let tokenizer = Self {
            kind: Kind::Reference(Box::new(reference)),
            bytes_per_token: None,
        };
        (tokenizer, Some(warning))
    }

    #[cfg(not(feature = "hf-fallback"))]
    fn fall_back(_: &[u8], why: Error) -> Result<(Self, Option<String>), TokenizerError> {
        Err(why.into())
    }

    /// Returns a lower bound of the number of ids of a text of `bytes` bytes.
    #[must_use]
    pub fn least_tokens(&self, bytes: usize) -> usize {
        self.bytes_per_token.map_or(0, |most| bytes.div_ceil(most))
    }

    /// Returns the ids of `text`. With `add_special_tokens`, the ids that the file's template puts
    /// around a text are included.
    #[must_use]
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Vec<u32> {
        either!(self, tokenizer => tokenizer.encode(text, add_special_tokens))
    }

    /// Returns the ids of two texts, put together by the file's template for pairs with its special
    /// tokens, and the type of each id: which of the texts it belongs to, as the template says. With
    /// `truncation` the texts are cut as the reference cuts them; where the template alone is too
    /// long, there are no ids.
    #[must_use]
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        truncation: Option<Truncation>,
    ) -> (Vec<u32>, Vec<u32>) {
        match &self.kind {
            Kind::Fast(tokenizer) => {
                let options = EncodeOptions::new()
                    .add_special_tokens(true)
                    .offsets(Offsets::None)
                    .overflowing(false)
                    .truncation(truncation);
                let encoding = tokenizer.encode_with((first, second), &options);
                encoding.map_or_else(|_| Default::default(), |of| (of.ids, of.type_ids))
            }
            #[cfg(feature = "hf-fallback")]
            Kind::Reference(tokenizer) => tokenizer.encode_pair(first, second, truncation),
        }
    }

    /// Appends the ids of `text` to `out`.
    pub fn encode_into(&self, text: &str, add_special_tokens: bool, out: &mut Vec<u32>) {
        either!(self, tokenizer => tokenizer.encode_into(text, add_special_tokens, out));
    }

    /// Returns the first `limit` ids of `text`, without special tokens around it. If possible, reads
    /// no more of the text than these ids cover.
    #[must_use]
    pub fn encode_prefix(&self, text: &str, limit: usize) -> Vec<u32> {
        match &self.kind {
            Kind::Fast(tokenizer) => tokenizer.encode_prefix(text, limit).0,
            #[cfg(feature = "hf-fallback")]
            Kind::Reference(tokenizer) => {
                let mut ids = tokenizer.encode(text, false);
                ids.truncate(limit);
                ids
            }
        }
    }

    /// Returns the number of ids that [`Tokenizer::encode`] gives.
    #[must_use]
    pub fn count(&self, text: &str, add_special_tokens: bool) -> usize {
        either!(self, tokenizer => tokenizer.count(text, add_special_tokens))
    }

    /// Returns the text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token give
    /// nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        either!(self, tokenizer => tokenizer.decode(ids, skip_special_tokens))
    }

    /// Returns the bytes that `id` stands for within a text, or `None` if no token has this id.
    #[must_use]
    pub fn id_to_piece(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        match &self.kind {
            Kind::Fast(tokenizer) => tokenizer.id_to_piece(id).map(Cow::Borrowed),
            #[cfg(feature = "hf-fallback")]
            Kind::Reference(tokenizer) => tokenizer.id_to_piece(id).map(Cow::Owned),
        }
    }

    /// Returns the text that `id` stands for alone. A part of a character becomes U+FFFD; an id
    /// without a token gives nothing.
    #[must_use]
    pub fn id_to_text(&self, id: u32) -> Cow<'_, str> {
        match self.id_to_piece(id) {
            Some(Cow::Borrowed(bytes)) => String::from_utf8_lossy(bytes),
            Some(Cow::Owned(bytes)) => String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
                .into(),
            None => Cow::Borrowed(""),
        }
    }

    /// Returns the id of a token by its spelling in the vocabulary. Added tokens take precedence.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        either!(self, tokenizer => tokenizer.token_to_id(token))
    }

    /// Returns true if `id` is an added token that is marked special.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        either!(self, tokenizer => tokenizer.is_special(id))
    }

    /// Returns true if `id` is an added token with the flags that are given by name (`special`,
    /// `lstrip` and so on). Where the reference serves the file, only `special` is compared.
    pub fn has_added(&self, id: u32, flag: impl Fn(&str) -> Option<bool>) -> bool {
        let is = |name: &str, value: bool| flag(name).is_none_or(|wanted| wanted == value);
        match &self.kind {
            Kind::Fast(tokenizer) => tokenizer.added_tokens().any(|(of, token)| {
                of == id
                    && is("special", token.special)
                    && is("lstrip", token.lstrip)
                    && is("rstrip", token.rstrip)
                    && is("normalized", token.normalized)
                    && is("single_word", token.single_word)
            }),
            #[cfg(feature = "hf-fallback")]
            Kind::Reference(tokenizer) => is("special", tokenizer.is_special(id)),
        }
    }

    /// Returns the added tokens whose id is not the one that the file states; none for a file that
    /// the reference serves.
    #[must_use]
    pub fn reassigned_tokens(&self) -> &[Reassigned] {
        match &self.kind {
            Kind::Fast(tokenizer) => tokenizer.reassigned_tokens(),
            #[cfg(feature = "hf-fallback")]
            Kind::Reference(_) => &[],
        }
    }

    /// Returns notes about a file that loads, but is slow to encode with or perhaps not exact; none
    /// for a file that the reference serves.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        match &self.kind {
            Kind::Fast(tokenizer) => tokenizer.warnings(),
            #[cfg(feature = "hf-fallback")]
            Kind::Reference(_) => &[],
        }
    }

    /// Creates a decoder for ids that arrive one by one.
    pub fn stream(&self, skip_special_tokens: bool) -> Stream {
        match &self.kind {
            Kind::Fast(_) => Stream::Fast(StreamState::new(skip_special_tokens)),
            #[cfg(feature = "hf-fallback")]
            Kind::Reference(_) => Stream::Reference(reference::Stream::new(skip_special_tokens)),
        }
    }
}

/// The state of decoding ids as they arrive. All calls must pass the tokenizer that made the state.
#[derive(Debug)]
pub enum Stream {
    /// The state of fasttoken's decoder.
    Fast(StreamState),
    /// The state of the reference crate's decoder.
    #[cfg(feature = "hf-fallback")]
    Reference(reference::Stream),
}

impl Stream {
    /// Appends to `out` the text that `id` completes.
    #[inline]
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        match (self, &tokenizer.kind) {
            (Self::Fast(state), Kind::Fast(tokenizer)) => state.push(tokenizer, id, out),
            #[cfg(feature = "hf-fallback")]
            (Self::Reference(state), Kind::Reference(tokenizer)) => state.push(tokenizer, id, out),
            #[cfg(feature = "hf-fallback")]
            _ => unreachable!("the stream of another tokenizer"),
        }
    }

    /// Ends the text: writes the text that is still held back, and unfinished characters as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        match (self, &tokenizer.kind) {
            (Self::Fast(state), Kind::Fast(tokenizer)) => state.finish(tokenizer, out),
            #[cfg(feature = "hf-fallback")]
            (Self::Reference(state), Kind::Reference(tokenizer)) => state.finish(tokenizer, out),
            #[cfg(feature = "hf-fallback")]
            _ => unreachable!("the stream of another tokenizer"),
        }
    }
}

/// Returns true if the file is valid and only fasttoken cannot serve it.
fn is_beyond_fasttoken(why: &Error) -> bool {
    matches!(why, Error::Unsupported { .. } | Error::MissingByte { .. })
}

/// Returns the advice for a file that fasttoken refuses, for the end of an error's message.
fn advice(why: &Error) -> &'static str {
    if cfg!(feature = "hf-fallback") || !is_beyond_fasttoken(why) {
        ""
    } else {
        "; a server built with `--features hf-fallback` serves such files, more slowly"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::DEMO_TOKENIZER;

    /// The reference serves the file if it is at hand; otherwise fasttoken does, with a note.
    #[test]
    fn an_inexact_pattern_is_never_passed_over() {
        let mut file: Value = serde_json::from_slice(DEMO_TOKENIZER).unwrap();
        let pattern = json!(r"(?<=a)b+|\w+|\W");
        file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
        let (tokenizer, warning) = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
        if cfg!(feature = "hf-fallback") {
            assert!(tokenizer.warnings().is_empty());
            let warning = warning.unwrap();
            assert!(warning.contains("reference crate"), "{warning}");
        } else {
            assert_eq!(warning, None);
            let noted = tokenizer.warnings();
            assert!(
                matches!(noted, [Warning::InexactPattern { .. }]),
                "{noted:?}"
            );
        }
    }
}
