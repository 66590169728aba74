//! From `tokenizer.json` to a checked [`Tokenizer`].

use crate::added::AddedTokens;
use crate::alphabet;
use crate::bpe::{Bpe, NO_TOKEN};
use crate::encode_error::EncodeError;
use crate::error::Error;
use crate::json::{Component, File, ModelJson, for_each_merge, for_each_token};
use crate::normalize::Normalizer;
use crate::padding::Padding;
use crate::pairs::{PairTable, RANK_MAX, TOKEN_END};
use crate::postprocess::{Piece, PostProcessor};
use crate::pretokenize::PreTokenizer;
use crate::sentencepiece;
use crate::store;
use crate::tokenizer::Tokenizer;
use crate::truncation::Truncation;
use crate::vocab::{Builder, Clash, Names, Vocab};
use crate::window;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Loads a `tokenizer.json`.
pub(crate) fn load(json: &[u8]) -> Result<Tokenizer, Error> {
    let file: File<'_> = serde_json::from_slice(json)?;
    if is_sentencepiece(&file) {
        return load_sentencepiece(json, &file);
    }
    load_file(&file)
}

fn is_sentencepiece(file: &File<'_>) -> bool {
    sentencepiece::is_sentencepiece(file.pre_tokenizer.as_ref(), file.decoder.as_ref())
}

/// Whether [`load_with_config`] takes the file: there are images of byte-level models only.
pub(crate) fn has_image(json: &[u8]) -> Result<bool, Error> {
    let file: File<'_> = serde_json::from_slice(json)?;
    Ok(!is_sentencepiece(&file))
}

/// Also gives the configuration for [`from_parts`].
pub(crate) fn load_with_config(json: &[u8]) -> Result<(Tokenizer, Vec<u8>), Error> {
    let file: File<'_> = serde_json::from_slice(json)?;
    if is_sentencepiece(&file) {
        return Err(Error::unsupported(
            "$.decoder",
            "a compiled image of a SentencePiece-style model; load its JSON",
        ));
    }
    Ok((load_file(&file)?, serde_json::to_vec(&file)?))
}

/// Puts a tokenizer together from the configuration and the tables that an image has.
pub(crate) fn from_parts(config: &[u8], vocab: Vocab, bpe: Bpe) -> Result<Tokenizer, Error> {
    let file: File<'_> = serde_json::from_slice(config)?;
    let settings = Settings::load(&file)?;
    let model_id = |token: &str| vocab.model_id(token);
    let added = settings.added_tokens(&file, vocab.model_len(), model_id)?;
    if let Some((id, token)) = added.tokens.iter().find(|(id, _)| !vocab.is_added(*id)) {
        return Err(Error::invalid(
            "$.added_tokens",
            format!(
                "{:?} has id {id}, which the tables contradict",
                token.content
            ),
        ));
    }
    settings.finish(added, vocab, bpe)
}

fn load_file(file: &File<'_>) -> Result<Tokenizer, Error> {
    let options = &file.model;
    check_model(options)?;
    let settings = Settings::load(file)?;
    let (Some(vocab), Some(merges)) = (options.vocab, options.merges) else {
        return Err(Error::invalid(
            "$.model",
            "a BPE model needs a map \"vocab\" and a list \"merges\"",
        ));
    };
    let model = Model::load(vocab)?;
    let pairs = model.pairs(merges)?;
    // These say what becomes of bytes that the vocabulary lacks.
    let plain = options.unk_token.is_none() && options.byte_fallback != Some(true);
    let byte_ids = model.byte_ids(plain)?;
    let model_id = |token: &str| model.id(token);
    let added = settings.added_tokens(file, model.tokens.model_len(), model_id)?;
    let mut vocab = model.finish(&added)?;
    let words: Vec<u32> = vocab.words().collect();
    let mut bpe = Bpe::new(byte_ids, pairs);
    bpe.index_words(&words, &vocab, options.ignore_merges.unwrap_or(false));
    let mut tables: Vec<_> = bpe.tables().chain(vocab.tables()).collect();
    store::gather(&mut tables);
    settings.finish(added, vocab, bpe)
}

