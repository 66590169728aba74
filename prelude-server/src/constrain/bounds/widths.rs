//! Bounds of the width of derivatives of regular expressions.

use llguidance::derivre::{ExprRef, raw::ExprSet};

use super::TooComplex;

/// Upper bound of the branches that one derivative of an expression has.
const BRANCHES_MAX: u64 = 512;

/// Upper bound of the branches of all expressions' derivatives together.
const BRANCHES_SUM_MAX: u64 = 500_000;

/// Upper bound of the pairs of branches that the derivative of an intersection is made of.
pub(super) const PAIRS_MAX: u64 = 3_000_000;

/// Upper bound of the pairs of branches where both sides have reached one place.
const PAIRS_AT_ONCE_MAX: u64 = 100_000;

/// Upper bound of the pairs of places that an intersection has reached when fuel for one mask is
/// left to go on: each costs ten units.
const PAIRS_REACHED: u64 = 10_000;

/// Upper bound of the branches below a negation, each of which is compared with up to 256 sets of
/// bytes.
const NEGATED_MAX: u64 = 20_000;

/// Upper bound of the places that a negated expression has reached when fuel for one mask is left
/// to go on: they cost their square.
const NEGATED_REACHED: u64 = 300;

/// Repetitions that a counted repetition is taken to have: the expression does not tell.
const COUNT: u64 = 1_000;

/// Upper bound of the alternatives that may begin alike and still count as one place, and of the
/// bytes that each of them has.
const ALIKE_MAX: usize = 4;
const ALIKE_BYTES_MAX: usize = 64;

/// The tags of the kinds of expressions, which the library does not name outside itself.
pub(super) struct Kinds {
    byte: u8,
    byte_set: u8,
    byte_concat: u8,
    concat: u8,
    or: u8,
    and: u8,
    not: u8,
    repeat: u8,
    lookahead: u8,
    remainder: u8,
}

impl Kinds {
    pub(super) fn new() -> Self {
        let mut set = ExprSet::new(256);
        let byte = set.mk_byte(b'a');
        let [ab, cd] = [set.mk_literal("ab"), set.mk_literal("cd")];
        let byte_set = set.mk_or(&mut vec![byte, ExprRef::ANY_BYTE]);
        let or = set.mk_or(&mut vec![ab, cd]);
        let and = set.mk_and(&mut vec![ab, cd]);
        let not = set.mk_not(ab);
        let repeat = set.mk_repeat(byte, 0, 2);
        let concat = set.mk_concat(repeat, ab);
        let lookahead = set.mk_lookahead(ab, 0);
        let remainder = set.mk_remainder_is(7, 1, 0, false);
        let tag = |e| set.get_tag(e) as u8;
        Self {
            byte: tag(byte),
            byte_set: tag(byte_set),
            byte_concat: tag(ab),
            concat: tag(concat),
            or: tag(or),
            and: tag(and),
            not: tag(not),
            repeat: tag(repeat),
            lookahead: tag(lookahead),
            remainder: tag(remainder),
        }
    }
}

/// A set of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Bytes([u64; 4]);

impl Bytes {
    const ALL: Self = Self([u64::MAX; 4]);

    fn with(mut self, byte: u8) -> Self {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
        self
    }

    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    fn meets(self, other: Self) -> bool {
        self.and(other) != Self::default()
    }
}

/// The facts known about one expression.
#[derive(Clone, Copy)]
struct Width {
    /// Bytes that texts of the expression may begin with.
    first: Bytes,
    /// Bytes that may follow a text of the expression in a longer one.
    after: Bytes,
    /// True if at any point of a text at most one place in the expression has been reached.
    is_deterministic: bool,
    /// Upper bound of the branches of the expression's derivative.
    branches: u64,
    /// The largest `branches` of the expressions inside the expression.
    widest: u64,
    /// Upper bound of the places that may have been reached at the same time.
    places: u64,
    /// The bytes that every one of its texts has, if that is known and few.
    length: Option<usize>,
}

impl Width {
    const EMPTY: Self = Self {
        first: Bytes([0; 4]),
        after: Bytes([0; 4]),
        is_deterministic: true,
        branches: 0,
        widest: 0,
        places: 0,
        length: None,
    };

    /// Returns an upper bound of the branches of a derivative of any state that the expression
    /// passes through.
    fn reach(&self) -> u64 {
        let places = if self.is_deterministic {
            1
        } else {
            self.places
        };
        self.widest.max(1).saturating_mul(places)
    }

    /// Branches of `branches` that one branch of another expression meets in an intersection: few
    /// where they begin with different bytes, as the encodings of characters do.
    fn partners(&self, branches: u64) -> u64 {
        match self.is_deterministic && self.widest <= 16 {
            true => branches.min(2),
            false => branches,
        }
    }
}

/// The widths of all expressions of a set.
pub(super) struct Widths {
    by_id: Vec<Width>,
    /// Some expression is an intersection or a negation.
    pub(super) has_sets: bool,
}

