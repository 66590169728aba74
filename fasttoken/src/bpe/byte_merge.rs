//! Merging of one word.
//!
//! A word of a few dozen bytes is merged by scanning ([`crate::scan_merge`]). A longer word keeps its
//! pairs in a heap, so that n bytes take O(n log n) steps. A run of one repeated byte takes O(log n)
//! steps.

use super::{Bpe, NO_TOKEN};
use crate::ablation::FastPath;
use crate::heap_merge::HeapMerge;
use crate::pairs::NO_RANK;
use crate::scan_merge::{MAX_SCAN_SYMBOLS, merge_by_scan};

/// The largest number of bytes after a run of one byte with which the run is still merged by
/// halving.
const MAX_RUN_TAIL_BYTES: usize = 16;

/// The symbols of a piece before merging, if they are few.
pub(super) struct Symbols {
    pub(super) ids: [u32; MAX_SCAN_SYMBOLS],
    /// The number of symbols, which exceeds `MAX_SCAN_SYMBOLS` if not all of them fit into `ids`.
    pub(super) len: usize,
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            ids: [0; MAX_SCAN_SYMBOLS],
            len: 0,
        }
    }
}

impl Symbols {
    /// Adds a token, unless it is [`NO_TOKEN`].
    #[inline(always)]
    pub(super) fn push(&mut self, token: u32) {
        if token != NO_TOKEN {
            if let Some(id) = self.ids.get_mut(self.len) {
                *id = token;
            }
            self.len += 1;
        }
    }

    /// Replaces the last token.
    #[inline(always)]
    pub(super) fn replace_last(&mut self, token: u32) {
        if let Some(id) = self.ids.get_mut(self.len.wrapping_sub(1)) {
            *id = token;
        }
    }
}

