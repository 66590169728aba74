//! Models that were loaded from a SentencePiece `.model` file, with the ids and texts of the
//! library SentencePiece.
//!
//! The same models as a `tokenizer.json` are those of the module `text_model`, which does what the crate
//! `tokenizers` does. That differs: SentencePiece
//! replaces the longest entry of its map of characters and not the shortest, adds scores in single
//! precision over the whole text, merges by score instead of rank, finds user-defined symbols
//! while it normalizes, and finds control symbols such as `</s>` in no text. So these models have
//! code of their own, which is compared with that library alone.
//!
//! A text is normalized as a whole ([`normalized`]), cut before words into chunks that no piece
//! goes across, and every chunk becomes pieces ([`viterbi`], [`score_merge`]).

mod compiled_spm;
mod model_file;
mod normalized;
mod score_merge;
mod spm_decoder;
mod symbols;
mod viterbi;

use crate::added::Recognise;
use crate::bpe::ThreadScratch;
use crate::cache::LongKey;
use crate::collect::{Collect, Collected};
use crate::error::Error;
use crate::lattice::Lattice;
use crate::pieces::{META, Token, Vocab, VocabBuilder, VocabInfo};
use crate::text_walk::TextSteps;
pub(crate) use compiled_spm::KIND;
use model_file::{BPE, Kind, ModelFile, Piece};
use normalized::Normalizer;
use score_merge::{Merging, ScoreMerge};
pub(crate) use spm_decoder::Stream;
use std::ops::ControlFlow;
use symbols::Symbols;
use viterbi::Viterbi;

/// A model of a `.model` file with its normalizer, vocabulary and decoder.
#[derive(Debug)]
pub(crate) struct Spm {
    model: Model,
    normalizer: Normalizer,
    symbols: Symbols,
    /// The pieces; control symbols are special tokens of it, and user-defined symbols added ones.
    pub(crate) vocab: Vocab,
    unk: u32,
    /// The pieces of bytes, if unknown characters become them.
    bytes: Option<Box<[u32; 256]>>,
    /// True if texts may be cut before each `▁` that follows another character.
    cuts: bool,
    unk_surface: String,
    /// True if decoding drops the first space of a text.
    drops_first_space: bool,
    /// True if decoding drops all spaces at the beginning of a text.
    drops_all_spaces: bool,
}

#[derive(Debug)]
enum Model {
    Unigram(Viterbi),
    Bpe(ScoreMerge),
}

/// Memory kept between the chunks of a text.
#[derive(Debug, Default)]
struct Scratch {
    lattice: Lattice<f32>,
    /// The sum of scores at the end of the last chunk.
    sum: f32,
    merging: Merging,
    tokens: Vec<Token>,
}

impl Spm {
    /// Reads a `.model` file.
    ///
    /// # Errors
    /// When the file is malformed, contradicts itself, or has a setting that is not supported.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let file = ModelFile::read(bytes)?;
        // Finds pieces that are there twice, which the other parts do not expect.
        let vocab = vocabulary(&file)?;
        let unk = file.of_kind(Kind::Unknown).next().map_or(0, |(id, _)| id);
        let model = match file.model_type {
            BPE => Model::Bpe(ScoreMerge::new(&file, unk)),
            _ => Model::Unigram(Viterbi::new(&file, unk)?),
        };
        let mut bytes = Box::new([unk; 256]);
        for (id, piece) in file.of_kind(Kind::Byte) {
            if let Some(byte) = piece.byte() {
                bytes[usize::from(byte)] = id;
            }
        }
        Ok(Self {
            model,
            normalizer: Normalizer::new(&file.charsmap, file.spaces)?,
            symbols: Symbols::new(&file)?,
            vocab,
            unk,
            bytes: file.byte_fallback.then_some(bytes),
            cuts: cuts_are_safe(&file),
            drops_first_space: file.spaces.add_dummy_prefix || file.spaces.remove_extra,
            drops_all_spaces: file.spaces.remove_extra,
            unk_surface: file.unk_surface,
        })
    }

    /// Appends the ids of `text`. If `plain`, or if no added token is recognised, user-defined
    /// symbols are not used.
    pub(crate) fn encode(
        &self,
        _: TextSteps<'_>,
        text: &str,
        (recognise, plain): (Recognise, bool),
        out: &mut Vec<u32>,
    ) {
        let symbols = !plain && recognise != Recognise::None;
        let symbols = symbols.then_some(&self.symbols);
        let normalized = self.normalizer.apply(text, symbols, false);
        // The thread's cache holds the pieces of chunks of BPE. The pieces of Unigram depend on the
        // chunks before them, by rounding. Texts without user-defined symbols can have other pieces,
        // and are not cached.
        let owner = match &self.model {
            Model::Bpe(model) if symbols.is_some() => Some(model.owner),
            _ => None,
        };
        let mut memory = ThreadScratch::default();
        let mut scratch = Scratch::default();
        for (_, chunk) in self.chunks(&normalized.text) {
            let cached = owner.zip(LongKey::new(chunk.as_bytes()));
            if let Some((owner, key)) = cached
                && let Some(ids) = memory.get().cache().long(owner, key)
            {
                out.extend_from_slice(ids);
                continue;
            }
            self.encode_chunk(chunk, symbols, &mut scratch);
            let first = out.len();
            out.extend(scratch.tokens.iter().map(|token| token.id));
            if let Some((owner, key)) = cached {
                memory.get().cache().insert_long(owner, &key, &out[first..]);
            }
        }
    }

    /// Returns the chunks of a normalized text with the bytes at which they begin.
    fn chunks<'t>(&self, text: &'t str) -> impl Iterator<Item = (usize, &'t str)> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
            let len = if self.cuts {
                chunk_len(rest)
            } else {
                rest.len()
            };
            let chunk = (start, &rest[..len]);
            start += len;
            Some(chunk)
        })
    }

    /// Replaces the tokens of `scratch` by those of a chunk.
    fn encode_chunk(&self, chunk: &str, symbols: Option<&Symbols>, scratch: &mut Scratch) {
        let Scratch {
            lattice,
            sum,
            merging,
            tokens,
        } = scratch;
        match &self.model {
            Model::Unigram(model) => {
                model.encode(chunk, symbols.is_some(), (lattice, sum), tokens);
            }
            Model::Bpe(model) => {
                model.encode(chunk, &self.vocab, symbols, merging, tokens);
            }
        }
        if tokens.iter().any(|token| token.id == self.unk) {
            self.write_unknown(chunk, tokens);
        }
    }

    /// Replaces unknown characters by the pieces of their bytes, or neighbours by one unknown piece.
    fn write_unknown(&self, chunk: &str, tokens: &mut Vec<Token>) {
        let mut written: Vec<Token> = Vec::with_capacity(tokens.len() + 8);
        for token in tokens.drain(..) {
            if token.id != self.unk {
                written.push(token);
            } else if let Some(ids) = &self.bytes {
                let bytes = chunk[token.start..token.end].bytes();
                let id = |byte: u8| ids[usize::from(byte)];
                written.extend(bytes.map(|byte| Token {
                    id: id(byte),
                    ..token
                }));
            } else if let Some(last) = written.last_mut().filter(|last| last.id == self.unk) {
                last.end = token.end;
            } else {
                written.push(token);
            }
        }
        *tokens = written;
    }
}

