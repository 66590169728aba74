//! Documents of decision models, which have the fields of their format and no others.

use std::path::Path;

use serde_json::Value;

use super::wrong;
use crate::{
    Error,
    json::{self, Fields},
};

/// Reads a document of a folder that must be there, as an object.
pub(super) fn document(folder: &Path, name: &str) -> Result<serde_json::Map<String, Value>, Error> {
    match json::read(&folder.join(name))? {
        Some(bytes) => json::object(name, &bytes),
        None => Err(wrong(
            &folder.display().to_string(),
            format!("lacks {name}"),
        )),
    }
}

/// Refuses fields that a format does not have: they would be another format's.
pub(super) fn refuse_others(fields: &Fields<'_>, known: &[&str]) -> Result<(), Error> {
    let other = fields
        .map
        .keys()
        .find(|name| !known.contains(&name.as_str()));
    match other {
        None => Ok(()),
        Some(name) => {
            let name: String = name.chars().take(60).collect();
            Err(fields.unsupported(format!("`{name}`, which this format does not have,")))
        }
    }
}