impl Bpe {
    pub(super) fn merge(&self, word: &[u8], scratch: &mut HeapMerge, out: &mut Vec<u32>) {
        if word.len() <= MAX_SCAN_SYMBOLS {
            let mut symbols = Symbols::default();
            for &byte in word {
                symbols.push(self.byte_ids[usize::from(byte)]);
            }
            let len = self.merge_by_scan::<MAX_SCAN_SYMBOLS>(&mut symbols.ids, symbols.len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else if !FastPath::Runs.is_taken() || !self.merge_run(word, out) {
            self.merge_by_heap(word, scratch, out);
        }
    }

    /// Merges the first `len` symbols of `ids`, at most `N`. Returns the number of tokens left.
    #[inline(always)]
    pub(super) fn merge_by_scan<const N: usize>(
        &self,
        ids: &mut [u32; MAX_SCAN_SYMBOLS],
        len: usize,
    ) -> usize {
        let mut ranks = [NO_RANK; N];
        let len_max = len.min(N);
        for at in 1..len_max {
            ranks[at - 1] = self.pairs.rank(ids[at - 1], ids[at]);
        }
        merge_by_scan(&self.pairs, ids, ranks, len)
    }

    /// Merges a long word that begins with a run of one byte and ends in a short tail, such as a
    /// ruler or an indentation. A run of `n` equal symbols becomes `n / 2` symbols in one step, as
    /// long as no pair with a new symbol has a lower rank than the pair of the run. Returns false,
    /// and leaves `out` unchanged, for any other word.
    fn merge_run(&self, word: &[u8], out: &mut Vec<u32>) -> bool {
        let Some(&first) = word.first() else {
            return false;
        };
        let run = word.iter().take_while(|byte| **byte == first).count();
        let mut symbol = self.byte_ids[usize::from(first)];
        if word.len() - run > MAX_RUN_TAIL_BYTES || symbol == NO_TOKEN {
            return false;
        }
        let mut count = run;
        let mut tail: Vec<u32> = self.byte_tokens(&word[run..]).collect();
        while count + tail.len() > MAX_SCAN_SYMBOLS {
            if tail.len() > 2 * MAX_RUN_TAIL_BYTES {
                return false;
            }
            let own = self.pairs.rank(symbol, symbol);
            // The best pair after the first symbol of the run's last pair.
            let mut best = (own, 0);
            let mut left = symbol;
            for (at, &right) in tail.iter().enumerate() {
                let rank = self.pairs.rank(left, right);
                if rank < best.0 {
                    best = (rank, at + 1);
                }
                left = right;
            }
            match best {
                (NO_RANK, _) => {
                    out.extend(std::iter::repeat_n(symbol, count));
                    out.extend(tail);
                    return true;
                }
                (_, 0) => {
                    let made = self.pairs.product(own);
                    let after = tail.first().copied();
                    let meets = [Some(made), Some(symbol), after].into_iter().flatten();
                    let first_of_new = meets.map(|right| self.pairs.rank(made, right)).min();
                    if first_of_new.is_some_and(|rank| rank < own) {
                        return false;
                    }
                    if count % 2 == 1 {
                        tail.insert(0, symbol);
                    }
                    (symbol, count) = (made, count / 2);
                }
                (rank, 1) => {
                    tail[0] = self.pairs.product(rank);
                    count -= 1;
                }
                (rank, at) => {
                    tail[at - 2] = self.pairs.product(rank);
                    tail.remove(at - 1);
                }
            }
        }
        let mut ids = [0; MAX_SCAN_SYMBOLS];
        ids[..count].fill(symbol);
        ids[count..count + tail.len()].copy_from_slice(&tail);
        let len = self.merge_by_scan::<MAX_SCAN_SYMBOLS>(&mut ids, count + tail.len());
        out.extend_from_slice(&ids[..len]);
        true
    }

    fn merge_by_heap(&self, word: &[u8], heap: &mut HeapMerge, out: &mut Vec<u32>) {
        let symbols = self.byte_tokens(word).map(|id| (id, 1));
        heap.merge(&self.pairs, symbols, |id, _| out.push(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::PairTable;
    use proptest::prelude::*;

    /// Returns a model in which bytes 0..4 are tokens 0..4, and each rule makes a new token.
    fn bpe(rules: &[(u32, u32)]) -> Bpe {
        let rules: Vec<_> = rules
            .iter()
            .enumerate()
            .map(|(rank, &(left, right))| [left, right, 4 + rank as u32])
            .collect();
        let pairs = PairTable::new(&rules);
        Bpe::new(std::array::from_fn(|byte| byte as u32), pairs)
    }

    /// Encodes a word by the definition, one merge at a time.
    fn naive(bpe: &Bpe, word: &[u8]) -> Vec<u32> {
        let mut ids: Vec<u32> = word.iter().map(|&b| u32::from(b)).collect();
        while let Some((rank, at)) = (1..ids.len())
            .map(|at| (bpe.pairs.rank(ids[at - 1], ids[at]), at))
            .filter(|(rank, _)| *rank != NO_RANK)
            .min()
        {
            ids.splice(at - 1..=at, [bpe.pairs.product(rank)]);
        }
        ids
    }

    proptest! {
        #[test]
        fn scan_and_heap_are_the_definition(
            rules in prop::collection::vec((0u32..24, 0u32..24), 0..24),
            word in prop::collection::vec(0u8..4, 0..MAX_SCAN_SYMBOLS),
        ) {
            let bpe = bpe(&rules);
            let expected = naive(&bpe, &word);
            let mut scratch = HeapMerge::default();
            let (mut scanned, mut heaped) = (Vec::new(), Vec::new());
            bpe.merge(&word[..word.len().min(MAX_SCAN_SYMBOLS)], &mut scratch, &mut scanned);
            bpe.merge_by_heap(&word, &mut scratch, &mut heaped);
            prop_assert_eq!(&scanned, &expected);
            prop_assert_eq!(&heaped, &expected);
            // The scratch carries nothing over.
            heaped.clear();
            bpe.merge_by_heap(&word, &mut scratch, &mut heaped);
            prop_assert_eq!(&heaped, &expected);
        }
    }

    proptest! {
        #[test]
        fn runs_are_the_definition(
            rules in prop::collection::vec((0u32..12, 0u32..12), 0..12),
            run in MAX_SCAN_SYMBOLS..300,
            tail in prop::collection::vec(0u8..4, 0..MAX_RUN_TAIL_BYTES + 2),
        ) {
            let bpe = bpe(&rules);
            let mut word = vec![0; run];
            word.extend(&tail);
            let mut merged = vec![9];
            if bpe.merge_run(&word, &mut merged) {
                prop_assert_eq!(&merged[1..], &naive(&bpe, &word));
            } else {
                prop_assert_eq!(merged, [9]);
            }
        }

        #[test]
        fn runs_of_trained_rules_are_merged(
            order in any::<u64>(),
            run in MAX_SCAN_SYMBOLS..300,
            tail in prop::collection::vec(0u8..2, 0..MAX_RUN_TAIL_BYTES - 1),
        ) {
            // Tokens of zeros, each made of two that were made before.
            let mut rules = vec![(0, 0)];
            for n in 1..8u32 {
                let pick = |shift: u32| (order >> (8 * n - shift)) as u32 % (n + 1);
                let token = |n: u32| if n == 0 { 0 } else { 3 + n };
                let rule = (token(pick(0)), token(pick(4)));
                rules.push(rule);
            }
            let bpe = bpe(&rules);
            let mut word = vec![0; run];
            word.push(3);
            word.extend(&tail);
            let mut merged = Vec::new();
            prop_assert!(bpe.merge_run(&word, &mut merged));
            prop_assert_eq!(&merged, &naive(&bpe, &word));
        }
    }

    #[test]
    fn long_words_are_merged() {
        let bpe = bpe(&[(0, 0), (4, 4), (5, 5)]);
        let mut out = Vec::new();
        bpe.merge(&vec![0; 1 << 20], &mut HeapMerge::default(), &mut out);
        assert_eq!(out, vec![6; 1 << 17]);
    }
}
