//! Merging of a long list of symbols, by a heap of its pairs: n symbols take O(n log n) steps.

use crate::pairs::{NO_RANK, PairTable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Memory for merging, kept between lists.
#[derive(Debug, Default)]
pub(crate) struct HeapMerge {
    symbols: Vec<Symbol>,
    /// Rank in the upper 24 bits, position in the lower 40.
    heap: BinaryHeap<Reverse<u64>>,
}

/// A symbol in a doubly linked list.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    /// The number of bytes that the symbol stands for.
    len: u32,
    /// The rank of the merge with the next symbol. `NO_RANK` marks a symbol without such a merge,
    /// and a symbol that was swallowed, so that outdated heap entries no longer match.
    rank: u32,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

impl HeapMerge {
    /// Returns the bytes of allocated memory.
    pub(crate) fn bytes(&self) -> usize {
        self.symbols.capacity() * size_of::<Symbol>() + self.heap.capacity() * size_of::<u64>()
    }

    /// Merges `symbols`, fewer than 2^40 tokens with the number of bytes that each stands for.
    /// Calls `each` with the tokens that are left and their bytes, in order.
    pub(crate) fn merge(
        &mut self,
        pairs: &PairTable,
        symbols: impl Iterator<Item = (u32, u32)>,
        mut each: impl FnMut(u32, u32),
    ) {
        self.symbols.clear();
        self.symbols
            .extend(symbols.zip(0..).map(|((id, len), at): (_, usize)| Symbol {
                id,
                len,
                rank: NO_RANK,
                previous: at.wrapping_sub(1),
                next: at + 1,
            }));
        if let Some(last) = self.symbols.last_mut() {
            last.next = NONE;
        }
        self.merge_all(pairs);
        let mut at = 0;
        while let Some(symbol) = self.symbols.get(at) {
            each(symbol.id, symbol.len);
            at = symbol.next;
        }
    }

    fn merge_all(&mut self, pairs: &PairTable) {
        let Self { symbols, heap } = self;
        // Filling a vector and heapifying is linear; pushing one by one is not.
        let mut entries = std::mem::take(heap).into_vec();
        entries.clear();
        for at in 1..symbols.len() {
            let rank = pairs.rank(symbols[at - 1].id, symbols[at].id);
            symbols[at - 1].rank = rank;
            if rank != NO_RANK {
                entries.push(Reverse(entry(rank, at - 1)));
            }
        }
        *heap = BinaryHeap::from(entries);
        while let Some(Reverse(top)) = heap.pop() {
            let (rank, at) = ((top >> 40) as u32, (top & ((1 << 40) - 1)) as usize);
            let Symbol {
                rank: now,
                next,
                previous,
                ..
            } = symbols[at];
            if now != rank {
                continue;
            }
            let right = symbols[next];
            symbols[next].rank = NO_RANK;
            let symbol = &mut symbols[at];
            symbol.id = pairs.product(rank);
            symbol.len += right.len;
            symbol.next = right.next;
            if right.next != NONE {
                symbols[right.next].previous = at;
            }
            update(pairs, symbols, heap, at);
            if previous != NONE {
                update(pairs, symbols, heap, previous);
            }
        }
    }
}

/// Looks up the merge of symbol `at` with its right neighbour after one of the two changed.
fn update(
    pairs: &PairTable,
    symbols: &mut [Symbol],
    heap: &mut BinaryHeap<Reverse<u64>>,
    at: usize,
) {
    let Symbol { id, next, .. } = symbols[at];
    let right = symbols.get(next);
    let rank = right.map_or(NO_RANK, |right| pairs.rank(id, right.id));
    symbols[at].rank = rank;
    if rank != NO_RANK {
        heap.push(Reverse(entry(rank, at)));
    }
}

fn entry(rank: u32, at: usize) -> u64 {
    u64::from(rank) << 40 | at as u64
}
