//! A small backtracking matcher for split patterns.
//!
//! The reference splits text with Oniguruma. The patterns in use are alternatives
//! of runs of character sets, so a matcher for that subset with Oniguruma's own
//! character classes is exact where a general engine with newer Unicode tables
//! would only be close. The common patterns also have hand-written scanners
//! ([`crate::scan`]), for which this matcher is the plain reference version.
//!
//! A run of one set is a single instruction that gives back one character at a
//! time, so matching takes one stack entry per run and not per character.

mod engine;
mod parse;
mod set;

use crate::unicode::char_at;
pub(crate) use engine::Engine;
pub(crate) use parse::{Node, parse};
use set::CharSet;

/// A compiled pattern that never matches the empty string.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    program: Vec<Inst>,
    sets: Vec<CharSet>,
    /// Bit per ASCII character with which a match may begin.
    first_ascii: u128,
    /// Sets of which one must hold any other first character.
    first_sets: Vec<usize>,
    /// True if a match begins with an ASCII character.
    begins_with_ascii: bool,
}

#[derive(Debug, Clone, Copy)]
enum Inst {
    /// Match a character of a set.
    Set(usize),
    /// A greedy run of characters of a set, which gives back down to `min`.
    Run {
        set: usize,
        min: u32,
        max: u32,
        possessive: bool,
    },
    /// Try `first`, and on failure `second`.
    Split {
        first: usize,
        second: usize,
    },
    Jump(usize),
    /// A lookahead: the instructions up to `end` must (or must not) match here, without consuming
    /// text.
    Look {
        negative: bool,
        end: usize,
    },
    Match,
}

/// A backtracking point. `low < at`: a run that may give back one character at a time down to
/// `low`, then continues at `pc`. `low == at`: continue there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pc: usize,
    low: usize,
    at: usize,
}

/// Longest program; the patterns in use need about fifty instructions.
const PROGRAM_MAX: usize = 2_000;

impl Pattern {
    /// Compiles a pattern in Oniguruma's syntax; the error says what is not supported.
    pub(crate) fn new(pattern: &str) -> Result<Self, String> {
        Self::compile(&parse(pattern)?)
    }

    /// Compiles a pattern that matches `text` itself.
    pub(crate) fn literal(text: &str) -> Result<Self, String> {
        Self::compile(&parse::literal(text))
    }

    fn compile(node: &Node) -> Result<Self, String> {
        if node.is_nullable() {
            return Err("a pattern that can match nothing is not supported".into());
        }
        let mut this = Self {
            program: Vec::new(),
            sets: Vec::new(),
            first_ascii: 0,
            first_sets: Vec::new(),
            begins_with_ascii: false,
        };
        this.emit(node)?;
        this.push(Inst::Match)?;
        this.collect_first(0, &mut vec![false; this.program.len()]);
        let mut first = this.first_sets.iter().map(|set| &this.sets[*set]);
        this.begins_with_ascii = first.all(CharSet::is_ascii);
        for c in 0..128u8 {
            let starts = |&set: &usize| this.sets[set].contains(char::from(c));
            if this.first_sets.iter().any(starts) {
                this.first_ascii |= 1 << c;
            }
        }
        Ok(this)
    }

    fn push(&mut self, inst: Inst) -> Result<usize, String> {
        if self.program.len() >= PROGRAM_MAX {
            return Err("the pattern is too large".into());
        }
        self.program.push(inst);
        Ok(self.program.len() - 1)
    }

    fn emit(&mut self, node: &Node) -> Result<(), String> {
        match node {
            Node::Set(set) => {
                self.sets.push(set.clone());
                self.push(Inst::Set(self.sets.len() - 1))?;
            }
            Node::Sequence(nodes) => {
                for node in nodes {
                    self.emit(node)?;
                }
            }
            Node::Alternatives(nodes) => self.emit_alternatives(nodes)?,
            Node::Run {
                set,
                min,
                max,
                possessive,
            } => {
                self.sets.push(set.clone());
                self.push(Inst::Run {
                    set: self.sets.len() - 1,
                    min: *min,
                    max: max.unwrap_or(u32::MAX),
                    possessive: *possessive,
                })?;
            }
            Node::Optional(node) => {
                let split = self.push(Inst::Match)?;
                self.emit(node)?;
                self.program[split] = Inst::Split {
                    first: split + 1,
                    second: self.program.len(),
                };
            }
            Node::Look { node, negative } => {
                let at = self.push(Inst::Match)?;
                self.emit(node)?;
                let end = self.push(Inst::Match)? + 1;
                self.program[at] = Inst::Look {
                    negative: *negative,
                    end,
                };
            }
        }
        Ok(())
    }

    fn emit_alternatives(&mut self, nodes: &[Node]) -> Result<(), String> {
        let mut jumps = Vec::new();
        for (n, node) in nodes.iter().enumerate() {
            if n + 1 == nodes.len() {
                self.emit(node)?;
                break;
            }
            let split = self.push(Inst::Match)?;
            self.emit(node)?;
            jumps.push(self.push(Inst::Match)?);
            self.program[split] = Inst::Split {
                first: split + 1,
                second: self.program.len(),
            };
        }
        let end = self.program.len();
        for jump in jumps {
            self.program[jump] = Inst::Jump(end);
        }
        Ok(())
    }