impl Widths {
    /// Finds the widths, in time linear in the number of expressions and of their arguments.
    pub(super) fn of(exprs: &ExprSet, kinds: &Kinds) -> Result<Self, TooComplex> {
        let mut widths = Self {
            by_id: vec![Width::EMPTY; exprs.len()],
            has_sets: false,
        };
        let mut stars = None;
        let mut sum = 0u64;
        // Arguments come before what they are arguments of; the first place is not used.
        for id in 1..exprs.len() {
            let expr = ExprRef::new(u32::try_from(id).expect("ids are 32 bits wide"));
            let mut width = widths.width(exprs, kinds, expr)?;
            if exprs.get_tag(expr) as u8 == kinds.repeat && !width.is_deterministic {
                let stars = stars.get_or_insert_with(|| exprs.clone());
                let inner = exprs.get_args(expr)[0];
                let unbounded = [0, 1].map(|min| stars.mk_repeat(inner, min, u32::MAX));
                if !unbounded.contains(&expr) {
                    width.places = width.places.saturating_mul(COUNT);
                }
            }
            sum = sum.saturating_add(width.branches);
            if width.branches > BRANCHES_MAX || sum > BRANCHES_SUM_MAX {
                return Err(TooComplex);
            }
            widths.by_id[id] = width;
        }
        Ok(widths)
    }

    pub(super) fn reach(&self, expr: ExprRef) -> u64 {
        self.by_id[expr.as_usize()].reach()
    }

    fn width(
        &mut self,
        exprs: &ExprSet,
        kinds: &Kinds,
        expr: ExprRef,
    ) -> Result<Width, TooComplex> {
        let tag = exprs.get_tag(expr) as u8;
        let args = exprs.get_args(expr);
        let own = |i: usize| self.by_id[args[i].as_usize()];
        let mut width = match tag {
            t if t == kinds.byte || t == kinds.byte_set => leaf(exprs, expr),
            t if t == kinds.byte_concat => byte_concat(exprs, expr, args[0], own(0)),
            t if t == kinds.concat => concat(exprs, args, own(0), own(1)),
            t if t == kinds.or => self.or(exprs, args),
            t if t == kinds.repeat => repeat(exprs, args[0], own(0)),
            t if t == kinds.and => self.and(args)?,
            t if t == kinds.not => negation(own(0))?,
            t if t == kinds.lookahead => Width {
                after: Bytes::ALL,
                length: None,
                ..own(0)
            },
            t if t == kinds.remainder => Width {
                first: Bytes::ALL,
                after: Bytes::ALL,
                branches: 11,
                widest: 11,
                places: COUNT,
                ..Width::EMPTY
            },
            _ => Width {
                length: (expr == ExprRef::EMPTY_STRING).then_some(0),
                ..Width::EMPTY
            },
        };
        self.has_sets |= tag == kinds.and || tag == kinds.not || tag == kinds.remainder;
        if !width.is_deterministic {
            width.after = Bytes::ALL;
        }
        width.widest = width.widest.max(width.branches);
        Ok(width)
    }

    fn or(&self, exprs: &ExprSet, args: &[ExprRef]) -> Width {
        let length = args
            .first()
            .and_then(|arg| self.by_id[arg.as_usize()].length);
        let mut all = Width {
            length,
            ..Width::EMPTY
        };
        let (mut ends, mut are_alike) = (false, false);
        for arg in args {
            let one = self.by_id[arg.as_usize()];
            are_alike |= all.first.meets(one.first);
            all.length = all.length.filter(|_| all.length == one.length);
            all.is_deterministic &= one.is_deterministic;
            all.first = all.first.or(one.first);
            all.after = all.after.or(one.after);
            all.branches = all.branches.saturating_add(one.branches);
            all.widest = all.widest.max(one.widest);
            all.places = all.places.saturating_add(one.places);
            ends |= exprs.is_nullable(*arg);
        }
        if ends {
            all.after = all.after.or(all.first);
        }
        // Of texts of one length none begins another.
        if are_alike && (all.length.is_none() || args.len() > ALIKE_MAX) {
            all.is_deterministic = false;
        }
        all
    }

    fn and(&self, args: &[ExprRef]) -> Result<Width, TooComplex> {
        let mut all = Width {
            first: Bytes::ALL,
            after: Bytes::ALL,
            branches: 1,
            places: 1,
            ..Width::EMPTY
        };
        let (mut pairs, mut step, mut widest) = (1u64, PAIRS_REACHED, 1u64);
        for arg in args {
            let one = self.by_id[arg.as_usize()];
            all.first = all.first.and(one.first);
            all.after = all.after.and(one.after);
            all.is_deterministic &= one.is_deterministic;
            all.branches = all.branches.saturating_mul(one.branches);
            all.places = all.places.saturating_mul(one.places.max(1));
            widest = widest.saturating_mul(one.widest.max(1));
            pairs = pairs.saturating_mul(one.partners(one.reach()));
            step = step.saturating_mul(one.partners(one.widest.max(1)));
        }
        if pairs.min(step) > PAIRS_MAX || widest > PAIRS_AT_ONCE_MAX {
            return Err(TooComplex);
        }
        // Pairs of bytes that differ are no branches.
        all.branches = all.branches.min(BRANCHES_MAX);
        all.widest = widest;
        Ok(all)
    }
}

