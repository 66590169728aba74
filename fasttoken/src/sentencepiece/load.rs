//! From the parts of a `tokenizer.json` to a checked [`SentencePiece`].

use super::borders::Borders;
use super::decode::Decoder;
use super::letters::{self, Letters};
use super::merge::{Merging, Model, NO_ID, RANK_MAX, TOKEN_END};
use super::quick::Quick;
use super::split::Splitter;
use super::tokens::{self, Clash, Tokens};
use super::vocab::{self, Info, Vocab};
use super::{SentencePiece, json};
use crate::added::AddedTokens;
use crate::bpe::prove::Proofs;
use crate::cache::Owner;
use crate::error::Error;
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::json::Component;
use crate::load::model::crowded;
use crate::pairs::PairTable;
use crate::store::{self, Room};
use crate::words::{Key, WordTable};
use std::collections::{HashMap, HashSet};

/// What a file says of the model.
#[derive(Debug)]
pub(crate) struct File {
    /// Tokens and ids, as the file orders them.
    tokens: Vec<(String, u32)>,
    /// Left and right part of each rule.
    merges: Vec<(String, String)>,
    options: Options,
}

/// What a file says of the model besides its tokens and rules.
#[derive(Debug)]
struct Options {
    unk_token: Option<String>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
}

impl From<&json::Model> for Options {
    fn from(model: &json::Model) -> Self {
        Self {
            unk_token: model.unk_token.clone(),
            fuse_unk: model.fuse_unk.unwrap_or(false),
            byte_fallback: model.byte_fallback.unwrap_or(false),
            ignore_merges: model.ignore_merges.unwrap_or(false),
        }
    }
}

impl File {
    pub(crate) fn read(json: &[u8]) -> Result<Self, Error> {
        let json::File { model } = serde_json::from_slice(json)?;
        let options = Options::from(&model);
        let tokens = model.vocab.0;
        let limit = id_limit(tokens.len());
        let count = tokens.len();
        let tokens = tokens.into_iter().map(|(token, id)| {
            match u32::try_from(id).ok().filter(|id| u64::from(*id) <= limit) {
                Some(id) => Ok((token, id)),
                None => Err(Error::IdOutOfRange {
                    token,
                    id,
                    tokens: count,
                    limit,
                }),
            }
        });
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        let text: usize = tokens.iter().map(|(token, _)| token.len()).sum();
        if text > u32::MAX as usize / 4 {
            return Err(Error::invalid(
                "$.model.vocab",
                "more than a gigabyte of text",
            ));
        }
        let rules = model.merges.into_iter().enumerate();
        // Left over from the text format that these lists were read from.
        let rules = rules.filter(|(_, rule)| {
            let comment = |text: &String| text.starts_with("#version");
            !rule.0.as_ref().is_err_and(comment)
        });
        let merges =
            rules.map(|(index, rule)| rule.0.map_err(|text| Error::MalformedMerge { index, text }));
        Ok(Self {
            tokens,
            merges: merges.collect::<Result<_, _>>()?,
            options,
        })
    }

    /// The number of tokens, without added ones.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn ids(&self) -> HashMap<&str, u32> {
        let tokens = self.tokens.iter();
        tokens.map(|(token, id)| (token.as_str(), *id)).collect()
    }

    /// The same tokens, unless some are there twice.
    fn tokens(&self, ids: &HashMap<&str, u32>) -> Result<Tokens, Error> {
        let duplicate = |token| Error::DuplicateToken { token };
        if ids.len() != self.tokens.len() {
            let mut seen = HashSet::new();
            let twice = self.tokens.iter().find(|(token, _)| !seen.insert(token));
            return Err(duplicate(
                twice.map(|two| two.0.clone()).unwrap_or_default(),
            ));
        }
        let mut builder = tokens::Builder::default();
        for (token, id) in &self.tokens {
            builder.text().extend_from_slice(token.as_bytes());
            builder.push(*id);
        }
        builder.finish().map_err(|clash| match clash {
            Clash::Token(token) => duplicate(token),
            Clash::Id(id, first, second) => Error::DuplicateId { id, first, second },
            Clash::Crowded(token) => crowded_token(&token),
            Clash::Text => unreachable!("strings are UTF-8"),
        })
    }
}

