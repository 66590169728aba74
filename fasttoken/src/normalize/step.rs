//! One normalizer: what it makes of a text, and of the ranges of its bytes.

use super::aligned::Aligned;
use super::ascii::replace_byte;
use super::bert::Bert;
use super::form::Form;

/// One normalizer.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Form(Form),
    Bert(Box<Bert>),
    /// Puts a string before every text that is not empty.
    Prepend(String),
    Replace {
        from: String,
        to: String,
    },
}

impl From<Form> for Step {
    fn from(form: Form) -> Self {
        Self::Form(form)
    }
}

impl Step {
    /// The normalized text, unless it is `text`.
    pub(super) fn apply(&self, text: &str) -> Option<String> {
        match self {
            Self::Form(form) => form.apply(text),
            Self::Bert(bert) => bert.apply(text),
            Self::Prepend(prefix) => (!text.is_empty()).then(|| format!("{prefix}{text}")),
            Self::Replace { from, to } => match from.as_bytes() {
                [byte] if byte.is_ascii() => replace_byte(text, *byte, to),
                _ => text.contains(from.as_str()).then(|| text.replace(from, to)),
            },
        }
    }

    /// [`Step::apply`] with the ranges of its bytes, given those of the bytes of `text`.
    pub(super) fn align(
        &self,
        text: &str,
        alignment: &[(usize, usize)],
    ) -> (String, Vec<(usize, usize)>) {
        let mut normalized = String::with_capacity(text.len() + 8);
        let mut next = Vec::with_capacity(alignment.len() + 8);
        match self {
            Self::Bert(bert) => {
                let mut aligned = Aligned {
                    text: text.to_owned(),
                    ranges: alignment.to_vec(),
                };
                bert.align(&mut aligned);
                return (aligned.text, aligned.ranges);
            }
            Self::Form(form) => {
                // Where in `text` the next character that replaces one stands.
                let mut at = 0usize;
                let mut replaced = text.chars();
                form.transform(text, |(c, change)| {
                    let range = if change > 0 {
                        // An inserted character shares the range of the one before it.
                        at.checked_sub(1).map_or((0, 0), |last| alignment[last])
                    } else {
                        alignment.get(at).copied().unwrap_or_default()
                    };
                    if change <= 0 {
                        let gone = 1 + change.unsigned_abs();
                        at += replaced
                            .by_ref()
                            .take(gone)
                            .map(char::len_utf8)
                            .sum::<usize>();
                    }
                    next.extend(std::iter::repeat_n(range, c.len_utf8()));
                    normalized.push(c);
                });
            }
            Self::Prepend(prefix) => {
                if let Some(first) = alignment.first() {
                    normalized.push_str(prefix);
                    next.extend(std::iter::repeat_n(*first, prefix.len()));
                }
                normalized.push_str(text);
                next.extend_from_slice(alignment);
            }
            Self::Replace { from, to } => {
                let mut done = 0;
                for (at, _) in text.match_indices(from.as_str()) {
                    let end = at + from.len();
                    normalized.push_str(&text[done..at]);
                    next.extend_from_slice(&alignment[done..at]);
                    normalized.push_str(to);
                    // What comes in takes the range of the last byte that goes.
                    next.extend(std::iter::repeat_n(alignment[end - 1], to.len()));
                    done = end;
                }
                normalized.push_str(&text[done..]);
                next.extend_from_slice(&alignment[done..]);
            }
        }
        (normalized, next)
    }
}