/// A file of the other family: only what both share is looked at here.
fn load_sentencepiece(json: &[u8], file: &File<'_>) -> Result<Tokenizer, Error> {
    check_version(file.version.as_deref())?;
    let truncation = read_setting::<Truncation>(file.truncation.as_ref(), "$.truncation")?;
    let padding = read_setting::<Padding>(file.padding.as_ref(), "$.padding")?;
    if let Some(padding) = &padding {
        let refuse = |problem: EncodeError| Error::invalid("$.padding", problem.to_string());
        padding.check().map_err(refuse)?;
    }
    check_model(&file.model)?;
    let normalizer = Normalizer::load(file.normalizer.as_ref(), "$.normalizer")?;
    let post_processor = PostProcessor::load(file.post_processor.as_ref(), "$.post_processor")?;
    if post_processor.trims() {
        return Err(Error::unsupported(
            "$.post_processor",
            "post-processor that trims offsets, for a model without ByteLevel",
        ));
    }
    let model = sentencepiece::File::read(json)?;
    let ids = model.ids();
    let model_id = |token: &str| ids.get(token).copied();
    let added = AddedTokens::load(&file.added_tokens, model.len(), model_id, &normalizer)?;
    let (pre_tokenizer, decoder) = (file.pre_tokenizer.as_ref(), file.decoder.as_ref());
    let family = sentencepiece::load(&model, pre_tokenizer, decoder, &added)?;
    check_template_ids(&post_processor, |id| family.contains(id))?;
    let empty = Builder::default();
    let names = empty.index().expect("nothing is there twice");
    Ok(Tokenizer {
        normalizer,
        pre_tokenizer: PreTokenizer::none(),
        post_processor,
        added,
        vocab: empty.finish(names, 0),
        bpe: Bpe::new([NO_TOKEN; 256], PairTable::new(&[])),
        truncation,
        padding,
        safe_cuts: false,
        sentencepiece: Some(Box::new(family)),
    })
}

/// What a file says besides its vocabulary and merges.
struct Settings {
    normalizer: Normalizer,
    pre_tokenizer: PreTokenizer,
    post_processor: PostProcessor,
    truncation: Option<Truncation>,
    padding: Option<Padding>,
}

impl Settings {
    fn load(file: &File<'_>) -> Result<Self, Error> {
        check_version(file.version.as_deref())?;
        let truncation = read_setting::<Truncation>(file.truncation.as_ref(), "$.truncation")?;
        let padding = read_setting::<Padding>(file.padding.as_ref(), "$.padding")?;
        if let Some(padding) = &padding {
            let refuse = |problem: EncodeError| Error::invalid("$.padding", problem.to_string());
            padding.check().map_err(refuse)?;
        }
        let normalizer = Normalizer::load(file.normalizer.as_ref(), "$.normalizer")?;
        normalizer.only_forms("$.normalizer")?;
        let pre_tokenizer = PreTokenizer::load(file.pre_tokenizer.as_ref(), "$.pre_tokenizer")?;
        let post_processor = PostProcessor::load(file.post_processor.as_ref(), "$.post_processor")?;
        check_decoder(file.decoder.as_ref())?;
        Ok(Self {
            normalizer,
            pre_tokenizer,
            post_processor,
            truncation,
            padding,
        })
    }

    fn added_tokens(
        &self,
        file: &File<'_>,
        model_len: usize,
        model_id: impl Fn(&str) -> Option<u32>,
    ) -> Result<AddedTokens, Error> {
        AddedTokens::load(&file.added_tokens, model_len, model_id, &self.normalizer)
    }

    fn finish(self, added: AddedTokens, vocab: Vocab, bpe: Bpe) -> Result<Tokenizer, Error> {
        check_template_ids(&self.post_processor, |id| vocab.contains(id))?;
        let safe_cuts = window::are_safe(&self.pre_tokenizer, &added);
        Ok(Tokenizer {
            normalizer: self.normalizer,
            pre_tokenizer: self.pre_tokenizer,
            post_processor: self.post_processor,
            added,
            vocab,
            bpe,
            truncation: self.truncation,
            padding: self.padding,
            safe_cuts,
            sentencepiece: None,
        })
    }
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

/// The model's own vocabulary.
struct Model {
    tokens: Builder,
    names: Names,
}

impl Model {
    fn load(vocab: &RawValue) -> Result<Self, Error> {
        // No entry is shorter than `"":0,`: until all have been counted, this bounds
        // the room that one of them can ask for.
        let shortest = 5;
        let most = id_limit(vocab.get().len() / shortest + 1);
        let mut builder = Builder::default();
        let mut largest = 0;
        let mut outlier: Option<(String, u64)> = None;
        let mut count = 0;
        let mut text_bytes = 0;
        for_each_token(vocab, |token, id| {
            count += 1;
            text_bytes += token.len();
            let Some(near) = u32::try_from(id).ok().filter(|_| id <= most) else {
                outlier.get_or_insert_with(|| (token.to_owned(), id));
                return Ok(());
            };
            if text_bytes > u32::MAX as usize / 4 {
                return Err(Error::invalid(
                    "$.model.vocab",
                    "more than a gigabyte of text",
                ));
            }
            largest = largest.max(near);
            builder.add_model(token, near).map_err(|clash| match clash {
                Clash::Same => duplicate(token),
                Clash::Other(first) => Error::DuplicateId {
                    id: near,
                    first,
                    second: token.to_owned(),
                },
            })
        })?;
        let limit = id_limit(count);
        if u64::from(largest) > limit {
            outlier.get_or_insert_with(|| {
                let token = builder.spelling(largest).unwrap_or_default();
                (token.into_owned(), u64::from(largest))
            });
        }
        if let Some((token, id)) = outlier {
            return Err(Error::IdOutOfRange {
                token,
                id,
                tokens: count,
                limit,
            });
        }
        let names = builder
            .index()
            .map_err(|id| duplicate(&builder.spelling(id).unwrap_or_default()))?;
        Ok(Self {
            tokens: builder,
            names,
        })
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.tokens.model_id(&self.names, token)
    }

