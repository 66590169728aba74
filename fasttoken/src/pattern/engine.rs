//! Split patterns that the matcher of this crate does not know, on a general engine.
//!
//! The engine reads Oniguruma's syntax, but is not Oniguruma: tests compare the two, and prove
//! nothing about a pattern that they do not have. So a file whose pattern runs here has a warning.
//! A known difference is that `\w` and `\b` do not count numbers such as `½` as parts of words.

use fancy_regex::{Regex, RegexBuilder};

/// A pattern on the general engine.
#[derive(Debug, Clone)]
pub(crate) struct Engine(Regex);

/// Upper bound of the steps back that the search for one match takes.
const BACKTRACK_MAX: usize = 1_000_000;
/// Upper bound of the memory of a compiled pattern, in bytes.
const SIZE_MAX: usize = 10 << 20;
/// Upper bound of the length of a pattern, in bytes.
const PATTERN_MAX: usize = 16 << 10;

impl Engine {
    /// Compiles a pattern in Oniguruma's syntax; the error says what is wrong with it.
    pub(crate) fn new(pattern: &str) -> Result<Self, String> {
        if pattern.len() > PATTERN_MAX {
            return Err(format!("a pattern may have {PATTERN_MAX} bytes"));
        }
        if pattern.contains("[:") {
            return Err(
                "the engine knows names in brackets such as [:alpha:] for ASCII alone".into(),
            );
        }
        let regex = RegexBuilder::new(pattern)
            .oniguruma_mode(true)
            .multi_line(true)
            .backtrack_limit(BACKTRACK_MAX)
            .delegate_size_limit(SIZE_MAX)
            .build();
        // The engine shows the place in several lines.
        regex
            .map(Self)
            .map_err(|problem| problem.to_string().replace('\n', " "))
    }

    /// Returns the matches of a text in order, some of which may be empty. The rest of a text in which
    /// the search for a match takes too many steps has none.
    pub(crate) fn matches(&self, text: &str) -> impl Iterator<Item = (usize, usize)> {
        let found = self.0.find_iter(text).map_while(Result::ok);
        found.map(|found| (found.start(), found.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::Engine;
    use proptest::prelude::*;
    use tokenizers::utils::SysRegex;

    /// Syntax that the matcher of this crate refuses.
    const SHAPES: [&str; 13] = [
        r"\w+|\W",
        r".+",
        r"^\s*a|b$",
        r"a+?b|c*",
        r"(ab)+|(?:a|c)*b",
        r"(?<=a)b+|(?<!b)c",
        r"\b\S+\b",
        r"(?i:ss|[a-k]+)",
        r"(?=[A-Z])|x",
        r"(a|b)\1",
        r"\p{Latin}+|\p{^L}",
        r"(?>a+)b|a",
        r"a{2}+|\h",
    ];

    proptest! {
        #[test]
        fn engine_matches_like_the_reference(text in "[abcxKS '_\n9٣Ü漢\u{301}]{0,14}") {
            let differs = |pattern: &&&str| {
                let engine = Engine::new(pattern).expect("supported");
                let reference = SysRegex::new(pattern).expect("a pattern of the reference");
                !engine.matches(&text).eq(reference.find_iter(&text))
            };
            let different: Vec<_> = SHAPES.iter().filter(differs).collect();
            prop_assert!(different.is_empty(), "{:?} on {:?}", different, text);
        }
    }

    #[test]
    fn patterns_that_cannot_be_compiled_are_errors() {
        for pattern in [
            "(",
            "[a",
            "a{1000}{1000}{1000}",
            r"\p{Nothing}",
            &"a".repeat(100_000),
        ] {
            let problem = Engine::new(pattern).expect_err("too large, or malformed");
            assert!(!problem.contains('\n'), "{problem}");
        }
    }

    /// A search that would take exponential time ends, and the rest of the text has no match.
    #[test]
    fn backtracking_is_bounded() {
        let engine = Engine::new(r"b|(?:a|a)*(?=c)(?!d)").expect("supported");
        let text = format!("b{}", "a".repeat(200));
        assert_eq!(engine.matches(&text).next(), Some((0, 1)));
        assert!(engine.matches(&text).count() < 300);
    }
}