    /// Collects the sets that may hold the first character of a match.
    fn collect_first(&mut self, pc: usize, seen: &mut [bool]) {
        if std::mem::replace(&mut seen[pc], true) {
            return;
        }
        match self.program[pc] {
            Inst::Set(set) => self.first_sets.push(set),
            Inst::Run { set, min, .. } => {
                self.first_sets.push(set);
                if min == 0 {
                    self.collect_first(pc + 1, seen);
                }
            }
            Inst::Split { first, second } => {
                self.collect_first(first, seen);
                self.collect_first(second, seen);
            }
            Inst::Jump(to) => self.collect_first(to, seen),
            Inst::Look { end, .. } => self.collect_first(end, seen),
            Inst::Match => {}
        }
    }

    /// Returns the leftmost match that begins at or after `from`.
    pub(crate) fn find(
        &self,
        text: &str,
        from: usize,
        stack: &mut Vec<Frame>,
    ) -> Option<(usize, usize)> {
        let mut at = from;
        if self.begins_with_ascii {
            // No other character has a byte that is ASCII.
            let starts = |byte: &u8| byte.is_ascii() && self.first_ascii >> byte & 1 == 1;
            while let Some(skipped) = text.as_bytes().get(at..)?.iter().position(starts) {
                at += skipped;
                if let Some(end) = self.run(text, 0, at, stack) {
                    return Some((at, end));
                }
                at += 1;
            }
            return None;
        }
        while let Some(c) = char_at(text, at) {
            let may_start = if c.is_ascii() {
                self.first_ascii >> (c as u32) & 1 == 1
            } else {
                self.first_sets
                    .iter()
                    .any(|&set| self.sets[set].contains(c))
            };
            if may_start && let Some(end) = self.run(text, 0, at, stack) {
                return Some((at, end));
            }
            at += c.len_utf8();
        }
        None
    }

    /// Returns all matches, none of which is empty.
    pub(crate) fn matches(&self, text: &str) -> Vec<(usize, usize)> {
        let (mut found, mut at, mut stack) = (Vec::new(), 0, Vec::new());
        while let Some((start, end)) = self.find(text, at, &mut stack) {
            found.push((start, end));
            at = end;
        }
        found
    }

    /// Runs the program from `pc`; the end of the match. Leaves `stack` as it was.
    fn run(&self, text: &str, pc: usize, at: usize, stack: &mut Vec<Frame>) -> Option<usize> {
        let base = stack.len();
        let (mut pc, mut at) = (pc, at);
        loop {
            let next = match self.program[pc] {
                Inst::Match => {
                    stack.truncate(base);
                    return Some(at);
                }
                Inst::Set(set) => match char_at(text, at) {
                    Some(c) if self.sets[set].contains(c) => Some((pc + 1, at + c.len_utf8())),
                    _ => None,
                },
                Inst::Run {
                    set,
                    min,
                    max,
                    possessive,
                } => self.run_set(text, set, min, max, at).map(|(low, end)| {
                    if low < end && !possessive {
                        stack.push(Frame {
                            pc: pc + 1,
                            low,
                            at: end,
                        });
                    }
                    (pc + 1, end)
                }),
                Inst::Split { first, second } => {
                    stack.push(Frame {
                        pc: second,
                        low: at,
                        at,
                    });
                    Some((first, at))
                }
                Inst::Jump(to) => Some((to, at)),
                Inst::Look { negative, end } => {
                    let matched = self.run(text, pc + 1, at, stack).is_some();
                    (matched != negative).then_some((end, at))
                }
            };
            (pc, at) = match next {
                Some(state) => state,
                None => Self::back(text, base, stack)?,
            };
        }
    }

    /// Matches a greedy run: returns where the run may shrink to, and where it ends.
    fn run_set(
        &self,
        text: &str,
        set: usize,
        min: u32,
        max: u32,
        from: usize,
    ) -> Option<(usize, usize)> {
        let set = &self.sets[set];
        let (mut at, mut low, mut count) = (from, from, 0u32);
        while count < max {
            match char_at(text, at) {
                Some(c) if set.contains(c) => at += c.len_utf8(),
                _ => break,
            }
            count += 1;
            if count == min {
                low = at;
            }
        }
        (count >= min).then_some((low, at))
    }

    /// Returns the state to try next after a failure.
    fn back(text: &str, base: usize, stack: &mut Vec<Frame>) -> Option<(usize, usize)> {
        if stack.len() == base {
            return None;
        }
        let frame = stack.last_mut()?;
        if frame.low < frame.at {
            frame.at -= 1;
            while !text.is_char_boundary(frame.at) {
                frame.at -= 1;
            }
        }
        let Frame { pc, low, at } = *frame;
        // A run at its minimum and a plain alternative have nothing more to give.
        if low == at {
            stack.pop();
        }
        Some((pc, at))
    }
}

#[cfg(test)]
mod pattern_tests;
