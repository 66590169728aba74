//! Byte-pair encoding as SentencePiece does it: Llama 2, Mistral, Gemma and their like.
//!
//! Texts are characters here and not bytes, spaces are the visible `▁`, no pattern splits a text
//! into words before it is merged, and a character that the vocabulary lacks becomes one token per
//! byte (`<0xE2>`). [`cut_table`] shows where a text can be cut nevertheless, and proves that this
//! changes no result.
//!
//! A [`SentencePiece`] is the part of a tokenizer that knows this family; added tokens,
//! templates, truncation and padding are those of the tokenizer.

mod characters;
mod collect;
mod compiled;
mod cut_table;
mod direct;
mod encode;
mod fast;
mod file;
mod letters;
mod load;
mod merge;
mod quick;
mod run;
mod split;

pub(crate) use compiled::Tables;
pub(crate) use file::File;
pub(crate) use load::{is_sentencepiece, load};
pub(crate) use quick::read_quickly;

use crate::added::AddedTokens;
use crate::normalize::Normalizer;
use crate::pieces::{Decoder, Stream, Vocab};
use direct::Direct;
use merge::Model;
use split::Splitter;

/// The model, vocabulary and decoder of a SentencePiece-style file.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    model: Model,
    splitter: Splitter,
    /// The shortcut for texts, if they need no other normalizing.
    direct: Option<Direct>,
    decoder: Decoder,
    vocab: Vocab,
}

impl SentencePiece {
    /// Finds the shortest way from a text to its ids, given what comes before the model.
    pub(crate) fn prepare(&mut self, normalizer: &Normalizer, added: &AddedTokens) {
        self.direct = Direct::new(normalizer, &self.splitter, added);
    }

    /// Returns the text of `ids`.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let hidden = |id: u32| skip_special_tokens && self.vocab.is_hidden(id);
        let ids = ids.iter().copied().filter(|id| !hidden(*id));
        self.decoder.decode(&self.vocab, ids)
    }

    /// Returns the bytes of `ids`, which need not be UTF-8.
    pub(crate) fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        let hidden = |id: u32| skip_special_tokens && self.vocab.is_hidden(id);
        let ids = ids.iter().copied().filter(|id| !hidden(*id));
        self.decoder.decode_bytes(&self.vocab, ids)
    }

    /// Appends the text that `id` completes.
    pub(crate) fn push(&self, state: &mut Stream, id: u32, skip: bool, out: &mut String) {
        if !(skip && self.vocab.is_hidden(id)) {
            self.decoder.push(state, &self.vocab, id, out);
        }
    }

    /// Ends a text that was decoded id by id.
    pub(crate) fn finish(&self, state: &mut Stream, out: &mut String) {
        self.decoder.finish(state, out);
    }

    pub(crate) fn vocab(&self) -> &Vocab {
        &self.vocab
    }
}
