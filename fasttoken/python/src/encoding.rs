//! An encoding, as Python sees it.

use crate::errors::encode_error;
use crate::input::Text;
use crate::state::{Columns, State};
use crate::threads::let_go;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// Ids with what is known about each of them. Each property makes a new list.
#[pyclass(frozen, module = "fasttoken")]
pub(crate) struct Encoding {
    columns: fasttoken::Encoding,
    state: Arc<State>,
    /// The call's inputs and the place of this one, unless this overflowed: then all columns are there.
    source: Option<(Arc<Inputs>, usize)>,
}

/// The texts that one call encoded, and the settings of that call.
pub(crate) struct Inputs {
    pub(crate) state: Arc<State>,
    pub(crate) texts: Vec<Text>,
    /// Bytes of all texts.
    pub(crate) bytes: usize,
    pub(crate) columns: Columns,
    pub(crate) threads: Option<usize>,
    /// The encodings with all columns, once one of them was asked for.
    pub(crate) full: OnceLock<Vec<fasttoken::Encoding>>,
}

impl Inputs {
    /// Encodes all inputs. Offsets and words are made when they are asked for.
    pub(crate) fn encode(self, py: Python<'_>) -> PyResult<impl Iterator<Item = Encoding>> {
        let found = self.encode_with(py, false)?;
        let inputs = Arc::new(self);
        Ok(found
            .into_iter()
            .enumerate()
            .map(move |(n, columns)| Encoding {
                columns,
                state: Arc::clone(&inputs.state),
                source: Some((Arc::clone(&inputs), n)),
            }))
    }

    fn encode_with(&self, py: Python<'_>, offsets: bool) -> PyResult<Vec<fasttoken::Encoding>> {
        let columns = Columns {
            offsets,
            ..self.columns
        };
        let pairs = self.texts.iter().any(Text::is_pair);
        let options = self.state.options(columns, pairs);
        let tokenizer = &self.state.tokenizer;
        let encode = || tokenizer.encode_batch_with(&self.texts, options, self.threads);
        let_go(py, self.bytes, encode).map_err(encode_error)
    }

    /// Returns the encodings with all columns. All are made at once, by as many threads as the call
    /// had: a program that asks one of them mostly asks all.
    fn full(&self, py: Python<'_>) -> PyResult<&[fasttoken::Encoding]> {
        if let Some(full) = self.full.get() {
            return Ok(full);
        }
        let full = self.encode_with(py, true)?;
        Ok(self.full.get_or_init(|| full))
    }
}

impl Encoding {
    /// Returns the encoding with the spelling of each token.
    fn spelled(&self, py: Python<'_>) -> PyResult<&fasttoken::Encoding> {
        match &self.source {
            Some((inputs, n)) => Ok(&inputs.full(py)?[*n]),
            None => Ok(&self.columns),
        }
    }

    /// Returns the encoding with offsets and words, if the call wanted them.
    fn placed(&self, py: Python<'_>) -> PyResult<&fasttoken::Encoding> {
        match &self.source {
            Some((inputs, _)) if inputs.columns.offsets => self.spelled(py),
            _ => Ok(&self.columns),
        }
    }
}

/// Takes offsets and words out of what overflowed, and of what overflowed from that.
fn forget_places(columns: &mut fasttoken::Encoding) {
    columns.offsets.fill((0, 0));
    columns.word_ids.fill(None);
    columns.overflowing.iter_mut().for_each(forget_places);
}

/// Returns the range of the ids of a word of a text.
fn tokens_of(columns: &fasttoken::Encoding, word: u32, sequence: usize) -> Option<(usize, usize)> {
    let range = columns.sequence_range(sequence);
    let words = columns.word_ids.get(range.clone())?;
    // Words rise within a text.
    let beyond = words.iter().position(|other| *other > Some(word));
    let words = &words[..beyond.unwrap_or(words.len())];
    let is_it = |other: &Option<u32>| *other == Some(word);
    let (first, last) = (
        words.iter().position(is_it)?,
        words.iter().rposition(is_it)?,
    );
    Some((range.start + first, range.start + last + 1))
}

/// Returns the place of the first id that covers a character of a text.
fn token_at(columns: &fasttoken::Encoding, at: usize, sequence: usize) -> Option<usize> {
    let range = columns.sequence_range(sequence);
    let offsets = columns.offsets.get(range.clone())?;
    let covers = |(start, end): &(usize, usize)| *start <= at && at < *end;
    offsets.iter().position(covers).map(|n| range.start + n)
}

/// Returns the word of an id.
fn word_of(columns: &fasttoken::Encoding, token: usize) -> Option<u32> {
    columns.sequence_of(token)?;
    columns.word_ids.get(token).copied().flatten()
}

#[pymethods]
impl Encoding {
    /// The ids.
    #[getter]
    fn ids(&self) -> &[u32] {
        &self.columns.ids
    }

    /// The part of the input that each id belongs to, as the file's template numbers parts.
    #[getter]
    fn type_ids(&self) -> &[u32] {
        &self.columns.type_ids
    }

    /// 0 for ids from padding, else 1.
    #[getter]
    fn attention_mask(&self) -> &[u32] {
        &self.columns.attention_mask
    }

