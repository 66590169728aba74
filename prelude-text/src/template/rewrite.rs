//! Templates as the engine takes them: what Jinja2 under Python has and minijinja has not, in words
//! that it has. No line is added or removed, so errors name the author's lines.
//!
//! - `{% generation %}` marks what an assistant said, for training: a block of its own, `{% with %}`.
//! - `a ~ b` joins texts as `str()` gives them: `a|string ~ b|string`.
//! - `a % b` formats where `a` is a text: the filter [`MOD`].
//! - `(a, b)` prints as a tuple: the function [`TUPLE`].
//! - `a[b:c:d]`, with a step: the filter [`SLICE`], since the engine's panics where `a` is empty.
//!
//! A source that this does not understand stays as it is, and the engine says what is wrong.

use std::{borrow::Cow, ops::Range};

/// Name of the filter that is Python's `%`.
pub(super) const MOD: &str = "__mod";
/// Name of the function that makes a tuple.
pub(super) const TUPLE: &str = "__tuple";
/// Name of the filter that takes every so many items of a list or letters of a text.
pub(super) const SLICE: &str = "__slice";

/// Words that are operators or begin something: no operand ends with them.
const KEYWORDS: &[&str] = &[
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "else",
    "elif",
    "for",
    "set",
    "with",
    "print",
    "do",
    "recursive",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Name,
    Number,
    Text,
    Mark,
}

/// A token of an expression or of a statement.
#[derive(Clone, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    at: usize,
}

impl Token<'_> {
    fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }

    const fn end(&self) -> usize {
        self.at + self.text.len()
    }

    fn opens(&self) -> bool {
        self.kind == Kind::Mark && matches!(self.text, "(" | "[" | "{")
    }

    fn closes(&self) -> bool {
        self.kind == Kind::Mark && matches!(self.text, ")" | "]" | "}")
    }

    /// True if an operand may end with this token.
    fn ends_operand(&self) -> bool {
        match self.kind {
            Kind::Name => !KEYWORDS.contains(&self.text),
            Kind::Number | Kind::Text => true,
            Kind::Mark => matches!(self.text, ")" | "]" | "}"),
        }
    }
}

/// Returns the source as the engine takes it.
pub(super) fn rewritten(source: &str) -> Cow<'_, str> {
    let mut edits = Vec::new();
    let mut at = 0;
    while let Some(open) = source[at..].find('{').map(|found| at + found) {
        let rest = &source[open..];
        at = open + 1;
        let close = match rest.as_bytes().get(1) {
            Some(b'#') => match rest.find("#}") {
                Some(end) => {
                    at = open + end + 2;
                    continue;
                }
                None => break,
            },
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            _ => continue,
        };
        let Some((tokens, end)) = tokens(source, open + 2, close) else {
            break;
        };
        at = end;
        let is_statement = close == "%}";
        let name = tokens.first().map(|t| t.text);
        if is_statement && name == Some("raw") {
            match end_of_raw(source, end) {
                Some(end) => at = end,
                None => break,
            }
            continue;
        }
        if let Some(tag) = Tag::new(tokens, is_statement) {
            tag.edit(&mut edits);
        }
    }
    apply(source, edits)
}

/// Returns where the text behind `{% raw %}` ends: behind its `{% endraw %}`.
fn end_of_raw(source: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += source[at..].find("{%")? + 2;
        let tag = source[at..].trim_start_matches(['-', '+']).trim_start();
        if tag.starts_with("endraw") {
            return Some(at + source[at..].find("%}")? + 2);
        }
    }
}

