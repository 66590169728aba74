//! Made-up text in several scripts, for where no real text is at hand.
//!
//! Words come from a seeded lexicon by Zipf's law, with two new words in a hundred, never used
//! before: real text keeps bringing new words too. Spelling is random, so engines find fewer whole
//! words in their vocabularies than in real text; figures from it compare engines, no more.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

use crate::kind::Kind;

const LEXICON_WORDS: usize = 8_000;
const UNSEEN: f64 = 0.02;

/// Makes text without end.
pub(crate) struct Synth {
    kind: Kind,
    rng: StdRng,
    letters: Vec<char>,
    lexicon: Vec<String>,
}

impl Synth {
    pub(crate) fn new(kind: Kind) -> Self {
        let mut rng = StdRng::seed_from_u64(0x5EED + kind as u64);
        let mut letters: Vec<char> = alphabet(kind).collect();
        letters.shuffle(&mut rng);
        let mut synth = Self {
            kind,
            rng,
            letters,
            lexicon: Vec::new(),
        };
        synth.lexicon = (0..LEXICON_WORDS).map(|_| synth.spell()).collect();
        synth
    }

    /// Returns a line of a few sentences, or of code.
    pub(crate) fn line(&mut self) -> String {
        if self.kind == Kind::Code {
            return self.code_line();
        }
        let (blank, stop) = match self.kind {
            Kind::Chinese | Kind::Japanese => ("", "。"),
            Kind::Arabic => (" ", "؟ "),
            _ => (" ", ". "),
        };
        let mut line = String::new();
        for _ in 0..self.rng.random_range(1..5) {
            let words: Vec<String> = (0..self.rng.random_range(4..20))
                .map(|_| self.word())
                .collect();
            line.push_str(&words.join(blank));
            line.push_str(stop);
        }
        line.trim_end().to_owned()
    }

    fn code_line(&mut self) -> String {
        let (a, b, c) = (self.word(), self.word(), self.word());
        let n: u32 = self.rng.random_range(0..5000);
        let indent = "    ".repeat(self.rng.random_range(0..4));
        match self.rng.random_range(0..6) {
            0 => format!("{indent}let {a}_{b} = {c}({n}, &{b});"),
            1 => format!("{indent}if {a}.{b}() > {n} {{"),
            2 => format!("{indent}}}"),
            3 => format!("{indent}// {a} {b} {c}"),
            4 => format!("{indent}fn {a}_{b}({c}: &str) -> Result<usize, Error> {{"),
            _ => format!("{indent}self.{a}.push({b}[{n}] + {c});"),
        }
    }

    fn word(&mut self) -> String {
        if self.rng.random_bool(UNSEEN) {
            return self.spell();
        }
        let rank = zipf(&mut self.rng, self.lexicon.len());
        self.lexicon[rank].clone()
    }

    fn spell(&mut self) -> String {
        let length = match self.kind {
            Kind::Chinese => self.rng.random_range(1..4),
            Kind::Japanese | Kind::Korean => self.rng.random_range(1..6),
            _ => self.rng.random_range(2..10),
        };
        (0..length)
            .map(|_| self.letters[zipf(&mut self.rng, self.letters.len())])
            .collect()
    }
}

/// Returns a rank below `count`, rank r with a chance of about 1 / (r + 1).
fn zipf(rng: &mut StdRng, count: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "counts are small"
    )]
    let rank = ((count as f64 + 1.0).powf(rng.random::<f64>()) - 1.0) as usize;
    rank.min(count - 1)
}

fn alphabet(kind: Kind) -> Box<dyn Iterator<Item = char>> {
    match kind {
        Kind::English | Kind::Code => Box::new('a'..='z'),
        Kind::Chinese => Box::new(('\u{4E00}'..='\u{9FA0}').step_by(7)),
        Kind::Japanese => Box::new(
            ('ぁ'..='ん')
                .chain('ァ'..='ヶ')
                .chain(('\u{4E00}'..='\u{9FA0}').step_by(23)),
        ),
        Kind::Arabic => Box::new(('\u{621}'..='\u{63A}').chain('\u{641}'..='\u{64A}')),
        Kind::Russian => Box::new('а'..='я'),
        Kind::Korean => Box::new(('\u{AC00}'..='\u{D7A3}').step_by(9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_the_same_every_time_and_goes_on() {
        for kind in Kind::ALL {
            let (mut a, mut b) = (Synth::new(kind), Synth::new(kind));
            let lines: Vec<String> = (0..20).map(|_| a.line()).collect();
            assert!(lines.iter().all(|line| *line == b.line()), "{kind:?}");
            assert_ne!(lines[0], a.line(), "{kind:?}");
        }
    }
}
