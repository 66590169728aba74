//! From `tokenizer.json` to a checked [`Tokenizer`].

use crate::added::AddedTokens;
use crate::alphabet;
use crate::bpe::{Bpe, NO_TOKEN, RANK_MAX};
use crate::error::Error;
use crate::json::{Component, File, MergeJson, ModelJson, Text, VocabJson};
use crate::normalize::Normalizer;
use crate::padding::Padding;
use crate::postprocess::{Piece, PostProcessor};
use crate::pretokenize::PreTokenizer;
use crate::table::{Merge, PairTable, StringTable};
use crate::tokenizer::Tokenizer;
use crate::truncation::Truncation;
use crate::vocab::{TokenInfo, Vocab};
use crate::window;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// The model's own vocabulary as read, with a table from spelling to position.
struct ModelVocab<'a> {
    entries: Vec<(Cow<'a, str>, u32)>,
    table: StringTable,
    /// One more than the largest id.
    id_end: usize,
}

pub(crate) fn load(json: &[u8]) -> Result<Tokenizer, Error> {
    let file: File<'_> = serde_json::from_slice(json)?;
    check_version(file.version.as_deref())?;
    let truncation = read_setting::<Truncation>(file.truncation.as_ref(), "$.truncation")?;
    let padding = read_setting::<Padding>(file.padding.as_ref(), "$.padding")?;
    if let Some(padding) = &padding {
        padding.check("$.padding")?;
    }
    let options = &file.model;
    check_model(options)?;
    let ignore_merges = options.ignore_merges.unwrap_or(false);
    let normalizer = Normalizer::load(file.normalizer.as_ref(), "$.normalizer")?;
    let pre_tokenizer = PreTokenizer::load(file.pre_tokenizer.as_ref(), "$.pre_tokenizer")?;
    let post_processor = PostProcessor::load(file.post_processor.as_ref(), "$.post_processor")?;
    check_decoder(file.decoder.as_ref())?;

    let (Some(VocabJson::Map(entries)), Some(merges)) = (file.model.vocab, file.model.merges)
    else {
        return Err(Error::invalid(
            "$.model",
            "a BPE model needs a map \"vocab\" and a list \"merges\"",
        ));
    };
    let model = ModelVocab::new(entries)?;
    let pairs = load_merges(&merges, &model)?;
    // These say what becomes of bytes that the vocabulary lacks.
    let plain = file.model.unk_token.is_none() && file.model.byte_fallback != Some(true);
    let byte_ids = model.byte_ids(plain)?;
    let added = AddedTokens::load(
        &file.added_tokens,
        model.entries.len(),
        |token| model.id(token),
        &normalizer,
    )?;
    let (vocab, words) = build_vocab(&model, &added)?;
    let mut bpe = Bpe::new(byte_ids, pairs);
    bpe.index_words(&words, &vocab, ignore_merges);
    check_template_ids(&post_processor, &vocab)?;
    let safe_cuts = window::are_safe(&pre_tokenizer, &added);
    Ok(Tokenizer {
        normalizer,
        pre_tokenizer,
        post_processor,
        added,
        vocab,
        bpe,
        truncation,
        padding,
        safe_cuts,
    })
}

fn check_version(version: Option<&str>) -> Result<(), Error> {
    match version {
        None | Some("1.0") => Ok(()),
        Some(other) => Err(Error::unsupported(
            "$.version",
            format!("format version {other:?}"),
        )),
    }
}

fn read_setting<'de, T: Deserialize<'de>>(
    value: Option<&'de Value>,
    path: &str,
) -> Result<Option<T>, Error> {
    let read = |value: &'de Value| T::deserialize(value);
    value
        .map(read)
        .transpose()
        .map_err(|problem| Error::invalid(path, problem.to_string()))
}

