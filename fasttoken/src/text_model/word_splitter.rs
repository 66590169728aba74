//! The pre-tokenizers of these models, which cut a text between characters of different kinds, and
//! then at its blanks.

use super::metaspace_splitter::Part;
use crate::error::Error;
use crate::json::Component;
use crate::pieces::Metaspace;
use crate::text_walk::Stretch;
use crate::unicode::{is_old_punctuation, is_word};
use std::ops::ControlFlow;

/// The steps by which parts of normalized text become words.
#[derive(Debug)]
pub(super) struct WordSplitter {
    steps: Vec<Step>,
    /// The last step, `Metaspace`.
    pub(super) metaspace: Option<Metaspace>,
    /// A word ends after each of these strings. There are no other steps then.
    pub(super) after: Option<String>,
}

/// A step, which cuts every piece of the step before into smaller ones.
#[derive(Debug)]
struct Step {
    rule: Rule,
    /// The kinds of ASCII characters.
    ascii: [Kind; 128],
}

/// The rule that says the kind of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Blanks go, and punctuation stands alone.
    Bert,
    /// Blanks go.
    WhitespaceSplit,
    /// Blanks go, and runs of word characters and of others are words.
    Whitespace,
    /// Punctuation is of this kind.
    Punctuation(Kind),
    /// Digits are of this kind.
    Digits(Kind),
}

/// The part of a character in a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The character is no part of a word.
    Gone,
    /// The character is a word.
    Alone,
    /// Neighbours of this kind are a word.
    Run,
    /// Neighbours of this kind are another word.
    OtherRun,
}

/// A word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// The byte at which the word begins: of the part if there is one, else of the normalized
    /// segment.
    pub(super) start: usize,
    /// The part that `Metaspace` made the word of.
    pub(super) part: Option<&'a Part>,
}

impl Word<'_> {
    /// Returns a part of a word that `Metaspace` did not make.
    fn part(self, from: usize, to: usize) -> Self {
        Self {
            text: &self.text[from..to],
            start: self.start + from,
            part: None,
        }
    }

    /// Returns the byte of the normalized segment that a byte of the word stands for.
    pub(super) fn place(&self, at: usize) -> usize {
        let at = self.start + at;
        self.part.map_or(at, |part| part.place(at))
    }
}

/// A receiver of words.
pub(super) type Each<'e> = dyn FnMut(Word<'_>) -> ControlFlow<()> + 'e;

impl Rule {
    fn kind(self, c: char) -> Kind {
        let punctuation = |c: char| c.is_ascii_punctuation() || is_old_punctuation(c);
        match self {
            Self::Bert | Self::WhitespaceSplit | Self::Whitespace if c.is_whitespace() => {
                Kind::Gone
            }
            Self::Bert if punctuation(c) => Kind::Alone,
            Self::Whitespace if !is_word(c) => Kind::OtherRun,
            Self::Punctuation(kind) if punctuation(c) => kind,
            // The reference asks the standard library.
            Self::Digits(kind) if c.is_numeric() => kind,
            _ => Kind::Run,
        }
    }
}

impl WordSplitter {
    /// Reads the pre-tokenizer of a BPE model, or of another one.
    pub(super) fn load(
        component: Option<&Component>,
        path: &str,
        is_bpe: bool,
    ) -> Result<Self, Error> {
        let mut this = Self {
            steps: Vec::new(),
            metaspace: None,
            after: None,
        };
        if let Some(component) = component {
            this.add(component, path, is_bpe)?;
        }
        Ok(this)
    }

