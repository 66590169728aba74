//! A loaded tokenizer with the settings that Python changes.

use crate::errors::{EncodeError, load_error};
use crate::input::Text;
use crate::settings::{padding_json, truncation_json};
use fasttoken::{
    AddedToken, EncodeOptions, Input, Offsets, Padding, PaddingLength, Side, Truncation,
};
use indexmap::IndexMap;
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// A tokenizer with its settings. It does not change: a setting makes a new one, so that calls that
/// are under way keep theirs.
pub(crate) struct State {
    pub(crate) tokenizer: Arc<fasttoken::Tokenizer>,
    /// The `tokenizer.json`, from which the tokenizer with more added tokens is made.
    json: Arc<[u8]>,
    /// The tokens that were added since.
    added: Vec<AddedToken>,
    pub(crate) truncation: Option<Truncation>,
    pub(crate) padding: Option<Padding>,
    /// The options of each call, by offsets, special tokens, and whether there may be pairs.
    options: [[[EncodeOptions; 2]; 2]; 2],
}

/// The columns that a call wants for each id, and the ids that it wants.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// True if offsets and words are wanted.
    pub(crate) offsets: bool,
    pub(crate) add_special_tokens: bool,
}

impl Columns {
    fn only_ids(add_special_tokens: bool) -> Self {
        Self {
            offsets: false,
            add_special_tokens,
        }
    }
}

/// A new value of a setting.
pub(crate) enum Setting {
    Truncation(Option<Truncation>),
    Padding(Option<Padding>),
}

/// The part of a file that has the model's tokens.
#[derive(Deserialize)]
struct WithModel {
    model: WithVocab,
}

#[derive(Deserialize)]
struct WithVocab {
    vocab: Vocabulary,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vocabulary {
    Ids(HashMap<String, u32>),
    Scores(Vec<(String, f64)>),
}

impl State {
    /// Loads the contents of a `tokenizer.json`.
    pub(crate) fn load(json: Vec<u8>) -> PyResult<Self> {
        let tokenizer = fasttoken::Tokenizer::from_bytes(&json).map_err(load_error)?;
        Ok(Self::new(tokenizer, json))
    }

    /// Puts a tokenizer and the JSON that it was loaded from together.
    pub(crate) fn new(tokenizer: fasttoken::Tokenizer, json: Vec<u8>) -> Self {
        let (truncation, padding) = (tokenizer.truncation(), tokenizer.padding().cloned());
        Self::with(
            Arc::new(tokenizer),
            json.into(),
            Vec::new(),
            truncation,
            padding,
        )
    }

    fn with(
        tokenizer: Arc<fasttoken::Tokenizer>,
        json: Arc<[u8]>,
        added: Vec<AddedToken>,
        truncation: Option<Truncation>,
        padding: Option<Padding>,
    ) -> Self {
        let options = |offsets: Offsets| {
            let options = EncodeOptions::new()
                .offsets(offsets)
                .truncation(truncation)
                .padding(padding.clone())
                .overflowing(false);
            [false, true].map(|special| {
                // A single text that is cut at its end is the same, encoded as far as it is kept.
                let left = truncation.is_some_and(|truncation| truncation.side == Side::Left);
                let options = options.clone().add_special_tokens(special);
                [left, true].map(|whole| options.clone().whole_texts(whole))
            })
        };
        Self {
            options: [Offsets::None, Offsets::Chars].map(options),
            tokenizer,
            json,
            added,
            truncation,
            padding,
        }
    }

    /// Returns the options of a call, without what overflows.
    pub(crate) fn options(&self, columns: Columns, pairs: bool) -> &EncodeOptions {
        let special = usize::from(columns.add_special_tokens);
        &self.options[usize::from(columns.offsets)][special][usize::from(pairs)]
    }

    /// Returns what overflows, with all columns, from an input whose encoding has `len` ids.
    pub(crate) fn overflowing(
        &self,
        input: Input<'_>,
        add_special_tokens: bool,
        len: usize,
    ) -> Result<Vec<fasttoken::Encoding>, fasttoken::EncodeError> {
        let mut padding = self.padding.clone();
        if let Some(padding) = &mut padding
            && padding.length == PaddingLength::BatchLongest
        {
            // The input may be one of a batch, whose longest had that many.
            padding.length = PaddingLength::Fixed(len);
            padding.pad_to_multiple_of = None;
        }
        let columns = Columns {
            offsets: true,
            add_special_tokens,
        };
        let options = self.options(columns, true).clone();
        let options = options.overflowing(true).padding(padding);
        let encoding = self.tokenizer.encode_with(input, &options)?;
        Ok(encoding.overflowing)
    }

    /// Returns true if nothing is truncated and nothing padded.
    pub(crate) fn is_plain(&self) -> bool {
        self.truncation.is_none() && self.padding.is_none()
    }

