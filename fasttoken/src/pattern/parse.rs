//! Reads the subset of Oniguruma's syntax that split patterns use.
//!
//! Syntax outside of the subset, or syntax that means something else in other engines, is refused:
//! a pattern is matched exactly or not at all.

use super::set::{CharSet, Item, category_mask};

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// A character of the set.
    Set(CharSet),
    /// Nodes one after the other; empty matches the empty string.
    Sequence(Vec<Self>),
    /// The first that leads to a match.
    Alternatives(Vec<Self>),
    /// A greedy run of characters of the set.
    Run {
        set: CharSet,
        min: u32,
        /// `None` is unbounded.
        max: Option<u32>,
        /// Gives nothing back once matched.
        possessive: bool,
    },
    /// `(..)?`. Groups are not repeated otherwise, which rules out patterns that
    /// take exponential time.
    Optional(Box<Self>),
    /// `(?=..)`, or `(?!..)` when `negative`.
    Look { node: Box<Self>, negative: bool },
}

impl Node {
    /// Returns true if the node can match the empty string.
    pub(crate) fn is_nullable(&self) -> bool {
        match self {
            Self::Set(_) => false,
            Self::Sequence(nodes) => nodes.iter().all(Self::is_nullable),
            Self::Alternatives(nodes) => nodes.iter().any(Self::is_nullable),
            Self::Run { min, .. } => *min == 0,
            Self::Optional(_) | Self::Look { .. } => true,
        }
    }
}

/// Deepest nesting of groups or of sets; real patterns have two or three levels.
const DEPTH_MAX: usize = 32;
/// Largest count in `{n,m}`, so that a short pattern cannot ask for much.
const COUNT_MAX: u32 = 1000;

const PLAIN_SETS: &str = "only plain sets of characters are supported in (?i:...)";

pub(crate) fn parse(pattern: &str) -> Result<Node, String> {
    let mut parser = Parser {
        rest: pattern,
        depth: 0,
    };
    let node = parser.alternatives(false)?;
    match parser.peek() {
        None => Ok(node),
        Some(c) => Err(format!("unexpected {c:?}")),
    }
}

