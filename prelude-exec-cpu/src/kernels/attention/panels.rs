//! The panels of a tile of keys and values: rows are packed, blocks of panels are copied.

use std::ops::Range;

use prelude_models::step::StepLayout;

use super::{
    Attention, Queries,
    locations::{KvLocation, for_runs},
};
use crate::kernels::{
    Supported,
    kv::{HeadPanels, KvElement, Panels},
    panel::{GROUP, NR},
};

/// A tile of up to 64 keys and their values, as products read them.
#[derive(Debug, Default)]
pub(super) struct TilePanels {
    /// `[head_dim / PER_DWORD][64]`.
    pub(super) keys: Vec<u32>,
    /// For each 64 components: `[64 / PER_DWORD][64]`.
    pub(super) values: Vec<u32>,
}

/// The dwords that [`TilePanels`] has room for, in f32.
pub(super) const fn room(head_dim: usize) -> usize {
    NR * head_dim + NR * head_dim.next_multiple_of(NR)
}

impl TilePanels {
    /// Makes room for heads of `head_dim` components.
    pub(super) fn fit(&mut self, head_dim: usize) {
        let values = NR * head_dim.next_multiple_of(NR);
        for (panels, len) in [(&mut self.keys, NR * head_dim), (&mut self.values, values)] {
            panels.resize(panels.len().max(len), 0);
        }
    }

    /// Packs rows, `(key, value)`, into columns from `first` on.
    fn put_rows<'k, E: KvElement>(
        &mut self,
        isa: Supported,
        first: usize,
        rows: impl Iterator<Item = (&'k [E], &'k [E])>,
    ) {
        let (mut keys, mut values, mut count) = ([[].as_slice(); NR], [[].as_slice(); NR], 0);
        for (key, value) in rows {
            (keys[count], values[count]) = (key, value);
            count += 1;
        }
        let (keys, values) = (&keys[..count], &mut values[..count]);
        let mut panels = Panels {
            dwords: &mut self.keys,
            width: NR,
        };
        panels.put_keys(isa, first, keys);
        for dwords in self.values.chunks_exact_mut(NR / E::PER_DWORD * NR) {
            let mut part = [[].as_slice(); NR];
            for (part, rest) in part.iter_mut().zip(values.iter_mut()) {
                (*part, *rest) = rest.split_at(rest.len().min(NR));
            }
            if part[0].is_empty() {
                break;
            }
            let mut panels = Panels { dwords, width: NR };
            panels.put_values(isa, first, &part[..count]);
        }
    }

    /// Copies `columns` of a block of `size` positions to columns from `first` on.
    fn put_block<E: KvElement>(
        &mut self,
        block: HeadPanels<'_>,
        size: usize,
        columns: Range<usize>,
        first: usize,
    ) {
        let lines = block
            .keys
            .chunks_exact(size)
            .zip(self.keys.chunks_exact_mut(NR));
        if columns.len() == GROUP {
            // Most blocks: one vector of a known length.
            for (from, to) in lines {
                let from = from[columns.start..].first_chunk::<GROUP>();
                let to = to[first..].first_chunk_mut::<GROUP>();
                if let (Some(from), Some(to)) = (from, to) {
                    *to = *from;
                }
            }
        } else {
            for (from, to) in lines {
                to[first..][..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
        }
        let per = E::PER_DWORD;
        let dim = block.values.len() / (size / per);
        let from = block.values.chunks_exact(dim).skip(columns.start / per);
        for (i, from) in from.take(columns.len().div_ceil(per)).enumerate() {
            for (j, from) in from.chunks(NR).enumerate() {
                let line = j * NR / per + first / per + i;
                self.values[line * NR..][..from.len()].copy_from_slice(from);
            }
        }
    }
}

impl<E: KvElement> Attention<'_, E> {
    /// Puts the keys and values of `positions` in place.
    pub(super) fn fill(
        &self,
        isa: Supported,
        queries: &Queries<'_>,
        (layout, cursor): (&StepLayout, &mut usize),
        positions: Range<u32>,
        panels: &mut TilePanels,
    ) {
        let start = positions.start;
        for_runs(
            layout,
            queries.path,
            cursor,
            positions,
            |position, location, count| {
                let lane = (position - start) as usize;
                match (location, self.kv.panels()) {
                    (KvLocation::Slot(slot), Some(size)) => {
                        let block = self.kv.head(self.layer, slot / size, queries.kv_head);
                        let columns = slot % size..slot % size + count;
                        panels.put_block::<E>(block, size, columns, lane);
                    }
                    _ => {
                        let rows = (0..count).map(|i| self.head(location, i, queries.kv_head));
                        panels.put_rows(isa, lane, rows);
                    }
                }
            },
        );
    }
}