    /// Returns the ids of a text or a pair, truncated and padded.
    pub(crate) fn ids(
        &self,
        input: Input<'_>,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, fasttoken::EncodeError> {
        if self.is_plain() {
            return Ok(self.tokenizer.encode(input, add_special_tokens));
        }
        let is_pair = matches!(input, Input::Pair(..));
        let options = self.options(Columns::only_ids(add_special_tokens), is_pair);
        let encoding = self.tokenizer.encode_with(input, options);
        encoding.map(|encoding| encoding.ids)
    }

    /// Returns the ids of each text or pair, truncated and padded.
    pub(crate) fn ids_of_each(
        &self,
        texts: &[Text],
        add_special_tokens: bool,
        threads: Option<usize>,
    ) -> Result<Vec<Vec<u32>>, fasttoken::EncodeError> {
        if self.is_plain() {
            return Ok(self
                .tokenizer
                .encode_batch(texts, add_special_tokens, threads));
        }
        let pairs = texts.iter().any(Text::is_pair);
        let options = self.options(Columns::only_ids(add_special_tokens), pairs);
        let encodings = self.tokenizer.encode_batch_with(texts, options, threads)?;
        Ok(encodings.into_iter().map(|encoding| encoding.ids).collect())
    }

    /// Returns this tokenizer with another setting.
    pub(crate) fn set(&self, setting: Setting) -> PyResult<Self> {
        let (mut truncation, mut padding) = (self.truncation, self.padding.clone());
        match setting {
            Setting::Truncation(new) => {
                if let Some(new) = &new {
                    self.check_stride(new)?;
                }
                truncation = new;
            }
            Setting::Padding(new) => padding = new,
        }
        let (tokenizer, json) = (Arc::clone(&self.tokenizer), Arc::clone(&self.json));
        Ok(Self::with(
            tokenizer,
            json,
            self.added.clone(),
            truncation,
            padding,
        ))
    }

    /// Refuses a stride that leaves no room for new ids, as the reference does when it is set.
    fn check_stride(&self, truncation: &Truncation) -> PyResult<()> {
        let room = truncation
            .max_length
            .checked_sub(self.special_tokens_to_add(false));
        match room {
            Some(room) if room < truncation.stride => Err(EncodeError::new_err(format!(
                "stride {} is greater than the {room} ids that max_length {} leaves for a text",
                truncation.stride, truncation.max_length
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the number of ids that the file's template adds.
    pub(crate) fn special_tokens_to_add(&self, is_pair: bool) -> usize {
        let count = |special| match is_pair {
            true => self.tokenizer.count(("", ""), special),
            false => self.tokenizer.count("", special),
        };
        count(true) - count(false)
    }

    /// Returns this tokenizer with more added tokens, and how many of them are new or changed.
    pub(crate) fn add(&self, tokens: Vec<AddedToken>) -> PyResult<(Self, usize)> {
        let mut known: HashMap<String, AddedToken> = self
            .tokenizer
            .added_tokens()
            .map(|(_, token)| (token.content.clone(), token.clone()))
            .collect();
        let mut added = self.added.clone();
        let before = added.len();
        for token in tokens {
            if token.content.is_empty() || known.get(&token.content) == Some(&token) {
                continue;
            }
            known.insert(token.content.clone(), token.clone());
            added.push(token);
        }
        let new = added.len() - before;
        let tokenizer = match new {
            0 => Arc::clone(&self.tokenizer),
            _ => Arc::new(
                fasttoken::Tokenizer::from_bytes_with_added(&self.json, &added)
                    .map_err(load_error)?,
            ),
        };
        let (truncation, padding) = (self.truncation, self.padding.clone());
        let state = Self::with(
            tokenizer,
            Arc::clone(&self.json),
            added,
            truncation,
            padding,
        );
        Ok((state, new))
    }

    /// Returns a `tokenizer.json` with the settings and added tokens of now.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        let mut file: IndexMap<String, Box<RawValue>> = serde_json::from_slice(&self.json)?;
        let mut put = |name: &str, value: &Value| -> serde_json::Result<()> {
            file.insert(name.to_owned(), to_raw_value(value)?);
            Ok(())
        };
        put("truncation", &truncation_json(self.truncation.as_ref()))?;
        put("padding", &padding_json(self.padding.as_ref()))?;
        if !self.added.is_empty() {
            let tokens = self.tokenizer.added_tokens();
            let tokens = tokens.map(|(id, token)| added_json(id, token));
            put("added_tokens", &Value::Array(tokens.collect()))?;
        }
        serde_json::to_string(&file)
    }

    /// Returns the model's own tokens and their ids.
    pub(crate) fn model_tokens(&self) -> serde_json::Result<HashMap<String, u32>> {
        let file: WithModel = serde_json::from_slice(&self.json)?;
        Ok(match file.model.vocab {
            Vocabulary::Ids(ids) => ids,
            Vocabulary::Scores(scores) => {
                let tokens = scores.into_iter().map(|(token, _)| token);
                tokens.zip(0..).collect()
            }
        })
    }
}

fn added_json(id: u32, token: &AddedToken) -> Value {
    json!({
        "id": id,
        "content": token.content,
        "single_word": token.single_word,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": token.normalized,
        "special": token.special,
    })
}
