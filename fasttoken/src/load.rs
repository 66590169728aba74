//! Loading: from `tokenizer.json` to a checked [`Tokenizer`].

mod byte_level_model;
mod file_settings;

use crate::added::{AddedToken, AddedTokens};
use crate::bpe::Bpe;
use crate::byte_level::ByteLevel;
use crate::char_bpe::MergeRules;
use crate::error::Error;
use crate::family::Family;
use crate::format::{Reader, Section};
use crate::json::{AddedTokenJson, File, ModelJson};
use crate::pairs::PairTable;
use crate::pieces::Tokens;
use crate::pretokenize::PreTokenizer;
use crate::spm::{self, Spm};
use crate::store::{self, ZeroedBuffer};
use crate::text_model::{self, Model as AnyTextModel, TextModel};
use crate::tokenizer::Tokenizer;
use crate::vocab::Vocab;
use byte_level_model::Model;
use file_settings::Settings;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file cannot be read, is malformed or contradicts itself, or uses a
    /// component that this crate does not implement; see [`Error`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let json = store::read(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        load(json, |json| json)
    }

    /// Loads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_file`], but for those of reading.
    pub fn from_bytes(json: &[u8]) -> Result<Self, Error> {
        load(json, |_| ZeroedBuffer::default())
    }

    /// Loads the contents of a `tokenizer.json` with further added tokens, as the reference's
    /// `add_tokens` adds them after loading. A token that the vocabulary has keeps its id; others get
    /// the next free ones. Tokens of the file with the same content get the new flags.
    ///
    /// ```
    /// use fasttoken::{AddedToken, Tokenizer};
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// let json = std::fs::read(file).unwrap();
    /// let tokenizer = Tokenizer::from_bytes_with_added(&json, &[AddedToken::new("<tool>")])?;
    /// assert_eq!(tokenizer.encode("<tool>", false).len(), 1);
    /// # Ok::<(), fasttoken::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_bytes`].
    pub fn from_bytes_with_added(json: &[u8], added: &[AddedToken]) -> Result<Self, Error> {
        let mut file: File = serde_json::from_slice(json)?;
        file.added_tokens
            .extend(added.iter().map(|token| AddedTokenJson {
                id: NOT_STATED,
                content: token.content.clone(),
                single_word: token.single_word,
                lstrip: token.lstrip,
                rstrip: token.rstrip,
                normalized: token.normalized,
                special: token.special,
            }));
        let mut tokenizer = load_parsed(&file, ZeroedBuffer::default())?;
        let reassigned = &mut tokenizer.added.reassigned;
        reassigned.retain(|token| token.stated != NOT_STATED);
        Ok(tokenizer)
    }

    /// Loads the contents of a SentencePiece `.model` file with a Unigram or BPE model.
    ///
    /// Ids and texts are those of the library SentencePiece, which differ in places from those of a
    /// `tokenizer.json` that was converted from the file. So control symbols such as `</s>` are
    /// found in no text, and `encode` adds none of them: the file does not say which ones a model
    /// expects. User-defined symbols are found by [`Tokenizer::encode`], and not by
    /// [`Tokenizer::encode_plain_into`]. [`Tokenizer::decode`] with `skip_special_tokens` returns the
    /// text of the library; without it, control symbols are written by their names. Offsets give
    /// every byte of an unknown character the range of the character.
    ///
    /// # Errors
    /// When the bytes are malformed or contradict themselves, when the model is of type WORD or CHAR,
    /// normalizes decoded text, or is a BPE model with unused pieces.
    pub fn from_sentencepiece(model: &[u8]) -> Result<Self, Error> {
        finish_spm(Spm::read(model)?)
    }
}

/// The id of an added token that comes from the caller, who states none.
const NOT_STATED: u32 = u32::MAX;

impl FromStr for Tokenizer {
    type Err = Error;

    /// Loads the contents of a `tokenizer.json`; see [`Tokenizer::from_bytes`].
    fn from_str(json: &str) -> Result<Self, Error> {
        Self::from_bytes(json.as_bytes())
    }
}

/// Loads a `tokenizer.json`. `reuse` makes memory for tables of the file that was read.
fn load<J: Deref<Target = [u8]>>(
    json: J,
    reuse: impl FnOnce(J) -> ZeroedBuffer<u8>,
) -> Result<Tokenizer, Error> {
    let file = serde_json::from_slice(&json)?;
    load_parsed(&file, reuse(json))
}

/// Builds the tokenizer of a file. `spare` is memory that is no longer needed.
fn load_parsed(file: &File, spare: ZeroedBuffer<u8>) -> Result<Tokenizer, Error> {
    if let Some((model, tokens)) = AnyTextModel::read(&file.model)? {
        return finish_text_model(file, model, &tokens);
    }
    if is_char_bpe(file) {
        check_model(&file.model)?;
        let rules = MergeRules::read(&file.model)?;
        let model = AnyTextModel::Bpe(Box::new(rules.build()?));
        return finish_text_model(file, model, &rules.tokens);
    }
    load_byte_level(file, spare)
}

fn is_char_bpe(file: &File) -> bool {
    text_model::is_char_bpe(file.pre_tokenizer.as_ref(), file.decoder.as_ref())
}

