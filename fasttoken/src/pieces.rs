//! Tokens that are text, as all models but byte-level ones have them: by id, by spelling, and as
//! decoding writes them.

mod decoder;
mod metaspace;
mod stored;
mod tokens;
mod vocabulary;
mod wordpiece_decoder;

pub(crate) use decoder::{Decoder, Stream};
pub(crate) use metaspace::{Metaspace, Prepend};
pub(crate) use stored::StoredVocab;
pub(crate) use tokens::{Tokens, read_scored, read_tokens};
pub(crate) use vocabulary::{Builder as VocabBuilder, Info as VocabInfo, Vocab, vocabulary};

/// A token of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    /// The bytes of the word that the token stands for.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The character that stands for a space.
pub(crate) const META: char = '▁';