fn leaf(exprs: &ExprSet, expr: ExprRef) -> Width {
    let node = exprs.get(expr);
    let bytes = (0..=u8::MAX).filter(|&byte| !node.surely_no_match(byte));
    Width {
        first: bytes.fold(Bytes::default(), Bytes::with),
        branches: 1,
        widest: 1,
        places: 1,
        length: Some(1),
        ..Width::EMPTY
    }
}

fn byte_concat(exprs: &ExprSet, expr: ExprRef, arg: ExprRef, tail: Width) -> Width {
    let parts = |e| exprs.iter_concat_bytes(e).take(2 * ALIKE_BYTES_MAX).count();
    let length = tail.length.map(|bytes| bytes + parts(expr) - parts(arg));
    Width {
        after: conflict(exprs, arg, tail),
        is_deterministic: tail.is_deterministic,
        places: tail.places.saturating_add(ExprRef::MAX_BYTE_CONCAT as u64),
        widest: tail.widest.max(1),
        length: length.filter(|&bytes| bytes <= ALIKE_BYTES_MAX),
        ..leaf(exprs, expr)
    }
}

/// Returns the bytes that may follow where the expression is over, or has not begun if it may be
/// empty.
fn conflict(exprs: &ExprSet, expr: ExprRef, width: Width) -> Bytes {
    match exprs.is_nullable(expr) {
        true => width.after.or(width.first),
        false => width.after,
    }
}

fn concat(exprs: &ExprSet, args: &[ExprRef], a: Width, b: Width) -> Width {
    let is_clear = !conflict(exprs, args[0], a).meets(b.first);
    let (mut first, mut after, mut branches) = (a.first, b.after, a.branches);
    if exprs.is_nullable(args[0]) {
        first = first.or(b.first);
        branches = branches.saturating_add(b.branches);
    }
    if exprs.is_nullable(args[1]) {
        after = after.or(b.first).or(a.after);
    }
    Width {
        first,
        after,
        is_deterministic: a.is_deterministic && b.is_deterministic && is_clear,
        branches,
        widest: a.widest.max(b.widest),
        places: a.places.saturating_add(b.places),
        length: a.length.zip(b.length).map(|(a, b)| a + b),
    }
}

fn repeat(exprs: &ExprSet, arg: ExprRef, inner: Width) -> Width {
    let is_clear = !conflict(exprs, arg, inner).meets(inner.first);
    Width {
        after: inner.after.or(inner.first),
        is_deterministic: inner.is_deterministic && is_clear,
        length: None,
        ..inner
    }
}

fn negation(inner: Width) -> Result<Width, TooComplex> {
    let step = inner.widest.saturating_mul(NEGATED_REACHED);
    if inner.reach().min(step) > NEGATED_MAX {
        return Err(TooComplex);
    }
    Ok(Width {
        first: Bytes::ALL,
        after: Bytes::ALL,
        is_deterministic: inner.is_deterministic,
        branches: inner.branches.min(256) + 1,
        widest: inner.widest.min(256) + 1,
        places: inner.places.saturating_mul(COUNT),
        length: None,
    })
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;

    use super::*;

    /// Returns the cost of a regular expression, without the lexer.
    fn widths(regex: &str) -> Result<Widths, TooComplex> {
        let mut builder = RegexBuilder::new();
        builder.mk_regex(regex).unwrap();
        Widths::of(builder.exprset(), &Kinds::new())
    }

    #[test]
    fn derivatives_that_are_wide_are_found() {
        let check = |regex: &str, expected: bool| {
            assert_eq!(widths(regex).is_ok(), expected, "{regex:.40}");
        };
        check(&"a?".repeat(400), true);
        check(&"a?".repeat(600), false);
        check(r"(\w+@\w+\.com, )*\p{L}{3,500}", true);
        let words: Vec<String> = (0..3_000).map(|i| format!("word {i}")).collect();
        check(&words.join("|"), true);
        let alike: Vec<String> = (0..600).map(|i| format!("(a{i})?b")).collect();
        check(&alike.join("|"), false);
    }

    #[test]
    fn places_are_told_apart() {
        let is_deterministic = |regex: &str| {
            let widths = widths(regex).unwrap();
            widths.by_id.last().unwrap().is_deterministic
        };
        for regex in ["[a-z]+:[0-9]{2,9}x", "(ab|cd)*e", ".{3,500}", "(é|è|x)*,y"] {
            assert!(is_deterministic(regex), "{regex}");
        }
        for regex in [".*a.{9}", "(a|ab)(c|bcd)", "(a*b?)*a", "a?a"] {
            assert!(!is_deterministic(regex), "{regex}");
        }
    }
}
