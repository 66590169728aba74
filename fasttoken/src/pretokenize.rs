//! Splitting of normalized text into words (pre-tokens), which are encoded one by one.

mod word_buffer;

pub(crate) use word_buffer::{PreToken, PreTokens, WordBuffer};

use crate::error::Error;
use crate::json::Component;
use crate::pattern::{Engine, Frame, Pattern};
use crate::scan::{ENDS, Grammar, Scanner};
use crate::warning::Warning;
use std::cell::Cell;
use std::ops::ControlFlow;

/// The pre-tokenizer of a byte-level model: any number of splits, then `ByteLevel`.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    splits: Vec<Split>,
    /// True if a piece that does not begin with a space is given one.
    add_prefix_space: bool,
    /// True if `ByteLevel` splits each piece once more by its own expression.
    use_regex: bool,
    /// Notes about patterns that are slow or not known to be exact.
    pub(crate) warnings: Vec<Warning>,
}

/// A step, which cuts every piece of the step before into smaller ones.
#[derive(Debug)]
enum Split {
    /// Splits by a common pattern, or several in a row, and keeps every piece.
    Grammar(Grammar),
    Pattern {
        pattern: Pattern,
        keep: Keep,
    },
    /// Splits by a pattern on the general engine.
    Engine {
        engine: Engine,
        keep: Keep,
    },
    /// Splits every digit off alone, or (`false`) runs of digits.
    Digits {
        individual: bool,
    },
}

/// The pieces that a pattern keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    All,
    Matches,
    Gaps,
}

impl Keep {
    /// Calls `each` with the text between two matches, and the match after it, if they are kept and
    /// not empty. The text is `from..start`, and the match `start..end`.
    fn pieces(
        self,
        from: usize,
        start: usize,
        end: usize,
        mut each: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if from < start && self != Self::Matches {
            each(from, start)?;
        }
        if start < end && self != Self::Gaps {
            each(start, end)?;
        }
        ControlFlow::Continue(())
    }
}

/// Memory kept between the pieces of one call.
#[derive(Debug, Default)]
pub(crate) struct SplitScratch {
    frames: Vec<Frame>,
    prefixed: String,
    ends: Ends,
}

/// Memory for ends of words, which the thread keeps between calls, because clearing it would cost a
/// short text more than its words do.
#[derive(Debug, Default)]
struct Ends(Option<Box<[usize; ENDS]>>);

thread_local! {
    static KEPT: Cell<Option<Box<[usize; ENDS]>>> = const { Cell::new(None) };
}

impl Ends {
    fn get(&mut self) -> &mut [usize; ENDS] {
        // A call inside of a call gets memory of its own.
        let kept = || KEPT.try_with(Cell::take).ok().flatten();
        self.0
            .get_or_insert_with(|| kept().unwrap_or_else(|| Box::new([0; ENDS])))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(ends) = self.0.take() {
            // A thread that is ending has no place for the memory.
            let _ = KEPT.try_with(|kept| kept.set(Some(ends)));
        }
    }
}

impl PreTokenizer {
    /// Returns true if no split drops any part of a text.
    pub(crate) fn keeps_text(&self) -> bool {
        let drops = |split: &Split| match split {
            Split::Pattern { keep, .. } | Split::Engine { keep, .. } => *keep != Keep::All,
            Split::Grammar(_) | Split::Digits { .. } => false,
        };
        !self.splits.iter().any(drops)
    }