fn check_model(model: &ModelJson<'_>) -> Result<(), Error> {
    match model.kind.as_deref() {
        Some("BPE") => {}
        // Files from before models had a type: only BPE has merges.
        None if model.merges.is_some() => {}
        kind => {
            let kind = kind.unwrap_or("without a type");
            return Err(Error::unsupported(
                "$.model.type",
                format!("model {kind} (supported: BPE)"),
            ));
        }
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(Error::unsupported(
            "$.model.dropout",
            "dropout, which makes ids random",
        ));
    }
    for (name, affix) in [
        (
            "continuing_subword_prefix",
            &model.continuing_subword_prefix,
        ),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if affix.as_ref().is_some_and(|affix| !affix.is_empty()) {
            return Err(Error::unsupported(format!("$.model.{name}"), name));
        }
    }
    Ok(())
}

fn check_decoder(decoder: Option<&Component>) -> Result<(), Error> {
    let path = "$.decoder";
    match decoder.map(|decoder| decoder.kind(path)).transpose()? {
        Some("ByteLevel") => Ok(()),
        other => Err(Error::unsupported(
            path,
            format!("decoder {} (supported: ByteLevel)", other.unwrap_or("null")),
        )),
    }
}

/// Largest id accepted for a vocabulary of `tokens`: leaves room for the holes of
/// real files, and keeps a damaged id from asking for gigabytes.
fn id_limit(tokens: usize) -> u64 {
    (tokens as u64 * 4 + 0xFFFF).min(u64::from(u32::MAX / 4))
}

