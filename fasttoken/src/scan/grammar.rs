//! The split patterns that have a scanner, and how a pattern is told to be one of them.
//!
//! Most models split by one family of patterns, whose alternatives are, in this order:
//!
//! 1. contractions such as `'s`, unless they belong to the word before them;
//! 2. a run of Han characters, in few patterns;
//! 3. a word of letters, with one character before it that is neither letter, number nor line end;
//! 4. one to n numbers;
//! 5. a space and a run of other characters, with the line ends (and slashes) after them;
//! 6. the blanks at the end of the text, in few patterns;
//! 7. blanks up to the last line end;
//! 8. blanks but the last one, which is left to the word after them; any blanks.
//!
//! [`Shape`] is the choices that a pattern of the family makes. [`Shape::of`] reads them from the
//! parsed pattern: it compares each alternative with the known forms of its place, as parsed too,
//! so that the spelling of a set does not matter.

use super::deepseek::DEEPSEEK3;
use crate::pattern::{Node, parse};

/// The regular expression that `ByteLevel` splits by when `use_regex` is set.
pub(crate) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Qwen 2, 2.5 and 3.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3, GPT-4 (cl100k) and many others.
pub(crate) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o and its successors.
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The scanner of a pattern. The most common patterns of the family have names, which tell them
/// apart at once: to compare shapes took 4 % of the instructions of a text of one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grammar {
    /// [`GPT2`]
    Gpt2,
    /// [`QWEN2`]
    Qwen2,
    /// [`Shape::QWEN35`]
    Qwen35,
    /// [`CL100K`]
    Cl100k,
    /// [`O200K`]
    O200k,
    /// Another pattern of the family.
    Other(Shape),
    /// [`DEEPSEEK3`]
    DeepSeek3,
}

/// The choices of one pattern of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(super) word: Word,
    /// True if `'s` and the like are matched: as words of their own before [`Word::Letters`], and as
    /// the end of [`Word::Cased`].
    pub(super) contractions: bool,
    /// True if a run of Han characters is a word of its own.
    pub(super) han: bool,
    /// Largest number of digits in a word; 0 for no limit.
    pub(super) digits_max: u8,
    pub(super) tail: Tail,
    /// True if all blanks at the end of the text are one word.
    pub(super) last_blanks: bool,
}

/// The words of letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// `\p{L}+` after a space, as numbers and others: [`GPT2`] alone.
    Plain,
    /// `\p{L}+`
    Letters,
    /// `[\p{L}\p{M}]+`, where other characters exclude `\p{M}`.
    Marked,
    /// Letters with upper case first: words also end between lower and upper case.
    Cased,
}

/// The characters that follow a run of other characters in its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    None,
    /// `[\r\n]*`
    LineEnds,
    /// `[\r\n/]*`
    LineEndsAndSlashes,
}

impl Shape {
    /// [`GPT2`]
    pub(super) const GPT2: Self = Self {
        word: Word::Plain,
        contractions: true,
        han: false,
        digits_max: 0,
        tail: Tail::None,
        last_blanks: false,
    };
    /// [`CL100K`]
    pub(super) const CL100K: Self = Self {
        word: Word::Letters,
        contractions: true,
        han: false,
        digits_max: 3,
        tail: Tail::LineEnds,
        last_blanks: false,
    };
    /// [`QWEN2`]
    pub(super) const QWEN2: Self = Self {
        digits_max: 1,
        ..Self::CL100K
    };
    /// [`O200K`]
    pub(super) const O200K: Self = Self {
        word: Word::Cased,
        tail: Tail::LineEndsAndSlashes,
        ..Self::CL100K
    };
    /// The pattern of Qwen 3.5.
    pub(super) const QWEN35: Self = Self {
        word: Word::Marked,
        ..Self::QWEN2
    };

    /// Returns the choices of a parsed pattern, or `None` if it is not of the family.
    fn of(pattern: &Node) -> Option<Self> {
        Self::read(&mut alternatives(pattern))
    }

    /// Takes the alternatives that are known from `rest`, and returns the choices of the pattern if
    /// these are all.
    fn read(rest: &mut &[Node]) -> Option<Self> {
        let before = take(rest, &[&CONTRACTIONS]).is_some();
        let han = take(rest, &[&[r"\p{Han}+", r"[\p{Han}]+"]]).is_some();
        let (word, after) = Self::word(rest, han)?;
        let digits = [
            &[r"\p{N}", r"\p{N}{1}"],
            &[r"\p{N}{1,3}", r"\p{N}{1,3}"],
            &[r"\p{N}+", r"\p{N}++"],
        ];
        let digits_max = [1, 3, 0][take(rest, &digits.map(<[_; 2]>::as_slice))?];
        let tail = Self::tail(rest, word)?;
        let last_blanks = take(rest, &[&[r"\s+(?![\s\S])", r"\s++(?![\s\S])"]]).is_some();
        take(rest, &[LINE_ENDS])?;
        take(rest, &[&[r"\s+(?!\S)"]])?;
        // A single blank is all that is left by the alternative before.
        take(rest, &[&[r"\s+", r"\s"]])?;
        // Contractions are words of their own exactly if they do not belong to the word before.
        if !rest.is_empty() || before && word == Word::Cased || han && word != Word::Cased {
            return None;
        }
        Some(Self {
            word,
            contractions: before || after,
            han,
            digits_max,
            tail,
            last_blanks,
        })
    }

