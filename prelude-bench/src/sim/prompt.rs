//! Prompts as a few numbers each: what they hold is a function of them.

use crate::random::mix;

/// Token ids of prompts are `1..VOCABULARY`. Modelled engines generate id 0 alone, which no
/// prompt holds, so that no prompt can be found in what was generated: workloads and traces know
/// what prompts share, and nothing of what answers do.
pub const VOCABULARY: u32 = 32_000;

/// Tokens `start..start + len` of a stream, which is as long as one likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Names the stream. Two streams have next to nothing in common.
    pub stream: u64,
    /// The first token's place in it.
    pub start: u32,
    /// The number of tokens, at least 1.
    pub len: u32,
}

/// A prompt: one run after another. Prompts that begin with equal runs begin with equal tokens.
///
/// No run goes on where the one before it ends, so two prompts are equal exactly if their runs
/// are.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prompt {
    runs: Vec<Run>,
}

impl Prompt {
    /// Returns a prompt of these runs; those of no tokens are left out.
    #[must_use]
    pub fn new(runs: impl IntoIterator<Item = Run>) -> Self {
        let mut prompt = Self::default();
        for run in runs {
            prompt.push(run);
        }
        prompt
    }

    /// Appends a run, which becomes one with the last if it goes on where that one ends.
    pub fn push(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        match self.runs.last_mut() {
            Some(last) if last.stream == run.stream && last.start + last.len == run.start => {
                last.len += run.len;
            }
            _ => self.runs.push(run),
        }
    }

    /// Returns the prompt with each run shortened to this share of its length, at least one token:
    /// prompts that share a run still do.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is clamped to a u32"
    )]
    pub fn scaled(&self, share: f64) -> Self {
        let scaled = |n: u32| {
            (f64::from(n) * share)
                .round()
                .clamp(0.0, f64::from(u32::MAX)) as u32
        };
        Self::new(self.runs.iter().map(|run| Run {
            stream: run.stream,
            start: scaled(run.start),
            len: scaled(run.len).max(1),
        }))
    }

    /// Returns the runs.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// Returns true if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Spells the prompt: appends its tokens to `out`.
    pub fn tokens(&self, out: &mut Vec<u32>) {
        out.reserve(self.len() as usize);
        for run in &self.runs {
            let stream = mix(run.stream);
            out.extend((run.start..run.start + run.len).map(|i| token(stream, i)));
        }
    }

    /// Returns the number of first tokens that two prompts have in common by their runs: different
    /// streams agree in one token of 32,000 by chance.
    #[must_use]
    pub fn shared_with(&self, other: &Self) -> u32 {
        let mut shared = 0;
        for (a, b) in self.runs.iter().zip(&other.runs) {
            if (a.stream, a.start) != (b.stream, b.start) {
                break;
            }
            shared += a.len.min(b.len);
            if a.len != b.len {
                break;
            }
        }
        shared
    }
}

/// Returns the token at a place of a stream, whose name was mixed before.
const fn token(stream: u64, place: u32) -> u32 {
    let hash = mix(stream ^ place as u64);
    // The upper half, scaled: a remainder would cost more than the hash.
    1 + (((hash >> 32) * (VOCABULARY as u64 - 1)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(stream: u64, start: u32, len: u32) -> Run {
        Run { stream, start, len }
    }

    fn spell(prompt: &Prompt) -> Vec<u32> {
        let mut tokens = Vec::new();
        prompt.tokens(&mut tokens);
        tokens
    }

    #[test]
    fn runs_that_go_on_become_one() {
        let split = Prompt::new([run(1, 0, 5), run(1, 5, 0), run(1, 5, 7), run(2, 0, 3)]);
        let whole = Prompt::new([run(1, 0, 12), run(2, 0, 3)]);
        assert_eq!(split, whole);
        assert_eq!((whole.len(), whole.runs().len()), (15, 2));
        assert!(Prompt::default().is_empty() && !whole.is_empty());
    }

    #[test]
    fn equal_runs_are_equal_tokens_and_others_are_not() {
        let check = |a: Prompt, b: Prompt, shared: usize| {
            assert_eq!(a.shared_with(&b) as usize, shared);
            assert_eq!(b.shared_with(&a) as usize, shared);
            let (a, b) = (spell(&a), spell(&b));
            let common = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            assert_eq!(common, shared);
        };
        let of = |runs: Vec<Run>| Prompt::new(runs);
        check(of(vec![run(1, 0, 50)]), of(vec![run(1, 0, 80)]), 50);
        check(of(vec![run(1, 0, 50)]), of(vec![run(2, 0, 80)]), 0);
        check(of(vec![run(1, 0, 50)]), of(vec![run(1, 1, 80)]), 0);
        let long = of(vec![run(1, 0, 50), run(2, 7, 9)]);
        check(long.clone(), of(vec![run(1, 0, 50), run(3, 7, 9)]), 50);
        check(long.clone(), of(vec![run(1, 0, 50), run(2, 7, 20)]), 59);
        check(long, of(vec![run(1, 0, 60)]), 50);
    }

    #[test]
    fn scaled_prompts_share_what_they_shared() {
        let profile = run(1, 0, 800);
        let prompt =
            |stream| Prompt::new([profile, run(stream, 0, 150), run(9, 0, 1)]).scaled(0.125);
        let (a, b) = (prompt(2), prompt(3));
        assert_eq!(a.len(), 100 + 19 + 1);
        assert_eq!(a.shared_with(&b), 100);
    }

    #[test]
    fn tokens_are_in_the_vocabulary_and_spread_over_it() {
        let tokens = spell(&Prompt::new([run(9, 0, 100_000)]));
        assert!(tokens.iter().all(|t| (1..VOCABULARY).contains(t)));
        let mean = tokens.iter().map(|&t| f64::from(t)).sum::<f64>() / 100_000.0;
        assert!((mean - 16_000.0).abs() < 100.0, "mean {mean}");
    }
}
