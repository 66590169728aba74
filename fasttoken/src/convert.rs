//! Files of other tokenizers as `tokenizer.json` files.
//!
//! A file of another format is written as the `tokenizer.json` that gives its ids, and loaded as any
//! other. So everything that a `tokenizer.json` can do, it can do too, such as being compiled.

mod byte_level_json;
mod ranks;
mod tekken;
mod tiktoken;

use crate::error::Error;
use crate::tokenizer::Tokenizer;
pub use tekken::tekken_to_json;
pub use tiktoken::{TiktokenEncoding, tiktoken_to_json};

impl Tokenizer {
    /// Loads the contents of a `*.tiktoken` file of ranks.
    ///
    /// The file has no split pattern and no special tokens; `encoding` gives them. The ids are those of
    /// tiktoken, with the character classes that this crate has everywhere. Special tokens in a text
    /// are recognised by [`Tokenizer::encode`] and not by [`Tokenizer::encode_plain_into`].
    ///
    /// # Errors
    /// When the ranks are malformed or contradict themselves, when the pattern is not supported, and
    /// when the ranks have a token that tiktoken could make in another order than the rules of a
    /// `tokenizer.json`, which files that were made by training do not have.
    pub fn from_tiktoken(ranks: &[u8], encoding: &TiktokenEncoding) -> Result<Self, Error> {
        Self::from_bytes(&tiktoken_to_json(ranks, encoding)?)
    }

    /// Loads the contents of a `tekken.json`, the format of Mistral's models since Nemo.
    ///
    /// The ids are those of `mistral-common`, with the character classes that this crate has
    /// everywhere. With `add_special_tokens`, `<s>` is put before a text. Special tokens in a text are
    /// recognised by [`Tokenizer::encode`] and not by [`Tokenizer::encode_plain_into`].
    ///
    /// # Errors
    /// Those of [`Tokenizer::from_tiktoken`].
    pub fn from_tekken(json: &[u8]) -> Result<Self, Error> {
        Self::from_bytes(&tekken_to_json(json)?)
    }
}