/// Returns a pattern that matches exactly `text`, as a `Split` on a plain string does.
pub(crate) fn literal(text: &str) -> Node {
    Node::Sequence(
        text.chars()
            .map(|c| Node::Set(CharSet::single(c)))
            .collect(),
    )
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn alternatives(&mut self, fold_case: bool) -> Result<Node, String> {
        let mut nodes = vec![self.sequence(fold_case)?];
        while self.eat("|") {
            nodes.push(self.sequence(fold_case)?);
        }
        Ok(match nodes.pop() {
            Some(only) if nodes.is_empty() => only,
            last => {
                nodes.extend(last);
                Node::Alternatives(nodes)
            }
        })
    }

    fn sequence(&mut self, fold_case: bool) -> Result<Node, String> {
        let mut nodes = Vec::new();
        let mut previous = None;
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            if fold_case {
                refuse_folding_pair(previous, c)?;
                previous = Some(c);
            }
            let atom = self.atom(fold_case)?;
            nodes.push(self.quantified(atom)?);
        }
        Ok(Node::Sequence(nodes))
    }

    fn atom(&mut self, fold_case: bool) -> Result<Node, String> {
        let c = self
            .next()
            .ok_or("pattern ends where a character was due")?;
        let set = match c {
            '(' => return self.group(fold_case),
            '[' => self.set(fold_case)?,
            '\\' => {
                let item = self.escape()?;
                if fold_case {
                    return Err("escapes inside (?i:...) are not supported".into());
                }
                CharSet::new(&[item], false)
            }
            '^' | '$' | '.' | '?' | '*' | '+' | '{' | '}' | ']' => {
                return Err(format!("{c:?} is not supported here"));
            }
            c if fold_case => CharSet::new(&folded(c)?, false),
            c => CharSet::single(c),
        };
        Ok(Node::Set(set))
    }

    /// Parses what follows `(`.
    fn group(&mut self, fold_case: bool) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("groups are nested too deeply".into());
        }
        let node = if self.eat("?:") {
            self.alternatives(fold_case)?
        } else if self.eat("?i:") {
            self.alternatives(true)?
        } else if self.eat("?=") {
            self.look(fold_case, false)?
        } else if self.eat("?!") {
            self.look(fold_case, true)?
        } else if self.peek() == Some('?') {
            return Err("only (?:...), (?i:...), (?=...) and (?!...) groups are supported".into());
        } else {
            self.alternatives(fold_case)?
        };
        if !self.eat(")") {
            return Err("a group is not closed".into());
        }
        self.depth -= 1;
        Ok(node)
    }

    fn look(&mut self, fold_case: bool, negative: bool) -> Result<Node, String> {
        let node = Box::new(self.alternatives(fold_case)?);
        Ok(Node::Look { node, negative })
    }

    fn quantified(&mut self, node: Node) -> Result<Node, String> {
        let (min, max) = match self.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => {
                self.next();
                let counts = self.counts()?;
                if matches!(self.peek(), Some('?' | '*' | '+' | '{')) {
                    // Oniguruma reads `{n,m}+` as a repetition of a repetition.
                    return Err("a second quantifier after {n,m} is not supported".into());
                }
                return repeat(node, counts.0, counts.1, false);
            }
            _ => return Ok(node),
        };
        self.next();
        let possessive = self.eat("+");
        match self.peek() {
            Some('?') if !possessive => Err("lazy repetition is not supported".into()),
            Some('?' | '*' | '+' | '{') => Err("a second quantifier is not supported".into()),
            _ => repeat(node, min, max, possessive),
        }
    }

    /// Parses what follows `{`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), String> {
        let min = self.number()?;
        let max = if !self.eat(",") {
            Some(min)
        } else if self.peek() == Some('}') {
            None
        } else {
            Some(self.number()?)
        };
        if !self.eat("}") || max.is_some_and(|max| max < min) {
            return Err("malformed {n,m}".into());
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<u32, String> {
        let digits = self.rest.len()
            - self
                .rest
                .trim_start_matches(|c: char| c.is_ascii_digit())
                .len();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        match number.parse() {
            Ok(n) if n <= COUNT_MAX => Ok(n),
            Ok(_) => Err(format!("counts above {COUNT_MAX} are not supported")),
            Err(_) => Err("malformed {n,m}".into()),
        }
    }

    /// Parses what follows a backslash.
    fn escape(&mut self) -> Result<Item, String> {
        let c = self.next().ok_or("pattern ends after a backslash")?;
        let literal = match c {
            's' | 'S' => return Ok(Item::Space(c == 'S')),
            'd' | 'D' => {
                let mask = category_mask("Nd").expect("Nd is a category");
                return Ok(Item::Categories(mask, c == 'D'));
            }
            'p' | 'P' => return self.property(c == 'P'),
            'r' => '\r',
            'n' => '\n',
            't' => '\t',
            'f' => '\x0C',
            'v' => '\x0B',
            'u' => self.code_point()?,
            c if c.is_ascii_punctuation() || c == ' ' => c,
            c => return Err(format!("escape \\{c} is not supported")),
        };
        Ok(Item::Range(literal, literal))
    }

    /// Parses what follows `\u`.
    fn code_point(&mut self) -> Result<char, String> {
        let digits = self
            .rest
            .get(..4)
            .ok_or("\\u needs four hexadecimal digits")?;
        let code =
            u32::from_str_radix(digits, 16).map_err(|_| "\\u needs four hexadecimal digits")?;
        let c = char::from_u32(code).ok_or("\\u names a surrogate")?;
        self.rest = &self.rest[4..];
        Ok(c)
    }

    /// Parses what follows `\p` or `\P`.
    fn property(&mut self, outside: bool) -> Result<Item, String> {
        let name = self
            .rest
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .ok_or("\\p needs a name in braces")?
            .0;
        self.rest = &self.rest[name.len() + 2..];
        if name == "Han" {
            return Ok(Item::Han(outside));
        }
        let mask = category_mask(name).ok_or_else(|| {
            format!("only general categories and Han are supported, not \\p{{{name}}}")
        })?;
        Ok(Item::Categories(mask, outside))
    }

    /// Parses what follows `[`.
    fn set(&mut self, fold_case: bool) -> Result<CharSet, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("character sets are nested too deeply".into());
        }
        let negated = self.eat("^");
        let (mut items, mut intersected) = (Vec::new(), Vec::new());
        loop {
            let first = items.is_empty();
            if !first && self.eat("]") {
                break;
            }
            if !first && self.eat("&&") {
                intersected.push(CharSet::new(&items, false));
                items.clear();
                continue;
            }
            self.items(fold_case && !negated, &mut items)?;
            if fold_case && negated {
                return Err(PLAIN_SETS.into());
            }
        }
        self.depth -= 1;
        if intersected.is_empty() {
            return Ok(CharSet::new(&items, negated));
        }
        intersected.push(CharSet::new(&items, false));
        Ok(CharSet::intersection(intersected, negated))
    }

    /// Reads the next part of a set.
    fn items(&mut self, fold_case: bool, items: &mut Vec<Item>) -> Result<(), String> {
        let c = self.next().ok_or("a character set is not closed")?;
        let first = items.is_empty();
        let item = match c {
            ']' | '&' if first && (c == ']' || self.peek() == Some('&')) => {
                return Err("an empty character set is not supported".into());
            }
            '[' if self.peek() == Some(':') => {
                return Err("names in brackets such as [:alpha:] are not supported".into());
            }
            '[' => {
                items.push(Item::Set(self.set(false)?));
                return if fold_case {
                    Err(PLAIN_SETS.into())
                } else {
                    Ok(())
                };
            }
            '-' if !first && self.peek() != Some(']') => {
                return Err("a bare - inside a character set is not supported".into());
            }
            '\\' => self.escape()?,
            c => Item::Range(c, c),
        };
        match self.range(item)? {
            item if !fold_case => items.push(item),
            Item::Range(low, high) if low == high => items.extend(folded(low)?),
            _ => return Err(PLAIN_SETS.into()),
        }
        Ok(())
    }

    /// Continues `a` with `-z` where that follows.
    fn range(&mut self, item: Item) -> Result<Item, String> {
        if !self.rest.starts_with('-') || self.rest.starts_with("-]") {
            return Ok(item);
        }
        self.next();
        let end = match self.next() {
            Some('\\') => self.escape()?,
            Some('[') | None => return Err("malformed range in a character set".into()),
            Some(c) => Item::Range(c, c),
        };
        match (item, end) {
            (Item::Range(low, _), Item::Range(_, high)) if low <= high => {
                Ok(Item::Range(low, high))
            }
            _ => Err("malformed range in a character set".into()),
        }
    }
}

