//! The pre-tokenizers of SentencePiece-style models: none, `Metaspace`, or a cut after a string.

use crate::error::Error;
use crate::json::Component;
use crate::normalize::push_replaced;
use crate::pieces::{META, Prepend, check_replacement, prepend_scheme};
use std::ops::{ControlFlow, Range};

/// The rule by which parts of normalized text become words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Splitter {
    /// A part is a word.
    Whole,
    /// Spaces become `▁`, and with `split` each of them begins a word.
    Metaspace { prepend: Prepend, split: bool },
    /// A word ends after each of these strings.
    After(String),
}

/// A word and its origin.
#[derive(Debug, Clone)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// The part of the normalized segment that it is made of.
    pub(super) part: &'a Part,
    /// The byte of the part's text at which the word begins.
    pub(super) at: usize,
}

/// A part of a normalized segment, between added tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Part {
    /// Bytes of the normalized segment.
    pub(super) range: Range<usize>,
    /// True if a `▁` was put before the part.
    pub(super) prefixed: bool,
    /// True if each space of the part became a `▁`.
    pub(super) replaced: bool,
}

impl Splitter {
    pub(super) fn load(component: Option<&Component>, path: &str) -> Result<Self, Error> {
        let Some(component) = component else {
            return Ok(Self::Whole);
        };
        match component.kind(path)? {
            "Metaspace" => metaspace(component, path),
            "Split" => after(component, path),
            "Sequence" => match component.parts("pretokenizers", path)?.as_slice() {
                [] => Ok(Self::Whole),
                [(only, path)] => Self::load(Some(only), path),
                _ => Err(Error::unsupported(
                    path,
                    "pre-tokenizer Sequence of several steps for a model without ByteLevel",
                )),
            },
            other => Err(Error::unsupported(
                path,
                format!(
                    "pre-tokenizer {other} for a model without ByteLevel (supported: null, Metaspace, Split after a string)"
                ),
            )),
        }
    }

    /// Calls `each` with the words of a part. `begins` says whether the part begins
    /// where the whole text does; `buffer` is memory to keep between calls.
    pub(super) fn split(
        &self,
        normalized: &str,
        range: Range<usize>,
        begins: impl FnOnce() -> bool,
        buffer: &mut String,
        each: &mut dyn FnMut(Word<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let text = &normalized[range.clone()];
        let mut part = Part {
            range,
            ..Part::default()
        };
        match self {
            Self::Whole => each(Word {
                text,
                part: &part,
                at: 0,
            }),
            Self::After(end) => {
                let mut at = 0;
                for (found, _) in text.match_indices(end.as_str()) {
                    let to = found + end.len();
                    each(Word {
                        text: &text[at..to],
                        part: &part,
                        at,
                    })?;
                    at = to;
                }
                if at < text.len() {
                    let text = &text[at..];
                    return each(Word {
                        text,
                        part: &part,
                        at,
                    });
                }
                ControlFlow::Continue(())
            }
            Self::Metaspace { prepend, split } => {
                let bare = !text.starts_with([' ', META]);
                part.prefixed = bare
                    && match prepend {
                        Prepend::First => begins(),
                        Prepend::Always => true,
                        Prepend::Never => false,
                    };
                part.replaced = true;
                buffer.clear();
                buffer.extend(part.prefixed.then_some(META));
                push_replaced(text, b' ', META.encode_utf8(&mut [0; 4]), buffer);
                if !split {
                    return each(Word {
                        text: buffer,
                        part: &part,
                        at: 0,
                    });
                }
                let mut at = 0;
                let first = META.len_utf8();
                while at < buffer.len() {
                    let from = if at == 0 && !buffer.starts_with(META) {
                        0
                    } else {
                        at + first
                    };
                    let next = buffer[from..].find(META).map_or(buffer.len(), |n| from + n);
                    each(Word {
                        text: &buffer[at..next],
                        part: &part,
                        at,
                    })?;
                    at = next;
                }
                ControlFlow::Continue(())
            }
        }
    }
}

fn metaspace(component: &Component, path: &str) -> Result<Splitter, Error> {
    check_replacement(component, path)?;
    let prepend = prepend_scheme(component, path)?;
    let split = match component.get("split") {
        None | Some(serde_json::Value::Null) => true,
        Some(_) => component.bool("split", path)?,
    };
    Ok(Splitter::Metaspace { prepend, split })
}

fn after(component: &Component, path: &str) -> Result<Splitter, Error> {
    let pattern = component.object("pattern", path)?;
    let behaviour = component.string("behavior", path)?;
    let invert = component.bool("invert", path)?;
    let string = pattern.get("String").and_then(|p| p.as_str());
    match string {
        Some(end) if !end.is_empty() && behaviour == "MergedWithPrevious" && !invert => {
            Ok(Splitter::After(end.to_owned()))
        }
        _ => Err(Error::unsupported(
            path,
            "pre-tokenizer Split other than by a string with MergedWithPrevious, for a model without ByteLevel",
        )),
    }
}
