//! Building a double array.

use super::{BASE_SHIFT, NONE, UNITS_MAX, USED, Unit};

/// The number of blocks with free units that are searched for a free base.
const OPEN_BLOCKS: usize = 8;
/// The number of searches in vain after which a block is searched no more.
const MISSES_MAX: u32 = 24;
const BLOCK: usize = 256;

/// Returns the units of the trie of `strings`, which are sorted and different, or `None` if they
/// are too many.
pub(super) fn units(strings: &[(&[u8], u32)]) -> Option<Vec<Unit>> {
    let mut builder = Builder::default();
    builder.add_block()?;
    builder.take(0, 0, NONE);
    // No byte leads to the root.
    builder.units[0].base = 0;
    // Ranges of strings that go on below a node, the node, and the number of bytes up to it.
    let mut open = vec![(strings, 0usize, 0usize)];
    while let Some((strings, node, depth)) = open.pop() {
        let children: Vec<&[(&[u8], u32)]> = strings
            .chunk_by(|(a, _), (b, _)| a[depth] == b[depth])
            .collect();
        if children.is_empty() {
            builder.leave_bare(node);
            continue;
        }
        let bytes: Vec<u8> = children.iter().map(|child| child[0].0[depth]).collect();
        let base = builder.find_base(&bytes)?;
        builder.set_base(node, base);
        for (child, &byte) in children.iter().zip(&bytes) {
            // The shortest comes first.
            let ends = child[0].0.len() == depth + 1;
            let id = if ends { child[0].1 } else { NONE };
            let at = base ^ usize::from(byte);
            builder.take(at, byte, id);
            open.push((&child[usize::from(ends)..], at, depth + 1));
        }
    }
    Some(builder.units)
}

#[derive(Default)]
struct Builder {
    units: Vec<Unit>,
    /// A bit for each base that a node has.
    bases: Vec<[u64; BLOCK / 64]>,
    /// A bit for each free unit.
    free: Vec<[u64; BLOCK / 64]>,
    /// Blocks that are searched for a free base, and how often that was in vain.
    open: Vec<(usize, u32)>,
}

impl Builder {
    fn add_block(&mut self) -> Option<()> {
        // The last block is kept free of nodes; see `leave_bare`.
        if self.units.len() + BLOCK >= UNITS_MAX {
            return None;
        }
        self.open.push((self.bases.len(), 0));
        if self.open.len() > OPEN_BLOCKS {
            self.open.remove(0);
        }
        self.bases.push([0; BLOCK / 64]);
        self.free.push([u64::MAX; BLOCK / 64]);
        let unit = Unit { base: 0, id: NONE };
        self.units.resize(self.units.len() + BLOCK, unit);
        Some(())
    }

    /// Makes a free unit a node.
    fn take(&mut self, at: usize, byte: u8, id: u32) {
        self.units[at] = Unit {
            base: USED | u32::from(byte),
            id,
        };
        self.free[at / BLOCK][at % BLOCK / 64] &= !(1 << (at % 64));
    }

    fn set_base(&mut self, node: usize, base: usize) {
        self.units[node].base |= (base as u32) << BASE_SHIFT;
        self.bases[base / BLOCK][base % BLOCK / 64] |= 1 << (base % 64);
    }

    /// Gives a node without children a base past the last unit.
    fn leave_bare(&mut self, node: usize) {
        self.units[node].base |= ((UNITS_MAX - 1) as u32) << BASE_SHIFT;
    }

    /// Finds a base that no node has, and at which the units for all `bytes` are free.
    fn find_base(&mut self, bytes: &[u8]) -> Option<usize> {
        for n in 0..self.open.len() {
            let (block, _) = self.open[n];
            if let Some(base) = self.find_base_in(block, bytes) {
                self.open.retain(|(_, misses)| *misses < MISSES_MAX);
                return Some(block * BLOCK + base);
            }
            self.open[n].1 += 1;
        }
        self.open.retain(|(_, misses)| *misses < MISSES_MAX);
        self.add_block()?;
        let block = self.bases.len() - 1;
        Some(block * BLOCK + self.find_base_in(block, bytes)?)
    }

    fn find_base_in(&self, block: usize, bytes: &[u8]) -> Option<usize> {
        let has = |bits: &[u64; BLOCK / 64], at: usize| bits[at / 64] >> (at % 64) & 1 != 0;
        let (free, bases) = (&self.free[block], &self.bases[block]);
        let first = usize::from(*bytes.first()?);
        for word in 0..BLOCK / 64 {
            let mut bits = free[word];
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let base = at ^ first;
                let fits = |byte: &u8| has(free, base ^ usize::from(*byte));
                if !has(bases, base) && bytes.iter().all(fits) {
                    return Some(base);
                }
            }
        }
        None
    }
}
