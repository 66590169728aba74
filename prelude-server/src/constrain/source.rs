//! Compiling one grammar.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Instant,
};

use llguidance::{
    Matcher, ParserFactory, TokenParser,
    api::{GrammarInit, TopLevelGrammar},
    panic_utils::catch_unwind,
};
use prelude_core::TokenSet;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    blame,
    bounds::{self, TOO_COMPLEX, TooComplex},
    flights::Stop,
    lark,
    mask_threads::{MaskCost, next_tokens},
    names, numbers,
    spec::{GUIDANCE, Language, Whitespace},
};

/// A grammar, ready to be walked.
pub(super) struct Compiled {
    /// A matcher at the beginning of the grammar, with the lexer tables that the first mask took.
    pub(super) matcher: Mutex<Matcher>,
    /// The tokens that may come first, without the end tokens.
    pub(super) first: TokenSet,
    /// True if nothing may come at all.
    pub(super) accepts_nothing: bool,
    /// The time that masks take.
    pub(super) mask_cost: Arc<MaskCost>,
}

/// The reason why there is no compiled grammar.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Refused(Refusal),
    /// No thread had time for the grammar.
    Busy,
    NoThread,
}

/// The lasting fault of a grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The rule that the grammar, or the field named, breaks.
    Invalid {
        must: String,
        param: Option<String>,
    },
    /// The white space asked for is no regular expression. Which field says it differs between
    /// those who share the refusal.
    Whitespace,
    TooComplex,
}

impl From<TooComplex> for Refusal {
    fn from(_: TooComplex) -> Self {
        Self::TooComplex
    }
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
    whitespace: Whitespace,
    /// The schemas that a grammar of ours was made from, by field.
    parts: Vec<(String, Value)>,
}

/// A schema in a source.
struct Part {
    /// The field that holds it, if it is another than the source's.
    param: Option<String>,
    schema: Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regex,
    Json,
    Lark,
    Calls,
}

impl Source {
    pub(super) fn new(language: &Language) -> Self {
        let (mut schema, mut parts) = (Value::Null, Vec::new());
        let mut whitespace = Whitespace::default();
        let (kind, text) = match language {
            Language::Regex(regex) => (Kind::Regex, unanchored(regex).to_owned()),
            Language::Json(json) => {
                schema.clone_from(&json.schema);
                let text = json.whitespace.within(json.schema.clone()).to_string();
                whitespace.clone_from(&json.whitespace);
                (Kind::Json, text)
            }
            Language::Lark(text) => (Kind::Lark, text.clone()),
            Language::Calls(calls) => {
                parts.clone_from(&calls.schemas);
                (Kind::Calls, calls.grammar.clone())
            }
            Language::Choice(_) => unreachable!("a choice runs on its own trie"),
        };
        Self {
            kind,
            text,
            schema,
            whitespace,
            parts,
        }
    }

    /// Returns the reason for which this source is refused, if it is. To be asked before the source
    /// is looked up, since a refused source may have the key of one that is not.
    pub(super) fn refused(&self) -> Option<String> {
        match self.kind {
            Kind::Json if self.schema.get(GUIDANCE).is_some() => {
                Some(format!("not have the keyword `{GUIDANCE}`"))
            }
            Kind::Lark => lark::refused(&self.text).map(Into::into),
            _ => None,
        }
    }

    pub(super) fn key(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update([self.kind as u8]);
        hash.update(&self.text);
        hash.finalize().into()
    }

    /// Returns the schemas in this source.
    fn parts(&self) -> Vec<Part> {
        let part = |param, schema| Part { param, schema };
        match self.kind {
            Kind::Regex => Vec::new(),
            Kind::Json => vec![part(None, self.schema.clone())],
            Kind::Lark => {
                let schemas = lark::schemas(&self.text).into_iter();
                schemas.map(|schema| part(None, schema)).collect()
            }
            Kind::Calls => {
                let parts = self.parts.iter();
                let of =
                    |(param, schema): &(String, Value)| part(Some(param.clone()), schema.clone());
                parts.map(of).collect()
            }
        }
    }