fn crowded_token(token: &str) -> Error {
    crowded("$.model.vocab", &format!("token {token:?}"))
}

/// Largest id accepted for a vocabulary of `tokens`: leaves room for the holes of real
/// files, and keeps a damaged id from asking for gigabytes.
pub(super) fn id_limit(tokens: usize) -> u64 {
    (tokens as u64 * 4 + 0xFFFF).min(u64::from(u32::MAX / 4))
}

/// Whether a file is of this family: its decoder is a chain, or puts spaces for `▁`, and
/// its pre-tokenizer is not byte-level.
pub(crate) fn is_sentencepiece(
    pre_tokenizer: Option<&Component>,
    decoder: Option<&Component>,
) -> bool {
    let kind = decoder.and_then(|decoder| decoder.kind("$.decoder").ok());
    matches!(kind, Some("Sequence" | "Metaspace")) && !pre_tokenizer.is_some_and(is_byte_level)
}

fn is_byte_level(component: &Component) -> bool {
    let path = "$.pre_tokenizer";
    let parts = component.parts("pretokenizers", path).unwrap_or_default();
    matches!(component.kind(path), Ok("ByteLevel"))
        || parts.iter().any(|(part, _)| is_byte_level(part))
}

/// Builds everything; `added` was loaded with the ids of `file`.
pub(crate) fn load(
    file: &File,
    pre_tokenizer: Option<&Component>,
    decoder: Option<&Component>,
    added: &AddedTokens,
) -> Result<SentencePiece, Error> {
    let splitter = Splitter::load(pre_tokenizer, "$.pre_tokenizer")?;
    let decoder = Decoder::load(decoder, "$.decoder")?;
    let ids = file.ids();
    let tokens = file.tokens(&ids)?;
    let vocab = vocabulary(&tokens, added, &decoder)?;
    let special = Special::new(&file.options, &tokens)?;
    let rules = rules(file, &ids, &special)?;
    Ok(SentencePiece {
        model: model(&tokens, &rules, special, &file.options)?,
        splitter,
        direct: None,
        decoder,
        vocab,
    })
}

impl Quick {
    /// The number of tokens, without added ones.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The id of one of the model's own tokens.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.tokens.id(token)
    }

    /// As [`load`]; `None` where that has something to say.
    pub(crate) fn load(
        &self,
        pre_tokenizer: Option<&Component>,
        decoder: Option<&Component>,
        added: &AddedTokens,
    ) -> Option<SentencePiece> {
        let json::File { model: json } = serde_json::from_slice(&self.config).ok()?;
        let options = Options::from(&json);
        let splitter = Splitter::load(pre_tokenizer, "$.pre_tokenizer").ok()?;
        let decoder = Decoder::load(decoder, "$.decoder").ok()?;
        let vocab = vocabulary(&self.tokens, added, &decoder).ok()?;
        let special = Special::new(&options, &self.tokens).ok()?;
        let parts = self.rules.iter().flat_map(|rule| &rule[..2]);
        if parts.copied().any(|id| special.is(id)) {
            return None;
        }
        Some(SentencePiece {
            model: model(&self.tokens, &self.rules, special, &options).ok()?,
            splitter,
            direct: None,
            decoder,
            vocab,
        })
    }
}

/// What an image has of a model of this family.
pub(crate) struct Tables {
    model: Model,
    vocab: Vocab,
    /// Tokens of the model.
    model_len: usize,
    /// Tokens of the model that are spelled otherwise in `vocab`, since they are also added
    /// ones, which are searched for in normalized text.
    renamed: HashMap<String, u32>,
}

