//! A proof of which tokens are reached by merging their own bytes.
//!
//! Running the merges of each token's bytes (or characters, in a SentencePiece model) would take
//! longer than any other step of loading. Instead, a token is proved from tokens that were proved
//! before. Let the rule of rank `k` join `left` and `right` to a token, and let merging the bytes
//! of `left` give `left`, and the bytes of `right` give `right`. Merging the bytes of both takes
//! the same steps, unless some rule joins the last symbol of `left` at that moment with the first
//! symbol of `right`. If no rule ever does, both parts are completed, and rule `k` makes the token.
//!
//! Rules are visited by rank, so every step of a proved token has a lower rank than the rule that
//! made the token. Steps of both parts happen by rank, left steps first where ranks are equal.
//! Walking back from the complete parts, the symbols at the boundary are found by undoing the part
//! with the later rule, one rule at a time: a handful of pairs per token instead of a dozen lookups
//! and scans. A pair at the boundary is joined if the rank of its rule is lower than the rank of the rule
//! that ends its left symbol, and not higher than the rank of the rule that ends its right symbol,
//! since the leftmost of equal rules is applied first. (No rule ends a symbol that is a complete
//! part.)
//!
//! A token without a proof may still be reached, by rules that apply out of their order. For such
//! tokens the merges are run ([`super::Bpe::index_words`]). None of Qwen 3's 151,643 tokens needs
//! it. The proofs take 6 ms; running all merges took 25 ms.

use crate::pairs::PairTable;
use crate::store::ZeroedBuffer;
use bytemuck::{Pod, Zeroable};

/// The last rule of a proved token.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Derivation {
    /// [`FIRST`] plus the rank of the rule, or [`NOT_PROVED`], or [`SINGLE_SYMBOL`].
    born: u32,
    left: u32,
    right: u32,
}

const NOT_PROVED: u32 = 0;
const SINGLE_SYMBOL: u32 = 1;
const FIRST: u32 = 2;

/// The set of proved tokens.
pub(crate) struct Proofs {
    derivations: ZeroedBuffer<Derivation>,
}

impl Proofs {
    /// Proves tokens. `rules` lists the merges that `pairs` was built from, and `id_end` exceeds
    /// all of their tokens. The piece of each rule's product must be the pieces of its two tokens
    /// joined.
    ///
    /// `base_symbols` lists the tokens that a text has before merging.
    pub(crate) fn new(
        base_symbols: impl Iterator<Item = u32>,
        rules: &[[u32; 3]],
        pairs: &PairTable,
        id_end: usize,
    ) -> Self {
        let mut derived = ZeroedBuffer::zeroed(id_end);
        let derivations: &mut [Derivation] = &mut derived;
        for id in base_symbols {
            if let Some(derivation) = derivations.get_mut(id as usize) {
                derivation.born = SINGLE_SYMBOL;
            }
        }
        let repeats = pairs.has_repeats();
        for (born, &[left, right, id]) in (FIRST..).zip(rules) {
            if is_proved(derivations, id)
                || !is_proved(derivations, left)
                || !is_proved(derivations, right)
            {
                continue;
            }
            // Of two rules for one pair, the earlier does not exist.
            let exists = !repeats || pairs.rank(left, right) == born - FIRST;
            if exists
                && !crosses(derivations, left, right, pairs)
                && let Some(derivation) = derivations.get_mut(id as usize)
            {
                *derivation = Derivation { born, left, right };
            }
        }
        Self {
            derivations: derived,
        }
    }

    /// Returns true if the token is proved to be reached.
    pub(crate) fn contains(&self, id: u32) -> bool {
        is_proved(&self.derivations, id)
    }
}

#[inline(always)]
fn is_proved(derivations: &[Derivation], id: u32) -> bool {
    let derivation = derivations.get(id as usize);
    derivation.is_some_and(|derivation| derivation.born != NOT_PROVED)
}

