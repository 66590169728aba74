//! Notes about files that load, but not as one may expect.

use std::fmt;

/// A note about a tokenizer that loads, but is slower than others or perhaps not exact; see
/// [`Tokenizer::warnings`](crate::Tokenizer::warnings).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A split pattern has no scanner. Its ids are exact, and encoding takes several times as long as
    /// with the patterns of most models.
    SlowPattern {
        /// The place in the JSON, such as `$.pre_tokenizer.pattern`.
        path: String,
        /// The pattern.
        pattern: String,
        /// The number, from 1, of the first alternative that no scanner has at its place. `None` if
        /// scanners have each alternative, but not in this combination or with this behavior.
        alternative: Option<usize>,
    },
    /// A split pattern has syntax that this crate does not match itself. It runs on the crate
    /// `fancy-regex`, which is made to match as the reference does but not proved to: compare the ids
    /// of some texts with the reference. (`\w` and `\b` are known to differ on numbers such as `½`.) Encoding takes several times as long, and text in which the
    /// search for a match goes back a million times is not split further.
    InexactPattern {
        /// The place in the JSON, such as `$.pre_tokenizer.pattern`.
        path: String,
        /// The pattern.
        pattern: String,
        /// The syntax that this crate does not match itself.
        problem: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SlowPattern {
                path,
                pattern,
                alternative,
            } => {
                write!(
                    f,
                    "split pattern {pattern:?} at {path} has no scanner, so encoding is several times slower"
                )?;
                match alternative {
                    Some(n) => write!(f, " (the first unknown alternative is number {n})"),
                    None => Ok(()),
                }
            }
            Self::InexactPattern {
                path,
                pattern,
                problem,
            } => write!(
                f,
                "split pattern {pattern:?} at {path} runs on a general engine ({problem}); compare ids with the reference, for example with `fasttoken check`"
            ),
        }
    }
}
