//! Bounds on the work that a grammar can cause, checked before that work begins.
//!
//! `llguidance` pays for its work with fuel, but asks how much is left only between two derivatives
//! of regular expressions, and spends without a limit on the transitions out of the first lexer
//! state. A single derivative can take gigabytes: that of `a?a?a?…` is quadratic in the number of
//! atoms, that of an intersection multiplies the branches of both sides. So a grammar is let
//! through only if every derivative that its lexer can ever need is small:
//!
//! - [`class_ranges`] bounds what the parser of regular expressions makes of named classes.
//! - [`Widths::of`] bounds the branches of each expression's derivative. What the lexer builds later
//!   grows from state to state by such steps only, and fuel is checked after each of them.
//! - [`check_schema`] bounds the copies that are made of a schema's parts, before any are counted.
//! - [`begins`] takes the first transitions with fuel.

mod expansion;
mod schema;
mod widths;

use llguidance::{api::ParserLimits, earley::lexerspec::LexerSpec};

pub(super) use schema::check_schema;
use widths::{Kinds, Widths};

/// Upper bound of the code point ranges that the named classes of a grammar stand for together.
/// Each takes eight bytes in the parser of regular expressions: 3 MiB.
const CLASS_RANGES_MAX: usize = 400_000;

/// Fuel for the transitions out of the first state.
const FIRST_FUEL: u64 = 300_000;

/// The message of [`TooComplex`].
pub(super) const TOO_COMPLEX: &str = "grammar exceeds the compiler's bounds";

/// A bound was exceeded, or the compile was stopped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{TOO_COMPLEX}")]
pub(super) struct TooComplex;

/// Returns an upper bound of the code point ranges that the classes named in `text` stand for.
/// `is_schema`: digits and word characters are ASCII in a schema's patterns.
fn class_ranges(text: &str, is_schema: bool) -> usize {
    let mut escapes = text.split('\\');
    escapes.next();
    let ranges = |escape: &str| match escape.bytes().next() {
        Some(b'p' | b'P') => 800,
        Some(b'w' | b'W') if !is_schema => 800,
        Some(b'd' | b'D') if !is_schema => 80,
        Some(b's' | b'S') => 16,
        // A backslash, as JSON inside a grammar may spell it.
        Some(b'u')
            if escape
                .get(1..5)
                .is_some_and(|hex| hex.eq_ignore_ascii_case("005c")) =>
        {
            800
        }
        _ => 0,
    };
    escapes.map(ranges).sum()
}

/// Checks a source before it is parsed.
pub(super) fn check_text(text: &str, is_schema: bool) -> Result<(), TooComplex> {
    match class_ranges(text, is_schema) > CLASS_RANGES_MAX {
        true => Err(TooComplex),
        false => Ok(()),
    }
}

/// Checks the regular expressions of a parsed grammar.
pub(super) fn check_lexer(spec: &LexerSpec, limits: &ParserLimits) -> Result<(), TooComplex> {
    let widths = Widths::of(spec.regex_builder.exprset(), &Kinds::new())?;
    match widths.has_sets {
        true => begins(spec, limits),
        // Without intersections and negations nothing has to be searched for.
        false => Ok(()),
    }
}

/// Takes the first transitions as the lexer will, within fuel: they look for a text in the
/// intersections of the grammar, which takes time exponential in their size.
fn begins(spec: &LexerSpec, limits: &ParserLimits) -> Result<(), TooComplex> {
    let mut limits = limits.clone();
    let mut lexer = spec.to_regex_vec(&mut limits).map_err(|_| TooComplex)?;
    lexer.set_fuel(FIRST_FUEL);
    let first = lexer.initial_state(&spec.all_lexemes());
    for byte in 0..=u8::MAX {
        lexer.transition(first, byte);
        if lexer.has_error() {
            return Err(TooComplex);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_weighed() {
        let check = |text: &str, is_schema, expected| {
            assert_eq!(class_ranges(text, is_schema), expected, "{text}");
        };
        check(r"a\w", false, 800);
        check(r"\w\d\s", false, 896);
        check(r"\w\d\s", true, 16);
        check(r"\pL\P{Lu}", true, 1_600);
        check(r"\u005cp\u005Cp\u0041", true, 1_600);
        check("", false, 0);
    }
}