    /// The token of each byte. Bytes that UTF-8 never uses may lack one, and others
    /// too if `may_lack`: text then loses them, as in the reference.
    fn byte_ids(&self, may_lack: bool) -> Result<[u32; 256], Error> {
        let mut ids = [0; 256];
        for byte in 0..=255u8 {
            ids[usize::from(byte)] = match self.tokens.word_id(&self.names, &[byte]) {
                Some(id) => id,
                None if may_lack || matches!(byte, 0xC0 | 0xC1 | 0xF5..) => NO_TOKEN,
                None => {
                    let spelling = alphabet::spelling(byte);
                    return Err(Error::MissingByte { byte, spelling });
                }
            };
        }
        Ok(ids)
    }

    /// The merge rules of `$.model.merges`.
    fn pairs(&self, merges: &RawValue) -> Result<PairTable, Error> {
        let mut rules = Vec::new();
        let mut bytes = Vec::new();
        let mut joined = String::new();
        for_each_merge(merges, |index, left, right| {
            if rules.len() == RANK_MAX {
                return Err(Error::invalid(
                    "$.model.merges",
                    format!("more than {RANK_MAX} merges"),
                ));
            }
            bytes.clear();
            let mut ids = [None; 3];
            if alphabet::append_bytes(left, &mut bytes) {
                let cut = bytes.len();
                if alphabet::append_bytes(right, &mut bytes) {
                    let word = |bytes| self.tokens.word_id(&self.names, bytes);
                    ids = [word(&bytes[..cut]), word(&bytes[cut..]), word(&bytes)];
                }
            }
            let [Some(left_id), Some(right_id), Some(id)] = ids else {
                // Not spelled by the alphabet, or not there.
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                let id = |token: &str| {
                    self.id(token).ok_or_else(|| Error::UnknownMergeToken {
                        index,
                        token: token.to_owned(),
                    })
                };
                rules.push([id(left)?, id(right)?, id(&joined)?]);
                return check_merge_ids(index, [left, right], rules[rules.len() - 1]);
            };
            rules.push([left_id, right_id, id]);
            check_merge_ids(index, [left, right], [left_id, right_id, id])
        })?;
        // Of two rules for one pair, the later wins, as in the reference.
        Ok(PairTable::new(&rules))
    }

    /// The whole vocabulary.
    fn finish(self, added: &AddedTokens) -> Result<Vocab, Error> {
        let names = added.ids.keys();
        let new = names.filter(|content| self.id(content).is_none()).count();
        let mut tokens = self.tokens;
        for (id, token) in &added.tokens {
            let spelling = added.normalized_forms.get(id).unwrap_or(&token.content);
            if let Some(other) = tokens.spelling(*id) {
                if other != token.content {
                    // Happens where the vocabulary has holes: the next free id is not
                    // free.
                    return Err(Error::DuplicateId {
                        id: *id,
                        first: other.into_owned(),
                        second: token.content.clone(),
                    });
                }
                if *spelling != token.content {
                    // Decoding would write one thing and encoding match another.
                    return Err(Error::unsupported(
                        "$.added_tokens",
                        format!(
                            "added token {:?}, which is in the vocabulary and is normalized to {spelling:?}",
                            token.content
                        ),
                    ));
                }
            }
            let hidden = added.special_contents.contains(spelling);
            tokens.add_added(spelling, *id, hidden, token.special);
        }
        Ok(tokens.finish(self.names, new))
    }
}

/// Whether the table of merges can hold the tokens that a rule joins.
fn check_merge_ids(index: usize, tokens: [&str; 2], rule: [u32; 3]) -> Result<(), Error> {
    let far = tokens
        .into_iter()
        .zip(rule)
        .find(|(_, id)| *id >= TOKEN_END);
    far.map_or(Ok(()), |(token, id)| {
        Err(Error::unsupported(
            format!("$.model.merges[{index}]"),
            format!("merge of token {token:?}, whose id is {id} (supported: below {TOKEN_END})"),
        ))
    })
}

fn duplicate(token: &str) -> Error {
    Error::DuplicateToken {
        token: token.to_owned(),
    }
}

fn check_template_ids(
    processor: &PostProcessor,
    contains: impl Fn(u32) -> bool,
) -> Result<(), Error> {
    for piece in processor.single.iter().chain(&processor.pair) {
        if let Piece::Special(ids) = piece
            && let Some(id) = ids.iter().find(|id| !contains(**id))
        {
            return Err(Error::invalid(
                "$.post_processor",
                format!("the template adds id {id}, which no token has"),
            ));
        }
    }
    Ok(())
}
