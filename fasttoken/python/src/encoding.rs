//! An encoding, as Python sees it.

use crate::errors::encode_error;
use crate::input::Text;
use crate::state::{Columns, State};
use pyo3::prelude::*;
use std::borrow::Cow;
use std::sync::Arc;

/// Ids with what is known about each of them. Each property makes a new list.
#[pyclass(frozen, module = "fasttoken")]
pub(crate) struct Encoding {
    columns: fasttoken::Encoding,
    state: Arc<State>,
    /// What was truncated, unless this overflowed itself.
    cut: Option<Cut>,
}

/// A text or pair that was truncated.
struct Cut {
    text: Text,
    columns: Columns,
}

impl Encoding {
    pub(crate) fn new(
        columns: fasttoken::Encoding,
        state: &Arc<State>,
        text: Text,
        wanted: Columns,
    ) -> Self {
        let cut = Cut {
            text,
            columns: wanted,
        };
        Self {
            columns,
            state: Arc::clone(state),
            // Nothing overflows without truncation, and the text need not live on.
            cut: state.truncation.is_some().then_some(cut),
        }
    }

    /// Returns the range of the ids of a word of a text.
    fn tokens_of(&self, word: u32, sequence: usize) -> Option<(usize, usize)> {
        let range = self.columns.sequence_range(sequence);
        let words = self.columns.word_ids.get(range.clone())?;
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

    fn token_at(&self, at: usize, sequence: usize) -> Option<usize> {
        let range = self.columns.sequence_range(sequence);
        let offsets = self.columns.offsets.get(range.clone())?;
        let covers = |(start, end): &(usize, usize)| *start <= at && at < *end;
        offsets.iter().position(covers).map(|n| range.start + n)
    }

    fn word_of(&self, token: usize) -> Option<u32> {
        self.columns.sequence_of(token)?;
        self.columns.word_ids.get(token).copied().flatten()
    }
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
    fn offsets(&self) -> &[(usize, usize)] {
        &self.columns.offsets
    }

    /// The word that each id comes from, or None for ids from the template and from padding.
    #[getter]
    fn word_ids(&self) -> &[Option<u32>] {
        &self.columns.word_ids
    }

    /// The text that each id comes from, 0 or 1, or None for ids from the template.
    #[getter]
    fn sequence_ids(&self) -> Vec<Option<usize>> {
        self.columns.sequence_ids()
    }

    /// Each id's token; for an id from padding, the name that padding has for it.
    #[getter]
    fn tokens(&self) -> Vec<Cow<'_, str>> {
        let columns = &self.columns;
        let mut tokens = columns.tokens(&self.state.tokenizer);
        if let Some(padding) = &self.state.padding {
            for (token, kept) in tokens.iter_mut().zip(&columns.attention_mask) {
                if *kept == 0 {
                    *token = Cow::Borrowed(&padding.token);
                }
            }
        }
        tokens
    }

    /// What truncation cut off, in pieces of the same length with the same template.
    #[getter]
    fn overflowing(&self, py: Python<'_>) -> PyResult<Vec<Self>> {
        // Most callers do not ask for it, so it is made when one does.
        let pieces = match &self.cut {
            Some(Cut { text, columns }) => {
                let len = self.columns.len();
                let encode = || self.state.overflowing(text.into(), *columns, len);
                py.detach(encode).map_err(encode_error)?
            }
            None => self.columns.overflowing.clone(),
        };
        let pieces = pieces.into_iter().map(|columns| Self {
            columns,
            state: Arc::clone(&self.state),
            cut: None,
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
    fn char_to_token(&self, char_pos: usize, sequence_index: usize) -> Option<usize> {
        self.token_at(char_pos, sequence_index)
    }

    /// Return the word that covers a character of a text.
    #[pyo3(signature = (char_pos, sequence_index=0))]
    fn char_to_word(&self, char_pos: usize, sequence_index: usize) -> Option<u32> {
        self.word_of(self.token_at(char_pos, sequence_index)?)
    }

    /// Return the start and end of an id in its text, in characters.
    fn token_to_chars(&self, token_index: usize) -> Option<(usize, usize)> {
        self.columns.sequence_of(token_index)?;
        self.columns.offsets.get(token_index).copied()
    }

    /// Return the word that an id comes from.
    fn token_to_word(&self, token_index: usize) -> Option<u32> {
        self.word_of(token_index)
    }

    /// Return the text that an id comes from, 0 or 1.
    fn token_to_sequence(&self, token_index: usize) -> Option<usize> {
        self.columns.sequence_of(token_index)
    }

    /// Return the places of the first id of a word and of the id after its last one.
    #[pyo3(signature = (word_index, sequence_index=0))]
    fn word_to_tokens(&self, word_index: u32, sequence_index: usize) -> Option<(usize, usize)> {
        self.tokens_of(word_index, sequence_index)
    }

    /// Return the start and end of a word, in characters.
    #[pyo3(signature = (word_index, sequence_index=0))]
    fn word_to_chars(&self, word_index: u32, sequence_index: usize) -> Option<(usize, usize)> {
        let (first, end) = self.tokens_of(word_index, sequence_index)?;
        let offsets = &self.columns.offsets;
        Some((offsets[first].0, offsets[end - 1].1))
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
