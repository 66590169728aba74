//! The vocabulary and the merges of a file's model in one pass, apart from the rest of the file.

use super::one_pass_scanner::Scanner;
use crate::pairs::{RANK_MAX, TOKEN_END};
use std::ops::Range;

/// Reads the vocabulary and the merges of a model. Returns the file with both left empty as well.
pub(crate) fn read_model<'a, V, M>(
    json: &'a [u8],
    mut read_vocab: impl FnMut(&mut Scanner<'a>) -> Option<V>,
    mut read_merges: impl FnMut(&mut Scanner<'a>, &V) -> Option<M>,
) -> Option<(Vec<u8>, V, M)> {
    let mut scanner = Scanner::new(json);
    let (mut vocab, mut merges) = (None, None);
    let mut cuts: Vec<(Range<usize>, &[u8])> = Vec::new();
    scanner.map(|scanner, key| {
        if key != b"model" {
            return scanner.skip();
        }
        scanner.map(|scanner, key| {
            scanner.peek()?;
            let start = scanner.at();
            match key {
                b"vocab" if vocab.is_none() => {
                    vocab = Some(read_vocab(scanner)?);
                    cuts.push((start..scanner.at(), b"{}"));
                }
                // Rules before their tokens are unusual.
                b"merges" if merges.is_none() => {
                    merges = Some(read_merges(scanner, vocab.as_ref()?)?);
                    cuts.push((start..scanner.at(), b"[]"));
                }
                _ => scanner.skip()?,
            }
            Some(())
        })
    })?;
    let mut config = Vec::new();
    let mut from = 0;
    for (cut, instead) in cuts {
        config.extend_from_slice(&json[from..cut.start]);
        config.extend_from_slice(instead);
        from = cut.end;
    }
    config.extend_from_slice(&json[from..]);
    Some((config, vocab?, merges?))
}

/// Tokens that rules join.
pub(crate) trait RuleTokens {
    /// A lookup in progress.
    type Sought;

    /// Begins to look up the token that this range of `text` spells, and prefetches the memory of the
    /// next step.
    fn seek(&self, text: &[u8], range: Range<usize>) -> Self::Sought;

    /// Takes a second step of the lookup, if there is one.
    fn seek_further(&self, _sought: &Self::Sought) {}

    /// Completes the lookup.
    fn found(&self, sought: &Self::Sought, text: &[u8], range: Range<usize>) -> Option<u32>;

    /// Returns true if this range of `text` spells the token `id`.
    fn is(&self, id: u32, text: &[u8], range: Range<usize>) -> bool;
}

/// The number of rules whose tokens are looked up together: the index and the tokens are megabytes,
/// and their memory is prefetched before it is read. With the table of pairs, the rules of Qwen 3
/// take 14 ms; looked up one by one they took 21 ms.
const GROUP: usize = 32;

/// Rules that are being read: the two tokens that each joins, and its product.
pub(crate) struct RuleReader<'a, T> {
    pub(crate) tokens: &'a T,
    pub(crate) made: Vec<[u32; 3]>,
    /// The bytes of the pending rules, to which those of the next rule are appended. `waiting` has the
    /// begin, the cut and the end of each.
    pub(crate) text: Vec<u8>,
    waiting: Vec<[usize; 3]>,
}

impl<'a, T: RuleTokens> RuleReader<'a, T> {
    /// Creates a reader for what is left of a file.
    pub(crate) fn new(tokens: &'a T, scanner: &Scanner<'_>) -> Self {
        Self {
            tokens,
            made: Vec::with_capacity(scanner.left() / 16),
            text: Vec::new(),
            waiting: Vec::with_capacity(GROUP),
        }
    }

    /// Adds the rule whose bytes begin at `start` and whose second token begins at `cut`.
    pub(crate) fn push(&mut self, start: usize, cut: usize) -> Option<()> {
        self.waiting.push([start, cut, self.text.len()]);
        if self.waiting.len() == GROUP {
            self.finish_group()?;
        }
        Some(())
    }

    /// Looks up the pending rules.
    pub(crate) fn finish_group(&mut self) -> Option<()> {
        let Self {
            tokens,
            made,
            text,
            waiting,
        } = self;
        let seek = |&[start, cut, end]: &[usize; 3]| {
            [tokens.seek(text, start..cut), tokens.seek(text, cut..end)]
        };
        let sought: Vec<[T::Sought; 2]> = waiting.iter().map(seek).collect();
        for one in sought.iter().flatten() {
            tokens.seek_further(one);
        }
        for ([left, right], &[start, cut, end]) in sought.iter().zip(&*waiting) {
            let left = tokens.found(left, text, start..cut)?;
            let right = tokens.found(right, text, cut..end)?;
            // Most rules make the token after the product of the rule before, or the same one.
            let last = made.last().map_or(0, |rule| rule[2]);
            let near = [last.wrapping_add(1), last];
            let mut near = near.into_iter();
            let id = match near.find(|id| tokens.is(*id, text, start..end)) {
                Some(id) => id,
                None => tokens.found(&tokens.seek(text, start..end), text, start..end)?,
            };
            // Otherwise the slower way names the token.
            (left.max(right) < TOKEN_END).then(|| made.push([left, right, id]))?;
        }
        text.clear();
        waiting.clear();
        Some(())
    }

    /// Returns the rules.
    pub(crate) fn finish(mut self) -> Option<Vec<[u32; 3]>> {
        self.finish_group()?;
        (self.made.len() <= RANK_MAX).then_some(self.made)
    }
}
