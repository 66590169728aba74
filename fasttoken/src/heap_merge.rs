//! Merging of a long list of symbols, by a queue of its pairs: n symbols take O(n log n) steps.

use crate::pairs::{NO_RANK, PairTable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Memory for merging, kept between lists.
#[derive(Debug, Default)]
pub(crate) struct HeapMerge {
    symbols: Vec<Symbol>,
    queue: PairQueue,
}

/// The pairs that may be merged, smallest first: rank in the upper 24 bits, position in the lower 40.
#[derive(Debug, Default)]
struct PairQueue {
    /// Sorted pairs, the smallest last: most pairs are known before the first is merged, and a list is
    /// sorted faster than a heap is emptied.
    sorted: Vec<u64>,
    /// Pairs that were added since the list was sorted.
    added: BinaryHeap<Reverse<u64>>,
}

impl PairQueue {
    fn bytes(&self) -> usize {
        (self.sorted.capacity() + self.added.capacity()) * size_of::<u64>()
    }

    /// Takes the smallest pair.
    fn pop(&mut self) -> Option<u64> {
        if self.sorted.is_empty() {
            // What is sorted never returns to the heap, so each pair is sorted once.
            self.sorted
                .extend(self.added.drain().map(|Reverse(pair)| pair));
            self.sort();
        }
        match self.added.peek() {
            Some(Reverse(added)) if self.sorted.last().is_none_or(|last| added < last) => {
                self.added.pop().map(|Reverse(pair)| pair)
            }
            _ => self.sorted.pop(),
        }
    }

    fn sort(&mut self) {
        self.sorted.sort_unstable_by_key(|&pair| Reverse(pair));
    }
}

/// A symbol in a doubly linked list, which stays at the place of the first of those it was merged from.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    /// The number of bytes that the symbol stands for.
    len: u32,
    /// The rank of the merge with the next symbol. `NO_RANK` marks a symbol without such a merge,
    /// and a symbol that was swallowed, so that outdated heap entries no longer match.
    rank: u32,
    /// The distance to the next symbol: the number of symbols that this one was merged from.
    to_next: u32,
    /// The distance to the previous symbol; 0 for the first.
    to_previous: u32,
}

impl HeapMerge {
    /// Returns the bytes of allocated memory.
    pub(crate) fn bytes(&self) -> usize {
        self.symbols.capacity() * size_of::<Symbol>() + self.queue.bytes()
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
        self.symbols.extend(symbols.map(|(id, len)| Symbol {
            id,
            len,
            rank: NO_RANK,
            to_next: 1,
            to_previous: 1,
        }));
        if let Some(first) = self.symbols.first_mut() {
            first.to_previous = 0;
        }
        self.merge_all(pairs);
        let mut at = 0;
        while let Some(symbol) = self.symbols.get(at) {
            each(symbol.id, symbol.len);
            at += symbol.to_next as usize;
        }
    }

    fn merge_all(&mut self, pairs: &PairTable) {
        let Self { symbols, queue } = self;
        for at in 1..symbols.len() {
            let rank = pairs.rank(symbols[at - 1].id, symbols[at].id);
            symbols[at - 1].rank = rank;
            if rank != NO_RANK {
                queue.sorted.push(entry(rank, at - 1));
            }
        }
        queue.sort();
        while let Some(top) = queue.pop() {
            let (rank, at) = ((top >> 40) as u32, (top & ((1 << 40) - 1)) as usize);
            let left = symbols[at];
            if left.rank != rank {
                continue;
            }
            let next = at + left.to_next as usize;
            let right = symbols[next];
            symbols[next].rank = NO_RANK;
            let symbol = &mut symbols[at];
            symbol.id = pairs.product(rank);
            symbol.len += right.len;
            symbol.to_next += right.to_next;
            let to_next = symbol.to_next;
            if let Some(after) = symbols.get_mut(at + to_next as usize) {
                after.to_previous = to_next;
            }
            update(pairs, symbols, queue, at);
            if left.to_previous > 0 {
                update(pairs, symbols, queue, at - left.to_previous as usize);
            }
        }
    }
}

/// Looks up the merge of symbol `at` with its right neighbour after one of the two changed.
fn update(pairs: &PairTable, symbols: &mut [Symbol], queue: &mut PairQueue, at: usize) {
    let Symbol { id, to_next, .. } = symbols[at];
    let right = symbols.get(at + to_next as usize);
    let rank = right.map_or(NO_RANK, |right| pairs.rank(id, right.id));
    symbols[at].rank = rank;
    if rank != NO_RANK {
        queue.added.push(Reverse(entry(rank, at)));
    }
}

fn entry(rank: u32, at: usize) -> u64 {
    u64::from(rank) << 40 | at as u64
}