fn repeat(node: Node, min: u32, max: Option<u32>, possessive: bool) -> Result<Node, String> {
    match node {
        Node::Set(set) => Ok(Node::Run {
            set,
            min,
            max,
            possessive,
        }),
        node if (min, max, possessive) == (0, Some(1), false) && !node.is_nullable() => {
            Ok(Node::Optional(Box::new(node)))
        }
        _ => Err("a group can only be made optional, not repeated".into()),
    }
}

/// Returns the characters that an ASCII character matches without regard to case, as Oniguruma
/// folds.
fn folded(c: char) -> Result<Vec<Item>, String> {
    if !c.is_ascii() {
        return Err("only ASCII is supported inside (?i:...)".into());
    }
    let mut items = vec![
        Item::Range(c.to_ascii_lowercase(), c.to_ascii_lowercase()),
        Item::Range(c.to_ascii_uppercase(), c.to_ascii_uppercase()),
    ];
    match c.to_ascii_lowercase() {
        's' => items.push(Item::Range('ſ', 'ſ')),
        'k' => items.push(Item::Range('\u{212A}', '\u{212A}')),
        _ => {}
    }
    Ok(items)
}

/// Refuses two letters of which Oniguruma would match both with one character, such as ß or ﬁ.
fn refuse_folding_pair(previous: Option<char>, next: char) -> Result<(), String> {
    let lower = |c: char| c.to_ascii_lowercase();
    match (previous.map(lower), lower(next)) {
        (Some('s'), 's' | 't') | (Some('f'), 'f' | 'i' | 'l') => {
            Err("letter pairs with ligatures are not supported inside (?i:...)".into())
        }
        _ => Ok(()),
    }
}
