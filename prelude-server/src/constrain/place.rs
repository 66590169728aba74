//! Places in a schema.

use std::fmt;

/// Longest text of a place in a message, in bytes: names are as long as clients like.
const SHOWN_MAX: usize = 256;

/// The names and numbers that lead to a place, from the schema's root.
#[derive(Clone, Debug, Default)]
pub(super) struct Place(Vec<String>);

impl Place {
    /// Calls `f` with the place `name` below this one, and stays there if it fails.
    pub(super) fn within<E>(
        &mut self,
        name: &str,
        f: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.0.push(name.to_owned());
        f(self)?;
        self.0.pop();
        Ok(())
    }

    /// Returns the place that names lead to.
    pub(super) fn of<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        Self(names.into_iter().cloned().collect())
    }

    /// Returns the innermost of `keywords` that leads here.
    pub(super) fn keyword<'a>(&self, keywords: &[&'a str]) -> Option<&'a str> {
        let found = |name: &String| keywords.iter().copied().find(|keyword| name == keyword);
        self.0.iter().rev().find_map(found)
    }
}

/// A JSON pointer, in backquotes; the root is said in words.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the schema's top");
        }
        let mut text = String::new();
        for name in &self.0 {
            text.push('/');
            text.push_str(&name.replace('~', "~0").replace('/', "~1"));
        }
        match text.char_indices().find(|&(at, _)| at >= SHOWN_MAX) {
            Some((at, _)) => write!(f, "`{}`…", &text[..at]),
            None => write!(f, "`{text}`"),
        }
    }
}