    /// 1 for ids from the file's template and from padding, else 0.
    #[getter]
    fn special_tokens_mask(&self) -> &[u32] {
        &self.columns.special_tokens_mask
    }

    /// Start and end of each id in its own text, in characters.
    #[getter]
    fn offsets(&self, py: Python<'_>) -> PyResult<&[(usize, usize)]> {
        Ok(&self.placed(py)?.offsets)
    }

    /// The word that each id comes from, or None for ids from the template and from padding.
    #[getter]
    fn word_ids(&self, py: Python<'_>) -> PyResult<&[Option<u32>]> {
        Ok(&self.placed(py)?.word_ids)
    }

    /// The text that each id comes from, 0 or 1, or None for ids from the template.
    #[getter]
    fn sequence_ids(&self) -> Vec<Option<usize>> {
        self.columns.sequence_ids()
    }

    /// Each id's token; for an id from padding, the name that padding has for it.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<Cow<'_, str>>> {
        let columns = self.spelled(py)?;
        let mut tokens = columns.tokens(&self.state.tokenizer);
        if let Some(padding) = &self.state.padding {
            for (token, kept) in tokens.iter_mut().zip(&columns.attention_mask) {
                if *kept == 0 {
                    *token = Cow::Borrowed(&padding.token);
                }
            }
        }
        Ok(tokens)
    }

    /// The ids that truncation cut off, in pieces of the same length with the same template.
    #[getter]
    fn overflowing(&self, py: Python<'_>) -> PyResult<Vec<Self>> {
        let pieces = match &self.source {
            // Most callers do not ask for it, so it is made when one does.
            Some((inputs, n)) if self.state.truncation.is_some() => {
                let (text, columns) = (&inputs.texts[*n], inputs.columns);
                let (len, special) = (self.columns.len(), columns.add_special_tokens);
                let encode = || self.state.overflowing(text.into(), special, len);
                let mut pieces = let_go(py, text.len(), encode).map_err(encode_error)?;
                if !columns.offsets {
                    pieces.iter_mut().for_each(forget_places);
                }
                pieces
            }
            _ => self.columns.overflowing.clone(),
        };
        let pieces = pieces.into_iter().map(|columns| Self {
            columns,
            state: Arc::clone(&self.state),
            source: None,
        });
        Ok(pieces.collect())
    }

    /// The number of texts: 2 for a pair.
    #[getter]
    fn n_sequences(&self) -> usize {
        self.columns.n_sequences()
    }

    /// Return the place of the first id that covers a character of a text.
    #[pyo3(signature = (char_pos, sequence_index=0))]
    fn char_to_token(
        &self,
        py: Python<'_>,
        char_pos: usize,
        sequence_index: usize,
    ) -> PyResult<Option<usize>> {
        Ok(token_at(self.placed(py)?, char_pos, sequence_index))
    }

    /// Return the word that covers a character of a text.
    #[pyo3(signature = (char_pos, sequence_index=0))]
    fn char_to_word(
        &self,
        py: Python<'_>,
        char_pos: usize,
        sequence_index: usize,
    ) -> PyResult<Option<u32>> {
        let columns = self.placed(py)?;
        let token = token_at(columns, char_pos, sequence_index);
        Ok(token.and_then(|token| word_of(columns, token)))
    }

    /// Return the start and end of an id in its text, in characters.
    fn token_to_chars(
        &self,
        py: Python<'_>,
        token_index: usize,
    ) -> PyResult<Option<(usize, usize)>> {
        let columns = self.placed(py)?;
        let is_in_text = columns.sequence_of(token_index).is_some();
        let offsets = columns.offsets.get(token_index).copied();
        Ok(offsets.filter(|_| is_in_text))
    }

    /// Return the word that an id comes from.
    fn token_to_word(&self, py: Python<'_>, token_index: usize) -> PyResult<Option<u32>> {
        Ok(word_of(self.placed(py)?, token_index))
    }

    /// Return the text that an id comes from, 0 or 1.
    fn token_to_sequence(&self, token_index: usize) -> Option<usize> {
        self.columns.sequence_of(token_index)
    }

    /// Return the places of the first id of a word and of the id after its last one.
    #[pyo3(signature = (word_index, sequence_index=0))]
    fn word_to_tokens(
        &self,
        py: Python<'_>,
        word_index: u32,
        sequence_index: usize,
    ) -> PyResult<Option<(usize, usize)>> {
        Ok(tokens_of(self.placed(py)?, word_index, sequence_index))
    }

    /// Return the start and end of a word, in characters.
    #[pyo3(signature = (word_index, sequence_index=0))]
    fn word_to_chars(
        &self,
        py: Python<'_>,
        word_index: u32,
        sequence_index: usize,
    ) -> PyResult<Option<(usize, usize)>> {
        let columns = self.placed(py)?;
        let range = tokens_of(columns, word_index, sequence_index);
        let offsets = &columns.offsets;
        Ok(range.map(|(first, end)| (offsets[first].0, offsets[end - 1].1)))
    }

    fn __len__(&self) -> usize {
        self.columns.len()
    }

    fn __repr__(&self) -> String {
        format!(
            "Encoding(num_tokens={}, attributes=[ids, type_ids, tokens, offsets, attention_mask, \
             special_tokens_mask, overflowing])",
            self.columns.len()
        )
    }
}
