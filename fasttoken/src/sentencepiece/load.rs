//! From the parts of a `tokenizer.json` to a checked [`SentencePiece`].

use super::borders::Borders;
use super::decode::Decoder;
use super::letters::{self, Letters};
use super::merge::{Model, NO_ID, RANK_MAX, Scratch, TOKEN_END};
use super::split::Splitter;
use super::vocab::{Info, Vocab};
use super::{SentencePiece, json};
use crate::added::AddedTokens;
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
    unk_token: Option<String>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
}

impl File {
    pub(crate) fn read(json: &[u8]) -> Result<Self, Error> {
        let json::File { model } = serde_json::from_slice(json)?;
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
            unk_token: model.unk_token,
            fuse_unk: model.fuse_unk.unwrap_or(false),
            byte_fallback: model.byte_fallback.unwrap_or(false),
            ignore_merges: model.ignore_merges.unwrap_or(false),
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
}

/// Largest id accepted for a vocabulary of `tokens`: leaves room for the holes of real
/// files, and keeps a damaged id from asking for gigabytes.
fn id_limit(tokens: usize) -> u64 {
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
    let vocab = vocabulary(file, &ids, added, &decoder)?;
    let mut model = model(file, &ids)?;
    model.words = words(file, &model);
    store::gather(model.tables().collect(), Room::default());
    Ok(SentencePiece {
        model,
        splitter,
        direct: None,
        decoder,
        vocab,
    })
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

fn model(file: &File, ids: &HashMap<&str, u32>) -> Result<Model, Error> {
    let mut letters = letters::Builder::new(file.tokens.iter().filter_map(single_character));
    let mut bytes = [NO_ID; 256];
    if file.byte_fallback {
        for (byte, id) in bytes.iter_mut().enumerate() {
            *id = ids
                .get(&*format!("<{byte:#04X}>"))
                .copied()
                .unwrap_or(NO_ID);
        }
    }
    let complete = is_complete(&bytes);
    let unk = match file
        .unk_token
        .as_deref()
        .map(|token| (token, ids.get(token)))
    {
        Some((token, None)) if !complete => {
            return Err(Error::invalid(
                "$.model.unk_token",
                format!("{token:?} is not in the vocabulary"),
            ));
        }
        Some((_, id)) => id.copied(),
        None => None,
    };
    let pairs = pairs(file, ids, |id| Some(id) == unk || bytes.contains(&id))?;
    let rules = file.merges.iter();
    let rules = rules.map(|(left, right)| (left.as_str(), right.as_str()));
    let borders = Borders::new(rules, &mut letters, &pairs);
    Ok(Model {
        letters: letters.finish(),
        bytes,
        unk,
        fuse_unk: file.fuse_unk,
        pairs,
        borders,
        words: WordTable::default(),
        owner: Owner::new(),
        whole: file
            .ignore_merges
            .then(|| file.tokens.iter().cloned().collect()),
        complete,
    })
}

fn single_character((token, id): &(String, u32)) -> Option<(char, u32)> {
    let mut chars = token.chars();
    let c = chars.next()?;
    chars.next().is_none().then_some((c, *id))
}

fn pairs(
    file: &File,
    ids: &HashMap<&str, u32>,
    is_other: impl Fn(u32) -> bool,
) -> Result<PairTable, Error> {
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
            .find(|(_, id)| is_other(*id))
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
    // Of two rules for one pair, the later wins, as in the reference.
    PairTable::build(&rules).map_err(|_| crowded(path, "a pair"))
}

/// The short tokens that their own characters are merged to.
fn words(file: &File, model: &Model) -> WordTable {
    let mut found = Vec::new();
    let mut scratch = Scratch::default();
    let mut merged = Vec::new();
    let mut spelled = Vec::new();
    for (token, id) in &file.tokens {
        spelled.clear();
        letters::push_swapped(token, &mut spelled);
        let key = Key::new(&spelled, 0, spelled.len());
        if !WordTable::fits(key, *id) {
            continue;
        }
        merged.clear();
        model.merge_all(token, &mut scratch, |id, _| merged.push(id));
        if merged == [*id] {
            found.push((key, *id));
        }
    }
    // The others are merged.
    WordTable::new(found.iter().copied()).0
}

fn vocabulary(
    file: &File,
    ids: &HashMap<&str, u32>,
    added: &AddedTokens,
    decoder: &Decoder,
) -> Result<Vocab, Error> {
    if ids.len() != file.tokens.len() {
        let mut seen = HashSet::new();
        let twice = file.tokens.iter().find(|(token, _)| !seen.insert(token));
        return Err(Error::DuplicateToken {
            token: twice.map(|(token, _)| token.clone()).unwrap_or_default(),
        });
    }
    let tokens = file.tokens.len();
    let end = |ids: &mut dyn Iterator<Item = u32>| ids.max().map_or(0, |id| id as usize + 1);
    let model_end = end(&mut file.tokens.iter().map(|(_, id)| *id));
    let added_end = end(&mut added.tokens.iter().map(|(id, _)| *id));
    let mut infos: Vec<Option<Info>> = vec![None; model_end.max(added_end)];
    for (token, id) in &file.tokens {
        let (piece, byte) = decoder.piece(token);
        let info = Info {
            spelling: token.clone(),
            piece,
            byte,
            hidden: added.special_contents.contains(token),
            model: true,
            ..Info::default()
        };
        if let Some(other) = infos[*id as usize].replace(info) {
            return Err(Error::DuplicateId {
                id: *id,
                first: other.spelling,
                second: token.clone(),
            });
        }
    }
    for (id, token) in &added.tokens {
        if let Some(other) = &infos[*id as usize]
            && other.spelling != token.content
        {
            // Happens where the vocabulary has holes: the next free id is not free.
            return Err(Error::DuplicateId {
                id: *id,
                first: other.spelling.clone(),
                second: token.content.clone(),
            });
        }
        // Decoding shows an added token as it is searched for.
        let spelling = added.normalized_forms.get(id).unwrap_or(&token.content);
        let (piece, byte) = decoder.piece(spelling);
        infos[*id as usize] = Some(Info {
            spelling: spelling.clone(),
            piece,
            byte,
            hidden: added.special_contents.contains(spelling),
            special: token.special,
            added: true,
            model: infos[*id as usize].is_some(),
        });
    }
    let new = added
        .ids
        .keys()
        .filter(|content| !ids.contains_key(content.as_str()));
    Ok(Vocab::new(&infos, tokens + new.count()))
}