/// Returns true if a rule joins a symbol of `left` with a symbol of `right`, both proved, before
/// both are complete.
#[inline(always)]
fn crosses(derivations: &[Derivation], mut left: u32, mut right: u32, pairs: &PairTable) -> bool {
    // Ranks of the rules that end the symbols.
    let (mut left_end, mut right_end) = (u32::MAX, u32::MAX);
    let (mut by_left, mut by_right) = (derivations[left as usize], derivations[right as usize]);
    loop {
        // Of equal ranks the left one is applied first, so the right one is younger.
        if by_left.born > by_right.born {
            (left, left_end) = (by_left.right, by_left.born - FIRST);
            by_left = derivations[left as usize];
        } else if by_right.born > SINGLE_SYMBOL {
            (right, right_end) = (by_right.left, by_right.born - FIRST);
            by_right = derivations[right as usize];
        } else {
            return false;
        }
        let rank = pairs.rank(left, right);
        if rank < left_end && rank <= right_end {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bpe, NO_TOKEN};
    use super::*;
    use crate::heap_merge::HeapMerge;
    use crate::pairs::PairTable;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Returns tokens by their pieces, and rules between any two of them in any order: longer
    /// tokens before shorter ones, a rule twice, and rules of tokens that no rule makes.
    fn vocabulary(pieces: &[Vec<u8>], rules: &[(usize, usize)]) -> (Vec<Vec<u8>>, Vec<[u32; 3]>) {
        let mut all: Vec<Vec<u8>> = (0..3).map(|byte| vec![byte]).collect();
        let mut known: HashMap<Vec<u8>, u32> = (0..3).map(|b| (vec![b as u8], b)).collect();
        let mut id = |piece: Vec<u8>, all: &mut Vec<Vec<u8>>| {
            *known.entry(piece.clone()).or_insert_with(|| {
                all.push(piece);
                all.len() as u32 - 1
            })
        };
        for piece in pieces {
            id(piece.clone(), &mut all);
        }
        let mut made = Vec::new();
        for &(left, right) in rules {
            let (left, right) = (left % all.len(), right % all.len());
            let piece = [&all[left][..], &all[right]].concat();
            if piece.len() <= 24 {
                let product = id(piece, &mut all);
                made.push([left as u32, right as u32, product]);
            }
        }
        (all, made)
    }

    fn check(pieces: &[Vec<u8>], rules: &[[u32; 3]]) -> (usize, usize) {
        let pairs = PairTable::new(rules);
        let byte_ids = std::array::from_fn(|n| if n < 3 { n as u32 } else { NO_TOKEN });
        let proofs = Proofs::new(byte_ids.into_iter(), rules, &pairs, pieces.len());
        let bpe = Bpe::new(byte_ids, pairs);
        let (mut proved, mut true_of) = (0, 0);
        let mut merged = Vec::new();
        for (id, piece) in pieces.iter().enumerate() {
            merged.clear();
            bpe.merge(piece, &mut HeapMerge::default(), &mut merged);
            let is = merged == [id as u32];
            assert!(is || !proofs.contains(id as u32), "{piece:?} by {rules:?}");
            proved += usize::from(proofs.contains(id as u32));
            true_of += usize::from(is);
        }
        (proved, true_of)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn proved_tokens_merge_from_their_bytes(
            pieces in prop::collection::vec(prop::collection::vec(0u8..3, 0..6), 0..6),
            rules in prop::collection::vec((any::<usize>(), any::<usize>()), 0..24),
            order in any::<Option<u64>>(),
        ) {
            let (pieces, mut rules) = vocabulary(&pieces, &rules);
            if let Some(seed) = order {
                // Any order: parts may be made after what they are parts of.
                rules.sort_by_key(|rule| {
                    let mix = u64::from(rule[0] * 31 + rule[1]) ^ seed;
                    mix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
                });
            }
            check(&pieces, &rules);
        }

        #[test]
        fn all_is_proved_where_rules_come_in_their_order(
            choices in prop::collection::vec((any::<usize>(), any::<usize>()), 1..40),
        ) {
            // Each rule makes a new token of two that were made before, as training does.
            let (pieces, mut rules) = vocabulary(&[], &choices);
            let mut next = 3;
            rules.retain(|rule| {
                let new = rule[2] == next;
                next += u32::from(new);
                new
            });
            let (proved, true_of) = check(&pieces, &rules);
            prop_assert_eq!(proved, true_of);
        }
    }

    #[test]
    fn runs_of_equal_symbols_are_joined_from_the_left() {
        // aa, aaa by (aa, a), aaa by (a, aa), aaaa by (aa, aa)
        let piece = |n| vec![0u8; n];
        let pieces = [piece(1), vec![1], vec![2], piece(2), piece(3), piece(4)];
        let proved = |rules: &[[u32; 3]]| {
            let pairs = PairTable::new(rules);
            let byte_ids: [u32; 256] =
                std::array::from_fn(|n| if n < 3 { n as u32 } else { NO_TOKEN });
            let proofs = Proofs::new(byte_ids.into_iter(), rules, &pairs, pieces.len());
            check(&pieces, rules);
            (3..6).map(|id| proofs.contains(id)).collect::<Vec<_>>()
        };
        assert_eq!(proved(&[[0, 0, 3], [3, 0, 4]]), [true, true, false]);
        assert_eq!(proved(&[[0, 0, 3], [0, 3, 4]]), [true, false, false]);
        assert_eq!(proved(&[[0, 0, 3], [3, 3, 5]]), [true, false, true]);
        assert_eq!(proved(&[[3, 0, 4], [0, 0, 3]]), [true, false, false]);
    }
}
