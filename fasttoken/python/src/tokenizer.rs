//! The tokenizer, as Python sees it.

use crate::added::{self, AddedToken};
use crate::buffer;
use crate::encoding::{Encoding, Inputs};
use crate::errors::{LoadError, UnsupportedError, encode_error, load_error};
use crate::input::{self, Text};
use crate::settings::{self, padding_dict, truncation_dict};
use crate::state::{Columns, Setting, State};
use crate::threads::let_go;
use fasttoken::{CacheUse, Input, Padding, PaddingLength, TiktokenEncoding, Truncation, Warning};
use pyo3::exceptions::{PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyTuple};
use std::borrow::Cow;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A tokenizer as one tokenizer.json describes it.
///
/// Any number of threads may use it at once, also while others change its settings.
#[pyclass(frozen, module = "fasttoken")]
pub(crate) struct Tokenizer {
    /// Held for as long as it takes to read or replace a pointer.
    state: RwLock<Arc<State>>,
}

impl Tokenizer {
    fn new(state: State) -> Self {
        Self {
            state: RwLock::new(Arc::new(state)),
        }
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }

    fn add(&self, tokens: &Bound<'_, PyAny>, special: bool) -> PyResult<usize> {
        let tokens = added::read(tokens, special)?;
        let (state, count) = self.state().add(tokens)?;
        self.replace(state);
        Ok(count)
    }

    fn batch(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        columns: Columns,
        threads: Option<usize>,
    ) -> PyResult<Vec<Encoding>> {
        let (texts, bytes) = input::texts(inputs)?;
        let inputs = Inputs {
            state: self.state(),
            texts,
            bytes,
            columns,
            threads,
            full: OnceLock::new(),
        };
        Ok(inputs.encode(py)?.collect())
    }
}

fn refuse_words(is_pretokenized: bool) -> PyResult<()> {
    match is_pretokenized {
        true => Err(UnsupportedError::new_err(
            "text that was split into words before (is_pretokenized=True) is not taken; \
             use tokenizers for it",
        )),
        false => Ok(()),
    }
}

fn read(path: PathBuf) -> PyResult<Vec<u8>> {
    // Asked before opening: opening a pipe would wait for its other end.
    // A folder is the system's to refuse, with its own number, which Python's classes follow.
    let regular =
        std::fs::metadata(&path).and_then(|about| match about.is_file() || about.is_dir() {
            true => Ok(()),
            false => Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "not a regular file",
            )),
        });
    let bytes = regular.and_then(|()| std::fs::read(&path));
    bytes.map_err(|source| load_error(fasttoken::Error::Io { path, source }))
}

fn unreadable(error: &serde_json::Error) -> PyErr {
    LoadError::new_err(format!("malformed tokenizer JSON: {error}"))
}

/// Returns the tokenizer that was pickled.
#[pyfunction]
pub(crate) fn restore(json: &[u8]) -> PyResult<Tokenizer> {
    State::load(json.to_vec()).map(Tokenizer::new)
}

