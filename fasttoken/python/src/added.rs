//! Added tokens, as Python states and sees them.

use crate::errors::UnsupportedError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// A token that is recognised as a whole, before anything else happens to a text.
#[pyclass(frozen, eq, hash, get_all, module = "fasttoken")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct AddedToken {
    /// The text of the token.
    content: String,
    /// Recognised only where no word character touches it.
    single_word: bool,
    /// Takes the blanks to its left with it.
    lstrip: bool,
    /// Takes the blanks to its right with it.
    rstrip: bool,
    /// Searched in normalized text. By default, special tokens are not.
    normalized: bool,
    /// Left out of decoded text on request.
    special: bool,
}

#[pymethods]
impl AddedToken {
    #[new]
    #[pyo3(signature = (content, *, single_word=false, lstrip=false, rstrip=false, normalized=None, special=false))]
    fn new(
        content: String,
        single_word: bool,
        lstrip: bool,
        rstrip: bool,
        normalized: Option<bool>,
        special: bool,
    ) -> Self {
        Self {
            content,
            single_word,
            lstrip,
            rstrip,
            normalized: normalized.unwrap_or(!special),
            special,
        }
    }

    fn __str__(&self) -> &str {
        &self.content
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let show = |flag: bool| if flag { "True" } else { "False" };
        Ok(format!(
            "AddedToken({}, single_word={}, lstrip={}, rstrip={}, normalized={}, special={})",
            PyString::new(py, &self.content).repr()?,
            show(self.single_word),
            show(self.lstrip),
            show(self.rstrip),
            show(self.normalized),
            show(self.special),
        ))
    }
}

impl From<&fasttoken::AddedToken> for AddedToken {
    fn from(token: &fasttoken::AddedToken) -> Self {
        Self {
            content: token.content.clone(),
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized,
            special: token.special,
        }
    }
}

/// Reads strings and added tokens. These are known by their attributes, so that those of
/// `tokenizers` are taken too. With `special`, all of them are special.
pub(crate) fn read(
    tokens: &Bound<'_, PyAny>,
    special: bool,
) -> PyResult<Vec<fasttoken::AddedToken>> {
    if tokens.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "tokens must be a list of str or AddedToken, not one str",
        ));
    }
    tokens
        .try_iter()?
        .map(|token| one(&token?, special))
        .collect()
}

fn one(token: &Bound<'_, PyAny>, special: bool) -> PyResult<fasttoken::AddedToken> {
    if let Ok(text) = token.cast::<PyString>() {
        let mut added = fasttoken::AddedToken::new(text.to_str()?);
        added.special = special;
        added.normalized = !special;
        return Ok(added);
    }
    let content = token.getattr("content").map_err(|_| {
        let kind = token.get_type();
        PyTypeError::new_err(format!(
            "a token must be a str or an AddedToken, not {kind}"
        ))
    })?;
    let flag = |name: &str| token.getattr(name)?.extract::<bool>();
    let mut added = fasttoken::AddedToken::new(content.extract::<String>()?);
    added.single_word = flag("single_word")?;
    added.lstrip = flag("lstrip")?;
    added.rstrip = flag("rstrip")?;
    added.normalized = flag("normalized")?;
    added.special = special || flag("special")?;
    if added.content.is_empty() {
        return Err(UnsupportedError::new_err(
            "an added token must not be empty",
        ));
    }
    Ok(added)
}
