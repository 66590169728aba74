//! The fields of a checkpoint's JSON files and the effect of each: one table that loading
//! obeys, that the documentation is made of, and that is tested row by row.
//!
//! A field that would change an answer is either obeyed or refused by name when the checkpoint is
//! loaded. A field that has no row is passed over, as transformers does, with a warning that names
//! it.

mod adapter;
mod config;
mod encoder;
mod generation;
mod sentence_transformers;
mod tokenizer;

use serde_json::{Map, Value};

pub use crate::field::{Effect, Field};

use crate::{
    Error,
    error::first_few,
    families::FAMILIES,
    field::ENCODERS,
    json::{self, short},
};

/// Generation parameters in `config.json`, where they were saved once.
static IN_CONFIG: Field = Field {
    file: "config.json",
    names: &[],
    effect: Effect::NoEffect,
    note: "read from `generation_config.json` alone, as by transformers since version 5",
};

/// Returns all rows, file by file.
pub fn all() -> impl Iterator<Item = &'static Field> {
    let mut own: Vec<_> = FAMILIES.iter().map(|family| family.own_fields).collect();
    own.dedup_by_key(|rows| rows.first().map(|row| row.file));
    let others = [
        generation::GENERATION_CONFIG,
        tokenizer::TOKENIZER,
        tokenizer::TOKENIZER_CONFIG,
        tokenizer::SPECIAL_TOKENS_MAP,
        sentence_transformers::MODULES,
        sentence_transformers::POOLING,
        sentence_transformers::NORMALIZE,
        sentence_transformers::DENSE,
        sentence_transformers::LOGIT_SCORE,
        sentence_transformers::PIPELINE,
        sentence_transformers::TRANSFORMER,
        adapter::ADAPTER,
    ];
    let shared = [config::CONFIG, encoder::CONFIG];
    shared.into_iter().chain(own).chain(others).flatten()
}

/// Returns the row of a field.
#[must_use]
pub fn find(file: &str, name: &str) -> Option<&'static Field> {
    let row = |file: &str| all().find(|f| f.file == file && f.names.contains(&name));
    let family = FAMILIES.iter().find(|family| family.table() == file);
    let in_config = || row("generation_config.json").map(|_| &IN_CONFIG);
    row(file).or_else(|| match file {
        "config.json" | ENCODERS => in_config(),
        _ => row(family?.shared_table()).or_else(in_config),
    })
}

/// Parses a file that is a JSON object and checks its fields against the table. Returns the
/// object, and warnings that name fields that are passed over.
///
/// # Errors
/// [`Error::Json`]; [`Error::Unsupported`] naming the first field with a value that is refused.
pub fn read(file: &str, bytes: &[u8]) -> Result<(Map<String, Value>, Vec<String>), Error> {
    let map = json::object(file, bytes)?;
    let warnings = check(file, &map)?;
    Ok((map, warnings))
}

/// Parses a file that is a JSON object, as Python writes it: `NaN` and infinite numbers are texts.
///
/// # Errors
/// [`Error::Json`].
pub fn document(file: &str, bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    json::object(file, bytes)
}

/// Checks fields of a file against the table and returns warnings that name those passed over.
pub(crate) fn check(file: &str, map: &Map<String, Value>) -> Result<Vec<String>, Error> {
    check_as(file, file, map)
}

/// Checks fields of a file, which the table knows as `table`.
pub(crate) fn check_as(
    table: &str,
    file: &str,
    map: &Map<String, Value>,
) -> Result<Vec<String>, Error> {
    match refused(table, map).next() {
        None => Ok(passed_over(table, file, map)),
        Some(what) => Err(Error::Unsupported {
            file: file.to_owned(),
            what,
        }),
    }
}

/// Returns warnings that name the fields of a file that are passed over.
pub(crate) fn passed_over(table: &str, file: &str, map: &Map<String, Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut unknown = Vec::new();
    for (name, _) in map.iter().filter(|(_, value)| !value.is_null()) {
        let shown = || name.chars().take(60).collect::<String>();
        match find(table, name) {
            None => unknown.push(format!("`{}`", shown())),
            Some(field) if field.effect == Effect::Warned => {
                let note = field.note;
                warnings.push(format!("{file}: `{}` is passed over: {note}", shown()));
            }
            Some(_) => {}
        }
    }
    if !unknown.is_empty() {
        let names = first_few(&unknown);
        let passed = "has fields that Prelude does not know and passes over";
        warnings.push(format!("{file} {passed}: {names}"));
    }
    warnings
}

/// Describes each field with a value that the table refuses.
pub(crate) fn refused(file: &str, map: &Map<String, Value>) -> impl Iterator<Item = String> {
    map.iter().filter_map(move |(name, value)| {
        let field = find(file, name)?;
        let Effect::Refused(allowed) = field.effect else {
            return None;
        };
        if value.is_null() || allowed.iter().any(|text| is_same(text, value)) {
            return None;
        }
        let note = field.note;
        Some(match allowed {
            [] => format!("`{name}` ({note})"),
            _ => {
                let (value, allowed) = (short(value), allowed.join(" or "));
                format!("`{name}` of {value} (only {allowed}: {note})")
            }
        })
    })
}

/// Returns whether a value is what a JSON text says, with 1 equal to 1.0.
fn is_same(text: &str, value: &Value) -> bool {
    let expected: Value = serde_json::from_str(text).expect("the table holds JSON texts");
    match (expected.as_f64(), value.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => expected == *value,
    }
}

#[cfg(test)]
mod tests;
