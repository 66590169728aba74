//! The normalizers of a tokenizer, and the ranges that their texts come from.

mod aligned;
mod ascii;
mod bert;
mod charsmap;
mod form;
mod letters;
mod nfc;
mod step;

use crate::error::Error;
use crate::json::Component;
use crate::pattern::Pattern;
use aligned::Aligned;
pub(crate) use ascii::push_replaced;
use bert::Bert;
pub(crate) use charsmap::Charsmap;
use form::Form;
use letters::Letters;
use std::borrow::Cow;
use std::sync::Arc;
use step::Step;

const SUPPORTED: &str = "NFC, NFD, NFKC, NFKD, Prepend, Replace, BertNormalizer, Lowercase, \
    Strip, StripAccents, Nmt, Precompiled, Sequence of these";

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
    /// The place of each step in the JSON.
    paths: Vec<String>,
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
        let step = match component.kind(path)? {
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
            "Lowercase" => Step::Letters(Letters::Lowercase),
            "StripAccents" => Step::Letters(Letters::StripAccents),
            "Nmt" => Step::Letters(Letters::Nmt),
            "Strip" => Step::Letters(Letters::Strip {
                left: component.bool("strip_left", path)?,
                right: component.bool("strip_right", path)?,
            }),
            "Precompiled" => Step::Precompiled(Arc::new(Charsmap::load(component, path)?)),
            other => {
                return Err(Error::unsupported(
                    path,
                    format!("normalizer {other} (supported: {SUPPORTED})"),
                ));
            }
        };
        self.steps.push(step);
        self.paths.push(path.to_owned());
        Ok(())
    }

    /// Refuses steps that are no normalization form, which byte-level models do without
    /// and which their cuts do not know.
    pub(crate) fn only_forms(&self) -> Result<(), Error> {
        self.only("a ByteLevel model", |step| matches!(step, Step::Form(_)))
    }

    /// Refuses steps that SentencePiece-style BPE models do without and which their shortcuts do
    /// not know.
    pub(crate) fn only_plain(&self) -> Result<(), Error> {
        self.only("a BPE model", |step| {
            matches!(
                step,
                Step::Form(_) | Step::Prepend(_) | Step::Replace { .. }
            )
        })
    }

    fn only(&self, model: &str, fits: impl Fn(&Step) -> bool) -> Result<(), Error> {
        match self.steps.iter().position(|step| !fits(step)) {
            None => Ok(()),
            Some(at) => {
                let what = format!("normalizer {} for {model}", self.steps[at].name());
                Err(Error::unsupported(&self.paths[at], what))
            }
        }
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
        let mut aligned = Aligned::new(text);
        for step in &self.steps {
            step.align(&mut aligned);
        }
        aligned.ranges
    }
}

fn replace(component: &Component, path: &str) -> Result<Step, Error> {
    let pattern_path = format!("{path}.pattern");
    let pattern = component.object("pattern", path)?;
    let to = component.string("content", path)?.to_owned();
    if let Some(from) = pattern.get("String").and_then(|from| from.as_str()) {
        if from.is_empty() {
            return Err(Error::unsupported(pattern_path, "Replace of nothing"));
        }
        let from = from.to_owned();
        return Ok(Step::Replace { from, to });
    }
    let regex = pattern.string("Regex", &pattern_path)?;
    let pattern = Pattern::new(regex).map_err(|problem| {
        Error::unsupported(&pattern_path, format!("pattern {regex:?}: {problem}"))
    })?;
    let pattern = Box::new(pattern);
    Ok(Step::ReplacePattern { pattern, to })
}

#[cfg(test)]
mod normalize_tests;
