//! A normalizer: what it makes of a text, and of the ranges of its bytes.

use super::aligned::Aligned;
use super::ascii::replace_byte;
use super::bert::Bert;
use super::charsmap::Charsmap;
use super::form::Form;
use super::letters::Letters;
use crate::pattern::Pattern;
use std::sync::Arc;

/// A normalizer.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Form(Form),
    /// Puts a string before every text that is not empty.
    Prepend(String),
    Replace {
        from: String,
        to: String,
    },
    ReplacePattern {
        pattern: Box<Pattern>,
        to: String,
    },
    Bert(Box<Bert>),
    Letters(Letters),
    Precompiled(Arc<Charsmap>),
}

impl From<Form> for Step {
    fn from(form: Form) -> Self {
        Self::Form(form)
    }
}

impl Step {
    /// Returns the normalized text, unless it is `text`.
    pub(super) fn apply(&self, text: &str) -> Option<String> {
        match self {
            Self::Form(form) => form.apply(text),
            Self::Prepend(prefix) => (!text.is_empty()).then(|| format!("{prefix}{text}")),
            Self::Replace { from, to } => match from.as_bytes() {
                [byte] if byte.is_ascii() => replace_byte(text, *byte, to),
                _ => text.contains(from.as_str()).then(|| text.replace(from, to)),
            },
            Self::ReplacePattern { pattern, to } => replace_matches(text, pattern, to),
            Self::Bert(bert) => bert.apply(text),
            Self::Letters(letters) => letters.apply(text),
            Self::Precompiled(map) => map.apply(text),
        }
    }

    /// Returns the name of the normalizer in a file.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Form(Form::Nfc) => "NFC",
            Self::Form(Form::Nfd) => "NFD",
            Self::Form(Form::Nfkc) => "NFKC",
            Self::Form(Form::Nfkd) => "NFKD",
            Self::Prepend(_) => "Prepend",
            Self::Replace { .. } => "Replace of a string",
            Self::ReplacePattern { .. } => "Replace by a regular expression",
            Self::Bert(_) => "BertNormalizer",
            Self::Letters(Letters::Lowercase) => "Lowercase",
            Self::Letters(Letters::StripAccents) => "StripAccents",
            Self::Letters(Letters::Nmt) => "Nmt",
            Self::Letters(Letters::Strip { .. }) => "Strip",
            Self::Precompiled(_) => "Precompiled",
        }
    }

    /// Does to a text and its ranges what [`Step::apply`] does to the text.
    pub(super) fn align(&self, text: &mut Aligned) {
        match self {
            Self::Form(form) => {
                let mut edits = Vec::with_capacity(text.text.len());
                form.transform(&text.text, |edit| edits.push(edit));
                text.transform(edits, 0);
            }
            Self::Prepend(prefix) => text.prepend(prefix),
            Self::Replace { from, to } => {
                let found = text.text.match_indices(from.as_str());
                let matches: Vec<_> = found.map(|(at, _)| (at, at + from.len())).collect();
                text.replace(&matches, to);
            }
            Self::ReplacePattern { pattern, to } => {
                let matches = pattern.matches(&text.text);
                text.replace(&matches, to);
            }
            Self::Bert(bert) => bert.align(text),
            Self::Letters(letters) => letters.align(text),
            Self::Precompiled(map) => map.align(text),
        }
    }
}

fn replace_matches(text: &str, pattern: &Pattern, to: &str) -> Option<String> {
    let matches = pattern.matches(text);
    if matches.is_empty() {
        return None;
    }
    let (mut replaced, mut done) = (String::with_capacity(text.len()), 0);
    for (start, end) in matches {
        replaced.push_str(&text[done..start]);
        replaced.push_str(to);
        done = end;
    }
    Some(replaced + &text[done..])
}