impl SentencePiece {
    /// `added` are the tokenizer's added tokens.
    pub(crate) fn write(&self, added: &AddedTokens, image: &mut Writer) {
        let Self { model, vocab, .. } = self;
        let facts = [
            model.unk.unwrap_or(NO_ID),
            u32::from(model.fuse_unk),
            vocab.model_tokens().count() as u32,
            vocab.size as u32,
        ];
        image.put(Section::ModelFacts, &facts);
        image.put(Section::ByteIds, &model.bytes);
        model.letters.write(image);
        model.pairs.write(image);
        model.borders.write(image);
        image.put(Section::Words, model.words.lines());
        vocab.write(image);
        let renamed = added.tokens.iter().filter(|(id, _)| {
            let other = added.normalized_forms.contains_key(id);
            other && vocab.is_model(*id)
        });
        let renamed: Vec<(u32, &str)> = renamed
            .map(|(id, token)| (*id, token.content.as_str()))
            .collect();
        let renamed = serde_json::to_vec(&renamed).expect("numbers and strings are JSON");
        image.put(Section::Renamed, &renamed);
    }
}

impl Tables {
    /// `ignore_merges` is what the configuration says.
    pub(crate) fn read(image: &Reader, ignore_merges: bool) -> Result<Self, ImageError> {
        let facts = image.get::<u32>(Section::ModelFacts)?;
        let &[unk, fuse_unk, model_len, size] = &*facts else {
            return Err(Section::ModelFacts.invalid("there are not four of them"));
        };
        let vocab = Vocab::read(image, size as usize)?;
        if model_len > size {
            return Err(Section::ModelFacts.invalid("its numbers contradict each other"));
        }
        let bytes: [u32; 256] = image.get::<u32>(Section::ByteIds)?[..]
            .try_into()
            .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
        let letters = Letters::read(image)?;
        let words = WordTable::from_lines(image.get(Section::Words)?);
        let renamed = image.get::<u8>(Section::Renamed)?;
        let renamed: Vec<(u32, String)> = serde_json::from_slice(&renamed)
            .map_err(|error| Section::Renamed.invalid(error.to_string()))?;
        let renamed: HashMap<String, u32> = renamed.into_iter().map(|(id, t)| (t, id)).collect();
        let whole = || {
            let others: HashSet<u32> = renamed.values().copied().collect();
            let own = vocab.model_tokens().filter(|(_, id)| !others.contains(id));
            let own = own.map(|(token, id)| (token.to_owned(), id));
            own.chain(renamed.clone()).collect()
        };
        let model = Model {
            letters,
            bytes,
            unk: (unk != NO_ID).then_some(unk),
            fuse_unk: fuse_unk != 0,
            pairs: PairTable::read(image)?,
            borders: Borders::read(image)?,
            words: words.ok_or_else(|| Section::Words.invalid("it is not a table"))?,
            owner: Owner::new(),
            whole: ignore_merges.then(whole),
            complete: is_complete(&bytes),
        };
        Ok(Self {
            model,
            vocab,
            model_len: model_len as usize,
            renamed,
        })
    }

    /// The number of tokens, without added ones.
    pub(crate) fn model_len(&self) -> usize {
        self.model_len
    }

    /// The id of one of the model's own tokens.
    pub(crate) fn model_id(&self, token: &str) -> Option<u32> {
        let own = |id: &u32| self.vocab.is_model(*id) && !self.renamed.values().any(|r| r == id);
        let renamed = self.renamed.get(token).copied();
        renamed.or_else(|| self.vocab.id(token).filter(own))
    }

    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.vocab.is_added(id)
    }

    /// With the rest, which the configuration says.
    pub(crate) fn finish(
        self,
        pre_tokenizer: Option<&Component>,
        decoder: Option<&Component>,
    ) -> Result<SentencePiece, Error> {
        Ok(SentencePiece {
            model: self.model,
            splitter: Splitter::load(pre_tokenizer, "$.pre_tokenizer")?,
            direct: None,
            decoder: Decoder::load(decoder, "$.decoder")?,
            vocab: self.vocab,
        })
    }
}

