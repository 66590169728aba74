//! Compiling one grammar.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Instant,
};

use llguidance::{Matcher, ParserFactory, api::TopLevelGrammar};
use prelude_core::TokenSet;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    Language,
    mask_threads::{MaskCost, next_tokens},
};

/// A grammar, ready to be walked.
pub(super) struct Compiled {
    /// At the beginning, with the lexer tables that the first mask took.
    pub(super) matcher: Mutex<Matcher>,
    /// What may come first, ends apart.
    pub(super) first: TokenSet,
    /// Whether nothing may come at all.
    pub(super) accepts_nothing: bool,
    /// What masks take.
    pub(super) mask_cost: Arc<MaskCost>,
}

/// Why there is none.
pub(super) enum Failure {
    Invalid(String),
    TooComplex,
    NoThread,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

/// A grammar's text.
pub(super) struct Source {
    kind: Kind,
    pub(super) text: String,
    schema: Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Regex,
    Json,
    Lark,
}

impl Source {
    pub(super) fn new(language: &Language) -> Self {
        let (kind, text, schema) = match language {
            Language::Regex(regex) => (Kind::Regex, unanchored(regex).to_owned(), Value::Null),
            Language::Json(schema) => (Kind::Json, schema.to_string(), schema.clone()),
            Language::Lark(text) => (Kind::Lark, text.clone(), Value::Null),
            Language::Choice(_) => unreachable!("a choice runs on its own trie"),
        };
        Self { kind, text, schema }
    }

    pub(super) fn key(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update([self.kind as u8]);
        hash.update(&self.text);
        hash.finalize().into()
    }

    pub(super) fn compile(self, factory: &ParserFactory) -> Result<Compiled, Failure> {
        let grammar = match self.kind {
            Kind::Regex => TopLevelGrammar::from_regex(&self.text),
            Kind::Json if self.schema.get("x-guidance").is_some() => {
                return Err(Failure::Invalid(
                    "not have the keyword `x-guidance`".to_owned(),
                ));
            }
            Kind::Json => TopLevelGrammar::from_json_schema(self.schema),
            Kind::Lark => TopLevelGrammar::from_lark(self.text),
        };
        let parser = factory.create_parser(grammar);
        let mut matcher = match parser {
            Ok(parser) => Matcher::new(Ok(parser)),
            Err(error) => return Err(self.kind.failure(&error.to_string())),
        };
        let accepts_nothing = matcher.is_accepting().unwrap_or(false);
        let began = Instant::now();
        let Some(first) = next_tokens(&mut matcher, &[]) else {
            let error = matcher.get_error().unwrap_or_default();
            return Err(self.kind.failure(&error));
        };
        Ok(Compiled {
            mask_cost: Arc::new(MaskCost::new(began.elapsed())),
            matcher: Mutex::new(matcher),
            first,
            accepts_nothing,
        })
    }
}

impl Kind {
    /// What became of a grammar, without the library's words: they may quote the grammar.
    fn failure(self, error: &str) -> Failure {
        let limits = [
            "fuel",
            "too large",
            "too big",
            "TooComplex",
            "limit",
            "too many",
            "max_",
        ];
        if limits.iter().any(|word| error.contains(word)) {
            return Failure::TooComplex;
        }
        Failure::Invalid(match self {
            Self::Regex => "be a regular expression without look-around, back-references and \
                            inner anchors"
                .to_owned(),
            Self::Lark => "be a grammar in Lark's syntax with a rule `start`".to_owned(),
            Self::Json => match keywords(error) {
                Some(names) => format!("not have keywords that cannot be enforced: {names}"),
                None => "be a JSON schema that can be satisfied and whose every keyword can be \
                         enforced"
                    .to_owned(),
            },
        })
    }
}

/// The keywords that the library names as not implemented. They are keywords of the standard.
fn keywords(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once("Unimplemented keys: [")?;
    rest.split_once(']').map(|(names, _)| names)
}

/// Without anchors at both ends: the whole text has to match anyway.
fn unanchored(regex: &str) -> &str {
    let inner = regex.strip_prefix('^').unwrap_or(regex);
    let Some(body) = inner.strip_suffix('$') else {
        return inner;
    };
    let backslashes = body.bytes().rev().take_while(|&b| b == b'\\').count();
    if backslashes % 2 == 1 { inner } else { body }
}

/// How deep brackets are nested; those of classes and strings count too, which is on the safe
/// side.
pub(super) fn depth(text: &str) -> usize {
    let (mut depth, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_anchors_are_taken_off() {
        let check = |regex, expected| assert_eq!(unanchored(regex), expected);
        check("^a+$", "a+");
        check("a$", "a");
        check("^a", "a");
        check(r"a\$", r"a\$");
        check(r"a\\$", r"a\\");
        check("", "");
    }

    #[test]
    fn brackets_are_counted() {
        assert_eq!(depth("((a)|[b]){2}"), 2);
        assert_eq!(depth(")))("), 1);
    }

    #[test]
    fn unenforceable_keywords_are_named() {
        let found = keywords(r#"x: Unimplemented keys: ["not", "uniqueItems"] y"#);
        assert_eq!(found, Some(r#""not", "uniqueItems""#));
        assert_eq!(keywords("other"), None);
    }
}