/// Splits the inside of a tag that begins at `from`, and returns where the tag ends.
fn tokens<'a>(source: &'a str, from: usize, close: &str) -> Option<(Vec<Token<'a>>, usize)> {
    let mut tokens = Vec::new();
    let mut depth = 0usize;
    let mut at = from;
    // `-` or `+` behind the brackets says what becomes of blanks.
    at += usize::from(source[at..].starts_with(['-', '+']));
    loop {
        let rest = &source[at..];
        let first = rest.chars().next()?;
        if depth == 0 {
            let end = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            if end.starts_with(close) {
                return Some((tokens, source.len() - end.len() + close.len()));
            }
        }
        let (kind, len) = match first {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            '\'' | '"' => (Kind::Text, quoted(rest, first)?),
            c if c.is_alphabetic() || c == '_' => (Kind::Name, run(rest, |c| c == '_')),
            c if c.is_ascii_digit() => (Kind::Number, run(rest, |c| c == '_')),
            '(' | '[' | '{' => {
                depth += 1;
                (Kind::Mark, 1)
            }
            ')' | ']' | '}' => {
                depth = depth.checked_sub(1)?;
                (Kind::Mark, 1)
            }
            _ if ["**", "//", "==", "!=", "<=", ">="]
                .iter()
                .any(|two| rest.starts_with(two)) =>
            {
                (Kind::Mark, 2)
            }
            c => (Kind::Mark, c.len_utf8()),
        };
        tokens.push(Token {
            kind,
            text: &rest[..len],
            at,
        });
        at += len;
    }
}

fn run(text: &str, also: fn(char) -> bool) -> usize {
    let end = text.find(|c: char| !c.is_alphanumeric() && !also(c));
    end.unwrap_or(text.len())
}

fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Place of an edit among those at the same byte: what closes comes before what opens, and the
/// inner one before the outer one where they close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    CloseMod,
    CloseText,
    OpenText,
    OpenSlice,
    Word,
}

/// A text to put in place of a range of the source.
type Edit = (Range<usize>, Order, Cow<'static, str>);

/// The inside of a tag.
struct Tag<'a> {
    tokens: Vec<Token<'a>>,
    /// The index of the other bracket of each bracket; brackets have partners.
    pairs: Vec<usize>,
    is_statement: bool,
}

