//! The input of an encoding: one text or a pair.

use std::borrow::Cow;
use std::sync::Arc;

/// The input of an encoding: one text, or two that the file's template for pairs puts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'t> {
    /// One text.
    Single(&'t str),
    /// Two texts.
    Pair(&'t str, &'t str),
}

impl Input<'_> {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Single(text) => text.len(),
            Self::Pair(first, second) => first.len() + second.len(),
        }
    }
}

impl<'t> From<&'t str> for Input<'t> {
    fn from(text: &'t str) -> Self {
        Self::Single(text)
    }
}

/// References to other types of texts, since a generic parameter does not dereference them.
macro_rules! from_texts {
    ($($text:ty),+) => {$(
        impl<'t> From<&'t $text> for Input<'t> {
            fn from(text: &'t $text) -> Self {
                Self::Single(text)
            }
        }
    )+};
}

from_texts!(&str, String, Box<str>, Arc<str>, Cow<'_, str>);

impl<'t> From<&'t Input<'_>> for Input<'t> {
    fn from(input: &'t Input<'_>) -> Self {
        *input
    }
}

impl<'t> From<(&'t str, &'t str)> for Input<'t> {
    fn from((a, b): (&'t str, &'t str)) -> Self {
        Self::Pair(a, b)
    }
}

impl<'t, A: AsRef<str>, B: AsRef<str>> From<&'t (A, B)> for Input<'t> {
    fn from((a, b): &'t (A, B)) -> Self {
        Self::Pair(a.as_ref(), b.as_ref())
    }
}