impl Collect for Spm {
    fn collect(
        &self,
        _: TextSteps<'_>,
        text: &str,
        collected: &mut Collected<'_>,
    ) -> ControlFlow<()> {
        let symbols = Some(&self.symbols);
        let normalized = self.normalizer.apply(text, symbols, collected.wanted);
        collected.begin_aligned(normalized.alignment());
        let mut scratch = Scratch::default();
        for (start, chunk) in self.chunks(&normalized.text) {
            self.encode_chunk(chunk, symbols, &mut scratch);
            collected.begin_word();
            for token in &scratch.tokens {
                let mut range = (0, 0);
                if collected.wanted {
                    range = collected.range(start + token.start, start + token.end - 1);
                }
                collected.push(token.id, range, "")?;
            }
            collected.end_word()?;
        }
        ControlFlow::Continue(())
    }
}

/// Returns the length of the first chunk: up to a `▁` after another character.
fn chunk_len(text: &str) -> usize {
    let meta = META.encode_utf8(&mut [0; 4]).len();
    let mut from = 0;
    while let Some(found) = text[from..].find(META) {
        let at = from + found;
        // The one before may be the last of a run.
        if found > 0 {
            return at;
        }
        from = at + meta;
    }
    text.len()
}

/// Returns true if a text may be cut before each `▁` that follows another character: no piece goes
/// across such a place, and the chunk after it does not begin with an unknown character, which
/// would be one with unknown characters before it.
fn cuts_are_safe(file: &ModelFile) -> bool {
    let spans = |piece: &Piece| piece.text.trim_start_matches(META).contains(META);
    let used = |piece: &&Piece| matches!(piece.kind, Kind::Normal | Kind::UserDefined);
    let known = |piece: &Piece| piece.text.strip_prefix(META) == Some("");
    let mut normal = file.of_kind(Kind::Normal);
    normal.any(|(_, piece)| known(piece)) && !file.pieces.iter().filter(used).any(spans)
}

fn vocabulary(file: &ModelFile) -> Result<Vocab, Error> {
    let mut builder = VocabBuilder::default();
    let mut seen = std::collections::HashSet::with_capacity(file.pieces.len());
    for piece in &file.pieces {
        if !seen.insert(piece.text.as_str()) {
            return Err(Error::DuplicateToken {
                token: piece.text.clone(),
            });
        }
        let control = piece.kind == Kind::Control;
        let info = VocabInfo {
            hidden: control,
            special: control,
            added: piece.kind == Kind::UserDefined,
            model: true,
            ..VocabInfo::default()
        };
        let write = |out: &mut Vec<u8>| match piece.byte().filter(|_| piece.kind == Kind::Byte) {
            Some(byte) => {
                out.push(byte);
                true
            }
            None if matches!(piece.kind, Kind::Control | Kind::Unknown) => {
                out.extend_from_slice(piece.text.as_bytes());
                false
            }
            None => {
                out.extend_from_slice(piece.text.replace(META, " ").as_bytes());
                false
            }
        };
        builder.push(&piece.text, write, info);
    }
    builder
        .finish(file.pieces.len())
        .map_err(|id| Error::too_many_collisions("pieces", &format!("the piece with id {id}")))
}

#[cfg(test)]
mod spm_tests;