impl<'a> Tag<'a> {
    /// Pairs the brackets; `None` if they do not match.
    fn new(tokens: Vec<Token<'a>>, is_statement: bool) -> Option<Self> {
        let mut pairs = vec![0; tokens.len()];
        let mut open = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            if token.opens() {
                open.push(at);
            } else if token.closes() {
                let begin = open.pop()?;
                (pairs[begin], pairs[at]) = (at, begin);
            }
        }
        Some(Self {
            tokens,
            pairs,
            is_statement,
        })
    }

    fn edit(&self, edits: &mut Vec<Edit>) {
        let mut from = 0;
        if let Some(name) = self.tokens.first().filter(|_| self.is_statement) {
            let range = name.at..name.end();
            match name.text {
                "generation" => edits.push((range, Order::Word, "with".into())),
                "endgeneration" => edits.push((range, Order::Word, "endwith".into())),
                // Names that are given values: no tuples.
                "for" | "set" => {
                    let word = if name.text == "for" { "in" } else { "=" };
                    from = self.tokens.iter().position(|t| t.is(word)).unwrap_or(0);
                }
                _ => {}
            }
        }
        for at in from..self.tokens.len() {
            let token = &self.tokens[at];
            if token.is("(") {
                self.edit_tuple(at, edits);
            } else if token.is("%") {
                self.edit_mod(at, edits);
            } else if token.is("~") {
                self.edit_concat(at, edits);
            } else if token.is("[") {
                self.edit_slice(at, edits);
            }
        }
    }

    fn edit_slice(&self, open: usize, edits: &mut Vec<Edit>) {
        let tokens = &self.tokens;
        let Some(start) = self.start_of_operand(open) else {
            return;
        };
        let close = self.pairs[open];
        let mut colons = Vec::new();
        let mut at = open + 1;
        while at < close {
            match &tokens[at] {
                token if token.opens() => at = self.pairs[at],
                token if token.is(":") => colons.push(at),
                _ => {}
            }
            at += 1;
        }
        let [first, second] = colons[..] else {
            return;
        };
        let begin = tokens[start].at;
        edits.push((begin..begin, Order::OpenSlice, "(".into()));
        // A place without a number is none.
        let mut put = |at: usize, is_empty: bool, word: &str| {
            let none = if is_empty { "none" } else { "" };
            let range = tokens[at].at..tokens[at].end();
            edits.push((range, Order::Word, format!("{none}{word}").into()));
        };
        let name = format!("|{SLICE}(");
        let range = tokens[open].at..tokens[open].end();
        put(first, first == open + 1, ",");
        put(second, second == first + 1, ",");
        put(close, close == second + 1, "))");
        edits.push((range, Order::Word, name.into()));
    }

    fn edit_tuple(&self, open: usize, edits: &mut Vec<Edit>) {
        if open > 0 && self.tokens[open - 1].ends_operand() {
            return;
        }
        let close = self.pairs[open];
        let mut at = open + 1;
        let mut is_tuple = close == at;
        while at < close {
            if self.tokens[at].opens() {
                at = self.pairs[at];
            } else if self.tokens[at].is(",") {
                is_tuple = true;
                break;
            }
            at += 1;
        }
        if is_tuple {
            let at = self.tokens[open].at;
            edits.push((at..at, Order::Word, TUPLE.into()));
        }
    }

    fn edit_mod(&self, at: usize, edits: &mut Vec<Edit>) {
        let tokens = &self.tokens;
        let Some(start) = self.start_of_operand(at) else {
            return;
        };
        let binds = |t: &Token<'_>| ["*", "/", "//", "%", "**", "-"].iter().any(|op| t.is(op));
        if start > 0 && binds(&tokens[start - 1]) {
            return;
        }
        let Some(end) = self.end_of_operand(at + 1) else {
            return;
        };
        // Numbers are the engine's.
        let has_text = tokens[start..at].iter().any(|t| t.kind == Kind::Text);
        if end == at + 1 && tokens[end].kind == Kind::Number && !has_text {
            return;
        }
        let (range, behind) = (tokens[at].at..tokens[at].end(), tokens[end].end());
        edits.push((range, Order::Word, format!("|{MOD}(").into()));
        edits.push((behind..behind, Order::CloseMod, ")".into()));
    }

    /// Returns the index of the first token of the operand that ends before `end`.
    fn start_of_operand(&self, end: usize) -> Option<usize> {
        let mut at = end.checked_sub(1)?;
        loop {
            if !self.tokens[at].ends_operand() {
                return None;
            }
            if self.tokens[at].closes() {
                at = self.pairs[at];
                // A call or an item of what stands before it.
                if at > 0 && !self.tokens[at].is("{") && self.tokens[at - 1].ends_operand() {
                    at -= 1;
                    continue;
                }
            }
            match at.checked_sub(1).map(|before| &self.tokens[before]) {
                Some(before) if before.is(".") || before.is("|") => at = at.checked_sub(2)?,
                Some(before) if before.is("is") || before.is("not") => return None,
                _ => return Some(at),
            }
        }
    }

    /// Returns the index of the last token of the operand that begins at `at`.
    fn end_of_operand(&self, at: usize) -> Option<usize> {
        let at = at + usize::from(self.tokens.get(at)?.is("-"));
        let first = self.tokens.get(at)?;
        let mut end = match first.kind {
            Kind::Mark if first.opens() => self.pairs[at],
            Kind::Mark => return None,
            _ if !first.ends_operand() => return None,
            _ => at,
        };
        loop {
            match self.tokens.get(end + 1) {
                Some(next) if next.is("(") || next.is("[") => end = self.pairs[end + 1],
                Some(next) if next.is(".") || next.is("|") => {
                    self.tokens.get(end + 2)?;
                    end += 2;
                }
                Some(next) if next.is("**") || next.is("is") => return None,
                _ => return Some(end),
            }
        }
    }

    /// True if the operands of a `~` end with the token before this one.
    fn ends_text(&self, at: usize) -> bool {
        let token = &self.tokens[at];
        let before = at.checked_sub(1).map(|before| &self.tokens[before]);
        let is_test = before.is_some_and(|t| t.is("is"));
        let is_word = token.kind == Kind::Name && KEYWORDS.contains(&token.text);
        let is_sign = !before.is_some_and(Token::ends_operand);
        let marks = ["~", ",", "=", ":", "==", "!=", "<", ">", "<=", ">="];
        (is_word && token.text != "is" && !is_test)
            || (!is_sign && (token.is("+") || token.is("-")))
            || marks.iter().any(|mark| token.is(mark))
    }

    /// Makes the operands on both sides of a `~` texts. What is on its left is the right side of
    /// the one before, if there is one.
    fn edit_concat(&self, at: usize, edits: &mut Vec<Edit>) {
        let tokens = &self.tokens;
        let mut end = at + 1;
        while end < tokens.len() && !tokens[end].closes() && !self.ends_text(end) {
            end = if tokens[end].opens() {
                self.pairs[end]
            } else {
                end
            } + 1;
        }
        self.edit_text(at + 1..end, edits);
        let is_name = |at: usize| at == 0 && self.is_statement;
        let mut start = at;
        while start > 0 {
            let before = start - 1;
            if tokens[before].opens() || self.ends_text(before) || is_name(before) {
                break;
            }
            start = if tokens[before].closes() {
                self.pairs[before]
            } else {
                before
            };
        }
        if !(start > 0 && tokens[start - 1].is("~")) {
            self.edit_text(start..at, edits);
        }
    }

    fn edit_text(&self, operand: Range<usize>, edits: &mut Vec<Edit>) {
        let tokens = &self.tokens[operand];
        if let (Some(first), Some(last)) = (tokens.first(), tokens.last()) {
            if first.kind == Kind::Text && first.at == last.at {
                return;
            }
            edits.push((first.at..first.at, Order::OpenText, "(".into()));
            edits.push((last.end()..last.end(), Order::CloseText, ")|string".into()));
        }
    }
}

