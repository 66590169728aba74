//! The normalizers of a tokenizer, and the ranges that their texts come from.

mod aligned;
mod ascii;
mod bert;
mod form;
mod nfc;
mod step;

use crate::error::Error;
use crate::json::Component;
pub(crate) use ascii::push_replaced;
use bert::Bert;
use form::Form;
use std::borrow::Cow;
use step::Step;

/// The changes that a normalizer makes to spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blanks {
    Kept,
    Replaced,
    /// Each space is replaced, and a replacement is put before every text that is not empty.
    Prefixed,
}

/// The normalizers of a tokenizer, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Normalizer {
    steps: Vec<Step>,
}

impl Normalizer {
    pub(crate) fn load(component: Option<&Component>, path: &str) -> Result<Self, Error> {
        let mut this = Self::default();
        if let Some(component) = component {
            this.add(component, path)?;
        }
        Ok(this)
    }

    fn add(&mut self, component: &Component, path: &str) -> Result<(), Error> {
        self.steps.push(match component.kind(path)? {
            "NFC" => Form::Nfc.into(),
            "NFD" => Form::Nfd.into(),
            "NFKC" => Form::Nfkc.into(),
            "NFKD" => Form::Nfkd.into(),
            "BertNormalizer" => Step::Bert(Box::new(Bert::load(component, path)?)),
            "Prepend" => Step::Prepend(component.string("prepend", path)?.to_owned()),
            "Replace" => replace(component, path)?,
            "Sequence" => {
                for (part, path) in component.parts("normalizers", path)? {
                    self.add(&part, &path)?;
                }
                return Ok(());
            }
            other => {
                return Err(Error::unsupported(
                    path,
                    format!(
                        "normalizer {other} (supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, BertNormalizer, Sequence of these)"
                    ),
                ));
            }
        });
        Ok(())
    }

    /// Refuses steps that are no normalization form, which byte-level models do without
    /// and which their cuts do not know.
    pub(crate) fn only_forms(&self, path: &str) -> Result<(), Error> {
        if self.steps.iter().all(|step| matches!(step, Step::Form(_))) {
            return Ok(());
        }
        Err(Error::unsupported(
            path,
            "normalizer other than NFC, NFD, NFKC, NFKD and sequences of these, for a ByteLevel model",
        ))
    }

    /// Refuses steps that SentencePiece-style BPE models do without and which their shortcuts do
    /// not know.
    pub(crate) fn only_plain(&self, path: &str) -> Result<(), Error> {
        let plain = |step: &Step| {
            matches!(
                step,
                Step::Form(_) | Step::Prepend(_) | Step::Replace { .. }
            )
        };
        if self.steps.iter().all(plain) {
            return Ok(());
        }
        Err(Error::unsupported(
            path,
            "normalizer other than NFC, NFD, NFKC, NFKD, Prepend, Replace of a string and sequences of these, for a BPE model",
        ))
    }

    /// Returns the changes to spaces, which may become `blank`, or `None` if the normalizer changes
    /// anything else.
    pub(crate) fn blanks(&self, blank: &str) -> Option<Blanks> {
        let replaces =
            |step: &Step| matches!(step, Step::Replace { from, to } if from == " " && to == blank);
        let prepends = |step: &Step| matches!(step, Step::Prepend(prefix) if prefix == blank);
        match self.steps.as_slice() {
            [] => Some(Blanks::Kept),
            [only] if replaces(only) => Some(Blanks::Replaced),
            [a, b] if prepends(a) && replaces(b) || replaces(a) && prepends(b) => {
                Some(Blanks::Prefixed)
            }
            _ => None,
        }
    }

    /// Returns true if normalization changes no text.
    pub(crate) fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the normalized text, borrowed if a quick check finds that it is normalized already.
    pub(crate) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        for step in &self.steps {
            if let Some(normalized) = step.apply(&text) {
                text = Cow::Owned(normalized);
            }
        }
        text
    }

    /// Returns true if a quick check finds that `text`, and every part of it, is normalized
    /// already.
    pub(crate) fn leaves(&self, text: &str) -> bool {
        // The quick check accepts a text if it accepts each character and each pair of
        // neighbours, so it then accepts every part of the text.
        let leaves = |step: &Step| matches!(step, Step::Form(form) if form.quick_check(text));
        self.steps.iter().all(leaves)
    }

    /// Returns, for every byte of the normalized text, the range of bytes of `text` that it comes
    /// from, by the rules of the reference.
    pub(crate) fn alignment(&self, text: &str) -> Vec<(usize, usize)> {
        let mut text = Cow::Borrowed(text);
        let mut alignment = Vec::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            alignment.extend(std::iter::repeat_n((at, at + c.len_utf8()), c.len_utf8()));
        }
        for step in &self.steps {
            let (normalized, next) = step.align(&text, &alignment);
            text = Cow::Owned(normalized);
            alignment = next;
        }
        alignment
    }
}

fn replace(component: &Component, path: &str) -> Result<Step, Error> {
    let pattern = component.object("pattern", path)?;
    match pattern.get("String").and_then(|pattern| pattern.as_str()) {
        Some(from) if !from.is_empty() => Ok(Step::Replace {
            from: from.to_owned(),
            to: component.string("content", path)?.to_owned(),
        }),
        _ => Err(Error::unsupported(
            path,
            "normalizer Replace by a regular expression or of nothing",
        )),
    }
}

#[cfg(test)]
mod tests;