/// Whether every character has bytes. Bytes that UTF-8 never uses are not missed.
fn is_complete(bytes: &[u32; 256]) -> bool {
    let used = |byte: usize| !matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let mut bytes = bytes.iter().enumerate();
    bytes.all(|(b, id)| !used(b) || *id != NO_ID)
}

/// Tokens that no rule may join: those of bytes, and the unknown one.
struct Special {
    bytes: [u32; 256],
    unk: Option<u32>,
    /// A bit for each of their ids.
    bits: Vec<u64>,
}

impl Special {
    fn new(options: &Options, tokens: &Tokens) -> Result<Self, Error> {
        let mut bytes = [NO_ID; 256];
        if options.byte_fallback {
            for (byte, id) in bytes.iter_mut().enumerate() {
                *id = tokens.id(&format!("<{byte:#04X}>")).unwrap_or(NO_ID);
            }
        }
        let unk = options.unk_token.as_deref();
        let unk = match unk.map(|token| (token, tokens.id(token))) {
            Some((token, None)) if !is_complete(&bytes) => {
                return Err(Error::invalid(
                    "$.model.unk_token",
                    format!("{token:?} is not in the vocabulary"),
                ));
            }
            Some((_, id)) => id,
            None => None,
        };
        let mut bits = vec![0; tokens.id_end() / 64 + 1];
        for id in bytes.into_iter().chain(unk).filter(|id| *id != NO_ID) {
            bits[id as usize / 64] |= 1 << (id % 64);
        }
        Ok(Self { bytes, unk, bits })
    }

    #[inline]
    fn is(&self, id: u32) -> bool {
        let bits = self.bits.get(id as usize / 64);
        bits.is_some_and(|bits| bits >> (id % 64) & 1 != 0)
    }
}

/// `rules` are the tokens that each rule joins, and the one that it makes.
fn model(
    tokens: &Tokens,
    rules: &[[u32; 3]],
    special: Special,
    options: &Options,
) -> Result<Model, Error> {
    let Special { bytes, unk, .. } = special;
    let mut letters = letters::Builder::new(tokens.iter().filter_map(single_character));
    // Of two rules for one pair, the later wins, as in the reference.
    let pairs = PairTable::build(rules).map_err(|_| crowded("$.model.merges", "a pair"))?;
    let ends = |id| {
        let token = tokens.get(id).unwrap_or_default();
        Some([token.chars().next()?, token.chars().next_back()?])
    };
    let ends: Vec<Option<[char; 2]>> = (0..tokens.id_end() as u32).map(ends).collect();
    let of_rule = |&[left, right, _]: &[u32; 3]| {
        let [_, left] = ends[left as usize]?;
        let [right, _] = ends[right as usize]?;
        Some((left, right))
    };
    let borders = Borders::new(rules.iter().filter_map(of_rule), &mut letters, &pairs);
    let whole = || tokens.iter().map(|(token, id)| (token.to_owned(), id));
    let mut model = Model {
        letters: letters.finish(),
        bytes,
        unk,
        fuse_unk: options.fuse_unk,
        pairs,
        borders,
        words: WordTable::default(),
        owner: Owner::new(),
        whole: options.ignore_merges.then(|| whole().collect()),
        complete: is_complete(&bytes),
    };
    model.words = words(tokens, rules, &model);
    store::gather(model.tables().collect(), Room::default());
    Ok(model)
}

fn single_character((token, id): (&str, u32)) -> Option<(char, u32)> {
    let mut chars = token.chars();
    let c = chars.next()?;
    chars.next().is_none().then_some((c, id))
}