/// Applies edits, none of which overlap.
fn apply(source: &str, mut edits: Vec<Edit>) -> Cow<'_, str> {
    if edits.is_empty() {
        return Cow::Borrowed(source);
    }
    edits.sort_by_key(|(range, order, _)| (range.start, *order));
    let mut out = String::with_capacity(source.len() + 16 * edits.len());
    let mut at = 0;
    for (range, _, text) in edits {
        out.push_str(&source[at..range.start]);
        out.push_str(&text);
        at = range.end;
    }
    out.push_str(&source[at..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_engine_lacks_is_rewritten() {
        let check = |source: &str, expected: &str| assert_eq!(rewritten(source), expected);
        for same in [
            "a % b ~ (c, d)",
            "{{ f(a, b) }}{# x ~ y #}",
            "{% raw %}{{ a ~ b }}{% endraw %}",
            "{%- for (a, b) in c -%}{%- set (d, e) = f -%}",
            "{{ '~' }}{{ \"a\\\"%\" }}{{ loop.index0 % 2 == 0 }}",
            "{{ a * b % c }}{{ a % }}{{ 'open",
            "{{ (a) }}{{ a[(1)] }}",
        ] {
            check(same, same);
        }
        check(
            "{%- generation -%}x{%+ endgeneration %}",
            "{%- with -%}x{%+ endwith %}",
        );
        check("{{ (1, 2) }}", "{{ __tuple(1, 2) }}");
        check("{{ x in ('a', 'b') }}", "{{ x in __tuple('a', 'b') }}");
        check(
            "{{ '%s-%s' % (a, b[0]) ~ c }}",
            "{{ ('%s-%s' |__mod( __tuple(a, b[0])))|string ~ (c)|string }}",
        );
        check(
            "{{ a.b % c.d|f(1) + 2 }}",
            "{{ a.b |__mod( c.d|f(1)) + 2 }}",
        );
        check(
            "{{ 'a' ~ b.c ~ 1 + 2 if x ~ y else z }}",
            "{{ 'a' ~ (b.c)|string ~ (1)|string + 2 if (x)|string ~ (y)|string else z }}",
        );
        check(
            "{{ f(a ~ [b ~ 'c'], d=e ~ -g) }}",
            "{{ f((a)|string ~ ([(b)|string ~ 'c'])|string, d=(e)|string ~ (-g)|string) }}",
        );
        check("{% if a ~ b %}", "{% if (a)|string ~ (b)|string %}");
    }

    #[test]
    fn no_source_ends_it() {
        for source in [
            "{{",
            "{%",
            "{{ )",
            "{{ ( }}",
            "{% raw %}{%",
            "{#",
            "{{ ~ }}",
            "{{ % }}",
            "{{ a ~ }}",
        ] {
            let _ = rewritten(source);
        }
    }
}