impl<'a> ModelVocab<'a> {
    fn new(list: Vec<(Text<'a>, u64)>) -> Result<Self, Error> {
        let tokens = list.len();
        let limit = id_limit(tokens);
        let mut entries: Vec<(Cow<'a, str>, u32)> = Vec::with_capacity(tokens);
        let mut table = StringTable::with_capacity(tokens);
        let mut text_bytes = 0usize;
        let mut id_end = 0;
        for (Text(token), id) in list {
            let Some(id) = u32::try_from(id).ok().filter(|id| u64::from(*id) <= limit) else {
                return Err(Error::IdOutOfRange {
                    token: token.into_owned(),
                    id,
                    tokens,
                    limit,
                });
            };
            text_bytes += token.len();
            id_end = id_end.max(id as usize + 1);
            let position = entries.len() as u32;
            entries.push((token, id));
            let resolve = |at: u32| entries[at as usize].0.as_bytes();
            if table.insert(resolve(position), position, resolve).is_some() {
                return Err(Error::DuplicateToken {
                    token: entries[position as usize].0.to_string(),
                });
            }
        }
        if text_bytes > u32::MAX as usize / 4 {
            return Err(Error::invalid(
                "$.model.vocab",
                "more than a gigabyte of text",
            ));
        }
        Ok(Self {
            entries,
            table,
            id_end,
        })
    }

    fn id(&self, token: &str) -> Option<u32> {
        let resolve = |at: u32| self.entries[at as usize].0.as_bytes();
        let at = self.table.get(token.as_bytes(), resolve)?;
        Some(self.entries[at as usize].1)
    }

    /// The token of each byte. Bytes that UTF-8 never uses may lack one, and others
    /// too if `may_lack`: text then loses them, as in the reference.
    fn byte_ids(&self, may_lack: bool) -> Result<[u32; 256], Error> {
        let mut ids = [0; 256];
        for byte in 0..=255u8 {
            let spelling = alphabet::spelling(byte);
            ids[usize::from(byte)] = match self.id(spelling.encode_utf8(&mut [0; 4])) {
                Some(id) => id,
                None if may_lack || matches!(byte, 0xC0 | 0xC1 | 0xF5..) => NO_TOKEN,
                None => return Err(Error::MissingByte { byte, spelling }),
            };
        }
        Ok(ids)
    }
}

fn load_merges(merges: &[MergeJson<'_>], model: &ModelVocab<'_>) -> Result<PairTable, Error> {
    if merges.len() > RANK_MAX {
        return Err(Error::invalid(
            "$.model.merges",
            format!("more than {RANK_MAX} merges"),
        ));
    }
    let mut pairs = PairTable::with_capacity(merges.len());
    let mut joined = String::new();
    let mut rank = 0;
    for (index, merge) in merges.iter().enumerate() {
        let (left, right) = match merge {
            // Left over from the text format that these lists were read from.
            MergeJson::Joined(Text(text)) if text.starts_with("#version") => continue,
            MergeJson::Joined(Text(text)) => text
                .split_once(' ')
                .filter(|(_, right)| !right.contains(' '))
                .ok_or_else(|| malformed(index, text))?,
            MergeJson::List(parts) => match parts.as_slice() {
                [Text(left), Text(right)] => (left.as_ref(), right.as_ref()),
                _ => return Err(malformed(index, &format!("{parts:?}"))),
            },
        };
        let id = |token: &str| {
            model.id(token).ok_or_else(|| Error::UnknownMergeToken {
                index,
                token: token.to_owned(),
            })
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let merge = Merge {
            rank,
            id: id(&joined)?,
        };
        // Of two rules for one pair, the later wins, as in the reference.
        pairs.insert(id(left)?, id(right)?, merge);
        rank += 1;
    }
    Ok(pairs)
}

fn malformed(index: usize, text: &str) -> Error {
    Error::MalformedMerge {
        index,
        text: text.to_owned(),
    }
}

/// The whole vocabulary, and the ids of the model's tokens that spell bytes.
fn build_vocab(model: &ModelVocab<'_>, added: &AddedTokens) -> Result<(Vocab, Vec<u32>), Error> {
    let added_end = added.tokens.last().map_or(0, |(id, _)| *id as usize + 1);
    let mut infos: Vec<Option<TokenInfo>> = vec![None; model.id_end.max(added_end)];
    let mut words = Vec::with_capacity(model.entries.len());
    for (token, id) in &model.entries {
        let bytes = alphabet::bytes(token);
        if bytes.is_some() {
            words.push(*id);
        }
        let info = TokenInfo {
            spelling: token.to_string(),
            piece: bytes.unwrap_or_else(|| token.as_bytes().to_vec()),
            hidden: added.special_contents.contains(token.as_ref()),
            added: false,
            special: false,
        };
        if let Some(other) = infos[*id as usize].replace(info) {
            return Err(Error::DuplicateId {
                id: *id,
                first: other.spelling,
                second: token.to_string(),
            });
        }
    }
    let mut size = model.entries.len();
    size += added
        .ids
        .keys()
        .filter(|content| model.id(content).is_none())
        .count();
    for (id, token) in &added.tokens {
        let spelling = added.normalized_forms.get(id).unwrap_or(&token.content);
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
        if infos[*id as usize].is_some() && *spelling != token.content {
            // Decoding would write one thing and encoding match another.
            return Err(Error::unsupported(
                "$.added_tokens",
                format!(
                    "added token {:?}, which is in the vocabulary and is normalized to {spelling:?}",
                    token.content
                ),
            ));
        }
        infos[*id as usize] = Some(TokenInfo {
            spelling: spelling.clone(),
            piece: alphabet::bytes(spelling).unwrap_or_else(|| spelling.as_bytes().to_vec()),
            hidden: added.special_contents.contains(spelling),
            added: true,
            special: token.special,
        });
    }
    Ok((Vocab::new(&infos, size), words))
}

fn check_template_ids(processor: &PostProcessor, vocab: &Vocab) -> Result<(), Error> {
    for piece in processor.single.iter().chain(&processor.pair) {
        if let Piece::Special(ids) = piece
            && let Some(id) = ids.iter().find(|id| !vocab.contains(**id))
        {
            return Err(Error::invalid(
                "$.post_processor",
                format!("the template adds id {id}, which no token has"),
            ));
        }
    }
    Ok(())
}