    fn add(&mut self, component: &Component, path: &str, is_bpe: bool) -> Result<(), Error> {
        let kind = component.kind(path)?;
        if self.metaspace.is_some() || self.after.is_some() {
            let last = match self.after {
                Some(_) => "Split",
                None => "Metaspace",
            };
            return Err(Error::unsupported(
                path,
                format!("pre-tokenizer {kind} after {last}"),
            ));
        }
        let rule = match kind {
            "Metaspace" => {
                self.metaspace = Some(Metaspace::load(component, path)?);
                return Ok(());
            }
            "Sequence" => {
                for (part, path) in component.parts("pretokenizers", path)? {
                    self.add(&part, &path, is_bpe)?;
                }
                return Ok(());
            }
            "Split" if is_bpe => {
                self.after = Some(split_after(component, path)?);
                return Ok(());
            }
            other if is_bpe => {
                return Err(Error::unsupported(
                    path,
                    format!(
                        "pre-tokenizer {other} for a BPE model without ByteLevel (supported: null, Metaspace, Split after a string)"
                    ),
                ));
            }
            "BertPreTokenizer" => Rule::Bert,
            "Whitespace" => Rule::Whitespace,
            "WhitespaceSplit" => Rule::WhitespaceSplit,
            "Punctuation" => Rule::Punctuation(punctuation(component, path)?),
            "Digits" => Rule::Digits(match component.bool("individual_digits", path)? {
                true => Kind::Alone,
                false => Kind::OtherRun,
            }),
            other => {
                return Err(Error::unsupported(
                    path,
                    format!(
                        "pre-tokenizer {other} for a model that is not BPE (supported: BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation, Digits, Metaspace, Sequence)"
                    ),
                ));
            }
        };
        let ascii = std::array::from_fn(|code| rule.kind(char::from(code as u8)));
        self.steps.push(Step { rule, ascii });
        Ok(())
    }

    /// Calls `each` with the words of a stretch of text.
    pub(super) fn split(&self, stretch: Stretch<'_>, each: &mut Each<'_>) -> ControlFlow<()> {
        let Stretch {
            text,
            start,
            origin,
        } = stretch;
        let piece = Word {
            text,
            start,
            part: None,
        };
        if let Some(end) = &self.after {
            let mut at = 0;
            for (found, _) in text.match_indices(end.as_str()) {
                let next = found + end.len();
                each(piece.part(at, next))?;
                at = next;
            }
            if at == text.len() {
                return ControlFlow::Continue(());
            }
            return each(piece.part(at, text.len()));
        }
        match &self.metaspace {
            None => split_by(&self.steps, piece, each),
            Some(metaspace) => {
                let mut part = Part::default();
                split_by(&self.steps, piece, &mut |piece| {
                    metaspace.split(piece, origin, &mut part, each)
                })
            }
        }
    }
}

fn split_by(steps: &[Step], piece: Word<'_>, each: &mut Each<'_>) -> ControlFlow<()> {
    match steps {
        [] => each(piece),
        [last] => last.cut(piece, each),
        [step, rest @ ..] => step.cut(piece, &mut |piece| split_by(rest, piece, each)),
    }
}

impl Step {
    /// Cuts a piece, which is not empty.
    fn cut(&self, piece: Word<'_>, each: &mut Each<'_>) -> ControlFlow<()> {
        let bytes = piece.text.as_bytes();
        let mut word = |from: usize, to: usize| each(piece.part(from, to));
        // The kind of the characters from `from` on, which are not cut off yet.
        let (mut from, mut run) = (0, Kind::Gone);
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            let (kind, len) = if byte.is_ascii() {
                (self.ascii[usize::from(byte)], 1)
            } else {
                let c = piece.text[at..].chars().next().unwrap_or_default();
                (self.rule.kind(c), c.len_utf8())
            };
            if kind != run || kind == Kind::Alone {
                if run != Kind::Gone {
                    word(from, at)?;
                }
                (from, run) = (at, kind);
            }
            at += len;
        }
        if run != Kind::Gone {
            word(from, at)?;
        }
        ControlFlow::Continue(())
    }
}

/// Returns the string after which `Split` splits.
fn split_after(component: &Component, path: &str) -> Result<String, Error> {
    let pattern = component.object("pattern", path)?;
    let behaviour = component.string("behavior", path)?;
    let invert = component.bool("invert", path)?;
    let string = pattern.get("String").and_then(|p| p.as_str());
    match string {
        Some(end) if !end.is_empty() && behaviour == "MergedWithPrevious" && !invert => {
            Ok(end.to_owned())
        }
        _ => Err(Error::unsupported(
            path,
            "pre-tokenizer Split other than by a string with MergedWithPrevious, for a model without ByteLevel",
        )),
    }
}

fn punctuation(component: &Component, path: &str) -> Result<Kind, Error> {
    let behavior = match component.get("behavior") {
        None => "Isolated",
        Some(_) => component.string("behavior", path)?,
    };
    match behavior {
        "Isolated" => Ok(Kind::Alone),
        "Removed" => Ok(Kind::Gone),
        "Contiguous" => Ok(Kind::OtherRun),
        other => Err(Error::unsupported(
            format!("{path}.behavior"),
            format!("Punctuation with behavior {other} (supported: Isolated, Removed, Contiguous)"),
        )),
    }
}
