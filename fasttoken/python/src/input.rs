//! Texts and ids, as Python hands them in.

use fasttoken::Input;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyList, PyString, PyTuple};

/// Returns the text of a `str`; `name` names it in errors.
pub(crate) fn text<'a>(object: &'a Bound<'_, PyAny>, name: &str) -> PyResult<&'a str> {
    let Ok(string) = object.cast::<PyString>() else {
        return Err(not_a_text(object, name));
    };
    let text = string.to_str();
    text.map_err(|error| lone_surrogate(object.py(), &error, name))
}

/// Returns the error for something that is not a `str`.
fn not_a_text(object: &Bound<'_, PyAny>, name: &str) -> PyErr {
    let kind = object.get_type().name();
    let kind = kind.map_or_else(|_| "?".to_owned(), |kind| kind.to_string());
    let hint = match kind.as_str() {
        "list" | "tuple" => "; text that was split into words before is not taken",
        "bytes" => "; decode it first",
        _ => "",
    };
    PyTypeError::new_err(format!("{name} must be a str, not {kind}{hint}"))
}

/// Returns an error that names the place of a lone surrogate.
fn lone_surrogate(py: Python<'_>, error: &PyErr, name: &str) -> PyErr {
    let at = error.value(py).getattr("start");
    let at = at.and_then(|at| at.extract::<usize>());
    let place = at.map_or_else(|_| String::new(), |at| format!(" at character {at}"));
    let clear = PyValueError::new_err(format!(
        "{name} has a lone surrogate{place}, which no UTF-8 text has; replace it, \
         for example by text.encode('utf-8', 'replace').decode()"
    ));
    clear.set_cause(py, Some(error.clone_ref(py)));
    clear
}

/// One text or a pair that stays alive without Python.
pub(crate) enum Text {
    Single(PyBackedStr),
    Pair(PyBackedStr, PyBackedStr),
}

impl Text {
    /// Reads one text or a pair; errors name them `sequence` and `pair`.
    pub(crate) fn read(
        sequence: &Bound<'_, PyAny>,
        pair: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let first = backed(sequence, || "sequence".to_owned())?;
        Ok(match pair {
            Some(pair) => Self::Pair(first, backed(pair, || "pair".to_owned())?),
            None => Self::Single(first),
        })
    }

    pub(crate) fn is_pair(&self) -> bool {
        matches!(self, Self::Pair(..))
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Single(text) => text.len(),
            Self::Pair(first, second) => first.len() + second.len(),
        }
    }
}

impl<'t> From<&'t Text> for Input<'t> {
    fn from(text: &'t Text) -> Self {
        match text {
            Text::Single(text) => Self::Single(text),
            Text::Pair(first, second) => Self::Pair(first, second),
        }
    }
}

/// Reads a sequence of texts and pairs, and returns them with their number of bytes.
pub(crate) fn texts(objects: &Bound<'_, PyAny>) -> PyResult<(Vec<Text>, usize)> {
    if objects.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "input must be a list of texts or pairs of texts, not one str",
        ));
    }
    let mut texts = Vec::with_capacity(objects.len().unwrap_or(0));
    let mut bytes = 0;
    for (n, object) in objects.try_iter()?.enumerate() {
        let text = one(&object?, n)?;
        bytes += text.len();
        texts.push(text);
    }
    Ok((texts, bytes))
}

fn one(object: &Bound<'_, PyAny>, n: usize) -> PyResult<Text> {
    if object.is_instance_of::<PyString>() {
        return backed(object, || format!("input[{n}]")).map(Text::Single);
    }
    let is_pair = object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>();
    if is_pair && object.len()? == 2 {
        let (first, second) = (object.get_item(0)?, object.get_item(1)?);
        let first = backed(&first, || format!("input[{n}][0]"))?;
        let second = backed(&second, || format!("input[{n}][1]"))?;
        return Ok(Text::Pair(first, second));
    }
    Err(not_a_text(object, &format!("input[{n}]")))
}

fn backed(object: &Bound<'_, PyAny>, name: impl Fn() -> String) -> PyResult<PyBackedStr> {
    let Ok(string) = object.cast::<PyString>() else {
        return Err(not_a_text(object, &name()));
    };
    PyBackedStr::try_from(string.clone())
        .map_err(|error| lone_surrogate(object.py(), &error, &name()))
}

/// Reads ids from a sequence of numbers, or from a buffer such as that of a NumPy array.
pub(crate) fn ids(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let py = object.py();
    if let Ok(list) = object.cast::<PyList>() {
        // The usual case, which is not to wait for the errors of others.
        return list.iter().map(|number| id(number.extract()?)).collect();
    }
    if let Ok(buffer) = PyBuffer::<u32>::get(object) {
        return one_dimension(&buffer)?.to_vec(py);
    }
    if let Ok(buffer) = PyBuffer::<i64>::get(object) {
        let numbers = one_dimension(&buffer)?.to_vec(py)?;
        return numbers.into_iter().map(id).collect();
    }
    if object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("ids must be a list of int, not a str"));
    }
    let mut ids = Vec::with_capacity(object.len().unwrap_or(0));
    for number in object.try_iter()? {
        ids.push(id(number?.extract::<i64>()?)?);
    }
    Ok(ids)
}

fn one_dimension<T>(buffer: &PyBuffer<T>) -> PyResult<&PyBuffer<T>>
where
    T: pyo3::buffer::Element,
{
    match buffer.dimensions() {
        1 => Ok(buffer),
        more => Err(PyValueError::new_err(format!(
            "ids must have one dimension, not {more}; decode_batch takes several sequences"
        ))),
    }
}

fn id(number: i64) -> PyResult<u32> {
    u32::try_from(number)
        .map_err(|_| PyOverflowError::new_err(format!("{number} is no id: ids are 0 to 2**32 - 1")))
}
