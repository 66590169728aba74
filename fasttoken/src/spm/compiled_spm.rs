//! Writing and reading the tables of a SentencePiece `.model` file in a compiled tokenizer.

use super::Model;
use super::Spm;
use super::model_file::Spaces;
use super::normalized::Normalizer;
use super::score_merge::ScoreMerge;
use super::symbols::Symbols;
use super::viterbi::Viterbi;
use crate::cache::Owner;
use crate::format::{CompiledError, Reader, Section, Writer};
use crate::pieces::Vocab;
use crate::trie::Trie;
use serde::{Deserialize, Serialize};

/// The type of the model in the configuration of a compiled `.model` file, which no `tokenizer.json`
/// that loads has.
pub(crate) const KIND: &str = "SentencePiece .model";

/// The configuration, which stands where that of a `tokenizer.json` does.
#[derive(Serialize, Deserialize)]
struct Config {
    model: Settings,
}

/// The settings of a `.model` file: everything but its tables of pieces.
#[derive(Serialize, Deserialize)]
struct Settings {
    #[serde(rename = "type")]
    kind: String,
    unigram: bool,
    unk: u32,
    /// The bits of the score of an unknown character; 0 for BPE.
    unk_score_bits: u32,
    /// The bytes of the longest piece; 0 for Unigram.
    longest: usize,
    has_symbols: bool,
    has_bytes: bool,
    cuts: bool,
    unk_surface: String,
    spaces: Spaces,
}

impl Spm {
    /// Returns the configuration for a compiled tokenizer.
    pub(crate) fn config(&self) -> Vec<u8> {
        let (unk_score_bits, longest) = match &self.model {
            Model::Unigram(model) => (model.unk_score.to_bits(), 0),
            Model::Bpe(model) => (0, model.max_len),
        };
        let model = Settings {
            kind: KIND.to_owned(),
            unigram: matches!(self.model, Model::Unigram(_)),
            unk: self.unk,
            unk_score_bits,
            longest,
            has_symbols: self.symbols.trie.is_some(),
            has_bytes: self.bytes.is_some(),
            cuts: self.cuts,
            unk_surface: self.unk_surface.clone(),
            spaces: self.normalizer.spaces,
        };
        serde_json::to_vec(&Config { model }).expect("numbers and strings are JSON")
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        self.vocab.write(writer);
        match &self.model {
            Model::Unigram(model) => {
                model.trie.write(Section::Trie, writer);
                writer.put(Section::Scores, &model.scores);
            }
            Model::Bpe(model) => writer.put(Section::Scores, &model.ranks),
        }
        if let Some(trie) = &self.symbols.trie {
            trie.write(Section::SymbolTrie, writer);
        }
        if let Some(bytes) = &self.bytes {
            writer.put(Section::ByteIds, &bytes[..]);
        }
        let charsmap = self.normalizer.charsmap.as_ref();
        let charsmap = charsmap.map(|map| map.to_bytes()).unwrap_or_default();
        writer.put(Section::Charsmap, &charsmap);
    }

    /// Reads the tables. `config` is what [`Spm::config`] returned.
    pub(crate) fn read_compiled(reader: &Reader, config: &[u8]) -> Result<Self, CompiledError> {
        let config: Config = serde_json::from_slice(config)
            .map_err(|error| Section::Config.invalid(error.to_string()))?;
        let settings = config.model;
        let (unk, spaces) = (settings.unk, settings.spaces);
        let count = reader.get::<u8>(Section::Flags)?.len();
        let vocab = Vocab::read(reader, count)?;
        let end = vocab.end();
        if unk >= end {
            return Err(Section::Config.invalid("its unknown piece is not one of the pieces"));
        }
        let contradicts = || Section::Scores.invalid("it contradicts the other tables");
        let model = if settings.unigram {
            let scores = reader.get::<f32>(Section::Scores)?;
            if scores.len() != count {
                return Err(contradicts());
            }
            Model::Unigram(Viterbi {
                trie: Trie::read(reader, Section::Trie, end)?,
                scores,
                unk,
                unk_score: f32::from_bits(settings.unk_score_bits),
            })
        } else {
            let ranks = reader.get::<u32>(Section::Scores)?;
            if ranks.len() != count {
                return Err(contradicts());
            }
            Model::Bpe(ScoreMerge {
                ranks,
                max_len: settings.longest,
                unk,
                owner: Owner::new(),
            })
        };
        let trie = settings.has_symbols.then_some(Section::SymbolTrie);
        let trie = trie.map(|section| Trie::read(reader, section, end));
        let bytes = settings
            .has_bytes
            .then(|| reader.get::<u32>(Section::ByteIds));
        let bytes = bytes.transpose()?.map(|bytes| {
            let bytes: Option<[u32; 256]> = (*bytes).try_into().ok();
            let bytes = bytes.filter(|bytes| bytes.iter().all(|id| *id < end));
            bytes.ok_or_else(|| Section::ByteIds.invalid("it is not a list of 256 pieces"))
        });
        let charsmap = reader.get::<u8>(Section::Charsmap)?;
        let normalizer = Normalizer::new(&charsmap, spaces)
            .map_err(|error| Section::Charsmap.invalid(error.to_string()))?;
        Ok(Self {
            model,
            normalizer,
            symbols: Symbols {
                trie: trie.transpose()?,
            },
            vocab,
            unk,
            bytes: bytes.transpose()?.map(Box::new),
            cuts: settings.cuts,
            unk_surface: settings.unk_surface,
            drops_first_space: spaces.add_dummy_prefix || spaces.remove_extra,
            drops_all_spaces: spaces.remove_extra,
        })
    }
}