    pub(crate) fn load(component: Option<&Component>, path: &str) -> Result<Self, Error> {
        let Some(component) = component else {
            return Err(missing_byte_level(path));
        };
        let mut steps = Vec::new();
        flatten(component, path, &mut steps)?;
        let Some((last, last_path)) = steps.pop() else {
            return Err(missing_byte_level(path));
        };
        if last.kind(&last_path)? != "ByteLevel" {
            return Err(missing_byte_level(path));
        }
        let mut warnings = Vec::new();
        let splits = match known_sequence(&steps) {
            Some(grammar) => vec![Split::Grammar(grammar)],
            None => steps
                .iter()
                .map(|(step, path)| Split::load(step, path, &mut warnings))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            splits,
            warnings,
            add_prefix_space: last.bool("add_prefix_space", &last_path)?,
            use_regex: last.bool_or("use_regex", &last_path, true)?,
        })
    }

    /// Returns true if every split is one that [`crate::window`] knows, and some split cuts text
    /// into words.
    pub(crate) fn uses_known_grammars(&self) -> bool {
        let known = |split: &Split| matches!(split, Split::Grammar(_) | Split::Digits { .. });
        let by_grammar = |split: &Split| matches!(split, Split::Grammar(_));
        self.splits.iter().all(known) && (self.use_regex || self.splits.iter().any(by_grammar))
    }

    /// Returns the grammar that alone decides over words, if there is one.
    pub(crate) fn only_grammar(&self) -> Option<Grammar> {
        match self.splits.as_slice() {
            _ if self.add_prefix_space => None,
            [] if self.use_regex => Some(Grammar::Gpt2),
            [Split::Grammar(grammar)] if !self.use_regex => Some(*grammar),
            _ => None,
        }
    }

    /// Calls `each` with the words of `segment` in order, as the grammar of
    /// [`PreTokenizer::only_grammar`] splits it, many at a time. `base` is added to
    /// their positions.
    pub(crate) fn split_by_grammar<F>(
        grammar: Grammar,
        segment: &str,
        base: usize,
        scratch: &mut SplitScratch,
        mut each: F,
    ) -> ControlFlow<()>
    where
        F: FnMut(PreTokens<'_>) -> ControlFlow<()>,
    {
        let scanner = Scanner::new(segment);
        let ends = scratch.ends.get();
        let mut start = 0;
        loop {
            let count = scanner.fill(grammar, start, ends, 0);
            let Some(&end) = ends[..count].last() else {
                return ControlFlow::Continue(());
            };
            each(PreTokens {
                text: segment,
                start,
                ends: &ends[..count],
                base,
                tokens: &[],
            })?;
            start = end;
        }
    }

    /// Calls `each` with the words of `segment` in order; `base` is added to their
    /// positions.
    pub(crate) fn split<F>(
        &self,
        segment: &str,
        base: usize,
        scratch: &mut SplitScratch,
        each: &mut F,
    ) -> ControlFlow<()>
    where
        F: FnMut(PreToken<'_>) -> ControlFlow<()>,
    {
        self.split_from(0, segment, base, scratch, each)
    }

    fn split_from<F>(
        &self,
        step: usize,
        piece: &str,
        base: usize,
        scratch: &mut SplitScratch,
        each: &mut F,
    ) -> ControlFlow<()>
    where
        F: FnMut(PreToken<'_>) -> ControlFlow<()>,
    {
        let Some(split) = self.splits.get(step) else {
            return self.byte_level(piece, base, scratch, each);
        };
        let mut next = |start: usize, end: usize, scratch: &mut SplitScratch| {
            self.split_from(step + 1, &piece[start..end], base + start, scratch, each)
        };
        match split {
            Split::Grammar(grammar) => {
                let scanner = Scanner::new(piece);
                let mut at = 0;
                while at < piece.len() {
                    let end = scanner.end_of_match(*grammar, at);
                    next(at, end, scratch)?;
                    at = end;
                }
            }
            Split::Pattern { pattern, keep } => {
                let mut at = 0;
                while at < piece.len() {
                    let (start, end) = pattern
                        .find(piece, at, &mut scratch.frames)
                        .unwrap_or((piece.len(), piece.len()));
                    keep.pieces(at, start, end, |start, end| next(start, end, scratch))?;
                    at = end;
                }
            }
            Split::Engine { engine, keep } => {
                let mut at = 0;
                let end = std::iter::once((piece.len(), piece.len()));
                for (start, end) in engine.matches(piece).chain(end) {
                    keep.pieces(at, start, end, |start, end| next(start, end, scratch))?;
                    at = end;
                }
            }
            Split::Digits { individual } => {
                let mut start = 0;
                let mut previous = None;
                for (at, c) in piece.char_indices() {
                    // The reference asks the standard library, not Oniguruma.
                    let numeric = c.is_numeric();
                    let cut = previous.is_some_and(|p| p != numeric || (numeric && *individual));
                    if cut {
                        next(start, at, scratch)?;
                        start = at;
                    }
                    previous = Some(numeric);
                }
                if start < piece.len() {
                    next(start, piece.len(), scratch)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn byte_level<F>(
        &self,
        piece: &str,
        base: usize,
        scratch: &mut SplitScratch,
        each: &mut F,
    ) -> ControlFlow<()>
    where
        F: FnMut(PreToken<'_>) -> ControlFlow<()>,
    {
        let insert = self.add_prefix_space && !piece.starts_with(' ');
        let mut buffer = std::mem::take(&mut scratch.prefixed);
        let text = if insert {
            buffer.clear();
            buffer.push(' ');
            buffer.push_str(piece);
            &*buffer
        } else {
            piece
        };
        let shift = usize::from(insert);
        let scanner = Scanner::new(text);
        let mut at = 0;
        let mut flow = ControlFlow::Continue(());
        while at < text.len() && flow.is_continue() {
            let end = if self.use_regex {
                scanner.end_of_match(Grammar::Gpt2, at)
            } else {
                text.len()
            };
            flow = each(PreToken {
                text: &text[at..end],
                start: base + at.saturating_sub(shift),
                prefixed: insert && at == 0,
            });
            at = end;
        }
        scratch.prefixed = buffer;
        flow
    }
}

fn missing_byte_level(path: &str) -> Error {
    Error::unsupported(
        path,
        "a pre-tokenizer that does not end in ByteLevel (only byte-level BPE is supported)",
    )
}

/// Lists the steps of nested sequences in order.
fn flatten(
    component: &Component,
    path: &str,
    steps: &mut Vec<(Component, String)>,
) -> Result<(), Error> {
    if component.kind(path)? != "Sequence" {
        steps.push((component.clone(), path.to_owned()));
        return Ok(());
    }
    for (part, path) in component.parts("pretokenizers", path)? {
        flatten(&part, &path, steps)?;
    }
    Ok(())
}

/// Returns the grammar that does what all `steps` do one after the other, if there is one. What is
/// wrong with a step is not said here.
fn known_sequence(steps: &[(Component, String)]) -> Option<Grammar> {
    let isolated = |(step, path): &(Component, String)| {
        let isolated = step.kind(path).ok()? == "Split"
            && step.string("behavior", path).ok()? == "Isolated"
            && step.bool("invert", path).is_ok();
        let pattern = step.object("pattern", path).ok()?;
        let regex = pattern.string("Regex", path).ok()?;
        let isolated = isolated && pattern.get("String").is_none();
        isolated.then(|| regex.to_owned())
    };
    let patterns: Option<Vec<String>> = steps.iter().map(isolated).collect();
    Grammar::recognise_sequence(&patterns?)
}

impl Split {
    fn load(component: &Component, path: &str, warnings: &mut Vec<Warning>) -> Result<Self, Error> {
        match component.kind(path)? {
            "Split" => Self::load_split(component, path, warnings),
            "Digits" => Ok(Self::Digits {
                individual: component.bool("individual_digits", path)?,
            }),
            "ByteLevel" => Err(Error::unsupported(
                path,
                "ByteLevel before another pre-tokenizer",
            )),
            other => Err(Error::unsupported(
                path,
                format!("pre-tokenizer {other} (supported: Split, Digits, ByteLevel, Sequence)"),
            )),
        }
    }

    fn load_split(
        component: &Component,
        path: &str,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, Error> {
        let invert = component.bool("invert", path)?;
        let keep = match component.string("behavior", path)? {
            "Isolated" => Keep::All,
            "Removed" if invert => Keep::Matches,
            "Removed" => Keep::Gaps,
            other => {
                return Err(Error::unsupported(
                    format!("{path}.behavior"),
                    format!("split behavior {other} (supported: Isolated, Removed)"),
                ));
            }
        };
        let pattern_path = format!("{path}.pattern");
        let pattern = component.object("pattern", path)?;
        if let Some(text) = pattern.get("String").and_then(|text| text.as_str()) {
            let pattern = Pattern::literal(text)
                .map_err(|problem| Error::unsupported(&pattern_path, problem))?;
            return Ok(Self::Pattern { pattern, keep });
        }
        let regex = pattern.string("Regex", &pattern_path)?;
        if keep != Keep::Gaps
            && let Some(grammar) = Grammar::recognise(regex)
        {
            return Ok(Self::Grammar(grammar));
        }
        let (path, given) = (pattern_path.clone(), regex.to_owned());
        match Pattern::new(regex) {
            Ok(pattern) => {
                warnings.push(Warning::SlowPattern {
                    path,
                    pattern: given,
                    alternative: Grammar::first_unknown(regex),
                });
                Ok(Self::Pattern { pattern, keep })
            }
            Err(problem) => {
                let engine = Engine::new(regex).map_err(|also| {
                    let what = format!("pattern {regex:?}: {problem}; on a general engine: {also}");
                    Error::unsupported(&pattern_path, what)
                })?;
                warnings.push(Warning::InexactPattern {
                    path,
                    pattern: given,
                    problem,
                });
                Ok(Self::Engine { engine, keep })
            }
        }
    }
}