/// Builds the tokenizer of a SentencePiece `.model` file.
fn finish_spm(model: Spm) -> Result<Tokenizer, Error> {
    // Everything besides the model is as in a file that says nothing.
    let file: File = serde_json::from_str(r#"{"model": {}}"#)?;
    let settings = Settings::load_for_text(&file)?;
    let added = settings.added_tokens(&file, 0, |_| None)?;
    settings.finish(added, Family::Spm(Box::new(model)))
}

/// Loads a `.model` file. Returns the configuration for [`from_compiled`] as well.
pub(crate) fn load_spm_with_config(model: &[u8]) -> Result<(Tokenizer, Vec<u8>), Error> {
    let model = Spm::read(model)?;
    let config = model.config();
    Ok((finish_spm(model)?, config))
}

/// Loads a `tokenizer.json`. Returns the configuration for [`from_compiled`] as well.
pub(crate) fn load_with_config(json: &[u8]) -> Result<(Tokenizer, Vec<u8>), Error> {
    let file: File = serde_json::from_slice(json)?;
    let tokenizer = load_parsed(&file, ZeroedBuffer::default())?;
    Ok((tokenizer, serde_json::to_vec(&file)?))
}

/// Builds a tokenizer from the configuration and the tables of a compiled tokenizer.
pub(crate) fn from_compiled(reader: &Reader) -> Result<Tokenizer, Error> {
    let damaged = |problem| Error::Compiled {
        place: String::new(),
        problem,
    };
    let config = reader.get::<u8>(Section::Config).map_err(damaged)?;
    let file: File = serde_json::from_slice(&config)?;
    if file.model.kind.as_deref() == Some(spm::KIND) {
        return finish_spm(Spm::read_compiled(reader, &config).map_err(damaged)?);
    }
    let tables = text_model::Tables::read(reader, &file.model, is_char_bpe(&file));
    if let Some(tables) = tables.map_err(damaged)? {
        let settings = Settings::load_for_text(&file)?;
        let model_id = |token: &str| tables.model_id(token);
        let added = settings.added_tokens(&file, tables.model_len(), model_id)?;
        check_added(&added, |id| tables.is_added(id))?;
        let family = tables.finish(file.pre_tokenizer.as_ref(), file.decoder.as_ref())?;
        return settings.finish(added, Family::Text(Box::new(family)));
    }
    let vocab = Vocab::read(reader).map_err(damaged)?;
    let bpe = Bpe::read(reader).map_err(damaged)?;
    let settings = Settings::load_for_bytes(&file)?;
    let pre_tokenizer = PreTokenizer::load(file.pre_tokenizer.as_ref(), "$.pre_tokenizer")?;
    let model_id = |token: &str| vocab.model_id(token);
    let added = settings.added_tokens(&file, vocab.model_len(), model_id)?;
    check_added(&added, |id| vocab.is_added(id))?;
    let model = ByteLevel::new(pre_tokenizer, vocab, bpe, &added);
    settings.finish(added, Family::ByteLevel(Box::new(model)))
}

/// Checks that the tables of a compiled tokenizer contain the added tokens of its configuration.
fn check_added(added: &AddedTokens, is_added: impl Fn(u32) -> bool) -> Result<(), Error> {
    let unknown = added.tokens.iter().find(|(id, _)| !is_added(*id));
    unknown.map_or(Ok(()), |(id, token)| {
        Err(Error::invalid(
            "$.added_tokens",
            format!(
                "{:?} has id {id}, which the tables contradict",
                token.content
            ),
        ))
    })
}

/// Builds the tokenizer of a file with a byte-level model.
fn load_byte_level(file: &File, spare: ZeroedBuffer<u8>) -> Result<Tokenizer, Error> {
    let options = &file.model;
    check_model(options)?;
    let settings = Settings::load_for_bytes(file)?;
    let pre_tokenizer = PreTokenizer::load(file.pre_tokenizer.as_ref(), "$.pre_tokenizer")?;
    let (vocab, merges) = options.vocab_and_merges()?;
    let model = Model::load(vocab)?;
    let rules = model.rules(merges)?;
    let shared = |_| Error::too_many_collisions("$.model.merges", "a pair");
    let pairs = PairTable::build(&rules).map_err(shared)?;
    // Both settings decide about bytes that the vocabulary lacks.
    let plain = options.unk_token.is_none() && options.byte_fallback != Some(true);
    let byte_ids = model.byte_ids(plain)?;
    let model_id = |token: &str| model.id(token);
    let added = settings.added_tokens(file, model.tokens.model_len(), model_id)?;
    let mut vocab = model.finish(&added)?;
    let words: Vec<u32> = vocab.words().collect();
    let mut bpe = Bpe::new(byte_ids, pairs);
    bpe.index_words(
        &words,
        &rules,
        &vocab,
        options.ignore_merges.unwrap_or(false),
    )
    .map_err(|_| Error::too_many_collisions("$.model.vocab", "a token"))?;
    store::move_to_huge_pages(bpe.tables().chain(vocab.tables()).collect(), spare);
    let model = ByteLevel::new(pre_tokenizer, vocab, bpe, &added);
    settings.finish(added, Family::ByteLevel(Box::new(model)))
}

/// Builds the tokenizer of a file with a model whose tokens are text.
fn finish_text_model(
    file: &File,
    model: AnyTextModel,
    tokens: &Tokens,
) -> Result<Tokenizer, Error> {
    let settings = Settings::load_for_text(file)?;
    let added = settings.added_tokens(file, tokens.len(), |token| tokens.id(token))?;
    let (pre_tokenizer, decoder) = (file.pre_tokenizer.as_ref(), file.decoder.as_ref());
    let family = TextModel::load(model, tokens, pre_tokenizer, decoder, &added)?;
    settings.finish(added, Family::Text(Box::new(family)))
}

fn check_model(model: &ModelJson) -> Result<(), Error> {
    match model.kind.as_deref() {
        Some("BPE") => {}
        // Files from before models had a type: only BPE has merges.
        None if model.merges.is_some() => {}
        kind => {
            let kind = kind.unwrap_or("without a type");
            return Err(Error::unsupported(
                "$.model.type",
                format!("model {kind} (supported: BPE, WordPiece, Unigram)"),
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
