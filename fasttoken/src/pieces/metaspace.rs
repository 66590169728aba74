//! The settings of `Metaspace`, which is a pre-tokenizer and a decoder.

use super::META;
use crate::error::Error;
use crate::json::Component;

/// The places where `Metaspace` puts a `▁` before a text that does not begin with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prepend {
    /// The beginning of the whole text.
    First,
    /// The beginning of every part between added tokens.
    Always,
    Never,
}

/// The settings of the pre-tokenizer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metaspace {
    pub(crate) prepend: Prepend,
    /// True if each `▁` begins a word.
    pub(crate) split: bool,
}

impl Metaspace {
    pub(crate) fn load(component: &Component, path: &str) -> Result<Self, Error> {
        check_replacement(component, path)?;
        let split = match component.get("split") {
            None | Some(serde_json::Value::Null) => true,
            Some(_) => component.bool("split", path)?,
        };
        Ok(Self {
            prepend: prepend_scheme(component, path)?,
            split,
        })
    }
}

/// Checks that the replacement is `▁`, as in every published file: another character would need
/// other classes.
pub(super) fn check_replacement(component: &Component, path: &str) -> Result<(), Error> {
    let replacement = component.string("replacement", path)?;
    if replacement != META.encode_utf8(&mut [0; 4]) {
        return Err(Error::unsupported(
            format!("{path}.replacement"),
            format!("Metaspace with {replacement:?} (supported: {META:?})"),
        ));
    }
    Ok(())
}

/// Returns the scheme, also in the older spelling `add_prefix_space`.
pub(super) fn prepend_scheme(component: &Component, path: &str) -> Result<Prepend, Error> {
    let prefix = match component.get("add_prefix_space") {
        None | Some(serde_json::Value::Null) => None,
        Some(_) => Some(component.bool("add_prefix_space", path)?),
    };
    let scheme = match component.get("prepend_scheme") {
        None => None,
        Some(_) => Some(component.string("prepend_scheme", path)?),
    };
    match (scheme, prefix) {
        (Some("never"), _) => Ok(Prepend::Never),
        (None | Some("first" | "always"), Some(false)) => Err(Error::invalid(
            format!("{path}.add_prefix_space"),
            "contradicts prepend_scheme, which is \"always\" unless it says \"never\"",
        )),
        (Some("first"), _) => Ok(Prepend::First),
        (None | Some("always"), _) => Ok(Prepend::Always),
        (Some(other), _) => Err(Error::invalid(
            format!("{path}.prepend_scheme"),
            format!("{other:?} is none of first, always, never"),
        )),
    }
}