    /// Checks what can be checked before the grammar is parsed: its classes, numbers and names.
    fn check(&self, parts: &[Part]) -> Result<(), Refusal> {
        bounds::check_text(&self.text, self.kind == Kind::Json)?;
        for part in parts {
            numbers::check(&part.schema).map_err(|must| Refusal::Invalid {
                must,
                param: part.param.clone(),
            })?;
            bounds::check_schema(&part.schema)?;
        }
        Ok(())
    }

    /// Returns the grammar, ready to be walked, and about how many bytes it has. `stop` ends the work
    /// between two of its parts.
    pub(super) fn compile(
        self,
        factory: &ParserFactory,
        stop: &Stop,
    ) -> Result<(Compiled, usize), Refusal> {
        let must = self.kind.must();
        let work = || self.compile_unguarded(factory, stop);
        // A panic of the library is about the grammar.
        std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(invalid(must)))
    }

    fn compile_unguarded(
        self,
        factory: &ParserFactory,
        stop: &Stop,
    ) -> Result<(Compiled, usize), Refusal> {
        let parts = self.parts();
        self.check(&parts)?;
        let text_bytes = self.text.len();
        let quoted = match self.kind {
            Kind::Regex => self.text.clone(),
            _ => String::new(),
        };
        let grammar = match self.kind {
            Kind::Regex => TopLevelGrammar::from_regex(&self.text),
            Kind::Json => TopLevelGrammar::from_json_schema(self.whitespace.within(self.schema)),
            Kind::Lark | Kind::Calls => TopLevelGrammar::from_lark(self.text),
        };
        let refusal = |error: &str| match self.kind.refusal(error, &quoted) {
            _ if is_wrong(&self.whitespace, factory, stop) => Refusal::Whitespace,
            Refusal::Invalid { must, param } => {
                blamed(&parts, factory, stop).unwrap_or(Refusal::Invalid { must, param })
            }
            refusal => refusal,
        };
        let parser = match parser(grammar, factory, stop) {
            Ok(parser) => parser,
            Err(error) => return Err(refusal(&error)),
        };
        if let Some(refusal) = dead_ends(&parts, factory, stop) {
            return Err(refusal);
        }
        // Copies share the lexer, which holds most of the memory.
        let twin = parser.clone();
        let mut matcher = Matcher::new(Ok(parser)).into_cancellable();
        if let Some(handle) = matcher.cancellation_handle() {
            stop.set(handle);
        }
        let accepts_nothing = matcher.is_accepting().unwrap_or(false);
        let began = Instant::now();
        let Some(first) = next_tokens(&mut matcher, &[]) else {
            let error = matcher.get_error().unwrap_or_default();
            return Err(refusal(&error));
        };
        let mask_cost = Arc::new(MaskCost::new(began.elapsed()));
        let lexer_bytes = twin.parser.lexer_stats().num_bytes;
        let compiled = Compiled {
            mask_cost,
            matcher: Mutex::new(matcher),
            first,
            accepts_nothing,
        };
        Ok((compiled, lexer_bytes + BYTES_PER_CHAR * text_bytes))
    }
}

/// The memory of rules and symbols for each byte of a grammar's text.
const BYTES_PER_CHAR: usize = 64;

/// Parses a grammar, checks what it can cost, and makes its lexer.
fn parser(
    grammar: TopLevelGrammar,
    factory: &ParserFactory,
    stop: &Stop,
) -> Result<TokenParser, String> {
    let limits = factory.limits().clone();
    let tokens = Some(factory.tok_env().clone());
    let parse = || GrammarInit::Serialized(grammar).to_internal(tokens, limits);
    let (grammar, lexer) = catch_unwind(AssertUnwindSafe(parse)).map_err(|e| e.to_string())?;
    let check = || {
        stop.check()?;
        bounds::check_lexer(&lexer, factory.limits())?;
        stop.check()
    };
    check().map_err(|e| e.to_string())?;
    let parsed = GrammarInit::Internal(grammar, lexer);
    let parser = factory.create_parser_from_init_default(parsed);
    parser.map_err(|e| e.to_string())
}

fn invalid(must: impl Into<String>) -> Refusal {
    Refusal::Invalid {
        must: must.into(),
        param: None,
    }
}

/// Returns true if the white space asked for is not a regular expression.
fn is_wrong(whitespace: &Whitespace, factory: &ParserFactory, stop: &Stop) -> bool {
    let Whitespace::Pattern(regex) = whitespace else {
        return false;
    };
    let alone = TopLevelGrammar::from_regex(regex);
    parser(alone, factory, stop).is_err()
}