#[pymethods]
impl Tokenizer {
    /// Load a tokenizer.json.
    #[staticmethod]
    fn from_file(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| State::load(read(path)?)).map(Self::new)
    }

    /// Load the contents of a tokenizer.json.
    #[staticmethod]
    fn from_str(py: Python<'_>, json: &str) -> PyResult<Self> {
        let json = json.as_bytes().to_vec();
        py.detach(|| State::load(json)).map(Self::new)
    }

    /// Load the contents of a tokenizer.json from bytes.
    #[staticmethod]
    fn from_buffer(py: Python<'_>, buffer: Cow<'_, [u8]>) -> PyResult<Self> {
        let json = buffer.into_owned();
        py.detach(|| State::load(json)).map(Self::new)
    }

    /// Load a tokenizer.json by its compiled form in the folder `cache`, which needs no parsing.
    ///
    /// If the folder lacks it, the file is compiled and stored there first. A user who can write to the
    /// folder decides which ids come out. A folder that cannot be written gives a RuntimeWarning.
    #[staticmethod]
    fn from_file_cached(py: Python<'_>, path: PathBuf, cache: PathBuf) -> PyResult<Self> {
        let (state, used) = py.detach(|| {
            let json = read(path)?;
            let loaded = fasttoken::Tokenizer::from_bytes_cached(&json, &cache);
            let (tokenizer, used) = loaded.map_err(load_error)?;
            Ok::<_, PyErr>((State::new(tokenizer, json), used))
        })?;
        if let CacheUse::NotWritten(error) = used {
            let text = format!(
                "the compiled tokenizer could not be stored in {}: {error}; the next start will \
                 compile again",
                cache.display()
            );
            let text = CString::new(text).unwrap_or_default();
            PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)?;
        }
        Ok(Self::new(state))
    }

    /// Load a file of ranks of tiktoken, with the pattern and special tokens of a named encoding.
    #[staticmethod]
    fn from_tiktoken(py: Python<'_>, path: PathBuf, encoding: &str) -> PyResult<Self> {
        let Some(encoding) = TiktokenEncoding::named(encoding) else {
            return Err(PyValueError::new_err(format!(
                "no encoding of tiktoken is named {encoding:?} here"
            )));
        };
        py.detach(|| {
            let json = fasttoken::tiktoken_to_json(&read(path)?, &encoding);
            State::load(json.map_err(load_error)?)
        })
        .map(Self::new)
    }

    /// Load a tekken.json, the format of Mistral's models since Nemo.
    #[staticmethod]
    fn from_tekken(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| State::load(fasttoken::tekken_to_json(&read(path)?).map_err(load_error)?))
            .map(Self::new)
    }

    /// Encode a text or a pair of texts with all that is known about each id.
    #[pyo3(signature = (sequence, pair=None, is_pretokenized=false, add_special_tokens=true))]
    fn encode(
        &self,
        py: Python<'_>,
        sequence: &Bound<'_, PyAny>,
        pair: Option<&Bound<'_, PyAny>>,
        is_pretokenized: bool,
        add_special_tokens: bool,
    ) -> PyResult<Encoding> {
        refuse_words(is_pretokenized)?;
        let text = Text::read(sequence, pair)?;
        let inputs = Inputs {
            state: self.state(),
            bytes: text.len(),
            texts: vec![text],
            columns: Columns {
                offsets: true,
                add_special_tokens,
            },
            threads: Some(1),
            full: OnceLock::new(),
        };
        let mut encodings = inputs.encode(py)?;
        Ok(encodings.next().expect("one encoding for one text"))
    }

    /// Encode texts and pairs by up to `threads` threads, by default one for each processor.
    #[pyo3(signature = (input, is_pretokenized=false, add_special_tokens=true, *, threads=None))]
    fn encode_batch(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        is_pretokenized: bool,
        add_special_tokens: bool,
        threads: Option<usize>,
    ) -> PyResult<Vec<Encoding>> {
        refuse_words(is_pretokenized)?;
        let columns = Columns {
            offsets: true,
            add_special_tokens,
        };
        self.batch(py, input, columns, threads)
    }

    /// Encode texts and pairs as `encode_batch` does, without offsets and words.
    #[pyo3(signature = (input, is_pretokenized=false, add_special_tokens=true, *, threads=None))]
    fn encode_batch_fast(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        is_pretokenized: bool,
        add_special_tokens: bool,
        threads: Option<usize>,
    ) -> PyResult<Vec<Encoding>> {
        refuse_words(is_pretokenized)?;
        let columns = Columns {
            offsets: false,
            add_special_tokens,
        };
        self.batch(py, input, columns, threads)
    }

    /// Return the ids alone, as a memoryview of format "I" that NumPy takes without copying.
    #[pyo3(signature = (sequence, pair=None, *, add_special_tokens=true))]
    fn encode_ids<'py>(
        &self,
        py: Python<'py>,
        sequence: &Bound<'py, PyAny>,
        pair: Option<&Bound<'py, PyAny>>,
        add_special_tokens: bool,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let input = one_input(sequence, pair)?;
        let state = self.state();
        let encode = || state.ids(input, add_special_tokens);
        buffer::view_u32(py, let_go(py, bytes(&input), encode).map_err(encode_error)?)
    }

    /// Return the ids of a text in which no added token is recognised, without special tokens.
    ///
    /// It is for text from people who must not be able to write control tokens.
    fn encode_ordinary_ids<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let text = input::text(text, "text")?;
        let state = self.state();
        if !state.is_plain() {
            return Err(UnsupportedError::new_err(
                "encode_ordinary_ids neither truncates nor pads; call no_truncation and no_padding first",
            ));
        }
        let ids = let_go(py, text.len(), || {
            let mut ids = Vec::with_capacity(text.len() / 4 + 4);
            state.tokenizer.encode_plain_into(text, &mut ids);
            ids
        });
        buffer::view_u32(py, ids)
    }

    /// Return the ids of all texts one after the other, and where each begins and the last ends.
    ///
    /// The ids of text n are `ids[offsets[n]:offsets[n + 1]]`; offsets have format "q" (int64).
    #[pyo3(signature = (input, *, add_special_tokens=true, threads=None))]
    fn encode_batch_ids<'py>(
        &self,
        py: Python<'py>,
        input: &Bound<'py, PyAny>,
        add_special_tokens: bool,
        threads: Option<usize>,
    ) -> PyResult<(Bound<'py, PyMemoryView>, Bound<'py, PyMemoryView>)> {
        let (texts, bytes) = input::texts(input)?;
        let state = self.state();
        let encode = || {
            let lists = state.ids_of_each(&texts, add_special_tokens, threads)?;
            Ok::<_, fasttoken::EncodeError>(flat(&lists))
        };
        let (ids, offsets) = let_go(py, bytes, encode).map_err(encode_error)?;
        Ok((buffer::view_u32(py, ids)?, buffer::view_i64(py, offsets)?))
    }

    /// Return the number of ids that `encode_ids` gives.
    #[pyo3(signature = (sequence, pair=None, *, add_special_tokens=true))]
    fn count(
        &self,
        py: Python<'_>,
        sequence: &Bound<'_, PyAny>,
        pair: Option<&Bound<'_, PyAny>>,
        add_special_tokens: bool,
    ) -> PyResult<usize> {
        let input = one_input(sequence, pair)?;
        let state = self.state();
        let count = || match state.is_plain() {
            true => Ok(state.tokenizer.count(input, add_special_tokens)),
            false => state.ids(input, add_special_tokens).map(|ids| ids.len()),
        };
        let_go(py, bytes(&input), count).map_err(encode_error)
    }

    /// Return the text of ids, which may be a list, a memoryview or a NumPy array.
    #[pyo3(signature = (ids, skip_special_tokens=true))]
    fn decode(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        skip_special_tokens: bool,
    ) -> PyResult<String> {
        let ids = input::ids(ids)?;
        let state = self.state();
        let decode = || state.tokenizer.decode(&ids, skip_special_tokens);
        Ok(let_go(py, ids.len(), decode))
    }

    /// Return the text of each of several sequences of ids.
    #[pyo3(signature = (sequences, skip_special_tokens=true, *, threads=None))]
    fn decode_batch(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        skip_special_tokens: bool,
        threads: Option<usize>,
    ) -> PyResult<Vec<String>> {
        let read = sequences.try_iter()?.map(|ids| input::ids(&ids?));
        let sequences = read.collect::<PyResult<Vec<_>>>()?;
        let state = self.state();
        let all = sequences.iter().map(Vec::len).sum();
        Ok(let_go(py, all, || {
            state
                .tokenizer
                .decode_batch(&sequences, skip_special_tokens, threads)
        }))
    }

    /// Cut what is encoded to at most `max_length` ids.
    #[pyo3(signature = (max_length, stride=0, strategy="longest_first", direction="right"))]
    fn enable_truncation(
        &self,
        max_length: usize,
        stride: usize,
        strategy: &str,
        direction: &str,
    ) -> PyResult<()> {
        let truncation = Truncation::new(max_length)
            .stride(stride)
            .strategy(settings::strategy(strategy)?)
            .side(settings::side(direction)?);
        self.replace(self.state().set(Setting::Truncation(Some(truncation)))?);
        Ok(())
    }

    /// Encode texts of any length.
    fn no_truncation(&self) -> PyResult<()> {
        self.replace(self.state().set(Setting::Truncation(None))?);
        Ok(())
    }

    /// The arguments of `enable_truncation`, or None.
    #[getter]
    fn truncation<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let state = self.state();
        let truncation = state.truncation.as_ref();
        truncation
            .map(|truncation| truncation_dict(py, truncation))
            .transpose()
    }

    /// Fill up what is encoded to `length` ids, or to the longest of a batch.
    #[pyo3(signature = (direction="right", pad_id=0, pad_type_id=0, pad_token="[PAD]", length=None, pad_to_multiple_of=None))]
    fn enable_padding(
        &self,
        direction: &str,
        pad_id: u32,
        pad_type_id: u32,
        pad_token: &str,
        length: Option<usize>,
        pad_to_multiple_of: Option<usize>,
    ) -> PyResult<()> {
        let mut padding = Padding::new(pad_id, pad_token)
            .side(settings::side(direction)?)
            .type_id(pad_type_id)
            .length(length.map_or(PaddingLength::BatchLongest, PaddingLength::Fixed));
        padding.pad_to_multiple_of = pad_to_multiple_of;
        self.replace(self.state().set(Setting::Padding(Some(padding)))?);
        Ok(())
    }

    /// Do not fill up what is encoded.
    fn no_padding(&self) -> PyResult<()> {
        self.replace(self.state().set(Setting::Padding(None))?);
        Ok(())
    }

    /// The arguments of `enable_padding`, or None.
    #[getter]
    fn padding<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let state = self.state();
        let padding = state.padding.as_ref();
        padding.map(|padding| padding_dict(py, padding)).transpose()
    }

    /// Return all tokens and their ids.
    #[pyo3(signature = (with_added_tokens=true))]
    fn get_vocab<'py>(
        &self,
        py: Python<'py>,
        with_added_tokens: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state();
        let dict = PyDict::new(py);
        if with_added_tokens {
            for (id, token) in state.tokenizer.vocab() {
                dict.set_item(token, id)?;
            }
        } else {
            for (token, id) in state.model_tokens().map_err(|error| unreadable(&error))? {
                dict.set_item(token, id)?;
            }
        }
        Ok(dict)
    }

    /// Return the number of tokens.
    #[pyo3(signature = (with_added_tokens=true))]
    fn get_vocab_size(&self, with_added_tokens: bool) -> PyResult<usize> {
        let state = self.state();
        if with_added_tokens {
            return Ok(state.tokenizer.vocab_size());
        }
        let tokens = state.model_tokens().map_err(|error| unreadable(&error))?;
        Ok(tokens.len())
    }

    /// Return the id of a token.
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.state().tokenizer.token_to_id(token)
    }

    /// Return the token of an id as the vocabulary spells it.
    fn id_to_token(&self, id: u32) -> Option<String> {
        let state = self.state();
        state.tokenizer.id_to_token(id).map(Cow::into_owned)
    }

    /// Return the number of ids that the file's template adds to a text or a pair.
    fn num_special_tokens_to_add(&self, is_pair: bool) -> usize {
        self.state().special_tokens_to_add(is_pair)
    }

    /// Add tokens and return how many are new or changed.
    ///
    /// The tokenizer is loaded again for it, so add all tokens in one call.
    fn add_tokens(&self, tokens: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.add(tokens, false)
    }

    /// Add special tokens, as `add_tokens` does.
    fn add_special_tokens(&self, tokens: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.add(tokens, true)
    }

    /// Return the added tokens by their ids.
    fn get_added_tokens_decoder<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (id, token) in self.state().tokenizer.added_tokens() {
            dict.set_item(id, AddedToken::from(token))?;
        }
        Ok(dict)
    }

    /// False: special tokens in a text are recognised. Setting it to True is refused.
    #[getter]
    fn encode_special_tokens(&self) -> bool {
        false
    }

    #[setter]
    fn set_encode_special_tokens(&self, value: bool) -> PyResult<()> {
        match value {
            true => Err(UnsupportedError::new_err(
                "special tokens in a text are always recognised by encode; encode_ordinary_ids \
                 recognises no added tokens",
            )),
            false => Ok(()),
        }
    }

    /// False if a split pattern runs on an engine that is not proved to match as tokenizers does.
    #[getter]
    fn is_exact(&self) -> bool {
        let state = self.state();
        let is_inexact = |warning: &Warning| matches!(warning, Warning::InexactPattern { .. });
        !state.tokenizer.warnings().iter().any(is_inexact)
    }

    /// Notes about the file: parts that make encoding slow, or that are not known to be exact.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        let state = self.state();
        state
            .tokenizer
            .warnings()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// Return a tokenizer.json with the settings and added tokens of now.
    fn to_str(&self) -> PyResult<String> {
        self.state().to_json().map_err(|error| unreadable(&error))
    }

    /// Write a tokenizer.json with the settings and added tokens of now.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let json = self.to_str()?;
        py.detach(|| std::fs::write(&path, json))
            .map_err(|source| load_error(fasttoken::Error::Io { path, source }))
    }

    fn __copy__(&self) -> Self {
        Self {
            state: RwLock::new(self.state()),
        }
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        self.__copy__()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let restore = py.import("fasttoken._fasttoken")?.getattr("restore")?;
        let json = PyBytes::new(py, slf.get().to_str()?.as_bytes());
        (restore, (json,)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        format!(
            "<fasttoken.Tokenizer of {} tokens>",
            self.state().tokenizer.vocab_size()
        )
    }
}

fn one_input<'a>(
    sequence: &'a Bound<'_, PyAny>,
    pair: Option<&'a Bound<'_, PyAny>>,
) -> PyResult<Input<'a>> {
    let first = input::text(sequence, "sequence")?;
    match pair {
        Some(pair) => Ok(Input::Pair(first, input::text(pair, "pair")?)),
        None => Ok(Input::Single(first)),
    }
}

fn bytes(input: &Input<'_>) -> usize {
    match input {
        Input::Single(text) => text.len(),
        Input::Pair(first, second) => first.len() + second.len(),
    }
}

/// Returns all ids one after the other, and the place at which each list begins and the last ends.
fn flat(lists: &[Vec<u32>]) -> (Vec<u32>, Vec<i64>) {
    let mut ids = Vec::with_capacity(lists.iter().map(Vec::len).sum());
    let mut offsets = Vec::with_capacity(lists.len() + 1);
    offsets.push(0);
    for list in lists {
        ids.extend_from_slice(list);
        offsets.push(ids.len() as i64);
    }
    (ids, offsets)
}