/// The tokens that each rule joins, and the one that it makes.
fn rules(file: &File, ids: &HashMap<&str, u32>, special: &Special) -> Result<Vec<[u32; 3]>, Error> {
    let path = "$.model.merges";
    if file.merges.len() > RANK_MAX {
        return Err(Error::invalid(path, format!("more than {RANK_MAX} merges")));
    }
    let mut rules = Vec::with_capacity(file.merges.len());
    let mut joined = String::new();
    for (index, (left, right)) in file.merges.iter().enumerate() {
        let id = |token: &str| {
            ids.get(token)
                .copied()
                .ok_or_else(|| Error::UnknownMergeToken {
                    index,
                    token: token.to_owned(),
                })
        };
        let (left_id, right_id) = (id(left)?, id(right)?);
        if let Some(part) = [(left, left_id), (right, right_id)]
            .into_iter()
            .find(|(_, id)| special.is(*id))
        {
            return Err(Error::unsupported(
                format!("{path}[{index}]"),
                format!(
                    "a merge of {:?}, which stands for bytes or for unknown text",
                    part.0
                ),
            ));
        }
        if let Some((token, id)) = [(left, left_id), (right, right_id)]
            .into_iter()
            .find(|(_, id)| *id >= TOKEN_END)
        {
            return Err(Error::unsupported(
                format!("{path}[{index}]"),
                format!(
                    "merge of token {token:?}, whose id is {id} (supported: below {TOKEN_END})"
                ),
            ));
        }
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        rules.push([left_id, right_id, id(&joined)?]);
    }
    Ok(rules)
}

/// The short tokens of several characters that their own characters are merged to.
fn words(tokens: &Tokens, rules: &[[u32; 3]], model: &Model) -> WordTable {
    let single = tokens.iter().filter_map(single_character);
    let proofs = Proofs::new(
        single.map(|(_, id)| id),
        rules,
        &model.pairs,
        tokens.id_end(),
    );
    let mut found = Vec::with_capacity(tokens.len());
    let mut merging = Merging::default();
    let mut spelled = Vec::new();
    for (token, id) in tokens.iter() {
        spelled.clear();
        letters::push_swapped(token, &mut spelled);
        let key = Key::new(&spelled, 0, spelled.len());
        let makes = |merging| proofs.contains(id) || model.makes(token, id, merging);
        if WordTable::fits(key, id) && makes(&mut merging) {
            found.push((key, id));
        }
    }
    // The others are merged.
    WordTable::new(found.iter().copied()).0
}

fn vocabulary(tokens: &Tokens, added: &AddedTokens, decoder: &Decoder) -> Result<Vocab, Error> {
    let added_end = added.tokens.last().map_or(0, |(id, _)| *id as usize + 1);
    let end = tokens.id_end().max(added_end) as u32;
    let mut builder = vocab::Builder::default();
    let special = added.special_contents.iter();
    let mut special: Vec<u32> = special.filter_map(|token| tokens.id(token)).collect();
    special.sort_unstable();
    let mut rest = added.tokens.iter().peekable();
    for id in 0..end {
        let model = tokens.get(id);
        let Some((_, token)) = rest.next_if(|(next, _)| *next == id) else {
            let Some(token) = model else {
                builder.push_hole();
                continue;
            };
            let info = Info {
                hidden: special.binary_search(&id).is_ok(),
                model: true,
                ..Info::default()
            };
            builder.push(token, |out| decoder.push_piece(token, out), info);
            continue;
        };
        if let Some(other) = model.filter(|other| *other != token.content) {
            // Happens where the vocabulary has holes: the next free id is not free.
            return Err(Error::DuplicateId {
                id,
                first: other.to_owned(),
                second: token.content.clone(),
            });
        }
        // Decoding shows an added token as it is searched for.
        let form = added.normalized_forms.get(&id);
        let spelling = form.unwrap_or(&token.content);
        let info = Info {
            hidden: added.special_contents.contains(spelling),
            special: token.special,
            added: true,
            model: model.is_some(),
            renamed: form.is_some(),
        };
        builder.push(spelling, |out| decoder.push_piece(spelling, out), info);
    }
    let contents = added.ids.keys();
    let new = contents.filter(|content| tokens.id(content).is_none());
    let vocab = builder.finish(tokens.len() + new.count());
    vocab.map_err(|id| crowded_token(tokens.get(id).unwrap_or_default()))
}
