//! Merging of a few symbols, whose best pair is found by a linear scan over arrays on the stack.

use crate::pairs::{NO_RANK, PairTable};

/// The largest number of symbols that are merged by scanning. At this length the heap is as fast.
pub(crate) const MAX_SCAN_SYMBOLS: usize = 48;

/// Merges the first `len` of `ids`, at most `N`. Of the symbols, `ranks` has the rank of the merge of
/// each with the next one, or [`NO_RANK`]. Returns the number of tokens left.
#[inline(always)]
pub(crate) fn merge_by_scan<const N: usize>(
    pairs: &PairTable,
    ids: &mut [u32; MAX_SCAN_SYMBOLS],
    mut ranks: [u32; N],
    mut len: usize,
) -> usize {
    while len > 1 {
        let (mut best, mut at) = (NO_RANK, 0);
        for (n, &rank) in ranks[..(len - 1).min(N)].iter().enumerate() {
            if rank < best {
                (best, at) = (rank, n);
            }
        }
        if best == NO_RANK {
            break;
        }
        ids[at] = pairs.product(best);
        len -= 1;
        // Plain loops: calls for moves of a few numbers cost more than the moves.
        for n in at + 1..len {
            ids[n] = ids[n + 1];
            ranks[n - 1] = ranks[n];
        }
        ranks[len - 1] = NO_RANK;
        if at + 1 < len {
            ranks[at] = pairs.rank(ids[at], ids[at + 1]);
        }
        if at > 0 {
            ranks[at - 1] = pairs.rank(ids[at - 1], ids[at]);
        }
    }
    len
}
