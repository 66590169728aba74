//! Which tokens their own merges lead to.
//!
//! To run the merges of each token's bytes (or of its characters, in the other family) takes longer than anything else that loading
//! does. Here tokens are proved by what was proved before. Say that the rule of rank `k`
//! joins `left` and `right` to a token, and that merging the bytes of `left` leads to
//! `left`, those of `right` to `right`. Merging the bytes of both does the same steps,
//! unless a rule joins the last symbol that `left` has at a time with the first one that
//! `right` has then; if none ever does, both are made, and the rule makes the token.
//!
//! Rules are taken in the order of their ranks, so every step of a proved token comes
//! before the rule that made it, and steps of both sides happen in the order of their
//! ranks, the left ones first where these are equal. Going back from the whole sides, the
//! symbols at the border are those of the younger side's making undone, one after the
//! other: a handful of pairs per token instead of a dozen look-ups and scans. A pair is
//! joined if its rule comes before that which ends its left symbol, and before that which
//! ends its right one or is that rule: of equal rules the leftmost is applied first. (A
//! symbol that is a side as a whole is ended by no rule.)
//!
//! What this does not prove may be so all the same, by rules that are used out of their
//! order; for such tokens the merges are run ([`super::Bpe::index_words`]). Of Qwen 3's
//! 151,643 tokens there is none. Proving these takes 6 ms; running their merges took 25.

use crate::pairs::PairTable;
use crate::store::Room;
use bytemuck::{Pod, Zeroable};

/// How a proved token was made.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Making {
    /// [`FIRST`] plus the rank of the rule, or one of the other two.
    born: u32,
    left: u32,
    right: u32,
}

const NOT_PROVED: u32 = 0;
const ATOM: u32 = 1;
const FIRST: u32 = 2;

/// The tokens that are proved.
pub(crate) struct Proofs {
    makings: Room<Making>,
}

impl Proofs {
    /// `rules` are those that `pairs` was made of, `id_end` is above all of their tokens.
    /// Of each rule's token the piece must be those of its two parts, put together.
    ///
    /// `atoms` are what texts are before they are merged.
    pub(crate) fn new(
        atoms: impl Iterator<Item = u32>,
        rules: &[[u32; 3]],
        pairs: &PairTable,
        id_end: usize,
    ) -> Self {
        let mut room = Room::zeroed(id_end);
        let makings: &mut [Making] = &mut room;
        for id in atoms {
            if let Some(making) = makings.get_mut(id as usize) {
                making.born = ATOM;
            }
        }
        let repeats = pairs.has_repeats();
        for (born, &[left, right, id]) in (FIRST..).zip(rules) {
            if is_proved(makings, id) || !is_proved(makings, left) || !is_proved(makings, right) {
                continue;
            }
            // Of two rules for one pair, the earlier does not exist.
            let exists = !repeats || pairs.rank(left, right) == born - FIRST;
            if exists
                && !crosses(makings, left, right, pairs)
                && let Some(making) = makings.get_mut(id as usize)
            {
                *making = Making { born, left, right };
            }
        }
        Self { makings: room }
    }

    /// Whether merging what the token is made of is known to lead to it.
    pub(crate) fn contains(&self, id: u32) -> bool {
        is_proved(&self.makings, id)
    }
}

#[inline(always)]
fn is_proved(makings: &[Making], id: u32) -> bool {
    let making = makings.get(id as usize);
    making.is_some_and(|making| making.born != NOT_PROVED)
}

/// Whether a rule joins what is in `left` with what is in `right`, both proved, before
/// these are made.
#[inline(always)]
fn crosses(makings: &[Making], mut left: u32, mut right: u32, pairs: &PairTable) -> bool {
    // Ranks of the rules that end the symbols.
    let (mut left_end, mut right_end) = (u32::MAX, u32::MAX);
    let (mut by_left, mut by_right) = (makings[left as usize], makings[right as usize]);
    loop {
        // Of equal ranks the left one is applied first, so the right one is younger.
        if by_left.born > by_right.born {
            (left, left_end) = (by_left.right, by_left.born - FIRST);
            by_left = makings[left as usize];
        } else if by_right.born > ATOM {
            (right, right_end) = (by_right.left, by_right.born - FIRST);
            by_right = makings[right as usize];
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
    use super::super::merge::Merging;
    use super::super::{Bpe, NO_TOKEN};
    use super::*;
    use crate::pairs::PairTable;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Tokens by their pieces, and rules between any of these, in any order: out of the
    /// order of their lengths, twice, and for parts that nothing makes.
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
            bpe.merge(piece, &mut Merging::default(), &mut merged);
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
        fn what_is_proved_is_so(
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
