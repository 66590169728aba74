//! Truncation and padding, as Python states and sees them, and as a `tokenizer.json` has them.

use fasttoken::{Padding, PaddingLength, Side, Truncation, TruncationStrategy};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};

const STRATEGIES: [(&str, &str, TruncationStrategy); 3] = [
    (
        "longest_first",
        "LongestFirst",
        TruncationStrategy::LongestFirst,
    ),
    ("only_first", "OnlyFirst", TruncationStrategy::OnlyFirst),
    ("only_second", "OnlySecond", TruncationStrategy::OnlySecond),
];

pub(crate) fn side(direction: &str) -> PyResult<Side> {
    match direction {
        "left" => Ok(Side::Left),
        "right" => Ok(Side::Right),
        other => Err(PyValueError::new_err(format!(
            "direction must be 'left' or 'right', not {other:?}"
        ))),
    }
}

pub(crate) fn strategy(name: &str) -> PyResult<TruncationStrategy> {
    let known = STRATEGIES.iter().find(|(known, ..)| *known == name);
    known.map(|(.., strategy)| *strategy).ok_or_else(|| {
        PyValueError::new_err(format!(
            "strategy must be 'longest_first', 'only_first' or 'only_second', not {name:?}"
        ))
    })
}

/// Returns the names of a strategy, in Python and in a file.
fn strategy_names(strategy: TruncationStrategy) -> (&'static str, &'static str) {
    let known = STRATEGIES.iter().find(|(.., known)| *known == strategy);
    known.map_or(("", ""), |(python, file, _)| (*python, *file))
}

/// Returns the names of a side, in Python and in a file.
fn side_names(side: Side) -> (&'static str, &'static str) {
    match side {
        Side::Left => ("left", "Left"),
        Side::Right => ("right", "Right"),
    }
}

/// Returns truncation as a dictionary of the arguments of `enable_truncation`.
pub(crate) fn truncation_dict<'py>(
    py: Python<'py>,
    truncation: &Truncation,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("max_length", truncation.max_length)?;
    dict.set_item("stride", truncation.stride)?;
    dict.set_item("strategy", strategy_names(truncation.strategy).0)?;
    dict.set_item("direction", side_names(truncation.side).0)?;
    Ok(dict)
}

/// Returns padding as a dictionary of the arguments of `enable_padding`.
pub(crate) fn padding_dict<'py>(
    py: Python<'py>,
    padding: &Padding,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let length = match padding.length {
        PaddingLength::BatchLongest => None,
        PaddingLength::Fixed(length) => Some(length),
    };
    dict.set_item("length", length)?;
    dict.set_item("pad_to_multiple_of", padding.pad_to_multiple_of)?;
    dict.set_item("pad_id", padding.id)?;
    dict.set_item("pad_token", &padding.token)?;
    dict.set_item("pad_type_id", padding.type_id)?;
    dict.set_item("direction", side_names(padding.side).0)?;
    Ok(dict)
}

/// Returns truncation as a file has it.
pub(crate) fn truncation_json(truncation: Option<&Truncation>) -> Value {
    truncation.map_or(Value::Null, |truncation| {
        json!({
            "direction": side_names(truncation.side).1,
            "max_length": truncation.max_length,
            "strategy": strategy_names(truncation.strategy).1,
            "stride": truncation.stride,
        })
    })
}

/// Returns padding as a file has it.
pub(crate) fn padding_json(padding: Option<&Padding>) -> Value {
    padding.map_or(Value::Null, |padding| {
        json!({
            "strategy": match padding.length {
                PaddingLength::BatchLongest => json!("BatchLongest"),
                PaddingLength::Fixed(length) => json!({ "Fixed": length }),
            },
            "direction": side_names(padding.side).1,
            "pad_to_multiple_of": padding.pad_to_multiple_of,
            "pad_id": padding.id,
            "pad_type_id": padding.type_id,
            "pad_token": padding.token,
        })
    })
}