/// Refuses objects in which no name can follow where the compiler takes it that one may.
fn dead_ends(parts: &[Part], factory: &ParserFactory, stop: &Stop) -> Option<Refusal> {
    let suspects = parts.iter().flat_map(|part| {
        let suspects = names::suspects(&part.schema).into_iter();
        suspects.map(move |suspect| (part, suspect))
    });
    let mut dead = suspects.filter(|(_, suspect)| {
        let names = TopLevelGrammar::from_json_schema(suspect.other_names.clone());
        let error = parser(names, factory, stop).err();
        error.is_some_and(|error| error.contains("Unsatisfiable schema"))
    });
    dead.next().map(|(part, suspect)| Refusal::Invalid {
        must: format!(
            "have `patternProperties` that fit other names than the object's properties, at {}",
            suspect.place
        ),
        param: part.param.clone(),
    })
}

/// Says which part of the schemas in a source is at fault, if one of them is.
fn blamed(parts: &[Part], factory: &ParserFactory, stop: &Stop) -> Option<Refusal> {
    let fault = |schema: Value| {
        let grammar = TopLevelGrammar::from_json_schema(schema);
        let error = parser(grammar, factory, stop).err()?;
        match Kind::Json.refusal(&error, "") {
            Refusal::Invalid { must, .. } => Some(must),
            _ => None,
        }
    };
    let (part, general) = parts
        .iter()
        .find_map(|part| Some((part, fault(part.schema.clone())?)))?;
    let must = match blame::find(&part.schema, |schema| fault(schema).is_some()) {
        // The library has named the keywords.
        Some(culprit) if general.starts_with(UNENFORCEABLE) => {
            format!("{general}, at {}", culprit.place())
        }
        Some(culprit) => culprit.must(),
        None => general,
    };
    Some(Refusal::Invalid {
        must,
        param: part.param.clone(),
    })
}

impl Kind {
    /// Returns the outcome of a grammar, without the library's words, which may quote the grammar.
    fn refusal(self, error: &str, text: &str) -> Refusal {
        let limits = [
            "fuel",
            "too large",
            "too big",
            "TooComplex",
            "limit",
            "too many",
            "max_",
            TOO_COMPLEX,
        ];
        // The library quotes what it was given, which may hold any of the words.
        let error = &unquoted(error, text);
        if limits.iter().any(|word| error.contains(word)) {
            return Refusal::TooComplex;
        }
        match self {
            Self::Json => match keywords(error) {
                Some(names) => invalid(format!("{UNENFORCEABLE}{names}")),
                None => invalid(self.must()),
            },
            _ => invalid(self.must()),
        }
    }

    /// Returns the rule for texts of this kind.
    pub(super) fn must(self) -> &'static str {
        match self {
            Self::Regex => {
                "be a regular expression without look-around, back-references and inner anchors"
            }
            Self::Lark | Self::Calls => "be a grammar in Lark's syntax with a rule `start`",
            Self::Json => {
                "be a JSON schema that can be satisfied and whose every keyword can be enforced"
            }
        }
    }
}

/// Returns a message without the regular expression that it may quote, plainly or as Rust would.
fn unquoted(error: &str, regex: &str) -> String {
    if regex.is_empty() {
        return error.to_owned();
    }
    let escaped = format!("{regex:?}");
    error.replace(&escaped, "").replace(regex, "")
}

/// The beginning of a rule that ends with the names of keywords.
const UNENFORCEABLE: &str = "not have keywords that cannot be enforced: ";

/// Returns the keywords that the library names as not implemented. They are keywords of the standard.
fn keywords(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once("Unimplemented keys: [")?;
    rest.split_once(']').map(|(names, _)| names)
}

/// Removes anchors at both ends: the whole text has to match anyway.
fn unanchored(regex: &str) -> &str {
    let inner = regex.strip_prefix('^').unwrap_or(regex);
    let Some(body) = inner.strip_suffix('$') else {
        return inner;
    };
    let backslashes = body.bytes().rev().take_while(|&b| b == b'\\').count();
    if backslashes % 2 == 1 { inner } else { body }
}

/// Returns the nesting depth of brackets; those of classes and strings count too, which is on the safe
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