    /// Takes the alternatives for words, and returns their kind, and true if contractions are a part
    /// of them.
    fn word(rest: &mut &[Node], han: bool) -> Option<(Word, bool)> {
        let prefix = r"[^\r\n\p{L}\p{N}]?";
        let plain = |letters: &str| {
            [
                format!("{prefix}{letters}+"),
                format!("{prefix}+{letters}++"),
            ]
        };
        if take(rest, &[&plain(r"\p{L}")]).is_some() {
            return Some((Word::Letters, false));
        }
        if take(rest, &[&plain(r"[\p{L}\p{M}]")]).is_some() {
            return Some((Word::Marked, false));
        }
        let without = if han { r"&&[^\p{Han}]" } else { "" };
        let upper = format!(r"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]");
        let lower = format!(r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]");
        let contractions = format!("{}?", CONTRACTIONS[0]);
        for end in ["", &contractions] {
            let first = format!("{prefix}{upper}*{lower}+{end}");
            let second = format!("{prefix}{upper}+{lower}*{end}");
            if take(rest, &[&[first]]).is_some() {
                take(rest, &[&[second]])?;
                return Some((Word::Cased, !end.is_empty()));
            }
        }
        None
    }

    /// Takes the alternative for other characters, and returns what may follow them.
    fn tail(rest: &mut &[Node], word: Word) -> Option<Tail> {
        let other = match word {
            Word::Marked => r"[^\s\p{L}\p{M}\p{N}]",
            Word::Plain | Word::Letters | Word::Cased => r"[^\s\p{L}\p{N}]",
        };
        let forms = |tail: &str, possessive: &str| {
            [
                format!(" ?{other}+{tail}"),
                format!(" ?{other}++{possessive}"),
            ]
        };
        let tails = [
            &forms("", "")[..],
            &forms(r"[\r\n]*", r"[\r\n]*+"),
            &forms(r"[\r\n/]*", r"[\r\n/]*+"),
        ];
        match take(rest, &tails)? {
            0 => Some(Tail::None),
            1 => Some(Tail::LineEnds),
            _ => Some(Tail::LineEndsAndSlashes),
        }
    }
}

/// Forms of the contractions of English without regard to case.
const CONTRACTIONS: [&str; 2] = ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)"];
/// Forms of the blanks up to the last line end; the run of blanks takes all line ends but the last.
const LINE_ENDS: &[&str] = &[r"\s*[\r\n]+", r"\s*[\r\n]"];

/// Returns the alternatives of a pattern.
fn alternatives(pattern: &Node) -> &[Node] {
    match pattern {
        Node::Alternatives(all) => all,
        one => std::slice::from_ref(one),
    }
}

/// Takes the first of `rest` if it is one of some forms, and returns the number of their list.
fn take<S: AsRef<str>>(rest: &mut &[Node], lists: &[&[S]]) -> Option<usize> {
    let (first, after) = rest.split_first()?;
    let is = |form: &S| parse(form.as_ref()).is_ok_and(|node| node == *first);
    let found = lists.iter().position(|forms| forms.iter().any(is))?;
    *rest = after;
    Some(found)
}

impl Grammar {
    /// Returns the scanner of a shape.
    fn of(shape: Shape) -> Self {
        match shape {
            Shape::GPT2 => Self::Gpt2,
            Shape::QWEN2 => Self::Qwen2,
            Shape::QWEN35 => Self::Qwen35,
            Shape::CL100K => Self::Cl100k,
            Shape::O200K => Self::O200k,
            other => Self::Other(other),
        }
    }

    /// Returns the shape of the pattern, if it is of the family.
    #[inline]
    pub(super) fn shape(self) -> Option<Shape> {
        match self {
            Self::Gpt2 => Some(Shape::GPT2),
            Self::Qwen2 => Some(Shape::QWEN2),
            Self::Qwen35 => Some(Shape::QWEN35),
            Self::Cl100k => Some(Shape::CL100K),
            Self::O200k => Some(Shape::O200K),
            Self::Other(shape) => Some(shape),
            Self::DeepSeek3 => None,
        }
    }

    /// Returns the scanner for a pattern that matches as one of those here.
    pub(crate) fn recognise(pattern: &str) -> Option<Self> {
        // The patterns of most files need no parsing.
        match pattern {
            GPT2 => Some(Self::Gpt2),
            QWEN2 => Some(Self::Qwen2),
            CL100K => Some(Self::Cl100k),
            O200K => Some(Self::O200k),
            _ => Shape::of(&parse(pattern).ok()?).map(Self::of),
        }
    }

    /// Returns the number, from 1, of the first alternative of `pattern` that no form of its place
    /// equals. `None` if there is none: then the alternatives are known, but not all of them together.
    pub(crate) fn first_unknown(pattern: &str) -> Option<usize> {
        let pattern = parse(pattern).ok()?;
        let all = alternatives(&pattern);
        let mut rest = all;
        let known = Shape::read(&mut rest);
        (known.is_none() && !rest.is_empty()).then(|| all.len() - rest.len() + 1)
    }

    /// Returns the scanner for splits that follow each other and keep every piece, with exactly these
    /// patterns.
    pub(crate) fn recognise_sequence<S: AsRef<str>>(patterns: &[S]) -> Option<Self> {
        let patterns = patterns.iter().map(AsRef::as_ref);
        patterns.eq(DEEPSEEK3).then_some(Self::DeepSeek3)
    }
}
